"""One training step on both sides: the loss and the gradient of every parameter, PyCIL's and ours, in float64.

Both sides live through a first task of three classes and a second one of two. The weights of ours are copied into
PyCIL; then each side runs its own code on the same batch at learning rate 0, so that the gradients stay behind:
ours is training.fit, PyCIL's is the learner's incremental_train. Prints a Markdown table; fails where a row that
has a target misses it.
"""

import argparse
import contextlib
import copy
import importlib
import io
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import peer
import torch
from lightning_fabric import Fabric
from torch import Tensor, nn

from endocil.images.augment import Augmentation
from endocil.images.batch import ImageSet, training_batches
from endocil.images.cache import Images
from endocil.images.table import ImageTable
from endocil.methods import METHODS, Method
from endocil.methods.method import Batch, Outcome, Phase, Schedule, Task, TaskData
from endocil.networks.resnet import ResNet18, initialise
from endocil.randomness import generator
from endocil.training import fit

TARGET = 1e-6
WIDTH, SIZE, QUOTA = 8, 64, 10
COUNTS = (12, 16, 20, 14, 11)  # training images of each class
FIRST, SECOND = Task(0, 0, 3), Task(1, 3, 2)
PLAIN = Augmentation(flip=0.0, brightness=0.0)  # runs.py is about augmentation
Gradients = Mapping[nn.Parameter, Tensor]


@dataclass(frozen=True)
class Step:
    """What one backward pass left behind."""

    loss: float
    gradients: Gradients


@dataclass(frozen=True)
class Row:
    method: str
    what: str
    ours: float  # loss
    theirs: float
    difference: float  # largest absolute one of all gradients (or other values compared)
    relative: float  # that over the largest gradient
    target: bool

    @property
    def missed(self) -> bool:
        within = self.relative <= TARGET and abs(self.ours - self.theirs) <= TARGET * abs(self.theirs)
        return self.target and not within


@dataclass(frozen=True)
class Case:
    """A method with its options; `patch` changes the peer, `phases` says which steps are shown, and as what."""

    method: str
    phases: Mapping[int, str]
    options: Mapping[str, Any] = field(default_factory=dict)
    patch: Callable[[Any, Any], None] = lambda learner, manager: None
    target: bool = True


def keep_batch_norm(learner: Any, manager: Any) -> None:
    """PyCIL's second stage of BiC with the frozen backbone in eval mode."""
    correct, convnet = learner._stage2_bias_correction, learner._network.convnet

    def frozen(*loaders: Any) -> None:
        convnet.train = lambda mode=True: nn.Module.train(convnet, False)
        correct(*loaders)

    learner._stage2_bias_correction = frozen


def count_by_indices(learner: Any, manager: Any) -> None:
    """PyCIL's own count of a class's images, which adds up their positions."""
    count = importlib.import_module("utils.data_manager").DataManager.getlen
    stored = SimpleNamespace(_train_targets=np.repeat(np.arange(len(COUNTS)), COUNTS))
    manager.getlen = lambda index: count(stored, index)


BIC, FOSTER = {0: "first stage", 1: "second stage"}, {0: "boosting", 1: "compression"}
AGAIN = {"second_stage": "pycil"}
CASES = (
    Case("icarl", {0: "step"}),
    Case("wa", {0: "step"}),
    Case("der", {0: "step"}),
    Case("lwf", {0: "step"}),
    Case("ewc", {0: "step, fisher = pycil"}, {"fisher": "pycil"}),
    Case("ewc", {0: "step, default Fisher"}, target=False),
    Case("bic", BIC, AGAIN, keep_batch_norm),
    Case("bic", {1: "second stage, PyCIL's moving batch norm"}, AGAIN, target=False),
    Case("bic", {1: "second stage, default"}, target=False),
    Case("foster", FOSTER),
    Case(
        "foster",
        {phase: f"{name}, PyCIL's own class counts" for phase, name in FOSTER.items()},
        patch=count_by_indices,
        target=False,
    ),
)


