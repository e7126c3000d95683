"""LwF, learning without forgetting (Li and Hoiem, ECCV 2016) as PyCIL runs it: Finetune with distillation.

No exemplars: the teacher of the task before is asked about the new images.
Differs from the authors: one classifier for all classes, and no warm-up of the new outputs.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from endocil.components.losses import distillation
from endocil.data.batches import Batch
from endocil.data.scenario import Task
from endocil.methods import common as moves
from endocil.methods.finetune import Finetune, Losses


class LwF(Finetune):
    """Cross-entropy on the new classes and, on the old ones, the answers of the network of the task before."""

    native = (
        replace(moves.PYCIL, milestones=(60, 120, 160)),
        moves.pycil_later(250, (60, 120, 180, 220)),
    )

    def __init__(
        self,
        backbone: nn.Module,
        *,
        temperature: float = 2.0,  # PyCIL
        distil: float = 3.0,  # weight of the distillation: PyCIL
        **shared: Any,
    ) -> None:
        super().__init__(backbone, **shared)
        moves.refuse_temperature(temperature)
        moves.refuse_outside("distil", distil, distil >= 0, "a number of 0 or more (PyCIL's is 3)")
        self.temperature, self.distil = temperature, distil
        self.teacher: nn.Module | None = None

    def grow(self, task: Task) -> None:
        self.teacher = moves.frozen_copy(self.backbone, self.classifier) if task.index > 0 else None
        super().grow(task)

    def remembering(self, task: Task) -> Callable[[Batch, Tensor], Losses]:
        teacher = self.teacher
        if teacher is None:
            return super().remembering(task)

        def distilled(batch: Batch, logits: Tensor) -> Losses:
            kept = distillation(logits, moves.taught(teacher, batch), self.temperature)
            return {"distillation": self.distil * kept}

        return distilled
