"""The first task's training features of one fixed network, and what selectors choose among them: in the plane and on
a line (the paper's Figs. 5 and 6), and by the MMD of the choice.

As in the paper the network stays that of the first task, so that selectors differ in nothing but their choice.
Differs from the paper: Fig. 5 has the exemplars by the mean (herding) beside those by MMD."""

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray
from safetensors.torch import load_file
from scipy.stats import gaussian_kde
from torch import Tensor

from endocil.components.mmd import KernelMatrix, RowMeans, one_thread_each
from endocil.components.selection import mmd_bound
from endocil.data.seeding import generator
from endocil.learning.features import l2_normalise
from endocil.learning.memory import SELECTORS, Candidates, build_selector, even_share
from endocil.registry import options_of
from endocil.reports.figures.curves import Curve, draw_curve
from endocil.reports.figures.material import Drawings, Experiment, Floats, Material, NotDrawnError
from endocil.reports.figures.style import (
    COLOURS,
    MARKERS,
    headline,
    legend_below,
    logarithmic,
    new_figure,
    small_multiples,
)
from endocil.runs.records import RunRecord

MMD, RANDOM = "mmd", "random"
BETWEEN_CLASSES = "distance"  # to a boundary, which a first task of one class does not have
EMBEDDED = {"mean": "mean", MMD: "MMD"}  # the selectors whose choices are shown among the features
NEIGHBOURS = 15  # UMAP's own default
FEWEST = 5  # images: with fewer there is nothing to see
COMPILES = "UMAP: its first call compiles for some tens of seconds ..."
RASTER = 2000  # more points than these are pixels in a PDF too
DRAWS = 10  # of the random selector, so that its line is not one lucky draw
BEYOND = 2  # times the quota: how far the lines of MMD go


@dataclass(frozen=True, eq=False)
class ClassFeatures:
    """The training images of one class of the first task, as the fixed network sees them."""

    name: str
    label: int
    features: Tensor  # (m, d) of length 1
    scores: Tensor  # (m, C) logits


@dataclass(frozen=True)
class FixedFeatures:
    """All classes of the first task of one run."""

    panel: str  # the data
    network: str  # the experiment that trained it
    classes: tuple[ClassFeatures, ...]
    quota: int  # exemplars of each class
    kernel: Mapping[str, Any]  # options of the MMD selector
    seed: int

    @property
    def title(self) -> str:
        return f"{self.panel}, network of {self.network} after the first task"

    def choose(self, one: ClassFeatures, selector: str, n: int, draw: int = 0) -> Tensor:
        """The rows that a memory with this selector would have chosen; `draw` is added to the seed of the run."""
        select = build_selector(selector, self.kernel if selector == MMD else {})
        random = generator(self.seed + draw, 0, one.label, "selection")
        return select(Candidates(one.features, one.scores, random), n).indices


def fixed_features(material: Material) -> list[FixedFeatures]:
    """Of each data the first run that has kept its features."""
    every = []
    for panel, members in material.panels.items():
        kept = next(((group, run) for group in members for run in group.results if _files(run)), None)
        if kept:
            every.append(_read(panel, *kept))
    return every


def _files(run: RunRecord) -> tuple[Path, ...]:
    """Features and weights after the first task, where both are there."""
    if run.folder is None:
        return ()
    files = tuple(run.folder / name / "task-0.safetensors" for name in ("features", "weights"))
    return files if all(file.is_file() for file in files) else ()


def _read(panel: str, group: Experiment, run: RunRecord) -> FixedFeatures:
    kept, weights = map(load_file, _files(run))
    scores = torch.nn.functional.linear(kept["features"], weights["classifier.weight"], weights["classifier.bias"])
    features, memory = l2_normalise(kept["features"]), run.settings["memory"]
    classes = tuple(
        ClassFeatures(run.metrics["classes"][label], label, features[own], scores[own])
        for label in torch.unique(kept["labels"]).tolist()
        for own in [kept["labels"] == label]
    )
    quota = memory.get("per_class") or even_share([len(one.features) for one in classes], int(memory["total"]))
    options = {key: value for key, value in memory.items() if key not in ("per_class", "total", "select")}
    kernel = options if memory.get("select") == MMD else {}
    return FixedFeatures(panel, group.label, classes, int(quota), kernel, int(run.settings["seed"]))


