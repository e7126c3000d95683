"""The contract of a method: the modules it owns, what it trains in a task (phases), and how it predicts.

A method never runs a loop of its own: it hands phases to the one training loop (learning/training.py), so that every
method is logged, resumed and distributed alike.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor, nn

from endocil.components.gradients import GradientRule
from endocil.components.losses import Outcome
from endocil.data.augment import Augmentation, Normalisation
from endocil.data.batches import Batch, ImageSet, Replay, cut
from endocil.data.scenario import Task
from endocil.data.seeding import generator
from endocil.errors import SettingsError
from endocil.networks import GrowingClassifier, Head, normalisation_of, trained_parts

__all__ = [  # what a method is written with
    "Batch",
    "GradientRule",
    "Head",
    "ImageSet",
    "Method",
    "Outcome",
    "Phase",
    "Replay",
    "Schedule",
    "Task",
    "TaskData",
]


@dataclass(frozen=True)
class Schedule:
    """How long, how fast and by which optimiser a phase learns: its rate falls at the milestones, or along a cosine."""

    epochs: int = 100
    learning_rate: float = 0.1
    milestones: tuple[float, ...] = (0.5, 0.7)  # fractions of the epochs, or whole epochs
    decay: float = 0.1
    momentum: float = 0.9
    weight_decay: float = 5e-4
    batch_size: int = 64
    cosine: bool = False  # falls from the first epoch on, to 0 at the end; milestones play no part
    optimizer: str = "sgd"  # by name, or "package.module:Class" (learning/optimizers.py)
    optimizer_options: Mapping[str, Any] = field(default_factory=dict, hash=False)
    warmup: float = 0  # whole epochs, or a share of them, in which the rate rises step by step from 0
    backbone_factor: float = 1.0  # learning rate of the backbone over that of the heads
    clip_gradients: float = 0.0  # the longest that the gradient of all parameters together may be; 0: any

    def __post_init__(self) -> None:
        if self.warmup_epochs >= self.epochs:
            raise SettingsError(
                f"train.warmup is {self.warmup} epochs, and a phase has {self.epochs}; expected fewer, or a share of "
                f"them such as 0.1"
            )

    @property
    def milestone_epochs(self) -> tuple[int, ...]:
        return milestone_epochs(self.milestones, self.epochs)

    @property
    def warmup_epochs(self) -> float:
        return warmup_epochs(self.warmup, self.epochs)

    def learning_rate_at(self, epoch: int, done: float = 1.0) -> float:
        """In a step of an epoch (from 0) after which this share of the epoch is done.

        The rate rises in every step of the warm-up; it falls between epochs, a cosine from the warm-up's end on."""
        rate, warmup = self.learning_rate, self.warmup_epochs
        if self.cosine:
            angle = math.pi * max(0.0, epoch - warmup) / (self.epochs - warmup)
            rate = rate * (1.0 + math.cos(angle)) / 2.0
        else:
            rate *= self.decay ** sum(epoch >= milestone for milestone in self.milestone_epochs)
        return rate if epoch + done >= warmup else rate * (epoch + done) / warmup


def milestone_epochs(milestones: Sequence[float], epochs: int) -> tuple[int, ...]:
    """The epochs (from 0) at whose start the learning rate falls. A fraction is rounded up to the next whole epoch:
    0.5 and 0.7 are 50 and 70 of 100, 15 and 21 of 30, 2 and 3 of 4. It is taken as the decimal it is written as: 0.55
    of 100 is 55, though 0.55 * 100 is a little more."""
    return tuple(value if isinstance(value, int) else math.ceil(Fraction(repr(value)) * epochs) for value in milestones)


def warmup_epochs(warmup: float, epochs: int) -> float:
    """A whole number means epochs, a fraction a share of them."""
    return float(warmup if isinstance(warmup, int) else Fraction(repr(warmup)) * epochs)


