"""The exemplar memory: a few images of each class, with their pixels and provenance, kept between tasks.

An exemplar's patient is `Provenance.group`. It is written to memory/task-N.csv of a run, to the checkpoint, and to
exemplars.csv of the model file."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import zip_longest
from typing import Any, Literal

import torch
from torch import Tensor

from endocil.components import selection
from endocil.components.selection import Selection
from endocil.data.batches import ImageSet, join_rows
from endocil.data.scenario import Task
from endocil.data.seeding import generator
from endocil.errors import EndocilError, SettingsError
from endocil.learning.features import CLASS_MEANS, FeatureStore, class_means, l2_normalise, outputs_of
from endocil.learning.parallel import Processes, on_rank_zero
from endocil.methods.base import Method
from endocil.registry import check_options, resolve


@dataclass(frozen=True)
class Provenance:
    """Class and origin of an image inside a model."""

    image: str  # its id in the data it was learned from
    class_name: str
    order: int  # of choice among the exemplars of its class; 0 for held-out images
    task: int  # in which it came
    group: str  # the patient or video; "" where unknown
    source: str  # the device or centre; "" where unknown
    licence: str = ""
    consent: str = ""


@dataclass(frozen=True, eq=False)
class KeptImages:
    """Images that a model keeps, exemplars or held-out images, each with its provenance."""

    pixels: Tensor  # (n, size, size, 3) uint8, as the network saw them before normalisation
    provenance: tuple[Provenance, ...]
    tensors: Mapping[str, Tensor] = field(default_factory=dict)  # (n, ...) what the method keeps with each image

    def __len__(self) -> int:
        return len(self.provenance)

    def __add__(self, other: "KeptImages") -> "KeptImages":
        if not len(self) or not len(other):
            return self if len(self) else other
        tensors = join_rows(self.tensors, len(self), other.tensors, len(other))
        return KeptImages(torch.cat([self.pixels, other.pixels]), (*self.provenance, *other.provenance), tensors)

    def take(self, rows: Sequence[int]) -> "KeptImages":
        tensors = {name: values[list(rows)] for name, values in self.tensors.items()}
        return KeptImages(self.pixels[list(rows)], tuple(self.provenance[row] for row in rows), tensors)

    def first_of_each_class(self, most: int) -> "KeptImages":
        seen, rows = Counter[str](), []
        for row, one in enumerate(self.provenance):
            seen[one.class_name] += 1
            if seen[one.class_name] <= most:
                rows.append(row)
        return self.take(rows)

    def under_terms(self, licence: str, consent: str) -> "KeptImages":
        provenance = tuple(replace(one, licence=licence, consent=consent) for one in self.provenance)
        return replace(self, provenance=provenance)

    def image_set(self, labels: Tensor, *, from_memory: bool = False) -> ImageSet:
        """As images to learn from or to predict."""
        return ImageSet.of(_KeptSource(self, labels), torch.arange(len(self)), from_memory=from_memory)

    def labels(self, classes: Sequence[str]) -> Tensor:
        """(n,) int64: the place of each image's class among the classes."""
        place = {name: label for label, name in enumerate(classes)}
        return torch.tensor([place[one.class_name] for one in self.provenance], dtype=torch.int64)


def no_images(size: int) -> KeptImages:
    return KeptImages(torch.zeros(0, size, size, 3, dtype=torch.uint8), ())


def keep_images(
    images: ImageSet, index: Tensor, classes: Sequence[str], *, task: int, licence: str = "", consent: str = ""
) -> KeptImages:
    """Copies of some images of a set; images that come from the memory keep what is known of them."""
    provenance = []
    for row, label in zip(images.rows[index].tolist(), images.labels[index].tolist(), strict=True):
        image, group, source = images.images.describe(row)
        terms = {"licence": licence, "consent": consent}
        provenance.append(Provenance(image, classes[label], 0, task, group, source, **terms))
    return KeptImages(images.gather(index), tuple(provenance))


@dataclass(frozen=True, eq=False)
class _KeptSource:
    """Kept images as a source of an image set."""

    kept: KeptImages
    labels: Tensor

    def gather(self, index: Tensor) -> Tensor:
        return self.kept.pixels[index]

    def describe(self, row: int) -> tuple[str, str, str]:
        one = self.kept.provenance[row]
        return one.image, one.group, one.source


@dataclass(frozen=True)
class Candidates:
    """The images of one class among which exemplars are chosen."""

    features: Tensor  # (m, d) of length 1
    scores: Tensor  # (m, n_seen) logits
    generator: torch.Generator


Selector = Callable[[Candidates, int], Selection]