def draw_plane(material: Material) -> Drawings:
    for fixed in fixed_features(material):
        features = np.concatenate([one.features.numpy() for one in fixed.classes])
        if len(features) < FEWEST:
            raise NotDrawnError(f"needs a first task with at least {FEWEST} training images")
        material.tell(COMPILES)
        yield material.suffix(fixed.panel), plane_figure(fixed, umap(features, 2))


def umap(features: NDArray[np.float32], components: int) -> Floats:
    """(m, components); the same features give the same places."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of numba and of parallel work that a seed forbids
            from umap import UMAP

            reducer = UMAP(
                n_components=components,
                n_neighbors=min(NEIGHBOURS, len(features) - 1),
                init="spectral" if len(features) > components + 2 else "random",
                random_state=0,
                n_jobs=1,
            )
            return np.asarray(reducer.fit_transform(features), dtype=np.float64)
    except ImportError as error:
        raise NotDrawnError("needs umap-learn: pip install 'endocil[report]'") from error


def plane_figure(fixed: FixedFeatures, points: Floats) -> Figure:
    """All training images as light open marks, exemplars as filled ones; each class has its own mark and colour."""
    figure = new_figure(3.6 * len(EMBEDDED), 3.9)
    axes = figure.subplots(1, len(EMBEDDED))
    by_class = np.split(points, np.cumsum([len(one.features) for one in fixed.classes])[:-1])
    for axis, (selector, title) in zip(axes, EMBEDDED.items(), strict=True):
        for i, (one, own) in enumerate(zip(fixed.classes, by_class, strict=True)):
            colour, mark = COLOURS[i % len(COLOURS)], MARKERS[i % len(MARKERS)]
            light = {"facecolors": "none", "edgecolors": colour, "linewidths": 0.6, "alpha": 0.6}
            axis.scatter(*own.T, s=11, marker=mark, label=one.name, rasterized=len(points) > RASTER, **light)
            chosen = own[fixed.choose(one, selector, fixed.quota).numpy()]
            filled = {"color": colour, "edgecolors": "black", "linewidths": 0.5, "zorder": 3}
            axis.scatter(*chosen.T, s=28, marker=mark, label=f"{one.name}, chosen", **filled)
        axis.set(title=f"exemplars by {title}", xticks=[], yticks=[], xlabel="UMAP 1")
        axis.spines[:].set_visible(True)
    axes[0].set_ylabel("UMAP 2")
    legend_below(figure, axes)
    headline(figure, fixed.title)
    return figure


def draw_densities(material: Material) -> Drawings:
    for fixed in fixed_features(material):
        classes = [one for one in fixed.classes if len(one.features) >= max(FEWEST, fixed.quota + 1)]
        if not classes:
            raise NotDrawnError(f"needs a class of the first task with more than {fixed.quota} training images")
        material.tell(COMPILES)
        places = {}  # title -> places on a line: of all images, and of those that each selector chose
        for one in classes:
            line = umap(one.features.numpy(), 1)[:, 0]
            places[f"{one.name}: {fixed.quota} of {len(line)}"] = {"all training images": line} | {
                f"chosen by {title}": line[fixed.choose(one, selector, fixed.quota).numpy()]
                for selector, title in EMBEDDED.items()
            }
        yield material.suffix(fixed.panel), density_figure(fixed.title, places)


def density_figure(title: str, panels: Mapping[str, Mapping[str, Floats]]) -> Figure:
    """The first line of each panel is of all images, and filled."""
    figure, axes = small_multiples(len(panels), width=2.7, height=2.3)
    for axis, (name, lines) in zip(axes, panels.items(), strict=True):
        everything = next(iter(lines.values()))
        margin = 0.25 * (np.ptp(everything) or 1.0)
        grid = np.linspace(everything.min() - margin, everything.max() + margin, 300)
        for i, (label, places) in enumerate(lines.items()):
            height = density(places)(grid)
            axis.plot(grid, height, color=COLOURS[i], linestyle=("-", "--", ":")[i], linewidth=1.6, label=label)
            if i == 0:
                axis.fill_between(grid, height, color=COLOURS[i], alpha=0.12, linewidth=0)
        axis.set(title=name, xlabel="UMAP", ylim=(0, None), yticks=[])
    axes[0].set_ylabel("density")
    legend_below(figure, axes)
    headline(figure, title)
    return figure


def density(places: Floats) -> Callable[[Floats], Floats]:
    """A Gaussian kernel density with Scott's bandwidth; of places that are all the same there is none: zero."""
    if len(places) < 2 or np.ptp(places) == 0:
        return np.zeros_like
    return gaussian_kde(places)  # type: ignore[no-any-return]


