"""Two versions of a model on the same test images: which images can be compared, and both predictions as arrays."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from endocil.data.batches import pixel_digest
from endocil.data.cache import Progress
from endocil.data.inputs import folder_or_list
from endocil.data.splits import TEST
from endocil.data.table import ImageTable
from endocil.datasets import load_table
from endocil.errors import DataError, SettingsError
from endocil.metrics.statistics import Bools, CommonTestSet, Floats, Indices, units_of
from endocil.model.model import Model
from endocil.model.predictions import Head, Predictions
from endocil.settings.settings import load_settings


@dataclass(frozen=True, eq=False)
class VersionPredictions:
    """One version on N images, by its own classes."""

    classes: tuple[str, ...]
    predicted: Indices  # (N,) into classes
    confidence: Floats  # (N,) the probability of the predicted class
    out_of_distribution: Bools | None  # (N,); None: it flags nothing


@dataclass(frozen=True, eq=False)
class AlignedPredictions:
    """One version on the images of classes that at least one version knows, by the classes of both."""

    known: Bools  # (C,) the classes it knows
    predicted: Indices  # (N,) into the classes of both
    confidence: Floats  # (N,)
    correct: Bools  # (N,)
    out_of_distribution: Bools | None  # (N,)


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


def align(
    images: Sequence[str],
    class_names: Sequence[str],
    groups: Sequence[str],  # "" where unknown
    old: VersionPredictions,
    new: VersionPredictions,
    *,
    sources: Sequence[str] | None = None,  # "" where unknown
) -> Versions:
    """Raises where the old version knows none of the classes: then there is nothing to compare."""
    classes = (*old.classes, *(name for name in new.classes if name not in set(old.classes)))
    index = {name: i for i, name in enumerate(classes)}
    known = np.array([name in index for name in class_names], dtype=np.bool_)
    labels = np.array([index.get(name, -1) for name in class_names], dtype=np.int64)[known]
    if not np.any(labels < len(old.classes)) or not len(labels):
        names = ", ".join(sorted(set(class_names))[:8]) or "none"
        raise DataError(
            f"the test images are of the classes {names}; none of these is known to the old version, which knows "
            f"{', '.join(old.classes[:8])}: give test images whose classes have its names"
        )
    rows = np.flatnonzero(known).tolist()
    kept = tuple(images[row] for row in rows)
    units = units_of(kept, [groups[row] for row in rows])
    tested = CommonTestSet(kept, classes, labels, units, tuple(sources[row] if sources else "" for row in rows))
    return Versions(
        tested,
        _aligned(old, classes, labels, known),
        _aligned(new, classes, labels, known),
        labels < len(old.classes),
        tuple((images[row], class_names[row]) for row in np.flatnonzero(~known).tolist()),
        (_flags(old, ~known), _flags(new, ~known)),
    )


def _aligned(own: VersionPredictions, classes: Sequence[str], labels: Indices, rows: Bools) -> AlignedPredictions:
    index = np.array([classes.index(name) for name in own.classes], dtype=np.int64)
    predicted = index[own.predicted[rows]]
    known = np.isin(np.arange(len(classes)), index)
    return AlignedPredictions(known, predicted, own.confidence[rows], predicted == labels, _flags(own, rows))


def _flags(own: VersionPredictions, rows: Bools) -> Bools | None:
    return None if own.out_of_distribution is None else own.out_of_distribution[rows]


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Both versions on all test images that can be compared, and the images that cannot."""

    old: dict[str, Any]  # which version it was
    new: dict[str, Any]
    is_descendant: bool  # the old version is an ancestor of the new one
    head: Head
    test: str
    table: ImageTable
    versions: Versions
    unreadable: tuple[tuple[str, str], ...]  # (image, reason)
    inside: tuple[tuple[str, str], ...]  # (image, version that contains it: old, new or both)


