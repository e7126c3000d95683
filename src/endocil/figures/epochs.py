"""What the epochs of a run have measured, as arrays: from its events."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from endocil.figures.material import numbers
from endocil.report.runs import Json, RunRecord

Floats = NDArray[np.float64]
CLASSIFICATION = "classification"  # the name of the loss that tells classes apart


def epochs_of(run: RunRecord, task: int | None = None) -> list[Json]:
    """The epochs of one task, or of all, in the order of learning."""
    return [event for event in run.events_of("epoch") if task is None or event["task"] == task]


def last_task(run: RunRecord) -> int:
    return len(run.metrics["task_sizes"]) - 1


def measured(run: RunRecord, name: str, task: int | None = None) -> Floats | None:
    """One number for each epoch, NaN where it was not measured; None where it never was."""
    values = numbers([event.get(name) for event in epochs_of(run, task)])
    return values if np.isfinite(values).any() else None


def per_class(run: RunRecord, take: Callable[[Json], Any], task: int | None = None) -> Floats | None:
    """Epochs by classes, (E, C); NaN for classes that were not there, None where no epoch has any."""
    told = [take(event) or [] for event in epochs_of(run, task)]
    n = max(map(len, told), default=0)
    if n == 0:
        return None
    return numbers([[*values, *[None] * (n - len(values))] for values in told])


def class_losses(run: RunRecord, task: int) -> Floats | None:
    """The loss that tells classes apart, as trained, mean over the images of each class."""
    return per_class(run, lambda event: event.get("per_class", {}).get(CLASSIFICATION), task)


def row_norms(run: RunRecord) -> Floats | None:
    """Norms of the classifier's rows after each epoch of the run."""
    return per_class(run, lambda event: event.get("weight_norms"))


def task_places(run: RunRecord) -> Floats:
    """Epochs on one axis for all runs: epoch e of n of task t lies at t + e / n. Runs may differ in their epochs."""
    tasks = np.array([event["task"] for event in epochs_of(run)])
    length = np.bincount(tasks)
    starts = np.concatenate([[0], np.cumsum(length)[:-1]])
    return np.asarray(tasks + (np.arange(len(tasks)) - starts[tasks]) / length[tasks], dtype=np.float64)
