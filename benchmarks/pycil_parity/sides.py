"""The two sides of a step: our method and PyCIL's learner, on the same pictures, with the same weights, in float64.

Each side runs its own code: ours is training.fit, PyCIL's is the learner's incremental_train. At learning rate 0
the weights stay where they are and gradients are left behind; at another one both sides walk.
"""

import contextlib
import importlib
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import peer
import torch
from torch import Tensor, nn

from endocil.components.losses import Outcome
from endocil.data.augment import Augmentation, normalise
from endocil.data.batches import Batch, ImageSet
from endocil.data.cache import Images
from endocil.data.scenario import Task
from endocil.data.seeding import generator
from endocil.data.table import ImageTable
from endocil.learning.parallel import OneProcess
from endocil.learning.training import fit
from endocil.methods import METHODS, Method
from endocil.methods.base import Phase, Schedule, TaskData
from endocil.networks.resnet import ResNet18, initialise

WIDTH, SIZE, QUOTA = 8, 64, 10
COUNTS = (12, 16, 20, 14, 11)  # training images of each class
FIRST, SECOND = Task(0, 0, 3), Task(1, 3, 2)
DECAY = 2e-4  # PyCIL's weight decay in later tasks
PLAIN = Augmentation(flip=0.0, brightness=0.0)  # augmentation is part of runs.py

Modules = list[tuple[nn.Module, nn.Module]]  # (ours, PyCIL's), with the same parameter names


@dataclass(frozen=True)
class Pace:
    """How the second task is learned, one batch an epoch."""

    epochs: int
    rate: float


STILL, WALK = Pace(1, 0.0), Pace(3, 0.003)


@dataclass(frozen=True)
class Step:
    """What one backward pass left behind."""

    loss: float
    gradients: Mapping[nn.Parameter, Tensor]


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
    """The task's images and, for methods that keep some, the first of each old class."""
    labels = torch.from_numpy(images.table.labels.copy())
    new = torch.nonzero((labels >= task.n_old) & (labels < task.n_seen)).flatten()
    kept = [torch.nonzero(labels == label).flatten()[:QUOTA] for label in range(task.n_old if replay else 0)]
    rows = torch.cat([torch.empty(0, dtype=torch.int64), *kept])
    return TaskData(ImageSet.of(images, new), ImageSet.of(images, rows, from_memory=True), PLAIN)


def schedule(task: Task) -> Schedule:
    """Several batches in the first task (for EWC's Fisher), one in the second (for the step)."""
    size = 16 if task.index == 0 else 1000
    return Schedule(epochs=5, learning_rate=0.003, milestones=(), weight_decay=DECAY, batch_size=size)


def our_method(name: str, options: Mapping[str, Any]) -> Method:
    backbone = ResNet18(width=WIDTH)
    initialise(backbone, generator(0, "backbone"))
    # images are float32 everywhere in the package
    backbone.register_forward_pre_hook(lambda module, inputs: (inputs[0].double(), *inputs[1:]))
    return METHODS[name](backbone, schedule=schedule, **options)


def learn(method: Method, task: Task, data: TaskData) -> None:
    """Grow, and learn for a while, so that student and teacher differ."""
    method.grow(task)
    method.double()
    for index, phase in enumerate(method.phases(task, data)):
        _train(method, task, index, phase)


def _train(method: Method, task: Task, index: int, phase: Phase) -> Mapping[nn.Parameter, Tensor]:
    """All epochs of a phase; the gradients of the last step."""
    learned = [parameter for module in phase.train for parameter in module.parameters()]
    gradients: dict[nn.Parameter, Tensor] = {}
    fabric = OneProcess()
    where: dict[str, Any] = {"seed": 0, "key": (task.index, index), "logged_head": method.classifier}
    for _ in fit(phase, method, fabric=fabric, augmentation=PLAIN, **where):
        gradients = {parameter: parameter.grad.clone() for parameter in learned if parameter.grad is not None}
    return gradients


def our_steps(method: Method, data: TaskData, pace: Pace, *, cosine: bool) -> tuple[list[Step], list[Batch]]:
    """Each phase of the second task: what its last step left behind, and the batch it saw."""
    steps, batches = [], []
    for index, phase in enumerate(method.phases(SECOND, data)):
        seen: list[tuple[Batch, Outcome]] = []

        def objective(batch: Batch, phase: Phase = phase, seen: list[tuple[Batch, Outcome]] = seen) -> Outcome:
            seen.append((batch, phase.objective(batch)))
            return seen[-1][1]

        paced = replace(phase.schedule, epochs=pace.epochs, learning_rate=pace.rate, cosine=cosine)
        gradients = _train(method, SECOND, index, replace(phase, schedule=paced, objective=objective))
        batch, outcome = seen[-1]
        loss = sum(float(part.detach().mean()) for part in outcome.losses.values())
        steps.append(Step(loss, gradients))
        batches.append(batch)
    return steps, batches