def _by_mmd(
    candidates: Candidates,
    n: int,
    *,
    kernels: int = 5,  # the usual multi-kernel MMD code; the paper does not say
    scale: float = 2.0,  # as above
    bandwidth: Literal["index", "literal"] = "index",
    self_pairs: bool = False,
    refine: Literal["none", "swap"] = "none",  # the paper's algorithm ends with the greedy picks
) -> Selection:
    return selection.select_by_mmd(
        candidates.features, n, kernels=kernels, scale=scale, bandwidth=bandwidth, self_pairs=self_pairs, refine=refine
    )


SELECTORS: dict[str, Callable[..., Selection]] = {
    "mmd": _by_mmd,
    "mean": lambda candidates, n: selection.select_by_mean(candidates.features, n),
    "random": lambda candidates, n: selection.select_at_random(len(candidates.features), n, candidates.generator),
    "entropy": lambda candidates, n: selection.select_by_entropy(candidates.scores, n),
    "distance": lambda candidates, n: selection.select_by_distance(candidates.scores, n),
}


def build_selector(name: str, options: Mapping[str, Any]) -> Selector:
    """A selector by name with its options; one's own is a function of (candidates, n) as 'package.module:function'."""
    selector = resolve("memory.select", name, SELECTORS)
    check_options("memory", selector, options)
    chosen = partial(selector, **options)
    try:  # options that cannot work are found now, not after the first task
        chosen(Candidates(torch.eye(3), torch.eye(3), generator(0)), 2)
    except ValueError as error:
        raise SettingsError(f"memory.select '{name}' with {dict(options)}: {error}") from error
    return chosen


@dataclass(frozen=True)
class Choice:
    """What was kept of one class."""

    label: int
    kept: int
    of: int
    mmd2: float | None  # of the exemplars against all candidates, where the selector measures it
    bound: float | None  # the paper's bound on it


def even_share(available: Sequence[int], total: int) -> int:
    """The largest number q such that q of each class, or all it has where it has fewer, are at most `total` together.

    What a small class leaves over goes to the others in this way. A remainder that does not give one more to every
    class with images left stays unused, so that no class is favoured."""
    left, rest = total, sorted(available)
    for done, least in enumerate(rest):
        each = left // (len(rest) - done)
        if each < least:
            return each
        left -= least
    return rest[-1] if rest else total


class ExemplarMemory:
    """Exemplars of each class, class by class, first choice first.

    `per_class` keeps this many of every class and never selects again; `total` is shared among the classes seen by
    `even_share`, so that old classes give up their last choices. What a class has given up is gone: its share is
    of the images it still has.
    """

    def __init__(
        self, *, per_class: int | None = None, total: int | None = None, select: Selector, size: int, seed: int = 0
    ) -> None:
        if (per_class is None) == (total is None):
            raise SettingsError("set memory.per_class or memory.total, one of them")
        self.per_class, self.total, self.select, self.seed = per_class, total, select, seed
        self.exemplars = no_images(size)
        self.labels = torch.empty(0, dtype=torch.int64)  # of the exemplars

    def __len__(self) -> int:
        return len(self.exemplars)

    def counts(self) -> dict[int, int]:
        """Exemplars of each class that has any."""
        labels, counts = torch.unique(self.labels, return_counts=True)
        return dict(zip(labels.tolist(), counts.tolist(), strict=True))

    def quota(self, available: Sequence[int]) -> int:
        """How many of a class may be kept when each has so many to choose from."""
        if self.per_class is not None:
            return self.per_class
        if (self.total or 0) < len(available):
            raise SettingsError(
                f"memory.total is {self.total}, less than one image for each of {len(available)} classes; raise it, "
                f"or set memory.per_class instead"
            )
        return even_share(available, self.total or 0)

    def planned(self, tasks: Sequence[Sequence[int]]) -> list[int]:
        """How many of each class are kept once these tasks, each with so many images of each class, are learned."""
        kept: list[int] = []
        for new in tasks:
            available = [old + n for old, n in zip_longest(kept, new, fillvalue=0)]
            quota = self.quota(available)
            kept = [min(quota, n) for n in available]
        return kept

    def images(self) -> ImageSet:
        """All exemplars, to train on."""
        images = self.exemplars.image_set(self.labels, from_memory=True)
        return replace(images, kept=dict(self.exemplars.tensors))

    def load(self, exemplars: KeptImages, classes: Sequence[str]) -> None:
        """Replace the memory by these exemplars, in the order of classes and of selection."""
        labels = exemplars.labels(classes)
        order = sorted(range(len(exemplars)), key=lambda row: (int(labels[row]), exemplars.provenance[row].order))
        self.exemplars, self.labels = (exemplars.take(order) if order else exemplars), labels[order]

    def choose(
        self, images: ImageSet, features: Tensor, scores: Tensor, labels: Sequence[int], task: int
    ) -> tuple[list[Choice], Tensor]:
        """Which of `images` (new images, then all exemplars) to keep; exemplars of these `labels` are chosen anew.

        Returns what was kept of each class, and the places among `images`, class by class, first choice first."""
        places = {label: torch.nonzero(images.labels == label).flatten() for label in images.classes()}
        quota = self.quota([len(mine) for mine in places.values()])
        features, choices = l2_normalise(features), []
        for label in labels:
            mine = places[label]
            random = generator(self.seed, task, label, "selection")
            chosen = self.select(Candidates(features[mine], scores[mine], random), quota)
            places[label] = mine[chosen.indices.cpu()]
            mmd2 = None if chosen.mmd2 is None else float(chosen.mmd2[-1])
            choices.append(Choice(label, len(places[label]), len(mine), mmd2, chosen.bound))
        return choices, torch.cat([mine[:quota] for _, mine in sorted(places.items())])

    def keep(
        self,
        images: ImageSet,
        places: Tensor,
        classes: Sequence[str],
        *,
        task: int,
        licence: str = "",
        consent: str = "",
        tensors: Mapping[str, Tensor] | None = None,
    ) -> None:
        """Hold the images at these places; those that were exemplars before keep their provenance and tensors.

        `tensors`: (n, ...) to keep with those of them that are new, in the order of the places."""
        n_new = len(images) - len(self)
        new = keep_images(images, places, classes, task=task, licence=licence, consent=consent)
        order, provenance = dict[str, int](), []
        for place, one in zip(places.tolist(), new.provenance, strict=True):
            known = one if place < n_new else self.exemplars.provenance[place - n_new]
            order[known.class_name] = order.get(known.class_name, -1) + 1
            provenance.append(replace(known, order=order[known.class_name]))
        fresh, known_places = torch.nonzero(places < n_new).flatten(), torch.nonzero(places >= n_new).flatten()
        before = self.exemplars.take((places[known_places] - n_new).tolist())
        joined = join_rows(tensors or {}, len(fresh), before.tensors, len(before))
        order_of = torch.argsort(torch.cat([fresh, known_places]))
        kept = {name: values[order_of] for name, values in joined.items()}
        self.exemplars, self.labels = KeptImages(new.pixels, tuple(provenance), kept), images.labels[places]

    def records(self) -> list[tuple[str, str, int, int, str, str]]:
        """Where each exemplar comes from: image, class, order of choice, task, group, source."""
        return [
            (one.image, one.class_name, one.order, one.task, one.group, one.source) for one in self.exemplars.provenance
        ]