def check_warmup(value: Any) -> Any:
    """For pydantic: whole epochs, or a share of the epochs."""
    if (type(value) is int and value >= 0) or (type(value) is float and 0.0 <= value < 1.0):
        return value or 0
    raise ValueError("expected whole epochs, such as 1, or a share of the epochs, from 0 to below 1, such as 0.1")


def check_milestones(value: Any) -> Any:
    """For pydantic: all whole epochs, or all fractions of the epochs."""
    if isinstance(value, list | tuple):
        epochs = all(type(milestone) is int and milestone >= 1 for milestone in value)
        fractions = all(type(milestone) is float and 0.0 < milestone < 1.0 for milestone in value)
        if epochs or fractions:
            return value
    raise ValueError(
        "expected shares of the epochs, above 0 and below 1, such as [0.5, 0.7], or whole epochs of 1 or more, "
        "such as [50, 70], not both"
    )


def shared_schedule(
    *,
    learning_rate: float = 0.1,
    later_factor: float = 1.0,
    weight_decay: float = 2e-4,
    first_weight_decay: float = 5e-4,
    **options: Any,
) -> Callable[[Task], Schedule]:
    """The paper's protocol for every method: one schedule, with its own weight decay in the first task. Unlike there,
    later tasks may learn at another rate."""

    def schedule(task: Task) -> Schedule:
        if task.index == 0:
            return Schedule(learning_rate=learning_rate, weight_decay=first_weight_decay, **options)
        return Schedule(learning_rate=learning_rate * later_factor, weight_decay=weight_decay, **options)

    return schedule


@dataclass(frozen=True)
class TaskData:
    """The training images of a task: its new images and the exemplars of earlier classes."""

    new: ImageSet
    exemplars: ImageSet
    augmentation: Augmentation = field(default_factory=Augmentation)  # that of the training loop
    features: Callable[[ImageSet], Tensor] | None = None  # the method's `embed` of images as they are: (n, d)

    @property
    def all(self) -> ImageSet:
        return self.new + self.exemplars

    def balanced(self, seed: int) -> "TaskData":
        """The same images, those of small classes several times, so that every batch has about as many of each."""
        both = self.all.balanced(generator(seed, "balanced"))
        new, exemplars = (both.take(torch.nonzero(both.from_memory == old).flatten()) for old in (False, True))
        return replace(self, new=new, exemplars=exemplars)


@dataclass(frozen=True)
class Phase:
    """One stage of learning: train these modules on these images by lowering this objective.

    `first_task_name` is a promise: the phase trains backbone and classifier alone, and the result depends on the
    images, the network, the schedule and the seed, but on nothing else of the method (learning/first_task.py).
    """

    name: str
    images: ImageSet
    train: Sequence[nn.Module]  # everything else is frozen and in eval mode; each parameter gets a gradient
    schedule: Schedule
    objective: Callable[[Batch], Outcome]
    gradients: GradientRule = field(default_factory=GradientRule)
    augmented: bool = True  # false: images as they are, as in a test
    first_task_name: str = ""  # first tasks of the same name train backbone and classifier bit for bit alike
    replay: Sequence[Replay] = ()  # batches drawn beside each batch of the images: Batch.streams tells them apart
    takes_maps: bool = False  # it only hands batch.images to its backbones: maps of frozen stages do as well
    views: int = 1  # how often each image is augmented: Batch.views
    whole_batches: bool = False  # the loss of an image depends on others of its batch: it cannot be divided
    after_step: Callable[[], None] | None = None  # after each step of the optimiser, without gradients (EMA, SWA)
    also_changes: Sequence[nn.Module | Tensor] = ()  # beside `train`: modules and buffers that after_step writes to

    @property
    def images_per_epoch(self) -> int:
        """Images that go through the network in an epoch, those of the replay batches too."""
        replayed = sum(map(len, self.replay))
        return len(self.images) + (replayed * len(cut(self.images.rows, self.schedule.batch_size)) if replayed else 0)


