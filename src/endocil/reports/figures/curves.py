"""Figures of lines, with the spread over seeds as a band: accuracy over the tasks (the paper's Fig. 4), gradients
(Fig. 8), gamma, norms of the classifier's rows, costs of each task, and reliability."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray
from scipy.special import softmax

from endocil.metrics.statistics import Bin, expected_error, reliability
from endocil.reports.figures.material import (
    Drawings,
    Experiment,
    Floats,
    Material,
    alike,
    epochs_of,
    families,
    last_task,
    numbers,
    per_class,
)
from endocil.reports.figures.style import (
    COLOURS,
    first_of_row,
    legend_below,
    line_style,
    logarithmic,
    small_multiples,
    whole_numbers,
)
from endocil.runs.paired_predictions import has_predictions, stored_predictions
from endocil.runs.records import Json, RunRecord

BINS = 10  # of confidence
COMPONENTS = {
    ("cross_entropy", "calibrated"): "CFG",
    ("prior_regularized", "calibrated"): "CFG + PRCBL",
    ("prior_regularized", "plain"): "PRCBL",
    ("cross_entropy", "plain"): "neither",
}
BOTH_CALIBRATED = {"CFG", "CFG + PRCBL"}


@dataclass(frozen=True, eq=False)
class Curve:
    """The mean over seeds, and their standard deviation where there are several."""

    label: str
    style: int
    x: Floats
    mean: Floats
    deviation: Floats | None = None


@dataclass(frozen=True)
class Panel:
    """Lines, the levels of methods that see all classes at once, and where something begins (a task, a lower rate)."""

    curves: Sequence[Curve]
    levels: Mapping[str, float] = field(default_factory=dict)
    marks: Sequence[float] = ()


def curve_of(label: str, style: int, per_seed: Sequence[Sequence[float] | Floats] | Floats, first: int = 0) -> Curve:
    """One line from the values of each seed, at first, first + 1, ..."""
    values = np.array(per_seed, dtype=np.float64)  # (seeds, n)
    deviation = values.std(axis=0, ddof=1) if len(values) > 1 else None
    return Curve(label, style, np.arange(first, first + values.shape[1]), values.mean(axis=0), deviation)


def over_tasks(group: Experiment, label: str, style: int, per_seed: Sequence[Floats]) -> Curve:
    """A line over the epochs of all tasks: epoch e of n of the first task lies at 1 + e / n. Runs may differ in n."""
    tasks = np.array([event["task"] for event in epochs_of(group.first)])
    length = np.bincount(tasks)
    starts = np.cumsum(length) - length
    places = 1 + tasks + (np.arange(len(tasks)) - starts[tasks]) / length[tasks]
    return replace(curve_of(label, style, per_seed), x=places)


def draw_curve(axis: Axes, curve: Curve) -> None:
    """Long lines carry a dozen markers at most."""
    every = max(1, len(curve.x) // 12)
    start = curve.style % every  # so that the markers of lines on one another are beside one another
    look = line_style(curve.style)
    axis.plot(curve.x, curve.mean, label=curve.label, markevery=(start, every), markeredgewidth=0, **look)
    if curve.deviation is not None:
        low, high = curve.mean - curve.deviation, curve.mean + curve.deviation
        axis.fill_between(curve.x, low, high, color=look["color"], alpha=0.15, linewidth=0)


def curve_figure(
    panels: Mapping[str, Panel], x: str, y: str = "", *, size: tuple[float, float, int], log: bool = False
) -> Figure:
    """`size`: width and height of a panel in inches, and panels in a row at most."""
    width, height, columns = size
    figure, axes = small_multiples(len(panels), width=width, height=height, columns=columns)
    for axis, (name, panel), left in zip(axes, panels.items(), first_of_row(axes), strict=True):
        for curve in panel.curves:
            draw_curve(axis, curve)
        for label, level in panel.levels.items():
            axis.axhline(level, color=COLOURS[-1], linestyle=":", label=f"{label} (all classes at once)")
        for mark in panel.marks:
            axis.axvline(mark, color="#999999", linewidth=0.6, linestyle=":", zorder=0)
        axis.set(title=name, xlabel=x, ylabel=y if left else "")
        if log:
            logarithmic(axis, "y")
        whole_numbers(axis)
        axis.grid(axis="y")
    legend_below(figure, axes)
    return figure


def draw_accuracy(material: Material) -> Drawings:
    panels = {}
    for name in material.incremental:
        curves, levels = [], {}
        for group in material.panels[name]:
            values = [run.metrics["softmax"]["acc"] for run in group.results]
            if group.incremental:
                curves.append(curve_of(group.label, material.styles[group.label], values, first=1))
            else:
                levels[group.label] = sum(each[-1] for each in values) / len(values)
        panels[name] = Panel(curves, levels)
    if panels:
        size = (5.0 if len(panels) == 1 else 3.4, 2.7, 2)
        yield "", curve_figure(panels, "task", "accuracy on seen classes (%)", size=size)


def draw_gradients(material: Material) -> Drawings:
    """One figure for each base to which CFG was added, alone and with PRCBL."""
    for panel, members in material.incremental.items():
        for family in families(members, {"method.loss", "method.gradients"}):
            run = family[0].first
            measured = {}
            for group in family:
                method = group.first.settings["method"]
                components = COMPONENTS.get((method.get("loss"), method.get("gradients")), "")
                measured[components] = _per_seed(group, "classifier_gradient", last=True)
            names = [name for name in COMPONENTS.values() if measured.get(name)]
            if set(names) >= BOTH_CALIBRATED:
                curves = [curve_of(name, i, measured[name]) for i, name in enumerate(names)]
                changes = rate_changes(epochs_of(run, last_task(run)))
                panels = {f"task {last_task(run) + 1}, {panel}": Panel(curves, marks=changes)}
                figure = curve_figure(
                    panels, "epoch", "norm of the classifier's gradient", size=(4.6, 2.8, 2), log=True
                )
                yield material.suffix(panel, str(run.settings["memory"].get("select"))), figure


def _per_seed(group: Experiment, name: str, *, last: bool = False) -> list[Floats]:
    """What each seed has measured in each epoch of all tasks or of the last; empty unless all seeds have some of it."""
    epochs = [epochs_of(run, last_task(run) if last else None) for run in group.results]
    per_seed = [numbers([event.get(name) for event in each]) for each in epochs]
    return per_seed if all(np.isfinite(values).any() for values in per_seed) else []


def rate_changes(epochs: Iterable[Json]) -> list[float]:
    """Between the epochs before and after the learning rate has changed."""
    rates = [epoch.get("learning_rate") for epoch in epochs]
    return [i - 0.5 for i in range(1, len(rates)) if rates[i] != rates[i - 1]]


def draw_gamma(material: Material) -> Drawings:
    panels = {}
    for name, members in material.incremental.items():
        curves = [
            over_tasks(group, group.label, material.styles[group.label], values)
            for group in members
            if (values := _per_seed(group, "gamma"))
        ]
        if curves:
            panels[name] = Panel(curves, marks=_task_starts(members[0]))
    if panels:
        yield "", curve_figure(panels, "task", "gamma, mean over the epoch's steps", size=(4.6, 2.8, 2))


def draw_weight_norms(material: Material) -> Drawings:
    """One figure for the experiments of the same data: for each a line for the classes of each task."""
    for name, members in material.panels.items():
        panels = {
            group.label: Panel(norms, marks=_task_starts(group)) for group in members if (norms := norms_by_task(group))
        }
        if panels:
            yield material.suffix(name), curve_figure(panels, "task", "mean norm of rows", size=(2.6, 2.0, 4))


def norms_by_task(group: Experiment) -> list[Curve]:
    """The mean norm of the rows of each task's classes, after each epoch of the run; none where none was recorded."""
    recorded = [per_class(epochs_of(run), lambda event: event.get("weight_norms")) for run in alike(group).results]
    seeds = [norms for norms in recorded if norms is not None]
    sizes = group.first.metrics["task_sizes"]
    if recorded[0] is None:
        return []
    return [
        over_tasks(
            group, f"classes of task {task + 1}", task, [norms[:, end - size : end].mean(axis=1) for norms in seeds]
        )
        for task, (size, end) in enumerate(zip(sizes, np.cumsum(sizes), strict=True))
        if all(end <= norms.shape[1] for norms in seeds)  # not learned in any epoch: a task without phases
    ]


