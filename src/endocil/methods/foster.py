"""FOSTER (Wang et al., ECCV 2022). Two phases: boost by a second backbone, then compress into one.

Teacher: the frozen network of the previous task and a new backbone beside it, with one classifier on both.
Student: one backbone distilled from the teacher; the next task starts from it.
Differs from PyCIL: true class counts. As there, the teacher is evaluated unless `evaluate` says "student".
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional

from endocil.components.gradients import GradientRule
from endocil.components.losses import Outcome, class_balanced_weights, distillation
from endocil.data.batches import Batch
from endocil.data.scenario import Task
from endocil.methods import common
from endocil.methods.base import Method, Phase, Schedule, TaskData
from endocil.networks import Boosted, GrowingClassifier, trained_parts

Evaluate = Literal["teacher", "student"]
OldFeatures = Literal["ft", "az"]
COSINE = Schedule(epochs=200, cosine=True, weight_decay=5e-4, batch_size=128)


class FOSTER(Method):
    """Boost the old network by a second backbone, then compress both into one that learns the next task."""

    classifier: GrowingClassifier
    replay = learns_known_classes = True
    smooths_labels = mixes_labels = True
    evaluation_options = ("evaluate",)
    native = (COSINE, replace(COSINE, epochs=170))
    native_compression = 130  # epochs

    def __init__(
        self,
        backbone: nn.Module,
        *,
        evaluate: Evaluate = "teacher",  # PyCIL: the boosted network of two backbones
        beta1: float = 0.96,  # of the class-balanced weights while boosting: PyCIL
        beta2: float = 0.97,  # and while compressing
        temperature: float = 2.0,  # PyCIL
        distil: float = 1.0,  # weight of the distillation while boosting: lambda_okd in PyCIL
        oofc: OldFeatures = "ft",  # new classes see the old backbone's features; "az": they do not
        align_teacher: bool = False,  # weight alignment (WA) after boosting: is_teacher_wa in PyCIL
        align_student: bool = False,  # and after compressing: is_student_wa
        align_value: float = 1.0,  # aligned new rows are this ^ (C_old / C_new) as long: wa_value
        native_schedule: bool = False,
        **inherited: Any,
    ) -> None:
        super().__init__(backbone, native_schedule=native_schedule, **inherited)
        common.check_choice("evaluate", evaluate, get_args(Evaluate))
        common.check_choice("oofc", oofc, get_args(OldFeatures))
        common.check_temperature(temperature)
        common.check_number("distil", distil, distil >= 0, "a number of 0 or more (the default is 1)")
        for name, beta in (("beta1", beta1), ("beta2", beta2)):
            common.check_number(name, beta, 0.0 <= beta < 1.0, "a number from 0 to below 1")
        common.check_number("align_value", align_value, align_value > 0, "a number above 0 (the default is 1)")
        self.evaluate, self.oofc, self.native_schedule = evaluate, oofc, native_schedule
        self.beta1, self.beta2, self.temperature, self.distil = beta1, beta2, temperature, distil
        self.align_teacher, self.align_student, self.align_value = align_teacher, align_student, align_value
        self.teacher: Boosted | None = None

    def grow(self, task: Task) -> None:
        if task.index > 0:
            old = common.frozen_copy(self.backbone, self.classifier)
            self.teacher = Boosted(old, self.backbone, self.classifier)
            self.teacher.grow(task.n_new, self.seed, task.index)
            if self.oofc == "az":
                _old_feature_weights(self.teacher.classifier.weight.data, task).zero_()
        super().grow(task)  # the student starts as the old network

    def phases(self, task: Task, data: TaskData) -> tuple[Phase, ...]:
        if self.teacher is None:
            return (self._first_phase(task, data),)
        return (self._boosting_phase(self.teacher, task, data), self._compression_phase(self.teacher, task, data))

    def _first_phase(self, task: Task, data: TaskData) -> Phase:
        def objective(batch: Batch) -> Outcome:
            features = self.backbone(batch.images)
            logits = self.classifier(features)
            return Outcome({"classification": common.cross_entropy(self, logits, batch)}, logits, features)

        train = (*trained_parts(self.backbone), self.classifier)
        first_task = common.first_task_name(task)
        return Phase(
            "train", data.all, train, self.schedule(task), objective, first_task_name=first_task, takes_maps=True
        )

    def _boosting_phase(self, teacher: Boosted, task: Task, data: TaskData) -> Phase:
        counts = data.all.counts(task.n_seen)
        weights = class_balanced_weights(counts, self.beta1).to(self.classifier.weight)

        def objective(batch: Batch) -> Outcome:
            features = teacher.features(batch.images)
            logits = teacher.classifier(features)
            old, new = features.chunk(2, dim=1)
            from_old = distillation(logits, teacher.old[1](old), self.temperature)
            losses = {
                # the loss is not weighted: the logits themselves are divided
                "classification": common.cross_entropy(self, logits / weights, batch),
                "expansion": common.cross_entropy(self, teacher.expansion(new), batch),
                "distillation": self.distil * from_old,
            }
            return Outcome(losses, logits, features)

        train = (*trained_parts(teacher.new_backbone), teacher.classifier, teacher.expansion)
        rule = FixedAtZero(teacher.classifier, task) if self.oofc == "az" else GradientRule()
        return Phase("boost", data.all, train, self.schedule(task), objective, rule, takes_maps=True)

    def _compression_phase(self, teacher: Boosted, task: Task, data: TaskData) -> Phase:
        counts = data.all.counts(task.n_seen)
        weights = class_balanced_weights(counts, self.beta2).to(self.classifier.weight)

        def objective(batch: Batch) -> Outcome:
            features = self.backbone(batch.images)
            logits = self.classifier(features)
            with torch.no_grad():
                target = teacher.classifier(teacher.features(batch.images))
                if self.align_teacher:  # the teacher itself is aligned after this phase
                    target = _aligned_logits(target, teacher.classifier, task, self._alignment_scale(task))
            loss = balanced_distillation(logits, target, weights, self.temperature)
            return Outcome({"distillation": loss}, logits, features)

        schedule = replace(self.schedule(task), weight_decay=0.0)
        if self.native_schedule:
            schedule = replace(schedule, epochs=self.native_compression)
        train = (*trained_parts(self.backbone), self.classifier)
        return Phase("compress", data.all, train, schedule, objective, takes_maps=True)

    def consolidate(self, task: Task, data: TaskData) -> None:
        if self.teacher is None:
            return
        scale = self._alignment_scale(task)
        if self.align_teacher:
            self.measurements["teacher_alignment"] = common.align(self.teacher.classifier, task, scale)
        if self.align_student:
            self.measurements["student_alignment"] = common.align(self.classifier, task, scale)

    def _alignment_scale(self, task: Task) -> float:
        return float(self.align_value ** (task.n_old / task.n_new)) if task.n_new else 1.0

    def embed(self, images: Tensor) -> Tensor:
        if self.teacher is None or self.evaluate == "student":
            return super().embed(images)
        return self.teacher.features(images)

    def classify(self, features: Tensor) -> Tensor:
        if self.teacher is None or self.evaluate == "student":
            return super().classify(features)
        return self.teacher.classifier(features)  # type: ignore[no-any-return]

    def selection_features(self, images: Tensor, features: Tensor) -> Tensor:
        """The teacher's features, whichever of the two is evaluated."""
        if self.teacher is None or self.evaluate == "teacher":
            return features
        return self.teacher.features(images)

    @property
    def predictors(self) -> tuple[nn.Module, ...]:
        if self.teacher is None or self.evaluate == "student":
            return super().predictors
        return (self.teacher.old[0], self.teacher.new_backbone, self.teacher.classifier)


