"""What several methods use: PyCIL's schedules, the teacher and its objective, weight alignment, checks of options."""

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn import functional

from endocil.components.losses import Outcome, distillation
from endocil.data.batches import Batch
from endocil.data.scenario import Task
from endocil.errors import SettingsError
from endocil.methods.base import Method, Schedule, TaskData

# Names of first-task objectives: methods with the same one may reuse each other's first task (Phase.first_task_name).
CROSS_ENTROPY, CROSS_ENTROPY_WITH_PRIOR = "cross-entropy", "cross-entropy with prior"
PYCIL_FIRST_TASK = Schedule(epochs=200, milestones=(60, 120, 170), weight_decay=5e-4, batch_size=128)

LabelLoss = Callable[[Tensor, Batch], Tensor]  # logits and batch to one value per image
DistillationLoss = Callable[[Tensor, Tensor], Tensor]  # logits and the teacher's logits to one value per image


def pycil_schedule(epochs: int, milestones: tuple[int, ...]) -> Schedule:
    """PyCIL's schedule of a later task."""
    return Schedule(epochs=epochs, milestones=milestones, weight_decay=2e-4, batch_size=128)


def first_task_name(task: Task, name: str = CROSS_ENTROPY) -> str:
    """Of a method whose first task lowers this objective and nothing more; empty in later tasks."""
    return name if task.index == 0 else ""


def frozen_copy(*modules: nn.Module) -> nn.Sequential:
    """A teacher: copies of these modules, one after the other, that never learn."""
    teacher = nn.Sequential(*map(copy.deepcopy, modules))
    return teacher.requires_grad_(False).eval()


@torch.no_grad()
def teacher_output(teacher: nn.Module, batch: Batch) -> Tensor:
    """The teacher's logits for a batch."""
    return teacher(batch.images)  # type: ignore[no-any-return]


def cross_entropy(method: Method, logits: Tensor, batch: Batch) -> Tensor:
    """On the labels, one per image, with label smoothing and mixed images as the settings have them."""

    def loss(labels: Tensor) -> Tensor:
        return functional.cross_entropy(logits, labels, reduction="none", label_smoothing=method.label_smoothing)

    return batch.label_loss(loss)


def distillation_objective(
    method: Method, teacher: nn.Module | None, label_loss: LabelLoss, distillation_loss: DistillationLoss
) -> Callable[[Batch], Outcome]:
    """The loss on labels and, where there is a teacher, distillation from it."""

    def objective(batch: Batch) -> Outcome:
        features = method.embed(batch.images)
        logits = method.classify(features)
        losses = {"classification": label_loss(logits, batch)}
        if teacher is not None:
            losses["distillation"] = distillation_loss(logits, teacher_output(teacher, batch))
        return Outcome(losses, logits, features)

    return objective


def class_ratio_losses(
    method: Method, task: Task, data: TaskData, temperature: float
) -> tuple[LabelLoss, DistillationLoss]:
    """Cross-entropy times C_new / C and distillation times C_old / C (BiC, WA)."""
    old_ratio = old_class_ratio(task, data)

    def label_loss(logits: Tensor, batch: Batch) -> Tensor:
        return (1.0 - old_ratio) * cross_entropy(method, logits, batch)

    def distillation_loss(logits: Tensor, teacher_logits: Tensor) -> Tensor:
        return old_ratio * distillation(logits, teacher_logits, temperature)

    return label_loss, distillation_loss


def arriving_classes(task: Task, data: TaskData) -> int:
    """C_new in a weight of old against new classes: the new classes. A task without any brings images of known ones:
    then these, as otherwise the labels would weigh nothing and the teacher everything."""
    return task.n_new or len(data.new.classes())


def old_class_ratio(task: Task, data: TaskData) -> float:
    """C_old / C."""
    return (task.n_seen - arriving_classes(task, data)) / task.n_seen


def old_per_new_class(task: Task, data: TaskData) -> float:
    """C_old / C_new."""
    n_new = arriving_classes(task, data)
    return (task.n_seen - n_new) / n_new


def cross_entropy_on_new(method: Method, task: Task, data: TaskData) -> LabelLoss:
    """Cross-entropy over the new classes alone, one per image: old logits are not pushed down.

    Over a single logit it is always 0, and images of known classes have no place in it: such tasks use all seen
    logits (`all_classes_note` tells the log).
    """
    if task.index == 0 or _why_all_classes(task, data):
        return lambda logits, batch: cross_entropy(method, logits, batch)

    def label_loss(logits: Tensor, batch: Batch) -> Tensor:
        new, smoothing = logits[:, task.new], method.label_smoothing
        return batch.label_loss(
            lambda labels: functional.cross_entropy(
                new, labels - task.n_old, reduction="none", label_smoothing=smoothing
            )
        )

    return label_loss


def all_classes_note(task: Task, data: TaskData) -> list[str]:
    reason = _why_all_classes(task, data)
    return [f"{reason}: cross-entropy over all seen classes"] if task.index > 0 and reason else []


def _why_all_classes(task: Task, data: TaskData) -> str:
    if task.n_new == 1:
        return "one new class, and over one class the loss would be 0 for ever"
    return "images of known classes" if bool((data.new.labels < task.n_old).any()) else ""


@torch.no_grad()
def align(classifier: nn.Linear, task: Task, scale: float = 1.0) -> float:
    """Make the new classes' rows as long as the old ones' on average (Zhao et al., CVPR 2020), times `scale`; biases
    stay. Returns the factor that the rows were multiplied by: above 1 it lengthens them. Without new rows it is 1."""
    factor = scale * alignment_factor(classifier, task)
    classifier.weight[task.new] *= factor
    return float(factor)


def alignment_factor(classifier: nn.Linear, task: Task) -> Tensor:
    """Mean length of the old classes' rows over that of the new ones'; 1 where there are no new ones."""
    if not task.n_new:
        return classifier.weight.new_ones(())
    lengths: Tensor = classifier.weight.detach().norm(dim=1)  # (n_seen,)
    return lengths[task.old].mean() / lengths[task.new].mean()


def drop_last_relu(backbone: nn.Module) -> None:
    """For cosine classifiers: features of both signs, where the backbone can give them."""
    if hasattr(backbone, "drop_last_relu"):
        backbone.drop_last_relu()  # type: ignore[operator]


@contextmanager
def eval_mode(*modules: nn.Module) -> Iterator[None]:
    """Modules in eval mode for a while: batch norm uses its running statistics and does not update them."""
    modes = [(part, part.training) for module in modules for part in module.modules()]
    for module in modules:
        module.eval()
    try:
        yield
    finally:
        for part, training in modes:
            part.training = training


def check_choice(option: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise SettingsError(f"method.{option} is '{value}'; known: {', '.join(known)}")


def check_temperature(value: float) -> None:
    check_number("temperature", value, value > 0, "a number above 0 (the default is 2)")


def check_replay_batch(value: int | None) -> None:
    check_number("replay_batch", value or 0, value is None or value >= 1, "a number of exemplars, 1 or more")


def check_number(option: str, value: float, valid: bool, expected: str) -> None:
    if not valid:
        raise SettingsError(f"method.{option} is {value}; expected {expected}")
