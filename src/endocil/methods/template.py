"""Replay with distillation: a method to start from, written by `endocil new-method`.

`endocil check-method MODULE:CLASS` tries it on a tiny scenario; docs/add-a-method.md says what else a method can ask
for.
"""

from typing import Any

import torch
from torch import nn
from torch.nn import functional

from endocil.methods.base import Batch, Method, Outcome, Phase, Task, TaskData
from endocil.methods.common import frozen_copy
from endocil.networks import trained_parts


class Template(Method):
    """Cross-entropy on new images and exemplars; old logits stay near those of the previous task's network."""

    replay = True  # the learner keeps exemplars for it
    default_selector = "mean"  # used unless memory.select is set

    def __init__(self, backbone: nn.Module, *, distil: float = 1.0, **inherited: Any) -> None:
        """Keyword-only arguments are options: method.distil in a settings file."""
        super().__init__(backbone, **inherited)
        self.distil = distil
        self.teacher: nn.Module | None = None  # modules and buffers are saved and resumed

    def grow(self, task: Task) -> None:
        """Make room for the new classes. A resumed run calls it again, so it sees no data."""
        self.teacher = frozen_copy(self.backbone, self.classifier) if task.index > 0 else None
        super().grow(task)

    def phases(self, task: Task, data: TaskData) -> tuple[Phase, ...]:
        """What to train, in order. Reads state and changes none."""
        teacher = self.teacher

        def objective(batch: Batch) -> Outcome:
            features = self.embed(batch.images)  # (B, d)
            logits = self.classify(features)  # (B, n_seen)
            losses = {"classification": functional.cross_entropy(logits, batch.labels, reduction="none")}  # (B,)
            if teacher is not None:
                with torch.no_grad():
                    before = teacher(batch.images)  # (B, n_old)
                losses["distillation"] = self.distil * (logits[:, task.old] - before).square().mean(dim=1)
            return Outcome(losses, logits, features)

        train = (*trained_parts(self.backbone), self.classifier)  # everything else stays as it is
        return (Phase("train", data.all, train, self.schedule(task), objective),)
