"""Moves that several methods share: functions, so that a method file reads like its paper's algorithm."""

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn import functional

from endocil.components.losses import Outcome, distillation
from endocil.data.batches import Batch
from endocil.data.scenario import Task
from endocil.errors import EndocilError
from endocil.methods.base import Method, Schedule, TaskData

# names of the objectives that first tasks share (Phase.shared)
CROSS_ENTROPY, PRIOR = "cross-entropy", "cross-entropy with prior"
PYCIL = Schedule(epochs=200, milestones=(60, 120, 170), weight_decay=5e-4, batch_size=128)  # its first task


def pycil_later(epochs: int, milestones: tuple[int, ...]) -> Schedule:
    """PyCIL's schedule of a later task."""
    return Schedule(epochs=epochs, milestones=milestones, weight_decay=2e-4, batch_size=128)


def frozen_copy(*modules: nn.Module) -> nn.Sequential:
    """The network of this moment, one module after the other, as a teacher: it gives logits, and never learns."""
    teacher = nn.Sequential(*map(copy.deepcopy, modules))
    return teacher.requires_grad_(False).eval()


def distilled(
    method: Method,
    teacher: nn.Module | None,
    classification: Callable[[Tensor, Batch], Tensor],
    distil: Callable[[Tensor, Tensor], Tensor],
) -> Callable[[Batch], Outcome]:
    """The objective of a network that learns labels and, where there is a teacher, holds on to its answers."""

    def objective(batch: Batch) -> Outcome:
        features = method.embed(batch.images)
        logits = method.classify(features)
        losses = {"classification": classification(logits, batch)}
        if teacher is not None:
            losses["distillation"] = distil(logits, taught(teacher, batch))
        return Outcome(losses, logits, features)

    return objective


@torch.no_grad()
def taught(teacher: nn.Module, batch: Batch) -> Tensor:
    """The teacher's logits for a batch."""
    return teacher(batch.images)  # type: ignore[no-any-return]


def cross_entropy_on_new(task: Task, data: TaskData) -> Callable[[Tensor, Tensor], Tensor]:
    """Cross-entropy over the new classes alone, one per image: old logits are not pushed down.

    Over a single logit it would be 0 for ever, and images of known classes have no place in it: such tasks take
    all seen logits (`whole_softmax_note` says so).
    """
    if task.index == 0 or _needs_all_classes(task, data):
        return lambda logits, labels: functional.cross_entropy(logits, labels, reduction="none")
    return lambda logits, labels: functional.cross_entropy(
        logits[:, task.new], labels - task.n_old, reduction="none"
    )


def whole_softmax_note(task: Task, data: TaskData) -> list[str]:
    reason = _needs_all_classes(task, data)
    return [f"{reason}: cross-entropy over all seen classes"] if task.index > 0 and reason else []


def _needs_all_classes(task: Task, data: TaskData) -> str:
    if task.n_new == 1:
        return "one new class, and over one class the loss would be 0 for ever"
    return "images of known classes" if bool((data.new.labels < task.n_old).any()) else ""


def by_share(
    task: Task, temperature: float
) -> tuple[Callable[[Tensor, Batch], Tensor], Callable[[Tensor, Tensor], Tensor]]:
    """Cross-entropy and distillation, weighed by the shares of new and of old classes (BiC, WA)."""
    share = old_share(task)

    def classification(logits: Tensor, batch: Batch) -> Tensor:
        return (1.0 - share) * functional.cross_entropy(logits, batch.labels, reduction="none")

    def distil(logits: Tensor, taught: Tensor) -> Tensor:
        return share * distillation(logits, taught, temperature)

    return classification, distil


def shared_first(task: Task, name: str = CROSS_ENTROPY) -> str:
    """Phase.shared of a method whose first task is this objective and nothing more."""
    return name if task.index == 0 else ""


def old_share(task: Task) -> float:
    """C_old / C: how much of the loss distillation takes in BiC and WA."""
    return task.n_old / task.n_seen


@torch.no_grad()
def align(classifier: nn.Linear, task: Task, factor: float = 1.0) -> None:
    """Make the new classes' rows as long as the old ones' on average (Zhao et al., CVPR 2020); biases stay."""
    classifier.weight[task.new] *= factor * alignment(classifier, task)


def alignment(classifier: nn.Linear, task: Task) -> Tensor:
    """Mean length of the old classes' rows over that of the new ones'."""
    lengths: Tensor = classifier.weight.detach().norm(dim=1)  # (n_seen,)
    return lengths[task.old].mean() / lengths[task.new].mean()


@contextmanager
def evaluating(*modules: nn.Module) -> Iterator[None]:
    """Put modules into eval mode for a moment: batch norm uses its statistics and leaves them alone."""
    modes = [(part, part.training) for module in modules for part in module.modules()]
    for module in modules:
        module.eval()
    try:
        yield
    finally:
        for part, training in modes:
            part.training = training


def refuse_unknown(option: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise EndocilError(f"method.{option} is '{value}'; known: {', '.join(known)}")


def refuse_temperature(value: float) -> None:
    refuse_outside("temperature", value, value > 0, "a number above 0 (the default is 2)")


def refuse_outside(option: str, value: float, inside: bool, expected: str) -> None:
    if not inside:
        raise EndocilError(f"method.{option} is {value}; expected {expected}")
