"""WA, weight alignment (Zhao et al., CVPR 2020) as in PyCIL: iCaRL's data and teacher, then equal row lengths.

After training, the new classes' rows of the classifier are scaled to the mean length of the old ones'. The factor is
in the event `learned` of each task: above 1 it lengthens the new rows.
Differs from the authors: no clipping of the weights to non-negative values.
"""

from typing import Any

from torch import nn

from endocil.data.scenario import Task
from endocil.methods import common
from endocil.methods.base import Method, Phase, TaskData
from endocil.networks import GrowingClassifier, trained_parts


class WA(Method):
    """Cross-entropy and distillation weighted by the ratio of old classes; then the classifier's rows are aligned."""

    classifier: GrowingClassifier
    replay = learns_known_classes = True
    smooths_labels = mixes_labels = True
    native = (common.PYCIL_FIRST_TASK, common.pycil_schedule(170, (60, 100, 140)))

    def __init__(
        self,
        backbone: nn.Module,
        *,
        temperature: float = 2.0,  # PyCIL
        **inherited: Any,
    ) -> None:
        super().__init__(backbone, **inherited)
        common.check_temperature(temperature)
        self.temperature = temperature
        self.teacher: nn.Module | None = None

    def grow(self, task: Task) -> None:
        self.teacher = common.frozen_copy(self.backbone, self.classifier) if task.index > 0 else None
        super().grow(task)

    def phases(self, task: Task, data: TaskData) -> tuple[Phase, ...]:
        objective = common.distillation_objective(
            self, self.teacher, *common.class_ratio_losses(self, task, data, self.temperature)
        )
        train = (*trained_parts(self.backbone), self.classifier)
        first_task = common.first_task_name(task)
        return (
            Phase(
                "train", data.all, train, self.schedule(task), objective, first_task_name=first_task, takes_maps=True
            ),
        )

    def consolidate(self, task: Task, data: TaskData) -> None:
        if task.index > 0:
            self.measurements["alignment"] = common.align(self.classifier, task)
