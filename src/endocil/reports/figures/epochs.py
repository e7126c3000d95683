"""What the epochs of a run have measured, as arrays, and what each task costs: time, exemplars, parameters, memory."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from endocil.reports.figures.lines import Curve, curve_of, draw_curve
from endocil.reports.figures.material import Drawings, Material, numbers
from endocil.reports.figures.style import legend_below, small_multiples, whole_numbers
from endocil.runs.records import Json, RunRecord

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
    rows = [take(event) or [] for event in epochs_of(run, task)]
    n = max(map(len, rows), default=0)
    if n == 0:
        return None
    return numbers([[*values, *[None] * (n - len(values))] for values in rows])


def class_losses(run: RunRecord, task: int) -> Floats | None:
    """The loss that tells classes apart, as trained, mean over the images of each class."""
    return per_class(run, lambda event: event.get("per_class", {}).get(CLASSIFICATION), task)


def row_norms(run: RunRecord) -> Floats | None:
    """Norms of the classifier's rows after each epoch of the run."""
    return per_class(run, lambda event: event.get("weight_norms"))


def task_places(run: RunRecord) -> Floats:
    """Epochs on one axis for all runs: epoch e of n of the first task lies at 1 + e / n. Runs may differ in epochs."""
    tasks = np.array([event["task"] for event in epochs_of(run)])
    length = np.bincount(tasks)
    starts = np.concatenate([[0], np.cumsum(length)[:-1]])
    return np.asarray(1 + tasks + (np.arange(len(tasks)) - starts[tasks]) / length[tasks], dtype=np.float64)


MEASURES: dict[str, Callable[[RunRecord], Floats]] = {
    "seconds of training": lambda run: _per_task(run, _seconds(run)),
    "exemplars rehearsed": lambda run: _per_task(run, _of(run, "task", "exemplars")),
    "million parameters": lambda run: _per_task(run, _of(run, "learned", "parameters")) / 1e6,
    "peak memory (MB)": lambda run: _per_task(run, _of(run, "learned", "peak_megabytes")),
}


def draw(material: Material) -> Drawings:
    for panel, members in material.incremental.items():
        measures = {
            name: [
                curve_of(group.label, material.styles[group.label], [take(run) for run in group.results], 1)
                for group in members
            ]
            for name, take in MEASURES.items()
        }
        yield material.suffix(panel), growth_figure(measures)


def _per_task(run: RunRecord, by_task: Mapping[int, float]) -> Floats:
    return numbers([by_task.get(task) for task in range(len(run.metrics["task_sizes"]))])


def _of(run: RunRecord, kind: str, name: str) -> dict[int, float]:
    return {event["task"]: event[name] for event in run.events_of(kind) if name in event}


def _seconds(run: RunRecord) -> dict[int, float]:
    """Of all epochs of a task, where they were trained by this run or by one it shares them with."""
    seconds: dict[int, float] = {}
    for epoch in epochs_of(run):
        seconds[epoch["task"]] = seconds.get(epoch["task"], 0.0) + epoch["seconds"]
    return seconds


def top(curves: Sequence[Curve]) -> float | None:
    """A little above all lines; a line that does not change would lie on the edge."""
    highest = np.nanmax([np.nanmax(curve.mean + _or_zero(curve.deviation), initial=0.0) for curve in curves])
    return 1.08 * float(highest) or None


def _or_zero(deviation: Floats | None) -> Floats | float:
    return 0.0 if deviation is None else deviation


def growth_figure(measures: Mapping[str, Sequence[Curve]]) -> Figure:
    figure, axes = small_multiples(len(measures), width=2.5, height=2.2)
    for axis, (name, curves) in zip(axes, measures.items(), strict=True):
        for curve in curves:
            draw_curve(axis, curve)
        axis.set(title=name, xlabel="task", ylim=(0, top(curves)))
        whole_numbers(axis)
        axis.grid(axis="y")
    legend_below(figure, axes)
    return figure