def pictures() -> Images:
    """Noise on a colour for each class."""
    labels = np.repeat(np.arange(len(COUNTS)), COUNTS)
    random = np.random.default_rng(0)
    colours = random.uniform(60, 190, (len(COUNTS), 1, 1, 3))
    noise = random.normal(0, 30, (len(labels), SIZE, SIZE, 3))
    pixels = (colours[labels] + noise).clip(0, 255).astype(np.uint8)
    names, empty = tuple(f"class {i}" for i in range(len(COUNTS))), ("",) * len(labels)
    reader: Any = None  # the pixels are here
    table = ImageTable(tuple(map(str, range(len(labels)))), labels, names, reader, empty, empty)
    return Images(table, torch.from_numpy(pixels), torch.arange(len(labels)), ())


def task_data(images: Images, task: Task, *, replay: bool) -> TaskData:
    labels = torch.from_numpy(images.table.labels.copy())
    new = torch.nonzero((labels >= task.n_old) & (labels < task.n_seen)).flatten()
    kept = [torch.nonzero(labels == label).flatten()[:QUOTA] for label in range(task.n_old if replay else 0)]
    rows = torch.cat([torch.empty(0, dtype=torch.int64), *kept])
    return TaskData(ImageSet.of(images, new), ImageSet.of(images, rows, from_memory=True), PLAIN)


def schedule(task: Task) -> Schedule:
    """Several batches in the first task (for the Fisher), one in the second (for the step)."""
    return Schedule(epochs=5, learning_rate=0.003, milestones=(), batch_size=16 if task.index == 0 else 1000)


def our_method(name: str, options: Mapping[str, Any]) -> Method:
    backbone = ResNet18(width=WIDTH)
    initialise(backbone, generator(0, "backbone"))
    # images are float32 everywhere in the package; the parity is measured in float64
    backbone.register_forward_pre_hook(lambda module, inputs: (inputs[0].double(), *inputs[1:]))
    return METHODS[name](backbone, schedule=schedule, **options)


def train(method: Method, task: Task, index: int, phase: Phase) -> None:
    for _ in fit(
        phase,
        method,
        fabric=Fabric(accelerator="cpu", devices=1),
        augmentation=PLAIN,
        seed=0,
        key=(task.index, index),
        observe=method.classifier,
    ):
        pass


def grow(method: Method, task: Task, data: TaskData) -> None:
    """Grow and learn for a while, so that student and teacher differ."""
    method.grow(task)
    method.double()
    for index, phase in enumerate(method.phases(task, data)):
        train(method, task, index, phase)


def our_steps(method: Method, data: TaskData) -> tuple[list[Step], list[Batch]]:
    """Each phase of the second task: one step of our loop at learning rate 0, and the batch it saw."""
    steps, batches = [], []
    for index, phase in enumerate(method.phases(SECOND, data)):
        seen: list[tuple[Batch, Outcome]] = []

        def objective(batch: Batch, phase: Phase = phase, seen: list[Any] = seen) -> Outcome:
            seen.append((batch, phase.objective(batch)))
            return seen[-1][1]

        still = replace(phase.schedule, epochs=1, learning_rate=0.0)
        train(method, SECOND, index, replace(phase, schedule=still, objective=objective))
        ((batch, outcome),) = seen
        loss = sum(float(part.detach().mean()) for part in outcome.losses.values())
        learned = [parameter for module in phase.train for parameter in module.parameters()]
        steps.append(Step(loss, {parameter: parameter.grad.clone() for parameter in learned}))
        batches.append(batch)
    return steps, batches


class Manager:
    """Stands where PyCIL's data manager stands: hands out the batches that our loop saw."""

    def __init__(self) -> None:
        self.batches: list[Any] = []
        self.held_out: list[Any] = []

    def get_task_size(self, task: int) -> int:
        return (FIRST, SECOND)[task].n_new

    def get_dataset(self, *given: Any, **named: Any) -> list[Any]:
        return self.batches

    def get_dataset_with_split(self, *given: Any, **named: Any) -> tuple[list[Any], list[Any]]:
        return self.batches, self.held_out

    def getlen(self, index: int) -> int:
        return COUNTS[index]


