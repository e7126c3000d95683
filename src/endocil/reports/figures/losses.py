"""What training measured in each epoch: the loss of each class (the paper's Fig. 7), gradients (Fig. 8), gamma, norms.

Maps of losses share one logarithmic scale of colours, so that the same colour is the same loss."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from numpy.typing import NDArray

from endocil.reports.figures.epochs import (
    class_losses,
    epochs_of,
    last_task,
    measured,
    row_norms,
    task_places,
)
from endocil.reports.figures.lines import Curve, curve_of, draw_curve
from endocil.reports.figures.material import Drawings, Experiment, Material, NotDrawnError, alike, families
from endocil.reports.figures.style import (
    EMPTY,
    MAP,
    headline,
    legend_below,
    logarithmic,
    plain_powers,
    small_multiples,
    whole_numbers,
)

Floats = NDArray[np.float64]
LOSSES = {"cross_entropy": "CE", "prior_regularized": "PRCBL"}
NEEDED = "needs two runs alike but for the loss: --set method.loss=cross_entropy and prior_regularized"
SMALLEST = 1e-4  # losses below it have the same colour


def draw(material: Material) -> Drawings:
    """One figure for each two experiments that differ in the loss alone."""
    drawn = False
    for panel, members in material.incremental.items():
        for family in families(members, {"method.loss"}):
            maps = {loss: mean_map(group) for group in family if (loss := loss_of(group))}
            if set(maps) == set(LOSSES):
                drawn = True
                first = family[0]
                task = last_task(first.first)
                figure = loss_figure(
                    f"task {task + 1}, {panel}",
                    {name: maps[loss] for loss, name in LOSSES.items()},
                    new=first.first.metrics["task_sizes"][-1],
                )
                yield material.suffix(panel, _without_loss(first)), figure
    if not drawn:
        raise NotDrawnError(NEEDED)


def loss_of(group: Experiment) -> str | None:
    """The loss by its name in the settings, where it is one of the two and was recorded for each class."""
    loss = group.first.settings["method"].get("loss")
    known = class_losses(group.first, last_task(group.first)) is not None
    return loss if loss in LOSSES and known else None


def _without_loss(group: Experiment) -> str:
    """What names the base of the two in a file's name."""
    settings = group.first.settings
    return f"{settings['memory'].get('select')} {settings['method'].get('gradients')}"


def mean_map(group: Experiment) -> Floats:
    """Epochs by classes of the last task, mean over seeds."""
    maps = [class_losses(run, last_task(run)) for run in alike(group)]
    return np.asarray(np.mean([each for each in maps if each is not None], axis=0), dtype=np.float64)


def loss_figure(title: str, maps: Mapping[str, Floats], new: int) -> Figure:
    """`new`: how many of the classes, the last ones, the task has brought."""
    n = max(each.shape[1] for each in maps.values())
    figure, axes = small_multiples(len(maps), width=max(2.4, 0.17 * n + 0.7), height=3.4)
    norm = LogNorm(*limits([*maps.values()]), clip=True)
    for axis, (name, losses) in zip(axes, maps.items(), strict=True):
        axis.set_facecolor(EMPTY)
        image = axis.imshow(losses, cmap=MAP, norm=norm, aspect="auto", origin="lower")
        axis.axvline(losses.shape[1] - new - 0.5, color="white", linewidth=1.5, linestyle="--")
        axis.set(title=name, xlabel=f"class (new ones from {losses.shape[1] - new})")
        axis.set_xticks(range(losses.shape[1]))
        axis.tick_params(axis="x", labelsize=6)
        whole_numbers(axis, "y")
    axes[0].set_ylabel("epoch")
    bar = figure.colorbar(image, ax=axes, label="loss, mean over the class's images", pad=0.02)
    plain_powers(bar.ax.yaxis)
    headline(figure, title)
    return figure


def limits(maps: Sequence[Floats]) -> tuple[float, float]:
    """The smallest and the largest loss of all maps, from SMALLEST on."""
    values = np.concatenate([each[np.isfinite(each)] for each in maps])
    low = max(SMALLEST, float(values.min()))
    return low, max(float(values.max()), 1.01 * low)


GRADIENT = "classifier_gradient"
COMPONENTS = {
    ("cross_entropy", "calibrated"): "CFG",
    ("prior_regularized", "calibrated"): "CFG + PRCBL",
    ("prior_regularized", "plain"): "PRCBL",
    ("cross_entropy", "plain"): "neither",
}
BOTH_CALIBRATED = {"CFG", "CFG + PRCBL"}
GRADIENTS_NEEDED = (
    "needs two runs with --set method.gradients=calibrated, alike but for the loss: "
    f"--set method.loss={' and '.join(LOSSES)}"
)


@dataclass(frozen=True)
class Trace:
    """Lines over epochs, and where something begins (a task, a lower learning rate)."""

    curves: Sequence[Curve]
    marks: Sequence[float]


