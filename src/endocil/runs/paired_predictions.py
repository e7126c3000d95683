"""Paired predictions: what several runs predicted for the same test images, and measures that can be resampled."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from endocil.errors import DataError, FileFormatError
from endocil.metrics.metrics import class_tasks, task_aware_correct, top_correct
from endocil.metrics.statistics import (
    Bools,
    CommonTestSet,
    Indices,
    Measure,
    accuracy_measure,
    combined,
    macro_f1_measure,
    units_of,
)
from endocil.model.prediction_files import read_run_predictions
from endocil.model.predictions import Head, Predictions
from endocil.runs.records import RunRecord, read_split


@dataclass(frozen=True, eq=False)
class PairedPredictions:
    """The predictions of one run for the common test images."""

    test_set: CommonTestSet
    predicted: Indices  # (T, N) into test_set.classes; -1 where the image's class was not yet learned
    seen: tuple[Indices, ...]  # the classes known after each task
    tasks: Indices  # (N,) the task that brings the image's class; of a run of one task, in the others' tasks
    top5: Bools | None  # (T, N) whether its class is among the best five; none without scores
    task_aware: Bools | None  # (T, N) whether its class is the best of its task; none without scores

    @property
    def correct(self) -> NDArray[np.bool_]:
        """(T, N)"""
        return np.asarray(self.predicted == self.test_set.labels)

    def measure(self, metric: str) -> Measure:
        """One of the metrics of the tables, as in endocil.metrics.metrics, or a further one but `fwt`."""
        n_tasks = len(self.predicted)
        if metric in ("af", "bwt"):
            return self._forgetting(1 if metric == "af" else -1)
        kind, _, when = metric.rpartition("_")
        if when == "last":
            return self._after(n_tasks - 1, kind)
        return combined([(1 / n_tasks, self._after(t, kind)) for t in range(n_tasks)])

    def accuracy_on(self, counted: Bools) -> Measure:
        """After the last task, on some of the images."""
        return accuracy_measure(self.correct[-1], counted)

    def _after(self, t: int, kind: str) -> Measure:
        """Macro F1, or a kind of accuracy, on the classes seen after task t."""
        if kind != "f1":
            correct = {"acc": self.correct, "top5": self.top5, "task_aware": self.task_aware}[kind]
            assert correct is not None
            return accuracy_measure(correct[t], self.predicted[t] >= 0)
        place = np.zeros(len(self.test_set.classes), dtype=np.int64)
        place[self.seen[t]] = np.arange(len(self.seen[t]))
        labels, predicted = place[self.test_set.labels], place[np.maximum(self.predicted[t], 0)]
        return macro_f1_measure(labels, predicted, len(self.seen[t]), self.predicted[t] >= 0)

    def forward_transfer(self, references: Sequence["PairedPredictions"]) -> Measure:
        """Over the tasks but the first: task-aware accuracy just after each minus the mean of runs of one task."""
        assert self.task_aware is not None
        later = sorted(set(self.tasks.tolist()) - {0})
        parts: list[tuple[float, Measure]] = []
        for s in later:
            own = self.tasks == s
            parts.append((1 / len(later), accuracy_measure(self.task_aware[s], own)))
            for reference in references:
                assert reference.task_aware is not None
                share = -1 / len(later) / len(references)
                parts.append((share, accuracy_measure(reference.task_aware[-1], own)))
        return combined(parts)

    def _forgetting(self, sign: int) -> Measure:
        last = len(self.predicted) - 1
        sizes = np.diff([0, *map(len, self.seen)])
        counted = np.flatnonzero(sizes[:-1]).tolist()  # a task of known classes alone has none to forget
        parts: list[tuple[float, Measure]] = []
        for s in counted:
            own = self.tasks == s
            parts.append((sign / len(counted), accuracy_measure(self.correct[s], own)))
            parts.append((-sign / len(counted), accuracy_measure(self.correct[last], own)))
        return combined(parts)


def has_predictions(run: RunRecord) -> bool:
    return run.folder is not None and (run.folder / "predictions" / "task-0.csv").is_file()


def read_paired_predictions(runs: Sequence[RunRecord], head: Head) -> list[PairedPredictions]:
    """Of each run; runs that were tested on different images are refused."""
    stored = [stored_predictions(run) for run in runs]
    last = stored[0][-1]
    expected = _class_of_each_image(last)
    for run, predictions in zip(runs[1:], stored[1:], strict=True):
        tested = _class_of_each_image(predictions[-1])
        if tested != expected:
            common = len(expected.items() & tested.items())
            raise DataError(
                f"the runs {runs[0].name} ({len(expected):,} test images) and {run.name} ({len(tested):,}) were tested "
                f"on different images, {common:,} in common; only predictions for the same images can be paired: give "
                f"runs with the same data, scenario.split_by, scenario.fold and scenario.split_seed"
            )
    for run, predictions in zip(runs, stored, strict=True):
        for task, earlier in enumerate(predictions):
            if unknown := sorted(set(earlier.images) - expected.keys()):
                raise FileFormatError(
                    f"the run {run.name}: predictions/task-{task}.csv has the image {unknown[0]!r}, which that of the "
                    f"last task has not; the folder is damaged, copy it again from where it was trained"
                )
    test_set = _common_test_set(last, _groups(runs))
    cut = max((predictions for predictions in stored), key=len)  # of several tasks, where any run has them
    tasks_of_cut = dict(zip(cut[-1].classes, class_tasks(cut).tolist(), strict=True))
    return [_paired(test_set, predictions, head, tasks_of_cut) for predictions in stored]


def stored_predictions(run: RunRecord) -> list[Predictions]:
    """After each task; a run without them is refused."""
    if run.folder is None or not has_predictions(run):
        raise FileFormatError(f"the run {run.name} has no stored predictions; give the folder of `endocil run -o`")
    folder = run.folder / "predictions"
    files = [folder / f"task-{t}.csv" for t in range(len(run.metrics["task_sizes"]))]
    return read_run_predictions(files, of_run=True)


def _class_of_each_image(p: Predictions) -> dict[str, str]:
    return {image: p.classes[label] for image, label in zip(p.images, p.labels.tolist(), strict=True)}


def _groups(runs: Sequence[RunRecord]) -> dict[str, str]:
    """The group of each test image, from the first run whose split has groups."""
    for run in runs:
        rows = read_split(run.folder / "split.csv") if run.folder else []
        groups = {row["image"]: row["group"] for row in rows if row["part"] == "test" and row.get("group")}
        if groups:
            return groups
    return {}


def _common_test_set(p: Predictions, groups: dict[str, str]) -> CommonTestSet:
    order = sorted(range(len(p.images)), key=p.images.__getitem__)
    images = tuple(p.images[row] for row in order)
    classes = tuple(sorted(p.classes))
    place = np.array([classes.index(name) for name in p.classes])
    units = units_of(images, [groups.get(image, "") for image in images])
    return CommonTestSet(images, classes, place[p.labels[order]], units, tuple(p.sources[row] for row in order))


def _paired(
    test_set: CommonTestSet, stored: Sequence[Predictions], head: Head, tasks_of_cut: Mapping[str, int]
) -> PairedPredictions:
    """`tasks_of_cut`: the task of each class in a run of several tasks, which a run of one task is measured by."""
    rows = {image: row for row, image in enumerate(test_set.images)}
    shape = (len(stored), len(test_set.images))
    predicted, top5, task_aware = np.full(shape, -1, dtype=np.int64), np.zeros(shape, bool), np.zeros(shape, bool)
    last = stored[-1].classes
    tasks = class_tasks(stored) if len(stored) > 1 else np.array([tasks_of_cut.get(name, 0) for name in last])
    seen = []
    for t, p in enumerate(stored):
        place = np.array([test_set.classes.index(name) for name in p.classes])
        own = [rows[image] for image in p.images]
        predicted[t, own] = place[p.predicted(head)]
        top5[t, own], task_aware[t, own] = top_correct(p, head), task_aware_correct(p, tasks, head)
        seen.append(place)
    scored = all(p.true_scores for p in stored) or head != "softmax"
    return PairedPredictions(
        test_set,
        predicted,
        tuple(seen),
        tasks[[last.index(test_set.classes[label]) for label in test_set.labels.tolist()]],
        top5 if scored else None,
        task_aware if scored else None,
    )
