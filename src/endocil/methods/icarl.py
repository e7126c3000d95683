"""iCaRL (Rebuffi et al., CVPR 2017) as in PyCIL: cross-entropy on new images and exemplars, plus distillation.

Differs from the authors: softmax cross-entropy, not one sigmoid per class. Both heads are evaluated; the softmax
head is the reported one.
"""

from typing import Any

from torch import Tensor, nn

from endocil.components.gradients import GradientRule
from endocil.components.losses import distillation
from endocil.data.scenario import Task
from endocil.methods import common
from endocil.methods.base import Method, Phase, TaskData
from endocil.networks import trained_parts


class ICaRL(Method):
    """Cross-entropy on new images and exemplars, and distillation from the previous task's network.

    EndoCIL replaces three components: selection, classification loss, gradients.
    """

    replay = learns_known_classes = True
    smooths_labels = mixes_labels = True
    default_selector = "mean"
    native = (common.PYCIL_FIRST_TASK, common.pycil_schedule(170, (80, 120)))

    def __init__(
        self,
        backbone: nn.Module,
        *,
        temperature: float = 2.0,  # EndoCIL, Experimental Setting; PyCIL
        distil: float = 1.0,  # weight of the distillation: PyCIL; lambda in EndoCIL
        **inherited: Any,
    ) -> None:
        super().__init__(backbone, **inherited)
        common.check_temperature(temperature)
        common.check_number("distil", distil, distil >= 0, "a number of 0 or more (the default is 1)")
        self.temperature = temperature
        self.distil = distil
        self.teacher: nn.Module | None = None

    def grow(self, task: Task) -> None:
        self.teacher = common.frozen_copy(self.backbone, self.classifier) if task.index > 0 else None
        super().grow(task)

    @property
    def first_objective(self) -> str:
        """The name of the first task's objective: methods with the same one may reuse each other's first task."""
        return common.CROSS_ENTROPY

    def label_loss(self, task: Task, counts: Tensor) -> common.LabelLoss:
        return lambda logits, batch: common.cross_entropy(self, logits, batch)

    def distillation_weight(self, task: Task, data: TaskData) -> float:
        return self.distil

    def gradient_rule(self, task: Task, counts: Tensor) -> GradientRule:
        return GradientRule()

    def phases(self, task: Task, data: TaskData) -> tuple[Phase, ...]:
        counts, weight = data.all.counts(task.n_seen), self.distillation_weight(task, data)

        def distillation_loss(logits: Tensor, teacher_logits: Tensor) -> Tensor:
            return weight * distillation(logits, teacher_logits, self.temperature)

        objective = common.distillation_objective(self, self.teacher, self.label_loss(task, counts), distillation_loss)
        train = (*trained_parts(self.backbone), self.classifier)
        rule = self.gradient_rule(task, counts)
        first_task = common.first_task_name(task, self.first_objective)
        return (
            Phase(
                "train",
                data.all,
                train,
                self.schedule(task),
                objective,
                rule,
                first_task_name=first_task,
                takes_maps=True,
            ),
        )
