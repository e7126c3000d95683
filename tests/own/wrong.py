"""Methods that break one promise each."""

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from endocil.data.seeding import generator
from endocil.methods.base import Batch, Method, Outcome, Phase, Task, TaskData
from endocil.networks import trained_parts


class Replay(Method):
    """Right: the wrong ones change a line of it."""

    replay = True

    def loss(self, batch: Batch) -> tuple[Tensor, Tensor]:
        logits = self(batch.images)
        return functional.cross_entropy(logits, batch.labels, reduction="none"), logits

    def phases(self, task: Task, data: TaskData) -> tuple[Phase, ...]:
        def objective(batch: Batch) -> Outcome:
            loss, logits = self.loss(batch)
            return Outcome({"classification": loss}, logits)

        train = (*trained_parts(self.backbone), self.classifier)
        return (Phase("train", data.all, train, self.schedule(task), objective),)


class MovesFrozen(Replay):
    """Its statistics of batch norm move, though the module is not trained."""

    def __init__(self, backbone: nn.Module, **inherited: Any) -> None:
        super().__init__(backbone, **inherited)
        self.norm = nn.BatchNorm2d(3)

    def loss(self, batch: Batch) -> tuple[Tensor, Tensor]:
        self.norm.train()(batch.images)
        return super().loss(batch)


class Unnamed(Replay):
    def loss(self, batch: Batch) -> tuple[Tensor, Tensor]:
        loss, logits = super().loss(batch)
        return loss * torch.rand(len(batch)), logits


class Forgets(Replay):
    """The classifier is not trained."""

    def phases(self, task: Task, data: TaskData) -> tuple[Phase, ...]:
        (phase,) = super().phases(task, data)
        return (replace(phase, train=trained_parts(self.backbone)),)


class TrainsUnused(Replay):
    def __init__(self, backbone: nn.Module, **inherited: Any) -> None:
        super().__init__(backbone, **inherited)
        self.unused = nn.Linear(2, 2, device="meta").to_empty(device="cpu")
        nn.init.normal_(self.unused.weight, generator=generator(0, "unused"))
        nn.init.zeros_(self.unused.bias)

    def phases(self, task: Task, data: TaskData) -> tuple[Phase, ...]:
        (phase,) = super().phases(task, data)
        return (replace(phase, train=(*phase.train, self.unused)),)


class ChangesInPhases(Replay):
    asked = 0

    def phases(self, task: Task, data: TaskData) -> tuple[Phase, ...]:
        self.asked += 1
        return super().phases(task, data)


class ShrinksInPhases(Replay):
    def phases(self, task: Task, data: TaskData) -> tuple[Phase, ...]:
        self.classifier.weight.data.mul_(0.5)
        return super().phases(task, data)


class WrongShape(Replay):
    """One column too few, where it counts."""

    def classify(self, features: Tensor) -> Tensor:
        logits: Tensor = self.classifier(features)
        return logits if self.classifier.training else logits[:, :-1]


class Unsaved(Replay):
    """What it has counted lives in a plain number, which no checkpoint has."""

    factor = 1.0

    def loss(self, batch: Batch) -> tuple[Tensor, Tensor]:
        loss, logits = super().loss(batch)
        self.factor *= 0.99
        return self.factor * loss, logits


class MeanLoss(Replay):
    def loss(self, batch: Batch) -> tuple[Tensor, Tensor]:
        loss, logits = super().loss(batch)
        return loss[:, None], logits


class UndeclaredMove(Replay):
    """Moves a module after each step, and does not say so."""

    def __init__(self, backbone: nn.Module, **inherited: Any) -> None:
        super().__init__(backbone, **inherited)
        self.extra = nn.BatchNorm2d(3)

    def shrink(self) -> None:
        self.extra.weight.mul_(0.9)

    def phases(self, task: Task, data: TaskData) -> tuple[Phase, ...]:
        (phase,) = super().phases(task, data)
        return (replace(phase, after_step=self.shrink),)


class DrawsInConstructor(Replay):
    """It takes numbers from the generator that everybody shares."""

    def __init__(self, backbone: nn.Module, **inherited: Any) -> None:
        super().__init__(backbone, **inherited)
        self.weight = float(np.random.rand())


class GrowsLayers(Replay):
    """Right: in the constructor and in `grow` torch is seeded."""

    later: nn.Linear

    def __init__(self, backbone: nn.Module, **inherited: Any) -> None:
        super().__init__(backbone, **inherited)
        self.projector = nn.Linear(self.classifier.in_features, self.classifier.in_features)

    def grow(self, task: Task) -> None:
        super().grow(task)
        if not task.index:
            self.later = nn.Linear(2, 2)


class Narrow(Replay):
    def classify(self, features: Tensor) -> Tensor:
        return super().classify(features)[:, :2]


class FailsInObjective(Replay):
    def loss(self, batch: Batch) -> tuple[Tensor, Tensor]:
        loss, logits = super().loss(batch)
        return loss * batch.kept["absent"], logits


class FailsInConstructor(Replay):
    def __init__(self, backbone: nn.Module, **inherited: Any) -> None:
        super().__init__(backbone, **inherited)
        self.extra = backbone.get_submodule("absent")
