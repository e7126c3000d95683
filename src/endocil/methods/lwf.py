"""LwF, learning without forgetting (Li and Hoiem, ECCV 2016) as in PyCIL: Finetune with distillation.

No exemplars: the previous task's network is the teacher, on the new images.
Differs from the authors: one classifier for all classes, and no warm-up of the new outputs.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from endocil.components.losses import distillation
from endocil.data.batches import Batch
from endocil.data.scenario import Task
from endocil.methods import common
from endocil.methods.finetune import Finetune, Losses


class LwF(Finetune):
    """Cross-entropy on the new classes and, on the old ones, distillation from the previous task's network."""

    native = (
        replace(common.PYCIL_FIRST_TASK, milestones=(60, 120, 160)),
        common.pycil_schedule(250, (60, 120, 180, 220)),
    )

    def __init__(
        self,
        backbone: nn.Module,
        *,
        temperature: float = 2.0,  # PyCIL
        distil: float = 3.0,  # weight of the distillation: PyCIL
        **inherited: Any,
    ) -> None:
        super().__init__(backbone, **inherited)
        common.check_temperature(temperature)
        common.check_number("distil", distil, distil >= 0, "a number of 0 or more (PyCIL's is 3)")
        self.temperature, self.distil = temperature, distil
        self.teacher: nn.Module | None = None

    def grow(self, task: Task) -> None:
        self.teacher = common.frozen_copy(self.backbone, self.classifier) if task.index > 0 else None
        super().grow(task)

    def retention_losses(self, task: Task) -> Callable[[Batch, Tensor], Losses]:
        teacher = self.teacher
        if teacher is None:
            return super().retention_losses(task)

        def losses(batch: Batch, logits: Tensor) -> Losses:
            loss = distillation(logits, common.teacher_output(teacher, batch), self.temperature)
            return {"distillation": self.distil * loss}

        return losses
