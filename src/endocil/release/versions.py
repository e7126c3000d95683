"""Two versions of a model on the same test images: which images can be compared, and both predictions as arrays."""

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
from endocil.errors import DataError, SettingsError
from endocil.metrics.statistics import Bools, Floats, Indices
from endocil.model.inference import Predicted
from endocil.model.model import Model
from endocil.model.predictions import Head
from endocil.runs.paired_predictions import CommonTestSet
from endocil.settings.settings import load_settings

Progress = Callable[[int, int], None]


@dataclass(frozen=True, eq=False)
class TestImages:
    """N images with the names of their classes and groups."""

    __test__ = False  # not a test of pytest's

    images: tuple[str, ...]
    class_names: tuple[str, ...]
    groups: tuple[str, ...]  # "" where unknown


@dataclass(frozen=True, eq=False)
class VersionPredictions:
    """One version on N images, by its own classes."""

    classes: tuple[str, ...]
    predicted: Indices  # (N,) into classes
    confidence: Floats  # (N,) the probability of the predicted class
    out_of_distribution: Bools | None  # (N,); None: it flags nothing
    calibrated: bool


@dataclass(frozen=True, eq=False)
class AlignedPredictions:
    """One version on the images of classes that at least one version knows, by the classes of both."""

    known: Bools  # (C,) the classes it knows
    predicted: Indices  # (N,) into the classes of both
    confidence: Floats  # (N,)
    correct: Bools  # (N,)
    out_of_distribution: Bools | None  # (N,)
    calibrated: bool


@dataclass(frozen=True, eq=False)
class Versions:
    """Two versions side by side. Classes: those of the old one, then those that only the new one knows."""

    tested: CommonTestSet
    old: AlignedPredictions
    new: AlignedPredictions
    base: Bools  # (N,) images of classes that the old version knows, on which both can be correct
    left_out: tuple[tuple[str, str], ...]  # (image, class) of classes that neither knows
    left_out_flags: tuple[Bools | None, Bools | None]  # which of them the two flag as out of distribution

    @property
    def classes(self) -> tuple[str, ...]:
        return self.tested.classes

    @property
    def every(self) -> Bools:
        return np.ones(len(self.base), dtype=np.bool_)


def align(test: TestImages, old: VersionPredictions, new: VersionPredictions) -> Versions:
    """Raises where the old version knows none of the classes: then there is nothing to compare."""
    classes = (*old.classes, *(name for name in new.classes if name not in set(old.classes)))
    index = {name: i for i, name in enumerate(classes)}
    known = np.array([name in index for name in test.class_names], dtype=np.bool_)
    labels = np.array([index.get(name, -1) for name in test.class_names], dtype=np.int64)[known]
    if not np.any(labels < len(old.classes)) or not len(labels):
        names = ", ".join(sorted(set(test.class_names))[:8]) or "none"
        raise DataError(
            f"the test images are of the classes {names}; none of these is known to the old version, which knows "
            f"{', '.join(old.classes[:8])}: give test images whose classes have its names"
        )
    rows = np.flatnonzero(known)
    tested = CommonTestSet(
        tuple(test.images[row] for row in rows),
        classes,
        labels,
        _units([test.images[row] for row in rows], [test.groups[row] for row in rows]),
        ("",) * len(rows),
    )
    return Versions(
        tested,
        _aligned(old, classes, labels, known),
        _aligned(new, classes, labels, known),
        labels < len(old.classes),
        tuple((test.images[row], test.class_names[row]) for row in np.flatnonzero(~known)),
        (_flags(old, ~known), _flags(new, ~known)),
    )


def _aligned(
    own: VersionPredictions, classes: Sequence[str], labels: Indices, rows: Bools
) -> AlignedPredictions:
    index = np.array([classes.index(name) for name in own.classes], dtype=np.int64)
    predicted = index[own.predicted[rows]]
    return AlignedPredictions(
        np.isin(np.arange(len(classes)), index),
        predicted,
        own.confidence[rows],
        predicted == labels,
        _flags(own, rows),
        own.calibrated,
    )


def _flags(own: VersionPredictions, rows: Bools) -> Bools | None:
    return None if own.out_of_distribution is None else own.out_of_distribution[rows]


def _units(images: Sequence[str], groups: Sequence[str]) -> Indices:
    """Images of a group form one unit; an image without a group is a unit of its own."""
    names = [
        f"group {group}" if group else f"image {image}" for image, group in zip(images, groups, strict=True)
    ]
    return np.unique(names, return_inverse=True)[1].astype(np.int64)