def _task_starts(group: Experiment) -> list[float]:
    """Where each task but the first begins."""
    return [float(task) for task in range(2, len(group.first.metrics["task_sizes"]) + 1)]


def _seconds(run: RunRecord) -> dict[int, float]:
    """Of all epochs of a task, where they were trained by this run or by one it shares them with."""
    seconds: dict[int, float] = {}
    for epoch in epochs_of(run):
        seconds[epoch["task"]] = seconds.get(epoch["task"], 0.0) + epoch["seconds"]
    return seconds


def _recorded(kind: str, name: str, unit: float = 1) -> Callable[[RunRecord], dict[int, float]]:
    return lambda run: {event["task"]: event[name] / unit for event in run.events_of(kind) if name in event}


COSTS: dict[str, Callable[[RunRecord], dict[int, float]]] = {
    "seconds of training": _seconds,
    "exemplars rehearsed": _recorded("task", "exemplars"),
    "million parameters": _recorded("learned", "parameters", 1e6),
    "peak memory (MB)": _recorded("learned", "peak_megabytes"),
}


def draw_growth(material: Material) -> Drawings:
    """What each task costs."""
    for name, members in material.incremental.items():
        panels = {}
        members = [group for group in members if group.first.events]  # of imported predictions nothing is known
        if not members:
            continue
        for cost, read in COSTS.items():
            curves = []
            for group in members:
                per_seed = [[read(run).get(task) for task in range(last_task(run) + 1)] for run in group.results]
                curves.append(curve_of(group.label, material.styles[group.label], numbers(per_seed), first=1))
            panels[cost] = Panel(curves)
        figure = curve_figure(panels, "task", size=(2.5, 2.2, 4))
        for axis, panel in zip(figure.axes, panels.values(), strict=True):
            tops = [curve.mean + (0.0 if curve.deviation is None else curve.deviation) for curve in panel.curves]
            highest = np.nanmax([np.nanmax(top, initial=0.0) for top in tops])
            axis.set_ylim(0, 1.08 * highest or None)  # a line that does not change would lie on the edge
        yield material.suffix(name), figure