def for_pycil(batches: Sequence[Batch]) -> list[Any]:
    return [(torch.arange(len(batch)), batch.images.double(), batch.labels) for batch in batches]


def their_learner(name: str) -> Any:
    """PyCIL's learner at learning rate 0 for one epoch, on batches that are given; it chooses no exemplars."""
    rates = {"lrate": 0.0, "epochs": 1}
    first = {"init_lr": 0.0, "init_epoch": 1}
    constants = {"bic": rates, "foster": {}}.get(name, {**rates, **first})
    epochs = {f"{stage}_epochs": 1 for stage in ("init", "boosting", "compression")}
    rest = {"lr": 0.0, "init_lr": 0.0, "weight_decay": 0.0, "init_weight_decay": 0.0, "batch_size": 1, "num_workers": 0}
    with float64():
        learner, module = peer.learner(
            name, constants, fixed_memory=True, memory_per_class=QUOTA, **epochs, **rest
        )
    module.DataLoader = lambda batches, **options: batches
    learner.build_rehearsal_memory = lambda manager, per_class: None
    return learner


def pairs(name: str, ours: Any, learner: Any) -> list[tuple[nn.Module, nn.Module]]:
    """Modules of ours and PyCIL's that hold the same parameters under the same names."""
    network = learner._network
    if name == "der":
        found = [*zip((ours.backbone, *ours.branches), network.convnets, strict=True), (ours.classifier, network.fc)]
        return found if ours.auxiliary is None else [*found, (ours.auxiliary, network.aux_fc)]
    if name == "foster":
        if ours.teacher is None:
            return [(ours.backbone, network.convnets[0]), (ours.classifier, network.fc)]
        mine = (*ours.teacher.old, ours.teacher.new_backbone, ours.teacher.classifier, ours.teacher.expansion)
        return [
            *zip(mine, (network.convnets[0], network.oldfc, network.convnets[1], network.fc, network.fe_fc), strict=True),
            *student(ours, learner._snet),
        ]
    found = [(ours.backbone, network.convnet), (ours.classifier, network.fc)]
    return [*found, *zip(ours.corrections, network.bias_layers, strict=True)] if name == "bic" else found


def student(ours: Any, network: Any) -> list[tuple[nn.Module, nn.Module]]:
    """FOSTER's compressed network; PyCIL makes it in the middle of its step."""
    return [] if network is None else [(ours.backbone, network.convnets[0]), (ours.classifier, network.fc)]


def load(modules: Sequence[tuple[nn.Module, nn.Module]]) -> None:
    for mine, theirs in modules:
        theirs.load_state_dict(mine.state_dict())


@contextlib.contextmanager
def float64() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


@contextlib.contextmanager
def inside_pycil(learner: Any, ours: Method, name: str, steps: list[Step]) -> Iterator[None]:
    """In float64 and silent; weights of ours arrive after growth; every backward pass is recorded."""
    backward, network = torch.Tensor.backward, learner._network
    update, foster = network.update_fc, importlib.import_module("utils.inc_net").FOSTERNet
    copy_fc = foster.copy_fc

    def updated(n_classes: int) -> None:
        update(n_classes)
        load(pairs(name, ours, learner))

    def copied(compressed: Any, classifier: nn.Module) -> None:
        copy_fc(compressed, classifier)
        load(student(ours, compressed))

    def recorded(loss: Tensor) -> None:
        backward(loss)
        networks = [made for made in (learner._network, getattr(learner, "_snet", None)) if made is not None]
        parameters = [parameter for made in networks for parameter in made.parameters()]
        found = {parameter: parameter.grad.clone() for parameter in parameters if parameter.grad is not None}
        steps.append(Step(float(loss.detach()), found))

    silence = io.StringIO()
    network.update_fc, foster.copy_fc, torch.Tensor.backward = updated, copied, recorded  # type: ignore[method-assign]
    try:
        with float64(), contextlib.redirect_stdout(silence), contextlib.redirect_stderr(silence):
            yield
    finally:
        network.update_fc, foster.copy_fc, torch.Tensor.backward = update, copy_fc, backward  # type: ignore[method-assign]


