"""Paired predictions: what several runs predicted for the same test images, and measures that can be resampled."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from endocil.errors import EndocilError
from endocil.io.files import read_csv
from endocil.metrics.statistics import (
    Bools,
    Indices,
    Measure,
    Resampling,
    accuracy_measure,
    combined,
    macro_f1_measure,
)
from endocil.model.predictions import Head, Predictions, read_run_predictions
from endocil.runs.records import RunRecord


@dataclass(frozen=True, eq=False)
class CommonTestSet:
    """The test images that all runs predicted after their last task, sorted by name."""

    images: tuple[str, ...]
    classes: tuple[str, ...]  # sorted
    labels: Indices  # (N,) into classes
    units: Indices  # (N,) images of a group share one
    sources: tuple[str, ...]

    @property
    def grouped(self) -> bool:
        return int(self.units.max()) + 1 < len(self.images)

    def resampling(self, metric: str, resamples: int) -> Resampling:
        """Macro F1 and forgetting are means over fixed classes and tasks, so their resamples keep the classes' sizes:
        without that a rare class may vanish and count as 0. For accuracy the mixture of classes is chance, too."""
        strata = None if metric.startswith("acc") else self._strata()
        return Resampling(self.units, strata, resamples)

    def _strata(self) -> Indices:
        """The class of each unit; the most frequent one where a group has several."""
        counts = np.zeros((int(self.units.max()) + 1, len(self.classes)), dtype=np.int64)
        np.add.at(counts, (self.units, self.labels), 1)
        return np.asarray(counts.argmax(axis=1))

    def described(self) -> str:
        """942 test images, or 942 test images in 310 groups."""
        groups = f" in {int(self.units.max()) + 1:,} groups, drawn whole" if self.grouped else ""
        return f"{len(self.images):,} test images{groups}"


@dataclass(frozen=True, eq=False)
class PairedPredictions:
    """The predictions of one run for the common test images."""

    test_set: CommonTestSet
    predicted: Indices  # (T, N) into test_set.classes; -1 where the image's class was not yet learned
    seen: tuple[Indices, ...]  # the classes known after each task

    @property
    def right(self) -> NDArray[np.bool_]:
        """(T, N)"""
        return np.asarray(self.predicted == self.test_set.labels)

    def measure(self, metric: str) -> Measure:
        """One of the metrics of the tables, as in endocil.metrics.metrics."""
        n_tasks = len(self.predicted)
        if metric == "af":
            return self._forgetting()
        kind, _, when = metric.partition("_")
        one = self._accuracy if kind == "acc" else self._f1
        if when == "last":
            return one(n_tasks - 1)
        return combined([(1 / n_tasks, one(t)) for t in range(n_tasks)])

    def accuracy_on(self, counted: Bools) -> Measure:
        """After the last task, on some of the images."""
        return accuracy_measure(self.right[-1], counted)

    def _accuracy(self, t: int) -> Measure:
        return accuracy_measure(self.right[t], self.predicted[t] >= 0)

    def _f1(self, t: int) -> Measure:
        place = np.zeros(len(self.test_set.classes), dtype=np.int64)
        place[self.seen[t]] = np.arange(len(self.seen[t]))
        labels, predicted = place[self.test_set.labels], place[np.maximum(self.predicted[t], 0)]
        return macro_f1_measure(labels, predicted, len(self.seen[t]), self.predicted[t] >= 0)

    def _forgetting(self) -> Measure:
        last = len(self.predicted) - 1
        task_of = np.argmax(self.predicted >= 0, axis=0)  # (N,) the task that brings the image's class
        parts: list[tuple[float, Measure]] = []
        for s in range(last):
            own = task_of == s
            parts.append((1 / last, accuracy_measure(self.right[s], own)))
            parts.append((-1 / last, accuracy_measure(self.right[last], own)))
        return combined(parts)


def has_predictions(run: RunRecord) -> bool:
    return run.folder is not None and (run.folder / "predictions" / "task-0.csv").is_file()


def read_paired_predictions(runs: Sequence[RunRecord], head: Head) -> list[PairedPredictions]:
    """Of each run; runs that were tested on different images are refused."""
    stored = [_stored(run) for run in runs]
    for run, predictions in zip(runs[1:], stored[1:], strict=True):
        _refuse_other_images(runs[0], stored[0][-1], run, predictions[-1])
    test_set = _common_test_set(stored[0][-1], _groups(runs))
    return [_paired(test_set, predictions, head) for predictions in stored]


def _stored(run: RunRecord) -> list[Predictions]:
    if run.folder is None or not has_predictions(run):
        raise EndocilError(
            f"the run {run.name} has no stored predictions; give the folder of `endocil run -o`"
        )
    folder = run.folder / "predictions"
    return read_run_predictions(folder / f"task-{t}.csv" for t in range(len(run.metrics["task_sizes"])))


def _class_of_each_image(p: Predictions) -> dict[str, str]:
    return {image: p.classes[label] for image, label in zip(p.images, p.labels.tolist(), strict=True)}


def _refuse_other_images(run: RunRecord, p: Predictions, other: RunRecord, q: Predictions) -> None:
    one, two = _class_of_each_image(p), _class_of_each_image(q)
    if one == two:
        return
    common = len(one.items() & two.items())
    raise EndocilError(
        f"the runs {run.name} ({len(one):,} test images) and {other.name} ({len(two):,}) were tested on different "
        f"images, {common:,} in common; only predictions for the same images can be paired: give runs with the same "
        f"data, scenario.split_by, scenario.fold and scenario.split_seed"
    )


def _groups(runs: Sequence[RunRecord]) -> dict[str, str]:
    """The group of each test image, from the first run whose split has groups."""
    for run in runs:
        rows = read_csv(run.folder / "split.csv") if run.folder else []
        groups = {row["image"]: row["group"] for row in rows if row["part"] == "test" and row.get("group")}
        if groups:
            return groups
    return {}


def _common_test_set(p: Predictions, groups: dict[str, str]) -> CommonTestSet:
    order = sorted(range(len(p.images)), key=p.images.__getitem__)
    images = tuple(p.images[row] for row in order)
    classes = tuple(sorted(p.classes))
    place = np.array([classes.index(name) for name in p.classes])
    names = [f"group {groups[image]}" if image in groups else f"image {image}" for image in images]
    units = np.unique(names, return_inverse=True)[1].astype(np.int64)
    return CommonTestSet(
        images, classes, place[p.labels[order]], units, tuple(p.sources[row] for row in order)
    )


def _paired(test_set: CommonTestSet, stored: Sequence[Predictions], head: Head) -> PairedPredictions:
    rows = {image: row for row, image in enumerate(test_set.images)}
    predicted = np.full((len(stored), len(test_set.images)), -1, dtype=np.int64)
    seen = []
    for t, p in enumerate(stored):
        place = np.array([test_set.classes.index(name) for name in p.classes])
        predicted[t, [rows[image] for image in p.images]] = place[p.predicted(head)]
        seen.append(place)
    return PairedPredictions(test_set, predicted, tuple(seen))
