"""Numbers in squares: confusion after each task, accuracy on each task after each task, recall of each class; and the
loss of each class in each epoch, the paper's Fig. 7."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.image import AxesImage

from endocil.reports.averages import class_rates, confusions, task_accuracy
from endocil.reports.figures.material import (
    Drawings,
    Experiment,
    Floats,
    Material,
    alike,
    epochs_of,
    families,
    last_task,
    per_class,
)
from endocil.reports.figures.style import (
    EMPTY,
    MAP,
    first_of_row,
    headline,
    letters,
    plain_powers,
    small_multiples,
    whole_numbers,
)

LUMINANCE = (0.2126, 0.7152, 0.0722)  # of red, green and blue
BAR = 0.8  # inches for the scale of colours
BLUES = "Blues"  # for what is mostly zeros, which are white in it
LOSSES = {"cross_entropy": "CE", "prior_regularized": "PRCBL"}
SMALLEST = 1e-4  # losses below it have the same colour


def draw_confusions(material: Material) -> Drawings:
    """One figure for each experiment: a matrix for each task."""
    for panel, members in material.panels.items():
        for group in members:
            classes = group.first.metrics["classes"]
            figure = confusion_figure(f"{group.label}, {panel}", classes, confusion_shares(group))
            yield material.suffix(panel, group.label), figure


def confusion_shares(group: Experiment) -> list[Floats]:
    """After each task, the share in percent of each class's images given to each class, seeds added up: (C, C).

    NaN where a class was not there yet, or has no test images."""
    n = len(group.first.metrics["classes"])
    seen = confusions(alike(group))
    return [np.pad(shares, (0, n - len(shares)), constant_values=np.nan) for shares in seen]


def confusion_figure(title: str, classes: Sequence[str], shares: Sequence[Floats]) -> Figure:
    side = max(1.6, 0.16 * len(classes))
    figure, axes = small_multiples(
        len(shares), width=side + 0.3, height=side + 0.55, columns=3, more_width=BAR + letters(classes)
    )
    for task, (axis, matrix, left) in enumerate(zip(axes, shares, first_of_row(axes), strict=True)):
        image = _squares(axis, matrix, BLUES)
        _write_numbers(axis, np.where(np.round(matrix) == 0, np.nan, matrix), min(6.5, 28 * side / len(classes)))
        axis.set_title(f"after task {task + 1}")
        axis.set_xticks(range(len(classes)), [str(i) for i in range(len(classes))], fontsize=5.5)
        _class_ticks(axis, classes, left)
        axis.set(xlabel="predicted class", ylabel="true class" if left else "")
    figure.colorbar(image, ax=axes, label="share of the class (%)", shrink=0.6, pad=0.02)
    headline(figure, title)
    return figure


def draw_forgetting(material: Material) -> Drawings:
    """One figure for the experiments of the same data."""
    for panel, members in material.incremental.items():
        yield material.suffix(panel), forgetting_figure({group.label: task_accuracy(alike(group)) for group in members})


def forgetting_figure(matrices: Mapping[str, Floats]) -> Figure:
    """Down: after which task; across: on the images of which task. A column falls as its task is forgotten."""
    side = max(1.2, 0.3 * max(len(matrix) for matrix in matrices.values()))
    figure, axes = small_multiples(len(matrices), width=side + 0.3, height=side + 0.55, more_width=BAR)
    for axis, (label, matrix), left in zip(axes, matrices.items(), first_of_row(axes), strict=True):
        image = _squares(axis, matrix)
        _write_numbers(axis, matrix, 6.5)
        axis.set(title=label, xlabel="images of task", ylabel="after task" if left else "")
        tasks = range(len(matrix))
        axis.set_xticks(tasks, [str(task + 1) for task in tasks])
        axis.set_yticks(tasks, [str(task + 1) for task in tasks])
    figure.colorbar(image, ax=axes, label="accuracy (%)", shrink=0.6, pad=0.02)
    return figure


def draw_recalls(material: Material) -> Drawings:
    for panel, members in material.incremental.items():
        classes = members[0].first.metrics["classes"]
        same = [group for group in members if group.first.metrics["classes"] == classes]
        yield material.suffix(panel), recall_figure(classes, {group.label: recalls_over_tasks(group) for group in same})


def recalls_over_tasks(group: Experiment) -> Floats:
    """Recall in percent of each class after each task, mean over seeds, (C, T); NaN before it was learned."""
    seen = [rates[:, 0] for rates in class_rates(alike(group))]
    n = len(seen[-1])
    return np.stack([np.pad(recalls, (0, n - len(recalls)), constant_values=np.nan) for recalls in seen], axis=1)


def recall_figure(classes: Sequence[str], recalls: Mapping[str, Floats]) -> Figure:
    tasks = max(matrix.shape[1] for matrix in recalls.values())
    figure, axes = small_multiples(
        len(recalls),
        width=max(1.4, 0.26 * tasks + 0.3),
        height=max(1.4, 0.15 * len(classes)) + 0.55,
        columns=5,
        more_width=BAR + letters(classes),
    )
    for axis, (label, matrix), left in zip(axes, recalls.items(), first_of_row(axes), strict=True):
        image = _squares(axis, matrix)
        _write_numbers(axis, matrix, 5.0)
        axis.set(title=label, xlabel="after task")
        axis.set_xticks(range(tasks), [str(task + 1) for task in range(tasks)])
        _class_ticks(axis, classes, left)
    figure.colorbar(image, ax=axes, label="recall (%)", shrink=0.6, pad=0.02)
    return figure


def _squares(axis: Axes, matrix: Floats, colours: str = MAP) -> AxesImage:
    """Percent as colours; cells without a value are grey."""
    axis.set_facecolor(EMPTY)
    axis.tick_params(length=0)
    axis.spines[:].set_visible(False)
    return axis.imshow(matrix, cmap=colours, vmin=0, vmax=100, aspect="auto")


def _class_ticks(axis: Axes, classes: Sequence[str], named: bool) -> None:
    """Names stand once in a row, with the numbers that stand for them elsewhere."""
    names = [f"{name}  {i}" if named else str(i) for i, name in enumerate(classes)]
    axis.set_yticks(range(len(classes)), names, fontsize=6.5 if named else 5.5)


def _write_numbers(axis: Axes, matrix: Floats, size: float) -> None:
    """In each cell with a value, in white where the cell is dark."""
    (image,) = axis.get_images()
    light = image.to_rgba(matrix)[..., :3] @ LUMINANCE > 0.5
    for (row, column), value in np.ndenumerate(matrix):
        if np.isfinite(value):
            colour = "black" if light[row, column] else "white"
            text = axis.text(column, row, f"{value:.0f}", ha="center", va="center", color=colour)
            text.set(fontsize=size, in_layout=False)  # inside the axes: no room to make


def draw_losses(material: Material) -> Drawings:
    """One figure for each two experiments that differ in the loss alone."""
    for panel, members in material.incremental.items():
        for family in families(members, {"method.loss"}):
            by_loss = {group.first.settings["method"].get("loss"): mean_losses(group) for group in family}
            maps = {title: losses for name, title in LOSSES.items() if (losses := by_loss.get(name)) is not None}
            if len(maps) == len(LOSSES):
                run = family[0].first
                title = f"task {last_task(run) + 1}, {panel}"
                figure = loss_figure(title, maps, new=run.metrics["task_sizes"][-1])
                base = f"{run.settings['memory'].get('select')} {run.settings['method'].get('gradients')}"
                yield material.suffix(panel, base), figure


def mean_losses(group: Experiment) -> Floats | None:
    """The classification loss as trained, mean over the images of each class and over seeds: epochs of the last task
    by classes, (E, C)."""
    maps = [
        per_class(epochs_of(run, last_task(run)), lambda event: event.get("per_class", {}).get("classification"))
        for run in alike(group).results
    ]
    if maps[0] is None:
        return None
    return np.asarray(np.mean([losses for losses in maps if losses is not None], axis=0))


def loss_figure(title: str, maps: Mapping[str, Floats], new: int) -> Figure:
    """All maps share one logarithmic scale of colours, so that the same colour is the same loss. `new`: how many of the
    classes, the last ones, the task has brought."""
    n = max(losses.shape[1] for losses in maps.values())
    figure, axes = small_multiples(len(maps), width=max(2.4, 0.17 * n + 0.7), height=3.4)
    values = np.concatenate([losses[np.isfinite(losses)] for losses in maps.values()])
    low = max(SMALLEST, float(values.min()))
    norm = LogNorm(low, max(float(values.max()), 1.01 * low), clip=True)
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
