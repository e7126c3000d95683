"""BiC, bias correction (Wu et al., CVPR 2019). Two phases: distil, then correct the new classes' bias.

Each task owns two numbers, alpha and beta: its classes' logits become alpha z + beta. They are learned on a few
images of each class that the first phase never saw.
Differs from the authors: images are held out anew in each task, not kept apart for ever; every task keeps its own
correction.
"""

from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional

from endocil.components.losses import Outcome
from endocil.data.batches import Batch, ImageSet
from endocil.data.scenario import Task
from endocil.data.seeding import generator
from endocil.methods import common
from endocil.methods.base import Method, Phase, TaskData
from endocil.networks import trained_parts

SecondStage = Literal["logits", "pycil"]


class Correction(nn.Module):
    """alpha z + beta for the logits of one task's classes; at first the identity."""

    is_head = True

    def __init__(self, n_classes: int) -> None:
        super().__init__()
        self.n_classes = n_classes
        self.alpha = nn.Parameter(torch.ones(1))
        self.beta = nn.Parameter(torch.zeros(1))

    def forward(self, logits: Tensor) -> Tensor:
        return self.alpha * logits + self.beta


class Corrections(nn.ModuleList):
    """One correction per task, each applied to the logits of its own classes."""

    def forward(self, logits: Tensor) -> Tensor:
        sizes = [int(correction.n_classes) for correction in self]  # type: ignore[arg-type]
        parts = torch.split(logits, sizes, dim=1)
        return torch.cat([correction(part) for correction, part in zip(self, parts, strict=True)], dim=1)


class BiC(Method):
    """Cross-entropy and distillation; then two numbers that correct the new classes' logits, on held-out images."""

    replay = learns_known_classes = True
    smooths_labels = mixes_labels = True
    native = (common.pycil_schedule(170, (60, 100, 140)),) * 2

    def __init__(
        self,
        backbone: nn.Module,
        *,
        temperature: float = 2.0,  # PyCIL
        held_out: float = 0.1,  # of the exemplars of a class, for the second phase: the authors, PyCIL
        second_stage: SecondStage = "logits",  # "pycil": softmax twice, on augmented images
        **inherited: Any,
    ) -> None:
        super().__init__(backbone, **inherited)
        common.check_temperature(temperature)
        common.check_number("held_out", held_out, 0 < held_out < 1, "a share between 0 and 1 (the default is 0.1)")
        common.check_choice("second_stage", second_stage, get_args(SecondStage))
        self.temperature, self.held_out, self.second_stage = temperature, held_out, second_stage
        self.corrections = Corrections()
        self.teacher: nn.Module | None = None

    def grow(self, task: Task) -> None:
        parts = (self.backbone, self.classifier, self.corrections)
        self.teacher = common.frozen_copy(*parts) if task.index > 0 else None
        super().grow(task)
        self.corrections.append(Correction(task.n_new))

    def notes(self, task: Task, data: TaskData) -> list[str]:
        if task.index == 0 or not task.n_new or self._held_out_per_class(task, data):
            return []
        return ["a class has fewer than two images, so none can be held out: the bias is not corrected in this task"]

    def phases(self, task: Task, data: TaskData) -> tuple[Phase, ...]:
        train_images, held_out = self._hold_out(task, data)
        objective = common.distillation_objective(
            self, self.teacher, *common.class_ratio_losses(self, task, data, self.temperature)
        )
        train = (*trained_parts(self.backbone), self.classifier)
        first_task = common.first_task_name(task)
        first = Phase(
            "train", train_images, train, self.schedule(task), objective, first_task_name=first_task, takes_maps=True
        )
        return (first, self._correction_phase(task, held_out)) if len(held_out) else (first,)

    def _correction_phase(self, task: Task, held_out: ImageSet) -> Phase:
        as_pycil = self.second_stage == "pycil"

        def objective(batch: Batch) -> Outcome:
            features = self.embed(batch.images)
            logits = self.classify(features)
            inputs = functional.softmax(logits, dim=1) if as_pycil else logits
            return Outcome({"cross_entropy": common.cross_entropy(self, inputs, batch)}, logits, features)

        train = (self.corrections[-1],)
        return Phase("correct", held_out, train, self.schedule(task), objective, augmented=as_pycil, takes_maps=True)

    def _hold_out(self, task: Task, data: TaskData) -> tuple[ImageSet, ImageSet]:
        """Training images, and the same number of each class for the correction; none where there is nothing to
        correct: in the first task, and in one without a new class."""
        n = self._held_out_per_class(task, data) if task.index > 0 and task.n_new else 0
        return data.all.hold_out(n, generator(self.seed, task.index, "held out"))

    def _held_out_per_class(self, task: Task, data: TaskData) -> int:
        """A share of a class's exemplars, at least one; never more than half of the smallest class."""
        exemplars, smallest = data.exemplars.counts(task.n_old), data.all.counts(task.n_seen).min()
        n = max(1, int(self.held_out * int(exemplars.max())))
        return min(n, int(smallest) // 2)

    def classify(self, features: Tensor) -> Tensor:
        return self.corrections(self.classifier(features))  # type: ignore[no-any-return]

    @property
    def predictors(self) -> tuple[nn.Module, ...]:
        return (*super().predictors, self.corrections)
