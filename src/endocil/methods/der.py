"""DER, dynamically expandable representation (Yan et al., CVPR 2021) as in PyCIL: a new backbone for each task.

Older backbones stay as they are; the classifier sees the features of all side by side. While a task is learned, an
auxiliary head tells its classes from one another and from all old ones, so that the new features are new.
Differs from the authors: no masks and no pruning; rows are aligned (WA) instead of retraining the classifier on
balanced data.
"""

from typing import Any

from torch import Tensor, nn
from torch.nn import functional

from endocil.components.losses import Outcome
from endocil.data.batches import Batch
from endocil.data.scenario import Task
from endocil.data.seeding import generator
from endocil.methods import common
from endocil.methods.base import Method, Phase, TaskData
from endocil.networks import GrowingClassifier, LastBlocks, WholeBranches, concatenate_features


class DER(Method):
    """A new backbone for each task beside the frozen older ones; one classifier on all features, aligned."""

    classifier: GrowingClassifier
    replay = learns_known_classes = True
    smooths_labels = mixes_labels = True
    native = (common.PYCIL_FIRST_TASK, common.pycil_schedule(170, (80, 120, 150)))

    def __init__(
        self,
        backbone: nn.Module,
        *,
        auxiliary_weight: float = 1.0,  # PyCIL
        **inherited: Any,
    ) -> None:
        super().__init__(backbone, **inherited)
        common.check_number(
            "auxiliary_weight", auxiliary_weight, auxiliary_weight >= 0, "a number from 0 on (the default is 1)"
        )
        self.auxiliary_weight = auxiliary_weight
        self.branches: WholeBranches | LastBlocks = WholeBranches()
        self.auxiliary: GrowingClassifier | None = None

    def grow(self, task: Task) -> None:
        width = int(self.backbone.n_features)  # type: ignore[arg-type]
        if task.index > 0:
            self.branches.add(self.backbone)
            self.auxiliary = GrowingClassifier(width) if task.n_new else None  # no class to tell from the old ones
            if self.auxiliary is not None:
                self.auxiliary.grow(1 + task.n_new, generator(self.seed, task.index, "auxiliary"))
        random = generator(self.seed, task.index, "classifier")
        self.classifier.grow(task.n_new, random, n_features=width * (1 + len(self.branches)))

    def phases(self, task: Task, data: TaskData) -> tuple[Phase, ...]:
        auxiliary = self.auxiliary

        def objective(batch: Batch) -> Outcome:
            branches = self.branches.features(self.backbone, batch.images)
            features = concatenate_features(branches)
            logits = self.classify(features)
            losses = {"classification": common.cross_entropy(self, logits, batch)}
            if auxiliary is not None:
                outputs = auxiliary(branches[-1])

                def auxiliary_loss(labels: Tensor) -> Tensor:
                    target, smoothing = auxiliary_labels(labels, task), self.label_smoothing
                    return functional.cross_entropy(outputs, target, reduction="none", label_smoothing=smoothing)

                losses["auxiliary"] = self.auxiliary_weight * batch.label_loss(auxiliary_loss)
            return Outcome(losses, logits, features)

        heads = (self.classifier,) if auxiliary is None else (self.classifier, auxiliary)
        train = (*self.branches.trained(self.backbone), *heads)
        first_task = common.first_task_name(task)
        return (
            Phase(
                "train", data.all, train, self.schedule(task), objective, first_task_name=first_task, takes_maps=True
            ),
        )

    def consolidate(self, task: Task, data: TaskData) -> None:
        if task.index > 0:
            self.measurements["alignment"] = common.align(self.classifier, task)

    def embed(self, images: Tensor) -> Tensor:
        return concatenate_features(self.branches.features(self.backbone, images))

    @property
    def predictors(self) -> tuple[nn.Module, ...]:
        return (*super().predictors, self.branches)


def auxiliary_labels(labels: Tensor, task: Task) -> Tensor:
    """0 for every old class, then the new classes from 1 on."""
    return (labels - task.n_old + 1).clamp_min(0)
