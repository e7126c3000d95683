"""DER++ (Buzzega et al. 2020) as somebody outside would write it."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from endocil.methods.base import Batch, Method, Outcome, Phase, Replay, Task, TaskData
from endocil.networks import trained_parts


class Dark(Method):
    """Exemplars keep their logits."""

    replay = True
    default_selector = "random"

    def __init__(self, backbone: nn.Module, *, alpha: float = 0.1, beta: float = 0.5, **inherited: Any) -> None:
        super().__init__(backbone, **inherited)
        self.alpha, self.beta = alpha, beta

    def exemplar_tensors(self, task: Task, features: Tensor, logits: Tensor) -> Mapping[str, Tensor]:
        return {"logits": logits, "known": torch.full((len(logits),), task.n_seen)}

    def phases(self, task: Task, data: TaskData) -> tuple[Phase, ...]:
        def objective(batch: Batch) -> Outcome:
            logits = self(batch.images)
            labelled = functional.cross_entropy(logits, batch.labels, reduction="none")
            weights = torch.tensor([1.0, 0.0, self.beta])[batch.streams] * batch.stream_weights()
            losses = {"classification": weights * labelled}
            if "logits" in batch.kept:
                stored, known = batch.kept["logits"], batch.kept["known"]
                inside = torch.arange(stored.shape[1]) < known[:, None]
                squares = (logits[:, : stored.shape[1]] - stored).square() * inside
                dark = self.alpha * (batch.streams == 1) * batch.stream_weights()
                losses["dark"] = dark * squares.sum(dim=1) / known.clamp_min(1)
            return Outcome(losses, logits)

        memory = Replay(data.exemplars, 8)
        train = (*trained_parts(self.backbone), self.classifier)
        return (Phase("train", data.new, train, self.schedule(task), objective, replay=(memory, memory)),)