@dataclass(frozen=True)
class VersionInfo:
    """Which version it was."""

    file: str
    digest: str
    name: str
    classes: int
    made: str  # UTC, ISO 8601
    calibrated: bool
    notes: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Both versions on all test images that can be compared, and the images that cannot."""

    old: VersionInfo
    new: VersionInfo
    is_descendant: bool  # the old version is an ancestor of the new one
    head: Head
    test: str
    table: ImageTable
    versions: Versions
    unreadable: tuple[tuple[str, str], ...]  # (image, reason)
    inside: tuple[tuple[str, str], ...]  # (image, version that contains it: old, new or both)


def read_test(path: Path, changes: Sequence[str] = ()) -> ImageTable:
    """A folder with one folder per class, or a CSV list; of a list with splits, the images of its test part."""
    data = load_settings({"data": folder_or_list(path, "test")}, changes).data
    table = load_table(data.name, data.options)
    if not any(table.parts):
        return table
    if TEST not in table.parts:
        raise DataError(f"the list {path} has a split, but no image of the part {TEST}")
    return table.take([row for row, part in enumerate(table.parts) if part == TEST])


def evaluate(
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
) -> Evaluation:
    """`changes` are settings of [data] for reading `test`; `progress` gets the name of each version."""
    table = read_test(test, changes)
    old, new = (Model.load(path, trust=trust, device=device) for path in (old_path, new_path))
    old_rows, in_old = _predict(old, table, batch, progress("old version"))
    new_rows, in_new = _predict(new, table, batch, progress("new version"))
    comparable = (set(old_rows.images) & set(new_rows.images)) - in_old - in_new
    rows = [row for row, image in enumerate(table.ids) if image in comparable]
    if not rows:
        raise DataError(
            f"none of the {len(table):,} test images can be read and is new to both versions; give other images"
        )
    kept = table.take(rows)
    inside = (
        dict.fromkeys(in_old, "old") | dict.fromkeys(in_new, "new") | dict.fromkeys(in_old & in_new, "both")
    )
    return Evaluation(
        _info(old_path, old),
        _info(new_path, new),
        old.digest in {version.parent for version in new.manifest.history},
        head,
        test.name or str(test),
        table,
        align(
            TestImages(kept.ids, tuple(kept.classes[label] for label in kept.labels.tolist()), kept.groups),
            _of_head(old_rows, kept.ids, head, "old"),
            _of_head(new_rows, kept.ids, head, "new"),
        ),
        tuple(sorted(dict((*old_rows.unreadable, *new_rows.unreadable)).items())),
        tuple(sorted(inside.items())),
    )


def _info(path: Path, model: Model) -> VersionInfo:
    manifest = model.manifest
    made, calibrated = manifest.history[-1].made, manifest.calibration is not None
    return VersionInfo(
        path.name, model.digest, manifest.name, len(model.classes), made, calibrated, model.notes
    )


def _predict(
    model: Model, table: ImageTable, batch: int, progress: Progress | None
) -> tuple[Predicted, frozenset[str]]:
    """Predictions, and the images that the model contains pixel for pixel, as exemplar or held-out image."""
    contained = {
        _pixel_digest(pixels) for images in (model.exemplars, model.held_out) for pixels in images.pixels
    }
    inside: set[str] = set()

    def watch(names: tuple[str, ...], pixels: Tensor, _: Tensor) -> None:
        if contained:
            inside.update(
                name for name, own in zip(names, pixels, strict=True) if _pixel_digest(own) in contained
            )

    return model.predict(table, batch=batch, progress=progress, watch=watch), frozenset(inside)


def _pixel_digest(pixels: Tensor) -> bytes:
    return hashlib.sha256(pixels.numpy().tobytes()).digest()


def _of_head(rows: Predicted, images: Sequence[str], head: Head, version: str) -> VersionPredictions:
    """The predictions of one head for these images, in this order."""
    probabilities = rows.probabilities if head == "softmax" else rows.mean_probabilities
    if probabilities is None:
        raise SettingsError(
            f"the {version} version has no nearest-mean head (its method keeps no class means); use --head softmax"
        )
    row_of = {image: row for row, image in enumerate(rows.images)}
    order = torch.tensor([row_of[image] for image in images], dtype=torch.int64)
    predicted = (rows.predicted if head == "softmax" else probabilities.argmax(dim=1))[order]
    confidence = probabilities[order].double().gather(1, predicted[:, None])[:, 0]
    flags = None if rows.out_of_distribution is None else rows.out_of_distribution[order].numpy()
    return VersionPredictions(rows.classes, predicted.numpy(), confidence.numpy(), flags, rows.calibrated)
