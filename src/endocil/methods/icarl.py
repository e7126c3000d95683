"""iCaRL (Rebuffi et al., CVPR 2017) as PyCIL runs it: cross-entropy on new images and exemplars, plus distillation.

Differs from the authors: softmax cross-entropy, not one sigmoid per class. Both heads are evaluated; the softmax
head is the reported one.
"""

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from torch.nn import functional

from endocil.components.gradients import GradientRule
from endocil.components.losses import distillation
from endocil.data.batches import Batch
from endocil.data.scenario import Task
from endocil.methods import common as moves
from endocil.methods.base import Method, Phase, TaskData
from endocil.networks import trained_parts


class ICaRL(Method):
    """Cross-entropy on new images and exemplars, and distillation from the network of the task before.

    EndoCIL exchanges three components: selection, classification loss, gradients.
    """

    replay = True
    selects = "mean"
    native = (moves.PYCIL, moves.pycil_later(170, (80, 120)))

    def __init__(
        self,
        backbone: nn.Module,
        *,
        temperature: float = 2.0,  # EndoCIL, Experimental Setting; PyCIL
        distil: float = 1.0,  # weight of the distillation: PyCIL; lambda in EndoCIL
        **shared: Any,
    ) -> None:
        super().__init__(backbone, **shared)
        moves.refuse_temperature(temperature)
        moves.refuse_outside("distil", distil, distil >= 0, "a number of 0 or more (the default is 1)")
        self.temperature = temperature
        self.distil = distil
        self.teacher: nn.Module | None = None

    def grow(self, task: Task) -> None:
        self.teacher = moves.frozen_copy(self.backbone, self.classifier) if task.index > 0 else None
        super().grow(task)

    @property
    def first_objective(self) -> str:
        """What the first task lowers, by name: methods of the same one share it."""
        return moves.CROSS_ENTROPY

    def classification(self, task: Task, counts: Tensor) -> Callable[[Tensor, Batch], Tensor]:
        """The loss of the labels: logits and batch to one value per image."""
        return lambda logits, batch: functional.cross_entropy(logits, batch.labels, reduction="none")

    def gradient_rule(self, task: Task, counts: Tensor) -> GradientRule:
        return GradientRule()

    def phases(self, task: Task, data: TaskData) -> tuple[Phase, ...]:
        counts = data.all.counts(task.n_seen)

        def distil(logits: Tensor, taught: Tensor) -> Tensor:
            return self.distil * distillation(logits, taught, self.temperature)

        objective = moves.distilled(self, self.teacher, self.classification(task, counts), distil)
        train = (*trained_parts(self.backbone), self.classifier)
        rule = self.gradient_rule(task, counts)
        shared = moves.shared_first(task, self.first_objective)
        return (Phase("train", data.all, train, self.schedule(task), objective, rule, shared=shared),)
