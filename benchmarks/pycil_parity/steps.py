"""One training step on both sides: the loss and the gradient of every parameter, PyCIL's and ours, in float64.

Both sides live through a first task of three classes and a second one of two, with the same weights and batches
(sides.py). Prints a Markdown table; fails where a row that has a target misses it.
"""

import argparse
import copy
import importlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import peer
import torch
from sides import (
    FIRST,
    PLAIN,
    QUOTA,
    SECOND,
    STILL,
    WALK,
    WIDTH,
    Manager,
    Pace,
    Step,
    for_pycil,
    inside_pycil,
    learn,
    load,
    our_method,
    our_steps,
    pairs,
    pictures,
    schedule,
    task_data,
    their_learner,
)
from torch import Tensor, nn

from endocil.data.batches import training_batches
from endocil.data.cache import Images
from endocil.learning.features import class_means, outputs_of
from endocil.learning.memory import ExemplarMemory, build_selector
from endocil.methods import Method
from endocil.methods.base import TaskData

TARGET = 1e-6  # relative
Values = Sequence[tuple[Tensor, Tensor]]  # ours and PyCIL's


@dataclass(frozen=True)
class Case:
    """A method with its options; `steps` are the phases shown, `patch` changes the peer first."""

    method: str
    steps: Mapping[int, str]
    options: Mapping[str, Any] = field(default_factory=dict)
    patch: Callable[[Any, Manager], None] = lambda learner, manager: None
    target: bool = True  # false: a known, deliberate difference is measured


@dataclass(frozen=True)
class Row:
    case: Case
    what: str
    values: Values
    losses: tuple[float, float] | None = None

    @property
    def difference(self) -> float:
        return max(float((mine.double() - theirs.double()).abs().max()) for mine, theirs in self.values)

    @property
    def relative(self) -> float:
        """To the largest of PyCIL's values."""
        return self.difference / max(float(theirs.abs().max()) for _, theirs in self.values)

    @property
    def missed(self) -> bool:
        ours, theirs = self.losses or (1.0, 1.0)
        close = self.relative <= TARGET and abs(ours - theirs) <= TARGET * abs(theirs)
        return self.case.target and not close

    def __str__(self) -> str:
        losses = " | ".join(f"{loss:.10g}" for loss in self.losses) if self.losses else "- | -"
        verdict = ("MISSED" if self.missed else "met") if self.case.target else "known difference"
        numbers = f"{self.difference:.1e} | {self.relative:.1e}"
        return f"| {self.case.method} | {self.what} | {losses} | {numbers} | {verdict} |"


def keep_batch_norm(learner: Any, manager: Manager) -> None:
    """PyCIL's second stage of BiC with the frozen backbone in eval mode."""
    correct, convnet = learner._stage2_bias_correction, learner._network.convnet

    def frozen(*loaders: Any) -> None:
        convnet.train = lambda mode=True: nn.Module.train(convnet, False)
        correct(*loaders)

    learner._stage2_bias_correction = frozen


def add_up_positions(learner: Any, manager: Manager) -> None:
    """PyCIL's own count of a class's images, which adds up their positions."""
    count = importlib.import_module("utils.data_manager").DataManager.getlen
    manager.getlen = lambda index: count(SimpleNamespace(_train_targets=manager.labels), index)  # type: ignore[method-assign]


ONE = {0: "step"}
BIC, FOSTER = {0: "first stage", 1: "second stage"}, {0: "boosting", 1: "compression"}
MOVING = {1: "second stage, PyCIL's batch norm moves"}
COUNTED = {phase: f"{stage}, PyCIL's own class counts" for phase, stage in FOSTER.items()}
CASES = (
    Case("icarl", ONE),
    Case("wa", ONE),
    Case("der", ONE),
    Case("lwf", ONE),
    Case("ewc", ONE, {"fisher": "pycil"}),
    Case("ewc", ONE, target=False),
    Case("bic", BIC, {"second_stage": "pycil"}, keep_batch_norm),
    Case("bic", MOVING, {"second_stage": "pycil"}, target=False),
    Case("bic", {1: BIC[1]}, target=False),
    Case("foster", FOSTER),
    Case("foster", COUNTED, patch=add_up_positions, target=False),
)


@dataclass(frozen=True)
class Lives:
    """Both sides after two tasks."""

    method: Method
    learner: Any  # PyCIL's
    manager: Manager
    data: TaskData  # of the second task
    ours: Sequence[Step]
    theirs: Sequence[Step]
    first_fisher: Values


