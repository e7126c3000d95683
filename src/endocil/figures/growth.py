"""What each task costs: seconds of training, exemplars, parameters, memory."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from endocil.figures.epochs import epochs_of
from endocil.figures.lines import Curve, curve_of, draw_curve
from endocil.figures.material import Drawings, Material, numbers
from endocil.figures.style import legend_below, small_multiples, whole_numbers
from endocil.report.runs import RunRecord

Floats = NDArray[np.float64]
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
                curve_of(group.label, material.styles[group.label], [take(run) for run in group.results])
                for group in members
            ]
            for name, take in MEASURES.items()
        }
        yield material.suffix(panel), growth_figure(measures)


def _per_task(run: RunRecord, told: Mapping[int, float]) -> Floats:
    return numbers([told.get(task) for task in range(len(run.metrics["task_sizes"]))])


def _of(run: RunRecord, kind: str, name: str) -> dict[int, float]:
    return {event["task"]: event[name] for event in run.events_of(kind) if name in event}


def _seconds(run: RunRecord) -> dict[int, float]:
    """Of all epochs of a task, where they were trained by this run or by one it shares them with."""
    found: dict[int, float] = {}
    for epoch in epochs_of(run):
        found[epoch["task"]] = found.get(epoch["task"], 0.0) + epoch["seconds"]
    return found


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
