"""Finetune, the lower bound: learn each task's new classes and keep nothing.

As in PyCIL the loss of a later task sees the new classes' logits alone, so old logits are not pushed down.
"""

from collections.abc import Callable

from torch import Tensor

from endocil.components.losses import Outcome
from endocil.data.batches import Batch
from endocil.data.scenario import Task
from endocil.methods import common
from endocil.methods.base import Method, Phase, TaskData
from endocil.networks import trained_parts

Losses = dict[str, Tensor]


class Finetune(Method):
    """Cross-entropy on each task's new classes, on new images only; keeps nothing.

    LwF and EWC add a loss against forgetting.
    """

    smooths_labels = mixes_labels = learns_known_classes = True
    native = (common.PYCIL_FIRST_TASK, common.pycil_schedule(80, (40, 70)))

    def notes(self, task: Task, data: TaskData) -> list[str]:
        return common.all_classes_note(task, data)

    def retention_losses(self, task: Task) -> Callable[[Batch, Tensor], Losses]:
        """Losses against forgetting the old classes, from a batch and its logits."""
        return lambda batch, logits: {}

    def phases(self, task: Task, data: TaskData) -> tuple[Phase, ...]:
        label_loss, retention = common.cross_entropy_on_new(self, task, data), self.retention_losses(task)

        def objective(batch: Batch) -> Outcome:
            features = self.embed(batch.images)
            logits = self.classify(features)
            losses = {"classification": label_loss(logits, batch), **retention(batch, logits)}
            return Outcome(losses, logits, features)

        train = (*trained_parts(self.backbone), self.classifier)
        first_task = common.first_task_name(task)
        return (
            Phase(
                "train", data.new, train, self.schedule(task), objective, first_task_name=first_task, takes_maps=True
            ),
        )
