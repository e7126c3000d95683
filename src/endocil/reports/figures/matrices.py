"""Numbers in squares: confusion after each task, accuracy on each task after each task, recall of each class."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from numpy.typing import NDArray

from endocil.reports.figures.material import Drawings, Experiment, Material, alike, numbers
from endocil.reports.figures.style import EMPTY, MAP, first_of_row, headline, letters, small_multiples

Floats = NDArray[np.float64]
LUMINANCE = (0.2126, 0.7152, 0.0722)  # of red, green and blue
BAR = 0.8  # inches for the scale of colours
BLUES = "Blues"  # for what is mostly zeros, which are white in it


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
    runs = alike(group)
    n = len(group.first.metrics["classes"])
    by_task = []
    for task in range(len(group.first.metrics["task_sizes"])):
        counts = sum(numbers(run.metrics["softmax"]["confusions"][task]) for run in runs)
        shares = np.full((n, n), np.nan)
        images = np.asarray(counts).sum(axis=1, keepdims=True)
        seen = len(images)
        shares[:seen, :seen] = 100.0 * counts / np.where(images == 0, np.nan, images)
        by_task.append(shares)
    return by_task


def confusion_figure(title: str, classes: Sequence[str], shares: Sequence[Floats]) -> Figure:
    side = max(1.6, 0.16 * len(classes))
    figure, axes = small_multiples(
        len(shares), width=side + 0.3, height=side + 0.55, columns=3, more_width=BAR + letters(classes)
    )
    for task, (axis, matrix, left) in enumerate(zip(axes, shares, first_of_row(axes), strict=True)):
        image = _squares(axis, matrix, BLUES)
        _write_numbers(
            axis, np.where(np.round(matrix) == 0, np.nan, matrix), min(6.5, 28 * side / len(classes))
        )
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
        matrices = {
            group.label: np.mean(
                [numbers(run.metrics["softmax"]["task_accuracy"]) for run in alike(group)], axis=0
            )
            for group in members
        }
        yield material.suffix(panel), forgetting_figure(matrices)


def forgetting_figure(matrices: Mapping[str, Floats]) -> Figure:
    """Down: after which task; across: on the images of which task. A column falls as its task is forgotten."""
    size = max(len(matrix) for matrix in matrices.values())
    side = max(1.2, 0.3 * size)
    figure, axes = small_multiples(len(matrices), width=side + 0.3, height=side + 0.55, more_width=BAR)
    for axis, (label, matrix), left in zip(axes, matrices.items(), first_of_row(axes), strict=True):
        image = _squares(axis, matrix)
        _write_numbers(axis, matrix, 6.5)
        axis.set(title=label, xlabel="images of task", ylabel="after task" if left else "")
        axis.set_xticks(range(len(matrix)), _task_numbers(len(matrix)))
        axis.set_yticks(range(len(matrix)), _task_numbers(len(matrix)))
    figure.colorbar(image, ax=axes, label="accuracy (%)", shrink=0.6, pad=0.02)
    return figure


def draw_recalls(material: Material) -> Drawings:
    for panel, members in material.incremental.items():
        classes = members[0].first.metrics["classes"]
        same = [group for group in members if group.first.metrics["classes"] == classes]
        recalls = {group.label: recalls_over_tasks(group) for group in same}
        yield material.suffix(panel), recall_figure(classes, recalls)


def recalls_over_tasks(group: Experiment) -> Floats:
    """Recall in percent of each class after each task, mean over seeds, (C, T); NaN before it was learned."""
    classes = group.first.metrics["classes"]
    recalls = [
        [[after.get(name) for after in run.metrics["softmax"]["per_class_over_tasks"]] for name in classes]
        for run in alike(group)
    ]
    return np.asarray(numbers(recalls).mean(axis=0), dtype=np.float64)


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
        axis.set_xticks(range(tasks), _task_numbers(tasks))
        _class_ticks(axis, classes, left)
    figure.colorbar(image, ax=axes, label="recall (%)", shrink=0.6, pad=0.02)
    return figure


def _squares(axis: Axes, matrix: Floats, colours: str = MAP) -> AxesImage:
    """Percent as colours; cells without a value are grey."""
    axis.set_facecolor(EMPTY)
    axis.tick_params(length=0)
    axis.spines[:].set_visible(False)
    return axis.imshow(matrix, cmap=colours, vmin=0, vmax=100, aspect="auto")


def _task_numbers(n: int) -> list[str]:
    """People count tasks from 1."""
    return [str(task) for task in range(1, n + 1)]


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
