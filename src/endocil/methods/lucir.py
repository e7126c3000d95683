"""LUCIR, a unified classifier rebalanced (Hou et al., CVPR 2019): cosine scores, less forgetting, a margin.

The classifier scores by the cosine of features and rows. Old rows stay as they are; features keep the direction that
the previous task's network gives them; exemplars stay apart from the nearest new classes by a margin. New rows start as
the mean directions of their classes ("imprinted").
The backbone loses its last ReLU where it has the method `drop_last_relu` (ResNet); others stay as they are.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from endocil.components.losses import Outcome
from endocil.data.batches import Batch
from endocil.data.scenario import Task
from endocil.methods import common
from endocil.methods.base import Method, Phase, Schedule, TaskData
from endocil.networks import CosineClassifier, trained_parts

AUTHORS = Schedule(epochs=160, milestones=(80, 120), weight_decay=5e-4, batch_size=128)


class LUCIR(Method):
    """Cross-entropy of scaled cosines, features held to the old network's direction, and a margin for exemplars."""

    classifier: CosineClassifier
    replay = learns_known_classes = True
    smooths_labels = True
    native = (AUTHORS, AUTHORS)

    def __init__(
        self,
        backbone: nn.Module,
        *,
        less_forget: float = 5.0,  # lambda_base of the less-forget loss: the authors, CIFAR-100
        margin: float = 0.5,  # the authors
        hardest: int = 2,  # K, new classes that an exemplar is kept away from: the authors
        ranking: float = 1.0,  # weight of the margin: the authors
        **inherited: Any,
    ) -> None:
        super().__init__(backbone, **inherited)
        common.check_number("less_forget", less_forget, less_forget >= 0, "a number of 0 or more (the default is 5)")
        common.check_number("margin", margin, 0 <= margin <= 2, "a number from 0 to 2 (the default is 0.5)")
        common.check_number("hardest", hardest, hardest >= 1, "a number of classes, 1 or more (the default is 2)")
        common.check_number("ranking", ranking, ranking >= 0, "a number of 0 or more (the default is 1)")
        self.less_forget, self.margin, self.hardest, self.ranking = less_forget, margin, hardest, ranking
        common.drop_last_relu(backbone)
        self.classifier = CosineClassifier(int(backbone.n_features))  # type: ignore[arg-type]
        self.teacher: nn.Module | None = None

    def grow(self, task: Task) -> None:
        self.teacher = common.frozen_copy(self.backbone) if task.index > 0 else None
        super().grow(task)

    def prepare(self, task: Task, data: TaskData) -> None:
        if task.index > 0 and task.n_new and data.features is not None:
            features, labels = functional.normalize(data.features(data.new), dim=1), data.new.labels
            self.classifier.imprint(
                torch.stack([features[labels == label].mean(dim=0) for label in range(task.n_old, task.n_seen)])
            )

    def phases(self, task: Task, data: TaskData) -> tuple[Phase, ...]:
        teacher, weight = self.teacher, self.less_forget * math.sqrt(common.old_per_new_class(task, data))

        def objective(batch: Batch) -> Outcome:
            features = self.embed(batch.images)
            cosines = self.classifier.similarities(features)
            logits = self.classifier.scale(cosines)
            losses = {"classification": common.cross_entropy(self, logits, batch)}
            if teacher is not None:
                before = common.teacher_output(teacher, batch)
                losses["less_forget"] = weight * (1.0 - functional.cosine_similarity(features, before))
                if task.n_new:
                    exemplars = int((batch.batch_labels < task.n_old).sum())  # of the whole batch
                    factor = self.ranking * len(batch.batch_labels) / max(1, exemplars)
                    margins = margin_ranking(cosines, batch.labels, task, self.margin, self.hardest)
                    losses["margin"] = factor * margins
            return Outcome(losses, logits, features)

        # without a new class, the rows of those that come back learn
        head = (self.classifier.tasks[-1], self.classifier.scale) if task.n_new else (self.classifier,)
        train = (*trained_parts(self.backbone), *head)
        return (Phase("train", data.all, train, self.schedule(task), objective, takes_maps=True),)


def margin_ranking(cosines: Tensor, labels: Tensor, task: Task, margin: float, hardest: int) -> Tensor:
    """Of each image of an old class: the mean over its `hardest` new classes of max(0, m - cos_y + cos_k); else 0."""
    nearest = cosines[:, task.new].topk(min(hardest, task.n_new), dim=1).values  # (B, K)
    own = cosines.gather(1, labels[:, None])  # (B, 1)
    return functional.relu(margin - own + nearest).mean(dim=1) * (labels < task.n_old)
