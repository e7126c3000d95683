"""Lines with the spread over seeds as a band; accuracy on all classes seen so far, the paper's Fig. 4."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from endocil.reports.figures.material import Drawings, Experiment, Material
from endocil.reports.figures.style import COLOURS, legend_below, line_style, small_multiples, whole_numbers

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Curve:
    """The mean over seeds, and their standard deviation where there are several."""

    label: str
    style: int
    x: Floats
    mean: Floats
    deviation: Floats | None = None


def curve_of(label: str, style: int, per_seed: Sequence[Sequence[float] | Floats], first: int = 0) -> Curve:
    """One line from the values of each seed, at first, first + 1, ..."""
    values = np.array(per_seed, dtype=np.float64)  # (seeds, n)
    deviation = values.std(axis=0, ddof=1) if len(values) > 1 else None
    return Curve(label, style, np.arange(first, first + values.shape[1]), values.mean(axis=0), deviation)


def draw_curve(axis: Axes, curve: Curve) -> None:
    """Long lines carry a dozen markers at most."""
    every = max(1, len(curve.x) // 12)
    start = curve.style % every  # so that the markers of lines on one another are beside one another
    look = line_style(curve.style)
    axis.plot(curve.x, curve.mean, label=curve.label, markevery=(start, every), markeredgewidth=0, **look)
    if curve.deviation is not None:
        low, high = curve.mean - curve.deviation, curve.mean + curve.deviation
        axis.fill_between(curve.x, low, high, color=look["color"], alpha=0.15, linewidth=0)


@dataclass(frozen=True)
class Panel:
    """Lines of methods that learn in tasks, and levels of those that see all classes at once."""

    curves: Sequence[Curve]
    levels: Mapping[str, float]


def draw(material: Material) -> Drawings:
    names = material.incremental  # refuses runs of one task alone
    yield "", accuracy_figure({name: panel_of(material.panels[name], material.styles) for name in names})


def panel_of(members: Sequence[Experiment], styles: Mapping[str, int]) -> Panel:
    curves, levels = [], {}
    for group in members:
        values = [run.metrics["softmax"]["acc"] for run in group.results]
        if group.incremental:
            curves.append(curve_of(group.label, styles[group.label], values, first=1))
        else:
            levels[group.label] = sum(each[-1] for each in values) / len(values)
    return Panel(curves, levels)


def accuracy_figure(panels: Mapping[str, Panel]) -> Figure:
    figure, axes = small_multiples(len(panels), width=5.0 if len(panels) == 1 else 3.4, height=2.7, columns=2)
    for axis, (name, panel) in zip(axes, panels.items(), strict=True):
        for curve in panel.curves:
            draw_curve(axis, curve)
        for label, level in panel.levels.items():
            axis.axhline(level, color=COLOURS[-1], linestyle=":", label=f"{label} (all classes at once)")
        axis.set(title=name, xlabel="task", ylabel="accuracy on seen classes (%)")
        whole_numbers(axis)
        axis.grid(axis="y")
    legend_below(figure, axes)
    return figure
