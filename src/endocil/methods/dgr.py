"""DGR, dynamically gradient-reweighted learning for imbalanced classes (He, CVPR 2024).

The classifier's rows learn at different speeds: each row's gradient is divided by the gradient that it has gathered
in this task, within the old classes and within the new ones, and the two groups are balanced against each other. The
distillation is brought to the same size. Everything before the classifier takes the plain gradient.
Two versions by the author: "pilot", in the LAMDA-PILOT toolbox (default), and "original".
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional

from endocil.components.gradients import GradientRule, calibrated_gradient, classifier_gradients
from endocil.components.losses import Outcome, PriorRegularizedLoss, distillation
from endocil.data.batches import Batch
from endocil.data.scenario import Task
from endocil.methods import common
from endocil.methods.base import Method, Phase, Schedule, TaskData
from endocil.networks import GrowingClassifier, trained_parts

Variant = Literal["pilot", "original"]
NewRatio = Literal["code", "inverse"]
COUNTS = "image_counts"  # in statistics: training images of each class when it was new
PILOT = Schedule(epochs=20, learning_rate=1e-3, cosine=True, weight_decay=5e-4, batch_size=128)


class DGR(Method):
    """Cross-entropy with the classes' prior, distillation, and a classifier whose rows learn at even speed."""

    classifier: GrowingClassifier
    replay = learns_known_classes = True
    smooths_labels = mixes_labels = True
    native = (PILOT, PILOT)  # meant for a pre-trained network

    def __init__(
        self,
        backbone: nn.Module,
        *,
        variant: Variant = "pilot",
        temperature: float = 2.0,  # the author
        distil: float | None = None,  # weight of the distillation; none: 1 (pilot) or 0.7 (original)
        attenuation: float = 1.0,  # g in exp(-g R), which slows the new classes down: the author
        new_ratio: NewRatio = "code",  # balance of the new classes: as both codes have it, or by the inverse
        **inherited: Any,
    ) -> None:
        super().__init__(backbone, **inherited)
        common.check_choice("variant", variant, get_args(Variant))
        common.check_choice("new_ratio", new_ratio, get_args(NewRatio))
        common.check_temperature(temperature)
        common.check_number("distil", distil or 0.0, (distil or 0.0) >= 0, "a number of 0 or more, or none")
        common.check_number("attenuation", attenuation, attenuation >= 0, "a number from 0 on (the default is 1)")
        self.variant, self.new_ratio, self.temperature = variant, new_ratio, temperature
        self.distil, self.attenuation = distil, attenuation
        self.teacher: nn.Module | None = None

    def grow(self, task: Task) -> None:
        self.teacher = common.frozen_copy(self.backbone, self.classifier) if task.index > 0 else None
        super().grow(task)

    def phases(self, task: Task, data: TaskData) -> tuple[Phase, ...]:
        counts = data.all.counts(task.n_seen)
        prior = PriorRegularizedLoss(counts, smoothing=self.label_smoothing).to(self.classifier.weight)

        def label_loss(logits: Tensor, batch: Batch) -> Tensor:
            return batch.label_loss(lambda labels: prior(logits, labels))

        train = (*trained_parts(self.backbone), self.classifier)
        new_factor = math.exp(-self.attenuation * self._old_ratio(task, data))
        clip = train if self.variant == "original" else ()
        inverse = self.new_ratio == "inverse"
        rule = ReweightedGradient(self.classifier, task.n_old, new_factor=new_factor, inverse=inverse, clip=clip)
        objective = common.distillation_objective(self, self.teacher, label_loss, self._distillation_loss(task, data))
        name = f"{common.CROSS_ENTROPY_WITH_PRIOR}, rows reweighted{', clipped' if clip else ''}"
        first_task = common.first_task_name(task, name)
        return (
            Phase(
                "train",
                data.all,
                train,
                self.schedule(task),
                objective,
                rule,
                first_task_name=first_task,
                takes_maps=True,
            ),
        )

    def consolidate(self, task: Task, data: TaskData) -> None:
        counts = data.new.counts(task.n_seen)
        counts[: task.n_old] += self._image_counts(task, data).to(counts)
        self.statistics[COUNTS] = counts

    def _image_counts(self, task: Task, data: TaskData) -> Tensor:
        """Training images that each old class ever had."""
        return self.statistics.get(COUNTS, data.exemplars.counts(task.n_old))[: task.n_old].cpu()

    def _old_ratio(self, task: Task, data: TaskData) -> float:
        """R: of the classes (pilot) or of all images ever seen (original)."""
        if self.variant == "pilot":
            return common.old_class_ratio(task, data)
        n_seen, n_new = self._image_totals(task, data)
        return n_seen / (n_seen + n_new)

    def _image_totals(self, task: Task, data: TaskData) -> tuple[int, int]:
        """Images of the old classes that were ever trained on, and images of the new classes; without a new class,
        all images that the task brings."""
        n_new = int(data.new.counts(task.n_seen)[task.new].sum()) if task.n_new else len(data.new)
        return int(self._image_counts(task, data).sum()), n_new

    def _distillation_loss(self, task: Task, data: TaskData) -> common.DistillationLoss:
        if self.variant == "pilot":
            weight = (1.0 if self.distil is None else self.distil) * common.old_per_new_class(task, data)
            return lambda logits, teacher_logits: weight * distillation(logits, teacher_logits, self.temperature)
        n_seen, n_new = self._image_totals(task, data)
        factor = 0.7 if self.distil is None else self.distil
        weight = factor * math.sqrt(n_seen / n_new) * self.temperature**2
        kept = data.exemplars.counts(task.n_seen)[task.old]
        removed = (self._image_counts(task, data) - kept).clamp_min(0).to(self.classifier.weight)
        return lambda logits, teacher_logits: (
            weight * distribution_aware_distillation(logits, teacher_logits, removed, self.temperature)
        )


