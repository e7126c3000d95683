"""When the learning rate falls: whole epochs, or shares of however many epochs a phase has."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor, nn

from endocil.components.gradients import GradientRule
from endocil.components.losses import Outcome
from endocil.data.augment import Augmentation
from endocil.data.batches import Batch, ImageSet
from endocil.data.scenario import Task
from endocil.data.seeding import generator
from endocil.errors import EndocilError
from endocil.networks import GrowingClassifier


def milestone_epochs(milestones: Sequence[float], epochs: int) -> tuple[int, ...]:
    """The epochs (from 0) at whose start the rate falls. A share is rounded up to the next whole epoch: 0.5 and 0.7
    are 50 and 70 of 100, 15 and 21 of 30, 2 and 3 of 4. It is taken as the decimal it is written as: 0.55 of 100
    is 55, though 0.55 * 100 is a little more."""
    return tuple(
        one if isinstance(one, int) else math.ceil(Fraction(repr(one)) * epochs) for one in milestones
    )


def refuse_other_milestones(value: Any) -> Any:
    """Whole epochs or shares, one kind for all."""
    given = list(value) if isinstance(value, list | tuple) else [value]
    whole = all(type(one) is int and one >= 1 for one in given)
    shares = all(type(one) is float and 0.0 < one < 1.0 for one in given)
    if not isinstance(value, list | tuple) or not (whole or shares):
        raise ValueError(
            "expected shares of the epochs, above 0 and below 1, such as [0.5, 0.7], or whole epochs of 1 or more, "
            "such as [50, 70], not both"
        )
    return value


# The contract between a method and the house: what a way of learning has to say, and what it never has to do.


@dataclass(frozen=True)
class Schedule:
    """How long and how fast a phase learns: SGD whose learning rate falls at the milestones, or along a cosine."""

    epochs: int = 100
    learning_rate: float = 0.1
    milestones: tuple[float, ...] = (0.5, 0.7)  # shares of the epochs, or whole epochs
    decay: float = 0.1
    momentum: float = 0.9
    weight_decay: float = 5e-4
    batch_size: int = 64
    cosine: bool = False  # falls from the first epoch on, to 0 at the end; milestones play no part

    @property
    def milestone_epochs(self) -> tuple[int, ...]:
        return milestone_epochs(self.milestones, self.epochs)

    def learning_rate_at(self, epoch: int) -> float:
        if self.cosine:
            return self.learning_rate * (1.0 + math.cos(math.pi * epoch / self.epochs)) / 2.0
        return self.learning_rate * self.decay ** sum(
            epoch >= milestone for milestone in self.milestone_epochs
        )


def shared_schedule(
    *, weight_decay: float = 2e-4, first_weight_decay: float = 5e-4, **common: object
) -> Callable[[Task], Schedule]:
    """The paper's protocol for every method: one schedule, with its own weight decay in the first task."""

    def schedule(task: Task) -> Schedule:
        decay = first_weight_decay if task.index == 0 else weight_decay
        return Schedule(weight_decay=decay, **common)  # type: ignore[arg-type]

    return schedule


@dataclass(frozen=True)
class TaskData:
    """What a task may learn from: its new images and the exemplars of earlier classes."""

    new: ImageSet
    exemplars: ImageSet
    augmentation: Augmentation = field(default_factory=Augmentation)  # as training does it

    @property
    def all(self) -> ImageSet:
        return self.new + self.exemplars


@dataclass(frozen=True)
class Phase:
    """One stage of learning: train these modules on these images by lowering this objective.

    `shared` is a promise: the phase trains backbone and classifier alone, and what it makes of them depends on
    the images, the network, the schedule and the seed, but on nothing else of the method (first_task.py).
    """

    name: str
    images: ImageSet
    train: Sequence[nn.Module]  # everything else is frozen and in eval mode; each parameter gets a gradient
    schedule: Schedule
    objective: Callable[[Batch], Outcome]
    gradients: GradientRule = field(default_factory=GradientRule)
    augmented: bool = True  # false: images as they are, as in a test
    shared: str = ""  # a name: first tasks of the same name train backbone and classifier to the same bits


class Method(nn.Module, ABC):
    """A way to learn a sequence of tasks with one classifier.

    Options are keyword-only constructor arguments; a subclass names its own and passes `**shared` on.
    """

    replay = False  # keeps exemplars?
    joint = False  # wants all classes at once?
    selects = "mean"  # how exemplars are chosen when memory.select is not set
    shows: tuple[str, ...] = ()  # options that choose what is evaluated, not what is learned
    native: tuple[Schedule, Schedule] | None = None  # its authors' schedule: first task, later tasks

    def __init__(
        self,
        backbone: nn.Module,
        *,
        native_schedule: bool = False,  # the authors' schedule in place of the shared one of [train]
        schedule: Callable[[Task], Schedule] | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.backbone = backbone
        self.classifier = GrowingClassifier(int(backbone.n_features))  # type: ignore[arg-type]
        self.schedule = self._native() if native_schedule else schedule or shared_schedule()
        self.seed = seed
        self.statistics: dict[str, Tensor] = {}  # what was measured after training; saved with the weights

    def _native(self) -> Callable[[Task], Schedule]:
        if self.native is None:
            raise EndocilError(
                f"method.native_schedule is set, but {type(self).__name__} has no schedule of its own; leave it out"
            )
        first, later = self.native
        return lambda task: first if task.index == 0 else later

    def grow(self, task: Task) -> None:
        """Make room for the new classes. Sees no data."""
        self.classifier.grow(task.n_new, generator(self.seed, task.index, "classifier"))

    @abstractmethod
    def phases(self, task: Task, data: TaskData) -> tuple[Phase, ...]:
        """What to train, in order; nothing for a method that computes what it learns in `consolidate`. Reads state and
        changes none, so that a resumed run may ask again."""

    def notes(self, task: Task, data: TaskData) -> list[str]:
        """What the log should say about this task before it is trained."""
        return []

    def consolidate(self, task: Task, data: TaskData) -> None:
        """After training, before exemplars are chosen: alignment, Fisher information and the like."""

    def embed(self, images: Tensor) -> Tensor:
        """(B, d) features: exemplars and the nearest-mean head use them."""
        return self.backbone(images)  # type: ignore[no-any-return]

    def classify(self, features: Tensor) -> Tensor:
        """(B, n_seen) logits of the reported head."""
        return self.classifier(features)  # type: ignore[no-any-return]

    def forward(self, images: Tensor) -> Tensor:
        return self.classify(self.embed(images))

    def choosing(self, images: Tensor, features: Tensor) -> Tensor:
        """What exemplars are chosen by, from the images and their `embed` features: those features themselves."""
        return features

    @property
    def predictors(self) -> tuple[nn.Module, ...]:
        """The modules that prediction needs: what a deployed model would keep."""
        return (self.backbone, self.classifier)

    @property
    def device(self) -> torch.device:
        return self.classifier.weight.device