class Manager:
    """Stands where PyCIL's data manager stands: hands out the batches that our loop saw; images are row numbers."""

    def __init__(self, images: Images) -> None:
        self.images, self.labels = images, images.table.labels
        self.train: list[Any] = []
        self.held_out: list[Any] = []

    def get_task_size(self, task: int) -> int:
        return (FIRST, SECOND)[task].n_new

    def get_dataset(self, classes: Sequence[int], source: str, mode: str, **options: Any) -> Any:
        if source == "test" or mode == "train":
            return self.train
        kept = options.get("appendent")
        rows = np.flatnonzero(np.isin(self.labels, classes)) if kept is None else kept[0].astype(np.int64)
        pixels = normalise(self.images.gather(torch.from_numpy(rows))).double()
        batches = [(torch.arange(len(rows)), pixels, torch.from_numpy(self.labels[rows]))]
        return (rows, self.labels[rows], batches) if options.get("ret_data") else batches

    def get_dataset_with_split(self, *given: Any, **named: Any) -> tuple[list[Any], list[Any]]:
        return self.train, self.held_out

    def getlen(self, index: int) -> int:
        return COUNTS[index]


def for_pycil(batches: Sequence[Batch]) -> list[Any]:
    return [(torch.arange(len(batch)), batch.images.double(), batch.labels) for batch in batches]


def their_learner(name: str, pace: Pace) -> Any:
    """PyCIL's learner, still in the first task, which takes batches as they are given."""
    later, first = {"lrate": pace.rate, "epochs": pace.epochs}, {"init_lr": 0.0, "init_epoch": 1}
    constants = {"bic": later, "foster": {}}.get(name, {**later, **first})
    rates = {"lr": pace.rate, "init_lr": 0.0, "weight_decay": DECAY, "init_weight_decay": 0.0}
    epochs = {"init_epochs": 1, "boosting_epochs": pace.epochs, "compression_epochs": pace.epochs}
    memory = {"fixed_memory": True, "memory_per_class": QUOTA}
    with _float64():
        learner, module = peer.learner(name, constants, **rates, **epochs, **memory, batch_size=1, num_workers=0)
    for file in (module, importlib.import_module("models.base")):
        file.DataLoader = lambda batches, **options: batches  # type: ignore[attr-defined]
    return learner


def pairs(name: str, ours: Any, learner: Any) -> Modules:
    network = learner._network
    if name == "der":
        branches = zip((ours.backbone, *ours.branches), network.convnets, strict=True)
        heads = [(ours.classifier, network.fc), (ours.auxiliary, network.aux_fc)]
        return [*branches, *(head for head in heads if head[0] is not None)]
    if name == "foster":
        return _of_foster(ours, learner)
    found = [(ours.backbone, network.convnet), (ours.classifier, network.fc)]
    return [*found, *zip(ours.corrections, network.bias_layers, strict=True)] if name == "bic" else found


def _of_foster(ours: Any, learner: Any) -> Modules:
    network, boosted = learner._network, ours.teacher
    if boosted is None:
        return _single(ours, network)
    mine = (*boosted.old, boosted.new_backbone, boosted.classifier, boosted.expansion)
    (old, new), heads = network.convnets, (network.fc, network.fe_fc)
    student = [] if learner._snet is None else _single(ours, learner._snet)
    return [*zip(mine, (old, network.oldfc, new, *heads), strict=True), *student]


def _single(ours: Any, network: Any) -> Modules:
    return [(ours.backbone, network.convnets[0]), (ours.classifier, network.fc)]


def load(modules: Modules) -> None:
    for mine, theirs in modules:
        theirs.load_state_dict(mine.state_dict())


@contextlib.contextmanager
def inside_pycil(learner: Any, ours: Method, name: str) -> Iterator[list[Step]]:
    """In float64 and silent; the weights of ours arrive after growth; every backward pass is recorded."""
    steps: list[Step] = []
    network, foster = learner._network, importlib.import_module("utils.inc_net").FOSTERNet
    update, copy_fc = network.update_fc, foster.copy_fc
    backward: Any = torch.Tensor.backward

    def updated(n_classes: int) -> None:
        update(n_classes)
        load(pairs(name, ours, learner))

    def copied(student: Any, classifier: nn.Module) -> None:
        """FOSTER makes its student in the middle of a task."""
        copy_fc(student, classifier)
        load(_single(ours, student))

    def recorded(loss: Tensor) -> None:
        backward(loss)
        networks = [made for made in (learner._network, getattr(learner, "_snet", None)) if made is not None]
        parameters = [parameter for made in networks for parameter in made.parameters()]
        found = {parameter: parameter.grad.clone() for parameter in parameters if parameter.grad is not None}
        steps.append(Step(float(loss.detach()), found))

    silence, changed = io.StringIO(), {"update_fc": updated, "copy_fc": copied, "backward": recorded}
    places = {"update_fc": network, "copy_fc": foster, "backward": torch.Tensor}
    try:
        for key, place in places.items():
            setattr(place, key, changed[key])
        with _float64(), contextlib.redirect_stdout(silence), contextlib.redirect_stderr(silence):
            yield steps
    finally:
        network.update_fc, foster.copy_fc, torch.Tensor.backward = update, copy_fc, backward  # type: ignore[method-assign]


@contextlib.contextmanager
def _float64() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)