@dataclass(frozen=True, eq=False)
class Race:
    """Of one class: MMD^2 after each choice of each selector, and the bound on it."""

    lines: Mapping[str, Floats]
    bound: Floats
    quota: int


def draw_mmd(material: Material) -> Drawings:
    for fixed in fixed_features(material):
        races = {f"{one.name} ({len(one.features)} images)": race_of(fixed, one) for one in fixed.classes}
        yield material.suffix(fixed.panel), mmd_figure(fixed.title, races)


def race_of(fixed: FixedFeatures, one: ClassFeatures) -> Race:
    """All of a class would be MMD^2 = 0, which a logarithm cannot show: the lines end one before."""
    n = max(1, min(BEYOND * fixed.quota, len(one.features) - 1))
    lines = {}
    for name in SELECTORS:
        if name == BETWEEN_CLASSES and one.scores.shape[1] < 2:
            continue
        choices = [fixed.choose(one, name, n, draw) for draw in range(DRAWS if name == RANDOM else 1)]
        lines[name] = np.mean([prefix_mmd2(one.features, rows, fixed.kernel) for rows in choices], axis=0)
    kernels = int(_options(fixed.kernel)["kernels"])
    return Race(lines, np.array([mmd_bound(k, kernels) for k in range(1, n + 1)]), fixed.quota)


def _options(kernel: Mapping[str, Any]) -> dict[str, Any]:
    """The options of the kernel, defaults filled in."""
    build_selector(MMD, kernel)  # refuses unknown ones
    return {**options_of(SELECTORS[MMD]), **kernel}


def prefix_mmd2(features: Tensor, indices: Tensor, kernel: Mapping[str, Any] | None = None) -> Floats:
    """MMD^2 of the first 1, 2, ... n of the chosen rows, (n,): what `squared_mmd` gives, with one matrix for all."""
    options = _options(kernel or {})
    kernels, scale, bandwidth, self_pairs = (options[name] for name in ("kernels", "scale", "bandwidth", "self_pairs"))
    with one_thread_each() as workers:
        matrix = KernelMatrix(features, kernels, scale, bandwidth, self_pairs, workers)
        means = RowMeans(matrix, len(indices), None).values
        inside = matrix.between(indices, indices).cumsum(0).cumsum(1).diagonal()  # of the first k, with these
        across = means[indices].cumsum(0)
        k = torch.arange(1, len(indices) + 1, dtype=torch.float64)
        mmd2 = means.mean() + inside / k**2 - 2.0 * across / k
    return np.asarray(mmd2.clamp_min(0.0).numpy(), dtype=np.float64)


def mmd_figure(title: str, races: Mapping[str, Race]) -> Figure:
    figure, axes = small_multiples(len(races), width=2.7, height=2.5)
    for axis, (name, race) in zip(axes, races.items(), strict=True):
        for i, (selector, values) in enumerate(race.lines.items()):
            label = f"{selector} (mean of {DRAWS} draws)" if selector == RANDOM else selector
            draw_curve(axis, Curve(label, i, np.arange(1.0, len(values) + 1), values))
        axis.plot(range(1, len(race.bound) + 1), race.bound, color="#777777", linestyle=":", label="bound (MMD)")
        axis.axvline(race.quota, color="#999999", linewidth=0.6, linestyle=":")
        axis.set(xlabel="number chosen, n", title=name)
        logarithmic(axis, "x")
        logarithmic(axis, "y")
        axis.grid(axis="y")
    axes[0].set_ylabel("MMD² to the class")
    legend_below(figure, axes)
    headline(figure, title)
    return figure
