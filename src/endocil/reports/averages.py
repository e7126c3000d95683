"""Means over the seeds of one experiment; NaN or None where one of its runs has no value."""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from endocil.io.text_tables import Spread, spread
from endocil.metrics.metrics import rates
from endocil.runs.experiments import Group
from endocil.runs.records import RunRecord

HEAD = "softmax"  # the reported head

Runs = Group[RunRecord]
Floats = NDArray[np.float64]

CLASS_RATES = ("recall", "precision", "f1")
SOURCE_RATES = ("accuracy", "recall", "f1")  # recall and F1: means over the classes that occur in the source


def mean(values: Iterable[float | None]) -> float | None:
    result = spread(values)
    return None if result is None else result.mean


def metric_spread(group: Runs, name: str, head: str = HEAD) -> Spread | None:
    return spread(run.metrics[head][name] for run in group.results)


def classes_seen(group: Runs) -> tuple[int, ...]:
    """The number of classes known after each task."""
    return tuple(np.cumsum(group.first.metrics["task_sizes"]).tolist())


def accuracy_per_task(group: Runs) -> list[Spread | None]:
    """Accuracy over all classes seen so far, after each task."""
    return [spread(values) for values in zip(*(run.metrics[HEAD]["acc"] for run in group.results), strict=True)]


def task_accuracy(group: Runs) -> Floats:
    """Entry [t][s]: accuracy on the test images of task s after learning task t."""
    matrices = [run.metrics[HEAD]["task_accuracy"] for run in group.results]
    return np.asarray(np.array(matrices, dtype=np.float64).mean(axis=0))  # None becomes NaN


def task_by_task(group: Runs) -> bool:
    """Whether what is known after each task can be averaged: seeds may have learned the classes in different orders,
    and records of earlier versions have the last task only."""
    classes = group.first.metrics["classes"]
    return all(run.metrics["classes"] == classes and "confusions" in run.metrics[HEAD] for run in group.results)


def confusions(group: Runs) -> list[Floats]:
    """Percent of the images of each true class (row) given to each class (column), seeds taken together: after each
    task, or after the last alone where the tasks cannot be averaged. The first run's order of classes is used."""
    shares = []
    for by_seed in _counts(group):
        counts = np.sum(by_seed, axis=0)
        images = counts.sum(axis=1, keepdims=True)
        shares.append(100.0 * counts / np.where(images == 0, np.nan, images))
    return shares


def _counts(group: Runs) -> list[list[NDArray[np.int64]]]:
    """After each task, the confusion of each seed."""
    if task_by_task(group):
        by_run = [run.metrics[HEAD]["confusions"] for run in group.results]
        return [[np.array(counts) for counts in by_seed] for by_seed in zip(*by_run, strict=True)]
    last = []
    for run in group.results:
        order = [run.metrics["classes"].index(name) for name in group.first.metrics["classes"]]
        last.append(np.array(run.metrics[HEAD]["confusion"])[np.ix_(order, order)])
    return [last]


def class_rates(group: Runs) -> list[Floats]:
    """CLASS_RATES of each class seen so far, (C, 3), means over the seeds: after each task, or after the last alone."""
    by_task = [[rates(counts) for counts in by_seed] for by_seed in _counts(group)]
    return [
        np.mean([np.stack([one[name] for name in CLASS_RATES], axis=1) for one in by_seed], axis=0)
        for by_seed in by_task
    ]


def per_source(group: Runs) -> list[tuple[str, int, list[float | None]]]:
    """Name, images and SOURCE_RATES of each source; empty where no image says where it comes from."""
    by_run = [run.metrics[HEAD]["per_source"] for run in group.results]
    return [
        (
            name or "unknown",
            figures["images"],
            [mean(sources.get(name, {}).get(rate) for sources in by_run) for rate in SOURCE_RATES],
        )
        for name, figures in by_run[0].items()
    ]