def live(case: Case, images: Images, pace: Pace) -> Lives:
    """Ours learns the first task, and PyCIL gets its weights; both learn the second one at this pace."""
    name, method = case.method, our_method(case.method, case.options)
    first, second = (task_data(images, task, replay=method.replay) for task in (FIRST, SECOND))
    learner, manager = their_learner(name, pace), Manager(images)
    remember, learner.build_rehearsal_memory = learner.build_rehearsal_memory, lambda manager, per_class: None
    case.patch(learner, manager)

    learn(method, FIRST, first)
    # the batches by which our EWC measures its Fisher
    seen = training_batches(first.new, schedule(FIRST).batch_size, PLAIN, 0, (0, "fisher"), method.device)
    manager.train, before = for_pycil(list(seen)), copy.deepcopy(method)
    method.consolidate(FIRST, first)
    with inside_pycil(learner, before, name):
        learner.incremental_train(manager)
        load(pairs(name, method, learner))
        learner.after_task()
    first_fisher = fisher(case, method, learner)

    learn(method, SECOND, second)
    before = copy.deepcopy(method)
    ours, batches = our_steps(method, second, pace, cosine=name == "foster")
    method.consolidate(SECOND, second)
    manager.train, manager.held_out = for_pycil(batches[:1]), for_pycil(batches[1:])
    with inside_pycil(learner, before, name) as theirs:
        learner.incremental_train(manager)
    learner.build_rehearsal_memory = remember
    return Lives(method, learner, manager, second, ours, theirs, first_fisher)


def compare(case: Case, images: Images) -> Iterator[Row]:
    """Gradients of one step and what follows from it; then everything that moved in several steps."""
    options = ", ".join(f"{key} = {value}" for key, value in case.options.items())
    suffix = f" ({options})" if options else ""
    still = live(case, images, STILL)
    for what, values in {
        "Fisher, first task": still.first_fisher,
        "Fisher, second task": fisher(case, still.method, still.learner),
    }.items():
        if values:
            yield Row(case, what + suffix, values)
    for phase, what in case.steps.items():
        losses = (still.ours[phase].loss, still.theirs[phase].loss)
        yield Row(case, f"{what}: gradients{suffix}", gradients(case, still, phase), losses)
    if not case.target:
        return
    if still.method.replay:
        chosen, means = exemplars(still)
        yield Row(case, "exemplars, in order", [chosen])
        yield Row(case, "class means, float32", [means])
    values = states(case, live(case, images, WALK))
    yield Row(case, f"{WALK.epochs} steps of each phase: weights and batch norm{suffix}", values)


def gradients(case: Case, lives: Lives, phase: int) -> Values:
    same = {
        mine.get_parameter(key): parameter
        for mine, theirs in pairs(case.method, lives.method, lives.learner)
        for key, parameter in theirs.named_parameters()
    }
    theirs = lives.theirs[phase].gradients
    return [(gradient, theirs[same[key]]) for key, gradient in lives.ours[phase].gradients.items()]


def states(case: Case, lives: Lives) -> Values:
    """All weights and batch-norm statistics, learned or not."""
    return [
        (value, theirs.state_dict()[key])
        for mine, theirs in pairs(case.method, lives.method, lives.learner)
        for key, value in mine.state_dict().items()
        if not key.endswith("num_batches_tracked")
    ]


def fisher(case: Case, method: Method, learner: Any) -> Values:
    if case.method != "ewc":
        return []
    ours = {"convnet": "backbone", "fc": "classifier"}
    split = {key: key.split(".", 1) for key in learner.fisher}
    names = {key: f"fisher/{ours[module]}.{rest}" for key, (module, rest) in split.items()}
    return [(method.statistics[names[key]], value) for key, value in learner.fisher.items()]


def exemplars(lives: Lives) -> Values:
    """The new classes' exemplars in their order, as positions among the images; and the means of all classes."""
    method, learner, old = lives.method, lives.learner, lives.data.exemplars
    learner._data_memory, learner._targets_memory = old.rows.numpy(), old.labels.numpy()
    learner.build_rehearsal_memory(lives.manager, QUOTA)
    theirs = torch.from_numpy(learner._data_memory[len(old) :].astype(np.int64))

    new = lives.data.new
    size = new.gather(torch.arange(1)).shape[1]
    memory = ExemplarMemory(per_class=QUOTA, select=build_selector(method.default_selector, {}), size=size)
    seen = outputs_of(method, new, 1000, for_selection=True)
    _, places = memory.choose(new, seen.for_selection, seen.logits, new.classes(), SECOND.index)
    kept = old + new.take(places)
    means = class_means(outputs_of(method, kept, 1000, for_selection=True).features, kept.labels, SECOND.n_seen)
    return [(new.rows[places], theirs), (means, torch.from_numpy(learner._class_means))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pycil", type=Path, required=True, help="checkout of PyCIL")
    parser.add_argument("--methods", nargs="+", default=sorted({case.method for case in CASES}))
    options = parser.parse_args()
    torch.set_num_threads(1)
    peer.open_pycil(options.pycil)
    peer.use_convnet(lambda: peer.Convnet(width=WIDTH))
    images = pictures()
    rows = [row for case in CASES if case.method in options.methods for row in compare(case, images)]
    print("| method | what | loss, endocil | loss, PyCIL | max abs. difference | relative | target 1e-6 |")
    print("|---|---|---|---|---|---|---|", *rows, sep="\n")
    sys.exit(any(row.missed for row in rows))


if __name__ == "__main__":
    main()