def furthest(values: Sequence[tuple[Tensor, Tensor]]) -> tuple[float, float]:
    """Largest absolute difference, and the same over the largest value of PyCIL's."""
    difference = max(float((mine.double() - theirs.double()).abs().max()) for mine, theirs in values)
    return difference, difference / max(float(theirs.abs().max()) for _, theirs in values)


def compare(case: Case, images: Images) -> Iterator[Row]:
    name = case.method
    method = our_method(name, case.options)
    first, second = (task_data(images, task, replay=method.replay) for task in (FIRST, SECOND))
    learner, manager, theirs = their_learner(name), Manager(), list[Step]()
    case.patch(learner, manager)

    grow(method, FIRST, first)
    seen = training_batches(first.new, schedule(FIRST).batch_size, PLAIN, 0, (0, "fisher"), method.device)
    manager.batches = for_pycil(list(seen))
    before = copy.deepcopy(method)
    method.consolidate(FIRST, first)
    with inside_pycil(learner, before, name, theirs):
        learner.incremental_train(manager)
        yield from fishers(case, method, learner, "Fisher of the first task")
        load(pairs(name, method, learner))
        learner.after_task()

    grow(method, SECOND, second)
    before = copy.deepcopy(method)
    ours, batches = our_steps(method, second)
    manager.batches, manager.held_out = for_pycil(batches[:1]), for_pycil(batches[1:])
    theirs.clear()
    with inside_pycil(learner, before, name, theirs):
        learner.incremental_train(manager)
    same = {
        dict(mine.named_parameters())[key]: parameter
        for mine, other in pairs(name, method, learner)
        for key, parameter in other.named_parameters()
    }
    for phase, what in case.phases.items():
        values = [(mine, theirs[phase].gradients[same[key]]) for key, mine in ours[phase].gradients.items()]
        yield Row(name, what, ours[phase].loss, theirs[phase].loss, *furthest(values), case.target)
    method.consolidate(SECOND, second)
    yield from fishers(case, method, learner, "Fisher after the second task")
    if name in ("wa", "der"):
        aligned = [(method.classifier.weight.detach(), learner._network.fc.weight.detach())]
        yield Row(name, "aligned classifier", 0.0, 0.0, *furthest(aligned), case.target)


def fishers(case: Case, method: Method, learner: Any, what: str) -> Iterator[Row]:
    if case.method == "ewc":
        names = {
            **{f"convnet.{key}": f"backbone.{key}" for key, _ in method.backbone.named_parameters()},
            **{f"fc.{key}": f"classifier.{key}" for key in ("weight", "bias")},
        }
        values = [(method.statistics[f"fisher/{names[key]}"], value) for key, value in learner.fisher.items()]
        option = case.options.get("fisher", "default")
        yield Row("ewc", f"{what}, {option}", 0.0, 0.0, *furthest(values), case.target)


def table(rows: Sequence[Row]) -> str:
    lines = ["| method | what | loss, endocil | loss, PyCIL | max abs. difference | relative | target |", "|---" * 7 + "|"]
    for row in rows:
        losses = ("-", "-") if row.theirs == 0.0 else (f"{row.ours:.12g}", f"{row.theirs:.12g}")
        verdict = ("MISSED" if row.missed else "met") if row.target else "none: known difference"
        numbers = f"{row.difference:.1e} | {row.relative:.1e}"
        lines.append(f"| {row.method} | {row.what} | {losses[0]} | {losses[1]} | {numbers} | {verdict} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pycil", type=Path, required=True, help="checkout of PyCIL")
    parser.add_argument("--methods", nargs="+", default=sorted({case.method for case in CASES}))
    options = parser.parse_args()
    torch.set_num_threads(1)
    peer.open_pycil(options.pycil, lambda: peer.Convnet(width=WIDTH))
    images = pictures()
    rows = [row for case in CASES if case.method in options.methods for row in compare(case, images)]
    print(table(rows))
    sys.exit(any(row.missed for row in rows))


if __name__ == "__main__":
    main()