class FixedAtZero(GradientRule):
    """The new classes' weights on the old backbone's features stay 0."""

    def __init__(self, classifier: nn.Linear, task: Task) -> None:
        super().__init__()
        self._classifier, self.task = (classifier,), task

    def overwrite(self, collected: Mapping[str, Tensor]) -> None:
        (classifier,) = self._classifier
        if classifier.weight.grad is not None:
            _old_feature_weights(classifier.weight.grad, self.task).zero_()


def _old_feature_weights(weight: Tensor, task: Task) -> Tensor:
    """The new classes' weights on the old backbone's features."""
    return weight[task.new, : weight.shape[1] // 2]


def _aligned_logits(logits: Tensor, classifier: nn.Linear, task: Task, scale: float) -> Tensor:
    """The logits that a classifier will give once its new rows are aligned."""
    factor, bias = scale * common.alignment_factor(classifier, task), classifier.bias[task.new]
    return torch.cat([logits[:, task.old], factor * (logits[:, task.new] - bias) + bias], dim=1)


def balanced_distillation(logits: Tensor, teacher_logits: Tensor, weights: Tensor, temperature: float) -> Tensor:
    """Soft cross-entropy to the teacher's softmax, reweighted by class and normalised; one per image."""
    target = weights * functional.softmax(teacher_logits / temperature, dim=1)
    target = target / target.sum(dim=1, keepdim=True)
    return -(target * functional.log_softmax(logits / temperature, dim=1)).sum(dim=1)
