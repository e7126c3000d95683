"""ER-ACE, experience replay with asymmetric cross-entropy (Caccia et al., ICLR 2022).

Each step has a batch of new images and one from the memory. New images are compared with the classes of their own
batch alone, so that they do not push old classes away; images from the memory with all seen classes. So the memory must
hold images of the task at hand, or nothing would compare new classes with old ones.
Differs from the authors: they fill the memory image by image, with a reservoir; here it is filled when the task begins
(as in Avalanche), and exemplars are chosen after it. The classifier is linear, theirs a cosine with a fixed scale.
"""

from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from endocil.components.losses import Outcome
from endocil.data.batches import Batch, ImageSet, Replay
from endocil.data.scenario import Task
from endocil.data.seeding import generator
from endocil.methods import common
from endocil.methods.base import Method, Phase, TaskData
from endocil.networks import trained_parts

Compared = Literal["batch", "task"]


class ERACE(Method):
    """Cross-entropy of new images over the classes of their batch, and of images from the memory over all seen ones."""

    replay = learns_known_classes = True
    smooths_labels = False  # smoothing would spread over masked classes
    default_selector = "random"  # as a reservoir, which the authors fill

    def __init__(
        self,
        backbone: nn.Module,
        *,
        compared: Compared = "batch",  # a new image's rivals: classes of its batch (the authors), or of its task
        replay_batch: int | None = None,  # images from the memory in a batch; none: as many as new images
        **inherited: Any,
    ) -> None:
        super().__init__(backbone, **inherited)
        common.check_choice("compared", compared, get_args(Compared))
        common.check_replay_batch(replay_batch)
        self.compared, self.replay_batch = compared, replay_batch

    def notes(self, task: Task, data: TaskData) -> list[str]:
        return common.all_classes_note(task, data) if self._all_classes(task, data) else []

    def phases(self, task: Task, data: TaskData) -> tuple[Phase, ...]:
        schedule, everything = self.schedule(task), task.index == 0 or self._all_classes(task, data)

        def objective(batch: Batch) -> Outcome:
            features = self.embed(batch.images)
            logits = self.classify(features)
            rivals = logits if everything else masked(logits, batch.streams == 0, self._rivals(task, batch))
            loss = batch.stream_weights() * common.cross_entropy(self, rivals, batch)
            return Outcome({"classification": loss}, logits, features)

        train = (*trained_parts(self.backbone), self.classifier)
        first_task = common.first_task_name(task) if not len(data.exemplars) else ""
        replay = Replay(self._memory(task, data), self.replay_batch or schedule.batch_size)
        return (
            Phase(
                "train",
                data.new,
                train,
                schedule,
                objective,
                first_task_name=first_task,
                replay=(replay,),
                takes_maps=True,
            ),
        )

    def _memory(self, task: Task, data: TaskData) -> ImageSet:
        """The exemplars, and new images drawn at random: each class of the task gets as many images as the old class
        with the most exemplars has."""
        kept = data.exemplars.counts(task.n_seen)
        order = torch.randperm(len(data.new), generator=generator(self.seed, task.index, "memory"))
        labels = data.new.labels[order]
        drawn = [order[labels == label][: int(kept.max() - kept[label])] for label in data.new.classes()]
        return data.new.take(torch.cat(drawn)) + data.exemplars

    def _rivals(self, task: Task, batch: Batch) -> Tensor:
        """(n_seen,) bool: the classes that new images are compared with."""
        rivals = torch.zeros(task.n_seen, dtype=torch.bool, device=batch.labels.device)
        if self.compared == "task":
            rivals[task.new] = True
        elif batch.batch_streams is not None:
            rivals[batch.batch_labels[batch.batch_streams == 0]] = True
        else:
            rivals[batch.batch_labels] = True
        return rivals

    def _all_classes(self, task: Task, data: TaskData) -> bool:
        """Where a loss over fewer classes would be 0 for ever, or has no place for images of known classes."""
        known = bool((data.new.labels < task.n_old).any())
        return len(data.new.classes()) == 1 or (self.compared == "task" and (known or task.n_new == 1))


def masked(logits: Tensor, new: Tensor, rivals: Tensor) -> Tensor:
    """The logits, where those of new images (B,) for classes that are no rivals (n_seen,) have no part in a softmax."""
    return logits.masked_fill(new[:, None] & ~rivals, -torch.inf)