class Method(nn.Module, ABC):
    """A way to learn a sequence of tasks with one classifier.

    Options are keyword-only constructor arguments; a subclass names its own and passes `**inherited` on.
    """

    replay = False  # keeps exemplars?
    joint = False  # needs all classes at once?
    learns_known_classes = False  # can a task bring images of known classes alone, so that task.n_new is 0?
    smooths_labels = False  # do its losses on labels use `label_smoothing`?
    mixes_labels = False  # do they go through Batch.label_loss, which knows of mixed images?
    default_selector = "mean"  # the selector when memory.select is not set
    evaluation_options: tuple[str, ...] = ()  # options that change what is evaluated, not what is learned
    native: tuple[Schedule, Schedule] | None = None  # its authors' schedule: first task, later tasks

    def __init__(
        self,
        backbone: nn.Module,
        *,
        native_schedule: bool = False,  # the authors' schedule in place of that of [train]
        schedule: Callable[[Task], Schedule] | None = None,
        seed: int = 0,
        label_smoothing: float = 0.0,  # given only where smooths_labels is true
    ) -> None:
        super().__init__()
        self.backbone = backbone
        self.classifier: Head = GrowingClassifier(int(backbone.n_features))  # type: ignore[arg-type]
        self.schedule = self._native_schedule() if native_schedule else schedule or shared_schedule()
        self.seed, self.label_smoothing = seed, label_smoothing
        self.statistics: dict[str, Tensor] = {}  # state that is no parameter or buffer; saved with the weights
        self.measurements: dict[str, float] = {}  # of the current task, for the event `learned`; not saved

    def _native_schedule(self) -> Callable[[Task], Schedule]:
        if self.native is None:
            raise SettingsError(
                f"method.native_schedule is set, but {type(self).__name__} has no schedule of its own; leave it out"
            )
        first, later = self.native
        return lambda task: first if task.index == 0 else later

    def grow(self, task: Task) -> None:
        """Make room for the new classes. Sees no data."""
        self.classifier.grow(task.n_new, generator(self.seed, task.index, "classifier"))

    def prepare(self, task: Task, data: TaskData) -> None:
        """After `grow` and before the first phase, once: values to start from that need data, such as rows imprinted
        from the new images' features."""

    @abstractmethod
    def phases(self, task: Task, data: TaskData) -> tuple[Phase, ...]:
        """What to train, in order; empty for a method that computes what it learns in `consolidate`. Reads state and
        changes none, because a resumed run calls it again."""

    def notes(self, task: Task, data: TaskData) -> list[str]:
        """Remarks on this task for the log, before it is trained."""
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

    def exemplar_tensors(self, task: Task, features: Tensor, logits: Tensor) -> Mapping[str, Tensor]:
        """What to keep with each newly chosen exemplar, row by row: `Batch.kept` gives it back. By default nothing.

        Exemplars keep what they got when they were chosen. A tensor that has become wider since, by more classes, is
        padded with zeros."""
        return {}

    def selection_features(self, images: Tensor, features: Tensor) -> Tensor:
        """The features that exemplars are selected by; by default the images' `embed` features."""
        return features

    def problems(self, n_classes: int) -> list[str]:
        """What makes it impossible to learn so many classes on this machine, with the way out."""
        return []

    @property
    def frozen(self) -> bool:
        """Whether an image's features are the same in every task: nothing of the backbone learns."""
        return type(self).embed is Method.embed and not trained_parts(self.backbone)

    @property
    def embeds_by(self) -> str:
        """What of `embed` the backbone does not decide, by name; "": nothing. Methods of one name share features."""
        return "" if type(self).embed is Method.embed else type(self).embed.__qualname__

    @property
    def predictors(self) -> tuple[nn.Module, ...]:
        """The modules that prediction needs: what a deployed model keeps."""
        return (self.backbone, self.classifier)

    @property
    def normalisation(self) -> Normalisation:
        """What the network expects of its input."""
        return normalisation_of(self.backbone)

    @property
    def device(self) -> torch.device:
        return self.classifier.weight.device
