"""The first task's training features of one fixed network, and what selectors choose among them.

As in the paper the network stays that of the first task, so that selectors differ in nothing but their choice."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray
from safetensors.torch import load_file
from torch import Tensor

from endocil.components.mmd import KernelMatrix, RowMeans, one_thread_each
from endocil.components.selection import Selection, mmd_bound
from endocil.data.seeding import generator
from endocil.learning.features import unit
from endocil.learning.memory import SELECTORS, Candidates, Selector, build_selector, even_share
from endocil.registry import options_of
from endocil.reports.figures.lines import Curve, draw_curve
from endocil.reports.figures.material import Drawings, Experiment, Material, NotDrawnError
from endocil.reports.figures.style import headline, legend_below, logarithmic, small_multiples
from endocil.runs.records import RunRecord

NEEDED = "needs a run that keeps its features: --set run.keep=true"
MMD, MEAN = "mmd", "mean"


@dataclass(frozen=True, eq=False)
class ClassFeatures:
    """The training images of one class of the first task, as the fixed network sees them."""

    name: str
    label: int
    features: Tensor  # (m, d) of length 1
    scores: Tensor  # (m, C) logits
    seed: int

    def choose(self, select: Selector, n: int) -> Selection:
        """As a memory with this selector would have chosen."""
        random = generator(self.seed, 0, self.label, "selection")
        return select(Candidates(self.features, self.scores, random), n)


@dataclass(frozen=True)
class FixedFeatures:
    """All classes of the first task of one run."""

    panel: str  # the data
    network: str  # the experiment that trained it
    classes: tuple[ClassFeatures, ...]
    quota: int  # exemplars of each class
    kernel: Mapping[str, Any]  # options of the MMD selector

    @property
    def title(self) -> str:
        return f"{self.panel}, network of {self.network} after the first task"

    def selectors(self) -> dict[str, Selector]:
        """Every selector that there is, by name; MMD with the options of the run."""
        return {name: build_selector(name, self.kernel if name == MMD else {}) for name in SELECTORS}


def fixed_features(material: Material) -> list[FixedFeatures]:
    """Of each data the first run that has kept its features."""
    every = []
    for panel, members in material.panels.items():
        kept = next(((group, run) for group in members for run in group.results if _files(run)), None)
        if kept:
            every.append(_read(panel, *kept))
    if not every:
        raise NotDrawnError(NEEDED)
    return every


def _files(run: RunRecord) -> tuple[Path, Path] | None:
    """Features and weights after the first task, where both are there."""
    if run.folder is None:
        return None
    files = (run.folder / "features" / "task-0.safetensors", run.folder / "weights" / "task-0.safetensors")
    return files if all(file.is_file() for file in files) else None


def _read(panel: str, group: Experiment, run: RunRecord) -> FixedFeatures:
    files = _files(run)
    assert files is not None
    kept, weights = load_file(files[0]), load_file(files[1])
    scores = torch.nn.functional.linear(
        kept["features"], weights["classifier.weight"], weights["classifier.bias"]
    )
    features, memory = unit(kept["features"]), run.settings["memory"]
    names, seed = run.metrics["classes"], int(run.settings["seed"])
    classes = tuple(
        ClassFeatures(names[label], label, features[own], scores[own], seed)
        for label in torch.unique(kept["labels"]).tolist()
        for own in [kept["labels"] == label]
    )
    quota = memory.get("per_class") or even_share(
        [len(one.features) for one in classes], int(memory["total"])
    )
    options = {key: value for key, value in memory.items() if key not in ("per_class", "total", "select")}
    kernel = options if memory.get("select") == MMD else {}
    return FixedFeatures(panel, group.label, classes, int(quota), kernel)


Floats = NDArray[np.float64]
DRAWS = 10  # of the random selector, so that its line is not one lucky draw
RANDOM = "random"
BETWEEN_CLASSES = "distance"  # to a boundary, which a first task of one class does not have
BEYOND = 2  # times the quota: how far the lines go


@dataclass(frozen=True, eq=False)
class Race:
    """Of one class: MMD^2 after each choice of each selector, and the bound on it."""

    lines: Mapping[str, Floats]
    bound: Floats
    quota: int


def draw(material: Material) -> Drawings:
    for fixed in fixed_features(material):
        races = {f"{one.name} ({len(one.features)} images)": race_of(fixed, one) for one in fixed.classes}
        yield material.suffix(fixed.panel), discrepancy_figure(fixed.title, races)


def race_of(fixed: FixedFeatures, one: ClassFeatures) -> Race:
    """All of a class would be MMD^2 = 0, which a logarithm cannot show: the lines end one before."""
    n = max(1, min(BEYOND * fixed.quota, len(one.features) - 1))
    lines = {}
    for name, select in fixed.selectors().items():
        if name == BETWEEN_CLASSES and one.scores.shape[1] < 2:
            continue
        seeds = range(one.seed, one.seed + (DRAWS if name == RANDOM else 1))
        drawn = [_reseeded(one, seed).choose(select, n).indices for seed in seeds]
        lines[name] = np.mean([prefix_mmd2(one.features, each, fixed.kernel) for each in drawn], axis=0)
    kernels = int(_options(fixed.kernel)["kernels"])
    return Race(lines, np.array([mmd_bound(k, kernels) for k in range(1, n + 1)]), fixed.quota)


def _reseeded(one: ClassFeatures, seed: int) -> ClassFeatures:
    return ClassFeatures(one.name, one.label, one.features, one.scores, seed)


def _options(kernel: Mapping[str, Any]) -> dict[str, Any]:
    """The options of the kernel, defaults filled in."""
    build_selector(MMD, kernel)  # refuses unknown ones
    return {**options_of(SELECTORS[MMD]), **kernel}


def prefix_mmd2(
    features: torch.Tensor, indices: torch.Tensor, kernel: Mapping[str, Any] | None = None
) -> Floats:
    """MMD^2 of the first 1, 2, ... n of the chosen rows, (n,): what `squared_mmd` gives, with one matrix for all."""
    options = _options(kernel or {})
    own = [options[name] for name in ("kernels", "scale", "bandwidth", "self_pairs")]
    with one_thread_each() as workers:
        matrix = KernelMatrix(features, own[0], own[1], own[2], own[3], workers)
        means = RowMeans(matrix, len(indices), None).values
        inside = matrix.between(indices, indices).cumsum(0).cumsum(1).diagonal()  # of the first k, with these
        across = means[indices].cumsum(0)
        k = torch.arange(1, len(indices) + 1, dtype=torch.float64)
        mmd2 = means.mean() + inside / k**2 - 2.0 * across / k
    return np.asarray(mmd2.clamp_min(0.0).numpy(), dtype=np.float64)


def discrepancy_figure(title: str, races: Mapping[str, Race]) -> Figure:
    figure, axes = small_multiples(len(races), width=2.7, height=2.5)
    for axis, (name, race) in zip(axes, races.items(), strict=True):
        for i, (selector, values) in enumerate(race.lines.items()):
            label = f"{selector} (mean of {DRAWS} draws)" if selector == RANDOM else selector
            draw_curve(axis, Curve(label, i, np.arange(1.0, len(values) + 1), values))
        axis.plot(
            range(1, len(race.bound) + 1), race.bound, color="#777777", linestyle=":", label="bound (MMD)"
        )
        axis.axvline(race.quota, color="#999999", linewidth=0.6, linestyle=":")
        axis.set(xlabel="number chosen, n", title=name)
        logarithmic(axis, "x")
        logarithmic(axis, "y")
        axis.grid(axis="y")
    axes[0].set_ylabel("MMD² to the class")
    legend_below(figure, axes)
    headline(figure, title)
    return figure
