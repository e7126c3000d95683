"""Replay with a head of one's own: cosines to prototypes, times a fixed scale."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from endocil.methods.base import Batch, Head, Method, Outcome, Phase, Task, TaskData
from endocil.networks import trained_parts


class Prototypes(Head):
    """One row for each class."""

    def __init__(self, n_features: int, scale: float) -> None:
        super().__init__()
        self.in_features, self.out_features, self.scale = n_features, 0, scale
        self.weight = nn.Parameter(torch.empty(0, n_features))

    def grow(self, n_new: int, generator: torch.Generator) -> None:
        rows = torch.randn(n_new, self.in_features, generator=generator)
        self.weight = nn.Parameter(torch.cat([self.weight.detach(), rows.to(self.weight)]))
        self.out_features += n_new

    def forward(self, features: Tensor) -> Tensor:
        return self.scale * functional.normalize(features, dim=1) @ functional.normalize(self.weight, dim=1).T


class Cosine(Method):
    """Cross-entropy on new images and exemplars."""

    replay = True

    def __init__(self, backbone: nn.Module, *, scale: float = 10.0, **inherited: Any) -> None:
        super().__init__(backbone, **inherited)
        self.classifier = Prototypes(self.classifier.in_features, scale)

    def phases(self, task: Task, data: TaskData) -> tuple[Phase, ...]:
        def objective(batch: Batch) -> Outcome:
            logits = self(batch.images)
            return Outcome({"cross_entropy": functional.cross_entropy(logits, batch.labels, reduction="none")}, logits)

        train = (*trained_parts(self.backbone), self.classifier)
        return (Phase("train", data.all, train, self.schedule(task), objective),)