def distribution_aware_distillation(
    logits: Tensor, teacher_logits: Tensor, removed: Tensor, temperature: float
) -> Tensor:
    """DAKD, one per image: plain distillation mixed with one that trusts the teacher where few images are gone.

    `removed` are the training images of each old class that are not in the memory. The more even they are (entropy
    near 1), the plainer the distillation.
    """
    student = logits[:, : teacher_logits.shape[1]]
    shares = (removed + 0.001) / (removed + 0.001).sum()
    classes = max(2, len(shares))  # a single class has no entropy to compare with
    evenness = -(shares * shares.log()).sum() / math.log(classes)
    lost = removed / removed.norm().clamp_min(1e-12)
    mixed = lost * student + (1.0 - lost) * teacher_logits
    target = functional.softmax(teacher_logits / temperature, dim=1)
    plain = functional.log_softmax(student / temperature, dim=1)
    trusting = functional.log_softmax(mixed / temperature, dim=1)
    return -(target * (evenness * plain + (1.0 - evenness) * trusting)).sum(dim=1)


class ReweightedGradient(GradientRule):
    """Rows of the classifier's gradient times omega; the distillation's brought to the same length."""

    gathered: Tensor

    def __init__(
        self,
        classifier: nn.Linear,
        n_old: int,
        *,
        new_factor: float,
        inverse: bool = False,
        clip: Sequence[nn.Module] = (),
    ) -> None:
        super().__init__()
        self._classifier, self._clip = (classifier,), tuple(clip)  # in tuples: they belong to the method
        self.n_old, self.new_factor, self.inverse = n_old, new_factor, inverse
        self.register_buffer("gathered", torch.zeros_like(classifier.bias.detach()))

    def collect(self, outcome: Outcome, n: float) -> dict[str, Tensor]:
        return classifier_gradients(outcome, n)

    def overwrite(self, collected: Mapping[str, Tensor]) -> None:
        (classifier,) = self._classifier
        labels, teacher = collected["classification"], collected["distillation"]
        self.gathered += labels[:, :-1].norm(dim=1).to(self.gathered)
        omega = row_weights(self.gathered, self.n_old, self.new_factor, inverse=self.inverse)
        gradient, gamma = calibrated_gradient(labels, teacher, omega)
        classifier.weight.grad = gradient[:, :-1].to(classifier.weight)
        classifier.bias.grad = gradient[:, -1].to(classifier.bias)
        if self._clip:
            parameters = [parameter for module in self._clip for parameter in module.parameters()]
            nn.utils.clip_grad_norm_(parameters, 10_000.0)  # the author
        self.measured = {"gamma": gamma, "slowest": omega.min()}


def row_weights(gathered: Tensor, n_old: int, new_factor: float, *, inverse: bool = False) -> Tensor:
    """omega: the least that a row of the group has gathered over what this row has, times the group's balance.

    r_old = min(1, rho) and r_new = min(1, rho exp(-g R)), rho the mean of the new rows over that of the old ones.
    """
    gathered = gathered.clamp_min(torch.finfo(gathered.dtype).tiny)  # a row may never have got a gradient
    old, new = gathered[:n_old], gathered[n_old:]
    if not len(old) or not len(new):  # one group: even speed within it, and nothing to balance
        return gathered.min() / gathered
    rho = new.mean() / old.mean()
    balance = new_factor / rho if inverse else new_factor * rho
    return torch.cat([rho.clamp_max(1.0) * old.min() / old, balance.clamp_max(1.0) * new.min() / new])
