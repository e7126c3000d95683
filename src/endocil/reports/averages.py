"""Means over the seeds of one experiment, None where one of its runs has no value."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from endocil.io.tables import Cell, Column, Spread, Table, spread
from endocil.metrics.metrics import rates
from endocil.model.predictions import Head
from endocil.reports.tables import budgets_of
from endocil.runs.experiments import Group
from endocil.runs.records import RunRecord

HEAD = "softmax"  # the reported head

Runs = Group[RunRecord]
Matrix = list[list[float | None]]

CLASS_RATES = ("recall", "precision", "f1")
SOURCE_RATES = ("accuracy", "recall", "f1")  # recall and F1: means over the classes that occur in the source


@dataclass(frozen=True)
class Row:
    """How well the images of one class, or of one source, are recognised after the last task."""

    name: str
    images: int
    rates: tuple[float | None, ...]


def mean(values: Iterable[float | None]) -> float | None:
    result = spread(values)
    return None if result is None else result.mean


def classes_seen(group: Runs) -> tuple[int, ...]:
    """The number of classes known after each task."""
    return tuple(np.cumsum(group.first.metrics["task_sizes"]).tolist())


def accuracy_per_task(group: Runs) -> list[Spread | None]:
    """Accuracy over all classes seen so far, after each task."""
    return [
        spread(values) for values in zip(*(run.metrics[HEAD]["acc"] for run in group.results), strict=True)
    ]


def task_accuracy(group: Runs) -> Matrix:
    """Entry [t][s]: accuracy on the test images of task s after learning task t."""
    matrices = [run.metrics[HEAD]["task_accuracy"] for run in group.results]
    return [[mean(values) for values in zip(*lines, strict=True)] for lines in zip(*matrices, strict=True)]


def tasks(group: Runs) -> list[list[str]]:
    """The classes that each task brings, in the first run's order."""
    ends = classes_seen(group)
    classes = group.first.metrics["classes"]
    return [classes[start:end] for start, end in zip((0, *ends), ends, strict=False)]


def task_by_task(group: Runs) -> bool:
    """Whether what is known after each task can be averaged: seeds may have learned the classes in different orders,
    and records of earlier versions have the last task only."""
    classes = group.first.metrics["classes"]
    return all(
        run.metrics["classes"] == classes and "confusions" in run.metrics[HEAD] for run in group.results
    )


def confusions(group: Runs) -> list[Matrix]:
    """Percent of the images of each true class (row) given to each class (column), seeds taken together: after each
    task, or after the last alone where the tasks cannot be averaged. The first run's order of classes is used."""
    return [_percent(np.sum(counts, axis=0)) for counts in _counts(group)]


def _percent(counts: np.ndarray) -> Matrix:
    totals = counts.sum(axis=1, keepdims=True)
    percent = 100.0 * counts / np.maximum(totals, 1)
    return [
        line if total else [None] * len(line)
        for line, total in zip(percent.tolist(), totals[:, 0], strict=True)
    ]


def _counts(group: Runs) -> list[list[np.ndarray]]:
    """After each task, the confusion of each seed."""
    if task_by_task(group):
        by_run = [run.metrics[HEAD]["confusions"] for run in group.results]
        return [list(map(np.asarray, counts)) for counts in zip(*by_run, strict=True)]
    return [[_aligned(run.metrics, group.first.metrics["classes"]) for run in group.results]]


def _aligned(metrics: Mapping[str, Any], classes: Sequence[str]) -> np.ndarray:
    order = [metrics["classes"].index(name) for name in classes]
    return np.asarray(metrics[HEAD]["confusion"], dtype=np.int64)[np.ix_(order, order)]


def class_rates(group: Runs) -> list[list[tuple[float | None, ...]]]:
    """CLASS_RATES of each class seen so far, means over the seeds: after each task, or after the last alone."""
    return [
        [tuple(map(mean, zip(*of_seeds, strict=True))) for of_seeds in zip(*map(_rates, counts), strict=True)]
        for counts in _counts(group)
    ]


def _rates(counts: np.ndarray) -> list[tuple[float, ...]]:
    by_rate = rates(counts)
    return list(zip(*(by_rate[name].tolist() for name in CLASS_RATES), strict=True))


def per_class(group: Runs) -> list[Row]:
    """CLASS_RATES of each class, in the order in which the classes were learned."""
    return [_row(group, "per_class", name, CLASS_RATES) for name in group.first.metrics["classes"]]


def per_source(group: Runs) -> list[Row]:
    """SOURCE_RATES of each source; empty where no image says where it comes from."""
    names = group.first.metrics[HEAD]["per_source"]
    return [replace(_row(group, "per_source", name, SOURCE_RATES), name=name or "unknown") for name in names]


def _row(group: Runs, kind: str, name: str, columns: Sequence[str]) -> Row:
    own = [run.metrics[HEAD][kind].get(name, {}) for run in group.results]
    return Row(name, own[0]["images"], tuple(mean(each.get(column) for each in own) for column in columns))


def class_table(groups: Sequence[Runs], head: Head = "softmax") -> Table:
    """A row for each experiment, a column for each class and one for their mean, as the paper's Table 4.

    A class without test images has no recall."""
    classes = groups[0].first.metrics["classes"]
    columns = (
        Column("method", "Method"),
        Column("seeds", "Seeds", True),
        *(Column(name, name, True, "max") for name in classes),
        Column("mean", "Mean", True, "max"),
    )
    caption = f"Recall of each class after the last task, {head.replace('_', '-')} head, in percent"
    rows, budgets = tuple(_class_row(group, classes, head) for group in groups), budgets_of(groups)
    return Table(caption + budgets.note(), columns, rows, budgets.rankings())


def _class_row(group: Runs, classes: Sequence[str], head: Head) -> tuple[Cell, ...]:
    metrics = [run.metrics[head] for run in group.results]
    recalls = (spread(one["per_class"][name]["recall"] for one in metrics) for name in classes)
    return (group.label, len(group.seeds), *recalls, spread(one["balanced_last"] for one in metrics))
