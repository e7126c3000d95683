"""Replay by sharpness-aware minimisation (Foret et al., ICLR 2021)."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from endocil.methods.base import Batch, GradientRule, Method, Outcome, Phase, Task, TaskData
from endocil.networks import trained_parts


class Ascent(GradientRule):
    """The gradient is taken a second time, rho further along the first one."""

    second_pass = True

    def __init__(self, rho: float) -> None:
        super().__init__()
        self.rho = rho

    def perturb(self, parameters: Sequence[nn.Parameter]) -> None:
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        norm = torch.stack([gradient.norm() for gradient in gradients]).norm()
        for parameter in parameters:
            if parameter.grad is not None:
                parameter.add_(parameter.grad, alpha=self.rho / (float(norm) + 1e-12))


class Sam(Method):
    """Cross-entropy on new images and exemplars."""

    replay = True

    def __init__(self, backbone: nn.Module, *, rho: float = 0.05, **inherited: Any) -> None:
        super().__init__(backbone, **inherited)
        self.rho = rho

    def phases(self, task: Task, data: TaskData) -> tuple[Phase, ...]:
        def objective(batch: Batch) -> Outcome:
            logits = self(batch.images)
            return Outcome({"cross_entropy": functional.cross_entropy(logits, batch.labels, reduction="none")}, logits)

        train = (*trained_parts(self.backbone), self.classifier)
        return (Phase("train", data.all, train, self.schedule(task), objective, Ascent(self.rho)),)
