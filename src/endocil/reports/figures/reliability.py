"""Reliability diagrams after the last task, with the expected calibration error."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from endocil.model.predictions import read_run_predictions
from endocil.reports.figures.material import Drawings, Experiment, Material, NotDrawnError
from endocil.reports.figures.style import COLOURS, first_of_row, small_multiples
from endocil.runs.records import RunRecord

Floats = NDArray[np.float64]
BINS = 10


@dataclass(frozen=True, eq=False)
class Reliability:
    """Images in bins of equal width by their confidence, the probability of the class they are given."""

    images: NDArray[np.int64]  # (BINS,)
    confidence: Floats  # (BINS,) mean, NaN in an empty bin
    accuracy: Floats  # (BINS,) share of correct predictions, NaN in an empty bin

    @property
    def error(self) -> float:
        """Expected calibration error: |accuracy - confidence|, mean over the images."""
        gaps = np.abs(self.accuracy - self.confidence)
        return float(np.nansum(self.images * gaps) / self.images.sum())


def draw(material: Material) -> Drawings:
    drawn = False
    for panel, members in material.panels.items():
        known = {group.label: of_experiment(group) for group in members if _all_there(group)}
        if known:
            drawn = True
            yield material.suffix(panel), calibration_figure(known)
    if not drawn:
        raise NotDrawnError("needs runs with their predictions/ folder")


def _files(run: RunRecord) -> list[str]:
    folder = run.folder
    tasks = range(len(run.metrics["task_sizes"]))
    return [] if folder is None else [str(folder / "predictions" / f"task-{task}.csv") for task in tasks]


def _all_there(group: Experiment) -> bool:
    return all(_files(run) and all(Path(file).is_file() for file in _files(run)) for run in group.results)


def of_experiment(group: Experiment) -> Reliability:
    """The predictions of all seeds together."""
    parts = []
    for run in group.results:
        last = read_run_predictions(_files(run))[-1]
        parts.append(confidences(last.scores, last.labels))
    sure, right = (np.concatenate(part) for part in zip(*parts, strict=True))
    return reliability(sure, right)


def confidences(scores: NDArray[np.float32], labels: NDArray[np.int64]) -> tuple[Floats, NDArray[np.bool_]]:
    """The softmax probability of the class with the highest logit, and whether it is the image's own."""
    logits = scores.astype(np.float64)
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    return powers.max(axis=1) / powers.sum(axis=1), logits.argmax(axis=1) == labels


def reliability(confidence: Floats, right: NDArray[np.bool_]) -> Reliability:
    """Bin b holds confidences from b/BINS up to (b + 1)/BINS; the last one holds 1 too."""
    bins = np.minimum((confidence * BINS).astype(np.int64), BINS - 1)
    images = np.bincount(bins, minlength=BINS)
    some = np.where(images == 0, np.nan, images)
    return Reliability(
        images,
        np.bincount(bins, confidence, minlength=BINS) / some,
        np.bincount(bins, right, minlength=BINS) / some,
    )


def calibration_figure(by_label: Mapping[str, Reliability]) -> Figure:
    figure, axes = small_multiples(len(by_label), width=2.0, height=2.3)
    for axis, (label, one), left in zip(axes, by_label.items(), first_of_row(axes), strict=True):
        places = (np.arange(BINS) + 0.5) / BINS
        axis.bar(places, one.images / one.images.sum(), 1 / BINS, color="#d9d9d9", edgecolor="white")
        axis.plot([0, 1], [0, 1], color="#999999", linestyle=":", linewidth=0.8)
        known = one.images > 0
        axis.plot(one.confidence[known], one.accuracy[known], color=COLOURS[0], marker="o", clip_on=False)
        title = f"{label}\nECE {100 * one.error:.1f} %"  # above the axes, where no line crosses it
        axis.set(title=title, xlim=(0, 1), ylim=(0, 1), xlabel="confidence")
        if left:
            axis.set_ylabel("accuracy (bars: share of images)")
    return figure
