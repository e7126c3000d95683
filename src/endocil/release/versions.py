"""What two versions of a model say of the same test images, as arrays, and which images can be compared."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from endocil.data.inputs import folder_or_list
from endocil.data.splits import TEST
from endocil.data.table import ImageTable
from endocil.datasets import load_table
from endocil.errors import EndocilError
from endocil.metrics.statistics import Bools, Floats, Indices
from endocil.model.inference import Predicted
from endocil.model.model import Model as Bundle
from endocil.model.predictions import Head
from endocil.runs.paired_predictions import CommonTestSet
from endocil.settings.settings import load_settings


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

    tested: CommonTestSet
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
    tested = CommonTestSet(
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


# Two bundles on test images: read, shown to both, and put side by side.

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Identity:
    """Which version it was."""

    file: str
    digest: str
    name: str
    classes: int
    made: str
    calibrated: bool
    notes: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Examined:
    """Two versions that saw the same images, and what became of the others."""

    old: Identity
    new: Identity
    descends: bool  # the new version was made from the old one, step by step
    head: Head
    test: str
    table: ImageTable
    versions: Versions
    unreadable: tuple[tuple[str, str], ...]  # (image, reason)
    inside: tuple[tuple[str, str], ...]  # (image, in which bundle it lies)


def read_test(path: Path, changes: Sequence[str] = ()) -> ImageTable:
    """A folder with a folder for each class, or a list; of a list with a split, the images of its test part."""
    data = load_settings({"data": folder_or_list(path, "test")}, changes).data
    table = load_table(data.name, data.options)
    if not any(table.parts):
        return table
    if TEST not in table.parts:
        raise EndocilError(f"the list {path} has a split, but no image of the part {TEST}")
    return table.take([row for row, part in enumerate(table.parts) if part == TEST])


def examine(
    old_path: Path,
    new_path: Path,
    test: Path,
    *,
    head: Head = "softmax",
    changes: Sequence[str] = (),
    trust: bool = False,
    device: str | torch.device | None = None,
    batch: int = 64,
    progress: Callable[[str], Progress | None] = lambda _: None,
) -> Examined:
    """Both bundles on the images of `test`; `changes` are settings of [data] for reading them."""
    table = read_test(test, changes)
    bundles = [Bundle.load(path, trust=trust, device=device) for path in (old_path, new_path)]
    shown = [
        _shown(bundle, table, batch, progress(f"{which} version"))
        for which, bundle in zip(("old", "new"), bundles, strict=True)
    ]
    old, new = bundles
    (by_old, _), (by_new, _) = shown
    inside = _inside(shown)
    readable = (set(by_old.images) & set(by_new.images)) - {image for image, _ in inside}
    rows = [row for row, image in enumerate(table.ids) if image in readable]
    if not rows:
        raise EndocilError(
            f"none of the {len(table):,} test images can be read and is new to both versions; give other images"
        )
    kept = table.take(rows)
    names = tuple(kept.classes[label] for label in kept.labels.tolist())
    said = [_said(each, kept.ids, head, which) for each, which in ((by_old, "old"), (by_new, "new"))]
    return Examined(
        _identity(old_path, old),
        _identity(new_path, new),
        old.digest in {version.parent for version in new.manifest.history},
        head,
        test.name or str(test),
        table,
        side_by_side(Labelled(kept.ids, names, kept.groups), *said),
        tuple(sorted(dict((*by_old.unreadable, *by_new.unreadable)).items())),
        inside,
    )


def _identity(path: Path, bundle: Bundle) -> Identity:
    manifest = bundle.manifest
    made, calibrated = manifest.history[-1].made, manifest.calibration is not None
    return Identity(
        path.name, bundle.digest, manifest.name, len(bundle.classes), made, calibrated, bundle.notes
    )


def _shown(
    bundle: Bundle, table: ImageTable, batch: int, progress: Progress | None
) -> tuple[Predicted, frozenset[str]]:
    """What it says, and which of the images lie inside it, pixel for pixel."""
    kept = {
        _print(pixels)
        for pictures in (bundle.content.exemplars, bundle.content.held_out)
        for pixels in pictures.pixels
    }
    found: set[str] = set()

    def watch(names: tuple[str, ...], pixels: Tensor, _: Tensor) -> None:
        found.update(name for name, own in zip(names, pixels, strict=True) if kept and _print(own) in kept)

    return bundle.predict(table, batch=batch, progress=progress, watch=watch), frozenset(found)


def _print(pixels: Tensor) -> bytes:
    return hashlib.sha256(pixels.numpy().tobytes()).digest()


def _inside(shown: Sequence[tuple[Predicted, frozenset[str]]]) -> tuple[tuple[str, str], ...]:
    (_, old), (_, new) = shown
    which = (
        dict.fromkeys(old & new, "both") | dict.fromkeys(old - new, "old") | dict.fromkeys(new - old, "new")
    )
    return tuple(sorted(which.items()))


def _said(predicted: Predicted, images: Sequence[str], head: Head, which: str) -> Said:
    """Of these images alone, in this order."""
    told = predicted.probabilities if head == "softmax" else predicted.mean_probabilities
    if told is None:
        raise EndocilError(
            f"the {which} version has no nearest-mean head (its method keeps no class means); take --head softmax"
        )
    row_of = {image: row for row, image in enumerate(predicted.images)}
    rows = torch.tensor([row_of[image] for image in images], dtype=torch.int64)
    first = (predicted.predicted if head == "softmax" else told.argmax(dim=1))[rows]
    confidence = told[rows].double().gather(1, first[:, None])[:, 0]
    unlike = None if predicted.unlike is None else predicted.unlike[rows].numpy()
    return Said(predicted.classes, first.numpy(), confidence.numpy(), unlike, predicted.calibrated)
