"""Class by epoch maps of the classification loss, cross-entropy beside PRCBL: the paper's Fig. 7.

The maps share one logarithmic scale of colours, so that the same colour is the same loss."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from numpy.typing import NDArray

from endocil.figures.epochs import class_losses, last_task
from endocil.figures.material import Drawings, Experiment, Material, NotDrawnError, alike, families
from endocil.figures.style import EMPTY, MAP, headline, plain_powers, small_multiples, whole_numbers

Floats = NDArray[np.float64]
LOSSES = {"cross_entropy": "CE", "prior_regularized": "PRCBL"}
WANTED = "needs two runs alike but for the loss: --set method.loss=cross_entropy and prior_regularized"
SMALLEST = 1e-4  # losses below it have the same colour


def draw(material: Material) -> Drawings:
    """One figure for each two experiments that differ in the loss alone."""
    found = False
    for panel, members in material.incremental.items():
        for family in families(members, {"method.loss"}):
            maps = {loss: mean_map(group) for group in family if (loss := loss_of(group))}
            if set(maps) == set(LOSSES):
                found = True
                first = family[0]
                task = last_task(first.first)
                figure = loss_figure(
                    f"task {task}, {panel}",
                    {name: maps[loss] for loss, name in LOSSES.items()},
                    new=first.first.metrics["task_sizes"][-1],
                )
                yield material.suffix(panel, _without_loss(first)), figure
    if not found:
        raise NotDrawnError(WANTED)


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