def update_memory(
    method: Method,
    memory: ExemplarMemory,
    new: ImageSet,
    task: Task,
    classes: Sequence[str],
    *,
    batch_size: int,
    fabric: Processes,
    store: FeatureStore | None = None,
    licence: str = "",
    consent: str = "",
) -> list[Choice]:
    """After a task: choose exemplars and measure the class means, by one pass over new images and old exemplars.

    The means of all classes go into the method's statistics."""
    images = new + memory.images()
    outputs = outputs_of(method, images, batch_size, for_selection=True, fabric=fabric, store=store)
    if not bool(outputs.features.isfinite().all()):
        raise EndocilError(f"the network's features are not finite after task {task.number}; lower train.learning_rate")
    # new images of a known class compete with its old exemplars; of several processes one chooses, as a last
    # digit must not make them differ
    assert outputs.for_selection is not None
    chosen_by, logits = outputs.for_selection, outputs.logits
    choices, places = on_rank_zero(fabric, lambda: memory.choose(images, chosen_by, logits, new.classes(), task.index))
    fresh = places[places < len(new)]
    tensors = on_rank_zero(
        fabric, lambda: exemplar_tensors(method, task, outputs.features[fresh], outputs.logits[fresh])
    )
    memory.keep(images, places, classes, task=task.index, licence=licence, consent=consent, tensors=tensors)
    method.statistics[CLASS_MEANS] = class_means(outputs.features[places], memory.labels, task.n_seen)
    return choices


def exemplars_of(memory: ExemplarMemory | None, new: ImageSet) -> ImageSet:
    """The exemplars beside the new images of a task; none of a method that keeps none."""
    return new.take(torch.arange(0)) if memory is None else memory.images()


def exemplar_tensors(method: Method, task: Task, features: Tensor, logits: Tensor) -> dict[str, Tensor]:
    """What the method keeps with newly chosen exemplars, row by row."""
    kept = {name: values.detach().cpu() for name, values in method.exemplar_tensors(task, features, logits).items()}
    for name, values in kept.items():
        if len(values) != len(features) or not values.ndim:
            raise EndocilError(
                f"{type(method).__name__}.exemplar_tensors gives '{name}' of shape {tuple(values.shape)}; expected one "
                f"row for each of {len(features)} exemplars"
            )
    return kept
