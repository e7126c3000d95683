"""DER++, dark experience replay (Buzzega et al., NeurIPS 2020): exemplars keep the logits that they were chosen with.

Each step has a batch of new images and two batches from the memory: one is held to its stored logits, the other learns
its labels. No teacher network is needed.
Differs from the authors: exemplars are chosen after a task, not while it is learned, so the first task has no replay;
the squared error of an exemplar is a mean over the classes that were known when it was chosen, theirs over all classes
that will ever come.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from endocil.components.losses import Outcome
from endocil.data.batches import Batch, Replay
from endocil.data.scenario import Task
from endocil.methods import common
from endocil.methods.base import Method, Phase, TaskData
from endocil.networks import trained_parts

LOGITS, KNOWN = "logits", "known"  # kept with each exemplar: its logits, and how many of them there were
NEW, HELD_TO_LOGITS, LABELLED = 0, 1, 2  # streams of a batch


class DERpp(Method):
    """Cross-entropy on new images; on exemplars, squared error to their stored logits, and cross-entropy."""

    replay = learns_known_classes = True
    smooths_labels = True
    default_selector = "random"  # as a reservoir, which the authors fill

    def __init__(
        self,
        backbone: nn.Module,
        *,
        alpha: float = 0.3,  # weight of the stored logits: Mammoth, CIFAR-100 with 500 exemplars
        beta: float = 0.5,  # weight of the exemplars' labels: as above
        replay_batch: int | None = None,  # exemplars in each of the two batches; none: as many as new images
        **inherited: Any,
    ) -> None:
        super().__init__(backbone, **inherited)
        common.check_number("alpha", alpha, alpha >= 0, "a number of 0 or more (the default is 0.3)")
        common.check_number("beta", beta, beta >= 0, "a number of 0 or more (the default is 0.5)")
        common.check_replay_batch(replay_batch)
        self.alpha, self.beta, self.replay_batch = alpha, beta, replay_batch

    def phases(self, task: Task, data: TaskData) -> tuple[Phase, ...]:
        schedule = self.schedule(task)
        replay = Replay(data.exemplars, self.replay_batch or schedule.batch_size)

        def objective(batch: Batch) -> Outcome:
            features = self.embed(batch.images)
            logits = self.classify(features)
            weights, streams = batch.stream_weights(), batch.streams
            label_weights = weights * ((streams == NEW).to(weights) + self.beta * (streams == LABELLED))
            losses = {"classification": label_weights * common.cross_entropy(self, logits, batch)}
            if LOGITS in batch.kept:
                held = self.alpha * weights * (streams == HELD_TO_LOGITS)
                losses["stored_logits"] = held * squared_error(logits, batch.kept[LOGITS], batch.kept[KNOWN])
            return Outcome(losses, logits, features)

        train = (*trained_parts(self.backbone), self.classifier)
        first_task = common.first_task_name(task) if not len(data.exemplars) else ""
        return (
            Phase(
                "train",
                data.new,
                train,
                schedule,
                objective,
                first_task_name=first_task,
                replay=(replay, replay),
                takes_maps=True,
            ),
        )

    def exemplar_tensors(self, task: Task, features: Tensor, logits: Tensor) -> Mapping[str, Tensor]:
        return {LOGITS: logits, KNOWN: torch.full((len(logits),), task.n_seen)}


def squared_error(logits: Tensor, stored: Tensor, known: Tensor) -> Tensor:
    """Of each image: the mean over its first `known` classes of (z - stored)^2; 0 where none was known."""
    width = stored.shape[1]
    inside = torch.arange(width, device=logits.device) < known[:, None]  # (B, width)
    squares = (logits[:, :width] - stored.to(logits)).square() * inside
    return squares.sum(dim=1) / known.clamp_min(1)
