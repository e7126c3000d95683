"""WA, weight alignment (Zhao et al., CVPR 2020) as PyCIL runs it: iCaRL's data and teacher, then equal row lengths.

After training, the new classes' rows of the classifier are scaled to the mean length of the old ones'.
Differs from the authors: no clipping of the weights to non-negative values.
"""

from typing import Any

from torch import nn

from endocil.data.scenario import Task
from endocil.methods import common as moves
from endocil.methods.base import Method, Phase, TaskData
from endocil.networks import trained_parts


class WA(Method):
    """Cross-entropy and distillation weighed by the share of old classes; then the classifier's rows are aligned."""

    replay = True
    native = (moves.PYCIL, moves.pycil_later(170, (60, 100, 140)))

    def __init__(
        self,
        backbone: nn.Module,
        *,
        temperature: float = 2.0,  # PyCIL
        **shared: Any,
    ) -> None:
        super().__init__(backbone, **shared)
        moves.refuse_temperature(temperature)
        self.temperature = temperature
        self.teacher: nn.Module | None = None

    def grow(self, task: Task) -> None:
        self.teacher = moves.frozen_copy(self.backbone, self.classifier) if task.index > 0 else None
        super().grow(task)

    def phases(self, task: Task, data: TaskData) -> tuple[Phase, ...]:
        objective = moves.distilled(self, self.teacher, *moves.by_share(task, self.temperature))
        train = (*trained_parts(self.backbone), self.classifier)
        shared = moves.shared_first(task)
        return (Phase("train", data.all, train, self.schedule(task), objective, shared=shared),)

    def consolidate(self, task: Task, data: TaskData) -> None:
        if task.index > 0:
            moves.align(self.classifier, task)
