"""Accuracy on all classes seen so far, after each task: the paper's Fig. 4."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure

from endocil.figures.lines import Curve, curve_of, draw_curve
from endocil.figures.material import Drawings, Experiment, Material
from endocil.figures.style import COLOURS, legend_below, small_multiples, whole_numbers


@dataclass(frozen=True)
class Panel:
    """Lines of methods that learn in tasks, and levels of those that see all classes at once."""

    curves: Sequence[Curve]
    levels: Mapping[str, float]


def draw(material: Material) -> Drawings:
    told = material.incremental  # refuses runs of one task alone
    yield "", accuracy_figure({name: panel_of(material.panels[name], material.styles) for name in told})


def panel_of(members: Sequence[Experiment], styles: Mapping[str, int]) -> Panel:
    curves, levels = [], {}
    for group in members:
        values = [run.metrics["softmax"]["acc"] for run in group.results]
        if group.incremental:
            curves.append(curve_of(group.label, styles[group.label], values))
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