def read_test(path: Path, changes: Sequence[str] = ()) -> ImageTable:
    """A folder with one folder per class, or a CSV list; of a list with splits, the images of its test part."""
    data = load_settings({"data": folder_or_list(path, "test")}, changes).trusted().data
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
    batch: int = 64,
    progress: Callable[[str], Progress | None] = lambda _: None,
) -> Evaluation:
    """`changes` are settings of [data] for reading `test`; `progress` gets the name of each version."""
    table = read_test(test, changes)
    old, new = (Model.load(path, trust=trust) for path in (old_path, new_path))
    old_rows, in_old = _predict(old, table, batch, progress("old version"))
    new_rows, in_new = _predict(new, table, batch, progress("new version"))
    unread = {image for image, _ in (*old_rows.unreadable, *new_rows.unreadable)}
    comparable = (set(old_rows.images) & set(new_rows.images)) - unread - in_old - in_new
    rows = [row for row, image in enumerate(table.ids) if image in comparable]
    if not rows:
        raise DataError(
            f"none of the {len(table):,} test images can be read and is new to both versions; give other images"
        )
    kept = table.take(rows)
    inside = dict.fromkeys(in_old, "old") | dict.fromkeys(in_new, "new") | dict.fromkeys(in_old & in_new, "both")
    return Evaluation(
        _info(old_path, old),
        _info(new_path, new),
        _is_descendant(old, new),
        head,
        test.name or str(test),
        table,
        align(
            kept.ids,
            [kept.classes[label] for label in kept.labels.tolist()],
            kept.groups,
            of_head(old_rows, kept.ids, head, "old"),
            of_head(new_rows, kept.ids, head, "new"),
            sources=kept.sources,
        ),
        tuple(sorted(dict((*old_rows.unreadable, *new_rows.unreadable)).items())),
        tuple(sorted(inside.items())),
    )


def _is_descendant(old: Model, new: Model) -> bool:
    """Whether the new version was made from the old one, with or without the verdict that was written into it."""
    same = {old.digest, old.manifest.gate.judged if old.manifest.gate else ""}
    return not same.isdisjoint(step.parent for step in new.manifest.history)


def _info(path: Path, model: Model) -> dict[str, Any]:
    return {
        "file": path.name,
        "digest": model.digest,
        "name": model.manifest.name,
        "title": model.manifest.title,
        "classes": len(model.classes),
        "made": model.manifest.history[-1].made,  # UTC, ISO 8601
        "calibrated": model.manifest.calibration is not None and model.manifest.calibration.improved,
        "notes": model.notes,
    }


def _predict(
    model: Model, table: ImageTable, batch: int, progress: Progress | None
) -> tuple[Predictions, frozenset[str]]:
    """Predictions, and the images that the model contains pixel for pixel, as exemplar or held-out image."""
    contained = {pixel_digest(pixels) for images in (model.exemplars, model.held_out) for pixels in images.pixels}
    inside: set[str] = set()

    def on_batch(names: tuple[str, ...], pixels: Tensor, _: Tensor) -> None:
        if contained:
            inside.update(name for name, own in zip(names, pixels, strict=True) if pixel_digest(own) in contained)

    return model.predict(table, batch=batch, progress=progress, on_batch=on_batch), frozenset(inside)


def of_head(rows: Predictions, images: Sequence[str], head: Head, version: str) -> VersionPredictions:
    """The predictions of one head for these images, in this order."""
    probabilities = rows.probabilities if head == "softmax" else rows.mean_probabilities
    if probabilities is None:
        raise SettingsError(
            f"the {version} version has no nearest-mean head (its method keeps no class means); use --head softmax"
        )
    row_of = {image: row for row, image in enumerate(rows.images)}
    order = np.array([row_of[image] for image in images], np.int64)
    predicted = rows.predicted(head)[order]
    confidence = probabilities[order, predicted].astype(np.float64)
    flags = None if rows.out_of_distribution is None else rows.out_of_distribution[order]
    return VersionPredictions(rows.classes, predicted, confidence, flags)
