"""Finetune, the lower bound: learn each task's new classes and keep nothing.

As in PyCIL the loss of a later task sees the new classes' logits alone, so old logits are not pushed down.
"""

from endocil.methods import moves
from endocil.methods.method import Batch, Method, Outcome, Phase, Task, TaskData
from endocil.networks import trained_parts


class Finetune(Method):
    """Cross-entropy on each task's new classes, on new images only; keeps nothing."""

    def notes(self, task: Task) -> list[str]:
        return moves.one_class_note(task)

    def phases(self, task: Task, data: TaskData) -> tuple[Phase, ...]:
        def objective(batch: Batch) -> Outcome:
            features = self.embed(batch.images)
            logits = self.classify(features)
            loss = moves.cross_entropy_on_new(logits, batch.labels, task)
            return Outcome({"cross_entropy": loss}, logits, features)

        train = (*trained_parts(self.backbone), self.classifier)
        return (Phase("train", data.new, train, self.schedule(task), objective),)
