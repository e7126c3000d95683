"""What two versions of a model say of the same test images, as arrays, and which images can be compared."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from endocil.errors import EndocilError
from endocil.report.answers import SharedTest
from endocil.statistics import Bools, Floats, Indices


@dataclass(frozen=True, eq=False)
class Said:
    """One version on N images."""

    classes: tuple[str, ...]  # the ones it can name
    predicted: Indices  # (N,) into classes
    confidence: Floats  # (N,) the probability of the predicted class
    unlike: Bools | None  # (N,) flagged as unlike anything learned; None: it has no such flag
    calibrated: bool


@dataclass(frozen=True, eq=False)
class Labelled:
    """The N images that both were shown."""

    images: tuple[str, ...]
    names: tuple[str, ...]  # of their classes
    groups: tuple[str, ...]  # "" where unknown


@dataclass(frozen=True, eq=False)
class View:
    """One version on the images whose class at least one version knows."""

    known: Bools  # (C,) of all classes, the ones it can name
    predicted: Indices  # (N,) into all classes
    confidence: Floats  # (N,)
    right: Bools  # (N,)
    unlike: Bools | None  # (N,)
    calibrated: bool


@dataclass(frozen=True, eq=False)
class Versions:
    """Two versions side by side. Classes: those of the old one, then those that only the new one knows."""

    tested: SharedTest
    old: View
    new: View
    base: Bools  # (N,) images of classes that the old version knows: the ones on which both can be right
    left_out: tuple[tuple[str, str], ...]  # (image, class) of classes that neither knows
    left_out_flags: tuple[Bools | None, Bools | None]  # what the two flag among them

    @property
    def classes(self) -> tuple[str, ...]:
        return self.tested.classes

    @property
    def every(self) -> Bools:
        return np.ones(len(self.base), dtype=np.bool_)


def side_by_side(test: Labelled, old: Said, new: Said) -> Versions:
    """Refused where the old version knows none of the classes: then there is nothing to compare."""
    classes = (*old.classes, *(name for name in new.classes if name not in set(old.classes)))
    place = {name: i for i, name in enumerate(classes)}
    kept = np.array([name in place for name in test.names], dtype=np.bool_)
    labels = np.array([place.get(name, -1) for name in test.names], dtype=np.int64)[kept]
    if not np.any(labels < len(old.classes)) or not len(labels):
        there = ", ".join(sorted(set(test.names))[:8]) or "none"
        raise EndocilError(
            f"the test images are of the classes {there}; none of these is known to the old version, which knows "
            f"{', '.join(old.classes[:8])}: give test images whose classes have its names"
        )
    rows = np.flatnonzero(kept)
    tested = SharedTest(
        tuple(test.images[row] for row in rows),
        classes,
        labels,
        _units([test.images[row] for row in rows], [test.groups[row] for row in rows]),
        ("",) * len(rows),
    )
    return Versions(
        tested,
        _view(old, classes, labels, kept),
        _view(new, classes, labels, kept),
        labels < len(old.classes),
        tuple((test.images[row], test.names[row]) for row in np.flatnonzero(~kept)),
        (_flags(old, ~kept), _flags(new, ~kept)),
    )


def _view(said: Said, classes: Sequence[str], labels: Indices, kept: Bools) -> View:
    place = np.array([classes.index(name) for name in said.classes], dtype=np.int64)
    predicted = place[said.predicted[kept]]
    return View(
        np.isin(np.arange(len(classes)), place),
        predicted,
        said.confidence[kept],
        predicted == labels,
        _flags(said, kept),
        said.calibrated,
    )


def _flags(said: Said, rows: Bools) -> Bools | None:
    return None if said.unlike is None else said.unlike[rows]


def _units(images: Sequence[str], groups: Sequence[str]) -> Indices:
    """Images of a group share a unit; an image without one is a unit of its own."""
    names = [
        f"group {group}" if group else f"image {image}" for image, group in zip(images, groups, strict=True)
    ]
    return np.unique(names, return_inverse=True)[1].astype(np.int64)
