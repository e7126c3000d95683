"""Replay with the supervised contrastive loss (Khosla et al., NeurIPS 2020) on two views of each image."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from endocil.data.seeding import generator
from endocil.methods.base import Batch, Method, Outcome, Phase, Task, TaskData
from endocil.networks import trained_parts


def supcon(vectors: Tensor, labels: Tensor, temperature: float) -> Tensor:
    """One for each of (n, d) vectors of length 1: how far it is from those of its own class."""
    scores = vectors @ vectors.T / temperature
    itself = torch.eye(len(vectors), dtype=torch.bool)
    scores = scores.masked_fill(itself, -torch.inf)
    same = (labels[:, None] == labels) & ~itself
    shares = functional.log_softmax(scores, dim=1).masked_fill(~same, 0.0)
    return -shares.sum(dim=1) / same.sum(dim=1).clamp_min(1)


class SupCon(Method):
    """Cross-entropy beside it, so that there is a classifier."""

    replay = True

    def __init__(self, backbone: nn.Module, *, temperature: float = 0.1, **inherited: Any) -> None:
        super().__init__(backbone, **inherited)
        self.temperature = temperature
        n = self.classifier.in_features
        self.projector = nn.Linear(n, 16, device="meta").to_empty(device="cpu")
        nn.init.normal_(self.projector.weight, std=n**-0.5, generator=generator(self.seed, "projector"))
        nn.init.zeros_(self.projector.bias)

    def phases(self, task: Task, data: TaskData) -> tuple[Phase, ...]:
        def objective(batch: Batch) -> Outcome:
            features = [self.embed(view) for view in batch.views]
            logits = self.classify(features[0])
            vectors = functional.normalize(self.projector(torch.cat(features)), dim=1)
            both = supcon(vectors, batch.labels.repeat(2), self.temperature)
            losses = {
                "contrast": both.view(2, -1).mean(dim=0),
                "classification": functional.cross_entropy(logits, batch.labels, reduction="none"),
            }
            return Outcome(losses, logits)

        train = (*trained_parts(self.backbone), self.classifier, self.projector)
        schedule = self.schedule(task)
        return (Phase("train", data.all, train, schedule, objective, views=2, whole_batches=True),)