def draw_gradients(material: Material) -> Drawings:
    """One figure for each base to which CFG was added, alone and with PRCBL."""
    drawn = False
    for panel, members in material.incremental.items():
        for family in families(members, {"method.loss", "method.gradients"}):
            shown = {_components(group): group for group in family if _seeds(group, GRADIENT, last=True)}
            if set(shown) >= BOTH_CALIBRATED:
                drawn = True
                run = family[0].first
                suffix = material.suffix(panel, str(run.settings["memory"].get("select")))
                title = f"task {last_task(run) + 1}, {panel}"
                trace = Trace(_gradient_curves(shown), rate_changes(epochs_of(run, last_task(run))))
                yield suffix, trace_figure({title: trace}, "norm of the classifier's gradient")
    if not drawn:
        raise NotDrawnError(GRADIENTS_NEEDED)


def _components(group: Experiment) -> str:
    method = group.first.settings["method"]
    return COMPONENTS.get((method.get("loss"), method.get("gradients")), "")


def _seeds(group: Experiment, name: str, *, last: bool) -> list[Floats] | None:
    """What each seed has measured, in the last task or in all; None unless all of them have."""
    per_seed = [measured(run, name, last_task(run) if last else None) for run in group.results]
    known = [values for values in per_seed if values is not None]
    return known if len(known) == len(per_seed) else None


def _gradient_curves(shown: Mapping[str, Experiment]) -> list[Curve]:
    names = [name for name in COMPONENTS.values() if name in shown]
    return [curve_of(name, i, _seeds(shown[name], GRADIENT, last=True) or []) for i, name in enumerate(names)]


def rate_changes(epochs: Iterable[Mapping[str, float]]) -> list[float]:
    """Between the epochs before and after the learning rate has changed."""
    rates = [epoch.get("learning_rate") for epoch in epochs]
    return [i - 0.5 for i in range(1, len(rates)) if rates[i] != rates[i - 1]]


def draw_gamma(material: Material) -> Drawings:
    panels = {}
    for panel, members in material.incremental.items():
        curves = [
            over_tasks(group, group.label, material.styles[group.label], values)
            for group in members
            if (values := _seeds(group, "gamma", last=False))
        ]
        if curves:
            panels[panel] = Trace(curves, _between(members[0]))
    if not panels:
        raise NotDrawnError("needs a run of a method that measures gamma, such as --set method.name=endocil")
    yield "", trace_figure(panels, "gamma, mean over the epoch's steps", over="task", log=False)


def draw_weight_norms(material: Material) -> Drawings:
    """One figure for the experiments of the same data: for each a line for the classes of each task."""
    drawn = False
    for panel, members in material.panels.items():
        traces = {
            group.label: Trace(norms_by_task(group), _between(group))
            for group in members
            if row_norms(group.first) is not None
        }
        if traces:
            drawn = True
            figure = trace_figure(traces, "mean norm of rows", over="task", log=False, small=True)
            yield material.suffix(panel), figure
    if not drawn:
        raise NotDrawnError("needs runs of this version: earlier ones did not record weight_norms")


def norms_by_task(group: Experiment) -> list[Curve]:
    """The mean norm of the rows of each task's classes, after each epoch of the run."""
    sizes = group.first.metrics["task_sizes"]
    ends = np.cumsum(sizes)
    seeds = [norms for run in alike(group) if (norms := row_norms(run)) is not None]
    return [
        over_tasks(
            group,
            f"classes of task {task + 1}",
            task,
            [norms[:, end - size : end].mean(axis=1) for norms in seeds],
        )
        for task, (size, end) in enumerate(zip(sizes, ends, strict=True))
        if all(end <= norms.shape[1] for norms in seeds)  # not learned in any epoch: a task without phases
    ]


def over_tasks(group: Experiment, label: str, style: int, per_seed: Sequence[Floats]) -> Curve:
    """A line whose epochs lie evenly between their task's number and the next one's."""
    return replace(curve_of(label, style, per_seed), x=task_places(group.first))


def _between(group: Experiment) -> list[float]:
    """Where each task but the first begins."""
    return [float(task) for task in range(2, len(group.first.metrics["task_sizes"]) + 1)]


def trace_figure(
    panels: Mapping[str, Trace], value: str, *, over: str = "epoch", log: bool = True, small: bool = False
) -> Figure:
    wide, high, columns = (2.6, 2.0, 4) if small else (4.6, 2.8, 2)
    figure, axes = small_multiples(len(panels), width=wide, height=high, columns=columns)
    for axis, (name, trace) in zip(axes, panels.items(), strict=True):
        for curve in trace.curves:
            draw_curve(axis, curve)
        _mark(axis, trace.marks)
        axis.set(title=name, xlabel=over)
        if log:
            logarithmic(axis, "y")
        whole_numbers(axis)
        axis.grid(axis="y")
    axes[0].set_ylabel(value)
    legend_below(figure, axes)
    return figure


def _mark(axis: Axes, marks: Sequence[float]) -> None:
    for mark in marks:
        axis.axvline(mark, color="#999999", linewidth=0.6, linestyle=":", zorder=0)