def draw_calibration(material: Material) -> Drawings:
    """Reliability diagrams after the last task, of all seeds together, with the expected calibration error."""
    for name, members in material.panels.items():
        bins = {}
        for group in members:
            if all(map(has_predictions, group.results)):
                last = [stored_predictions(run)[-1] for run in group.results]
                if not all(one.true_scores for one in last):
                    continue  # predicted classes alone have no confidence
                pairs = [confidences(one.scores, one.labels) for one in last]
                confidence, correct = map(np.concatenate, zip(*pairs, strict=True))
                bins[group.label] = reliability(confidence, correct, BINS)
        if bins:
            yield material.suffix(name), calibration_figure(bins)


def confidences(scores: NDArray[np.float32], labels: NDArray[np.int64]) -> tuple[Floats, NDArray[np.bool_]]:
    """The softmax probability of the class with the highest logit, and whether it is the image's own."""
    return softmax(scores.astype(np.float64), axis=1).max(axis=1), scores.argmax(axis=1) == labels


def calibration_figure(by_label: Mapping[str, Sequence[Bin]]) -> Figure:
    figure, axes = small_multiples(len(by_label), width=2.0, height=2.3)
    for axis, (label, bins), left in zip(axes, by_label.items(), first_of_row(axes), strict=True):
        n_images = sum(one.images for one in bins)
        places = [(one.low + one.high) / 200 for one in bins]
        shares = [one.images / n_images for one in bins]
        axis.bar(places, shares, 1 / BINS, color="#d9d9d9", edgecolor="white")
        axis.plot([0, 1], [0, 1], color="#999999", linestyle=":", linewidth=0.8)
        points = [one.confidence / 100 for one in bins], [one.right / 100 for one in bins]
        axis.plot(*points, color=COLOURS[0], marker="o", clip_on=False)
        title = f"{label}\nECE {expected_error(bins):.1f} %"  # above the axes, where no line crosses it
        axis.set(title=title, xlim=(0, 1), ylim=(0, 1), xlabel="confidence")
        if left:
            axis.set_ylabel("accuracy (bars: share of images)")
    return figure
