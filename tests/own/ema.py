"""Replay that predicts by the exponential moving average of its weights."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from endocil.methods.base import Batch, Method, Outcome, Phase, Task, TaskData
from endocil.methods.common import frozen_copy
from endocil.networks import trained_parts


class Ema(Method):
    """The average moves after every step of the optimiser."""

    replay = True
    steps: Tensor

    def __init__(self, backbone: nn.Module, *, keep: float = 0.9, **inherited: Any) -> None:
        super().__init__(backbone, **inherited)
        self.keep = keep
        self.average: nn.Sequential = frozen_copy(self.backbone, self.classifier)
        self.register_buffer("steps", torch.tensor(0))

    def grow(self, task: Task) -> None:
        super().grow(task)
        self.average = frozen_copy(self.backbone, self.classifier)

    def update(self) -> None:
        self.steps += 1
        new = {**self.backbone.state_dict(prefix="0."), **self.classifier.state_dict(prefix="1.")}
        for name, value in self.average.state_dict().items():
            if value.is_floating_point():
                value.lerp_(new[name], 1.0 - self.keep)
            else:
                value.copy_(new[name])

    def phases(self, task: Task, data: TaskData) -> tuple[Phase, ...]:
        def objective(batch: Batch) -> Outcome:
            logits = self.classifier(self.backbone(batch.images))
            return Outcome({"cross_entropy": functional.cross_entropy(logits, batch.labels, reduction="none")}, logits)

        train = (*trained_parts(self.backbone), self.classifier)
        changed = (self.average, self.steps)
        schedule = self.schedule(task)
        return (Phase("train", data.all, train, schedule, objective, after_step=self.update, also_changes=changed),)

    def embed(self, images: Tensor) -> Tensor:
        return self.average[0](images)  # type: ignore[no-any-return]

    def classify(self, features: Tensor) -> Tensor:
        return self.average[1](features)  # type: ignore[no-any-return]

    @property
    def predictors(self) -> tuple[nn.Module, ...]:
        return (self.average,)
