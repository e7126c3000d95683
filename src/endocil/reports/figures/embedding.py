"""Features of a fixed network in the plane and on a line, with the exemplars chosen: the paper's Figs. 5 and 6.

Differs from the paper: Fig. 5 has the exemplars by the mean (herding) beside those by MMD."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from endocil.reports.figures.features import MEAN, MMD, ClassFeatures, FixedFeatures, fixed_features
from endocil.reports.figures.material import Drawings, Material, NotDrawnError
from endocil.reports.figures.style import (
    COLOURS,
    MARKERS,
    headline,
    legend_below,
    new_figure,
    small_multiples,
)

Floats = NDArray[np.float64]
Indices = NDArray[np.int64]
NEIGHBOURS = 15  # UMAP's own default
FEWEST = 5  # images: with fewer there is nothing to see
CHOSEN_BY = {MEAN: "mean", MMD: "MMD"}
COMPILES = "UMAP: its first call compiles for some tens of seconds ..."
RASTER = 2000  # more points than these are pixels in a PDF too


def draw_plane(material: Material) -> Drawings:
    for fixed in fixed_features(material):
        features = np.concatenate([one.features.numpy() for one in fixed.classes])
        if len(features) < FEWEST:
            raise NotDrawnError(f"needs a first task with at least {FEWEST} training images")
        material.tell(COMPILES)
        yield material.suffix(fixed.panel), plane_figure(fixed.title, umap(features, 2), _clouds(fixed))


def draw_densities(material: Material) -> Drawings:
    for fixed in fixed_features(material):
        classes = [one for one in fixed.classes if len(one.features) >= max(FEWEST, fixed.quota + 1)]
        if not classes:
            raise NotDrawnError(
                f"needs a class of the first task with more than {fixed.quota} training images"
            )
        material.tell(COMPILES)
        lines = {
            f"{one.name}: {fixed.quota} of {len(one.features)}": Line(
                umap(one.features.numpy(), 1)[:, 0], _chosen(fixed, one)
            )
            for one in classes
        }
        yield material.suffix(fixed.panel), density_figure(fixed.title, lines)


def _chosen(fixed: FixedFeatures, one: ClassFeatures) -> dict[str, Indices]:
    selectors = fixed.selectors()
    return {name: one.choose(selectors[key], fixed.quota).indices.numpy() for key, name in CHOSEN_BY.items()}


def umap(features: NDArray[np.float32], components: int) -> Floats:
    """(m, components); the same features give the same places."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of numba and of parallel work that a seed forbids
            from umap import UMAP  # type: ignore[import-untyped]

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


@dataclass(frozen=True, eq=False)
class Cloud:
    """One class: its rows among all points, and those of them that were chosen."""

    name: str
    rows: Indices
    chosen: Mapping[str, Indices]  # way of choosing -> into rows


def _clouds(fixed: FixedFeatures) -> list[Cloud]:
    ends = np.cumsum([len(one.features) for one in fixed.classes])
    return [
        Cloud(one.name, np.arange(end - len(one.features), end), _chosen(fixed, one))
        for one, end in zip(fixed.classes, ends, strict=True)
    ]


def plane_figure(title: str, points: Floats, clouds: Sequence[Cloud]) -> Figure:
    """All training images as light open marks, exemplars as filled ones; each class has its own mark and colour."""
    ways = list(clouds[0].chosen)
    figure = new_figure(3.6 * len(ways), 3.9)
    axes = [figure.add_subplot(1, len(ways), i + 1) for i in range(len(ways))]
    for axis, way in zip(axes, ways, strict=True):
        for i, cloud in enumerate(clouds):
            _cloud(axis, points, cloud, way, i)
        axis.set(title=f"exemplars by {way}", xticks=[], yticks=[], xlabel="UMAP 1")
        axis.spines[:].set_visible(True)
    axes[0].set_ylabel("UMAP 2")
    legend_below(figure, axes)
    headline(figure, title)
    return figure


def _cloud(axis: Axes, points: Floats, cloud: Cloud, way: str, index: int) -> None:
    colour, mark = COLOURS[index % len(COLOURS)], MARKERS[index % len(MARKERS)]
    own = points[cloud.rows]
    axis.scatter(
        own[:, 0],
        own[:, 1], s=11, marker=mark, facecolors="none", edgecolors=colour, linewidths=0.6, alpha=0.6,
        label=cloud.name,
        rasterized=len(points) > RASTER,
    )  # fmt: skip
    chosen = own[cloud.chosen[way]]
    axis.scatter(
        chosen[:, 0],
        chosen[:, 1], s=28, marker=mark, color=colour, edgecolors="black", linewidths=0.5, zorder=3,
        label=f"{cloud.name}, chosen",
    )  # fmt: skip


@dataclass(frozen=True, eq=False)
class Line:
    """The places of one class on a line, and which of them were chosen."""

    places: Floats
    chosen: Mapping[str, Indices]


def density_figure(title: str, lines: Mapping[str, Line]) -> Figure:
    figure, axes = small_multiples(len(lines), width=2.7, height=2.3)
    dashes = ("-", "--", ":")
    for axis, (name, line) in zip(axes, lines.items(), strict=True):
        shown = {"all": line.places, **{way: line.places[rows] for way, rows in line.chosen.items()}}
        spread = np.ptp(line.places) or 1.0
        grid = np.linspace(line.places.min() - 0.25 * spread, line.places.max() + 0.25 * spread, 300)
        for i, (way, places) in enumerate(shown.items()):
            height = density(places)(grid)
            label = "all training images" if way == "all" else f"chosen by {way}"
            axis.plot(grid, height, color=COLOURS[i], linestyle=dashes[i % 3], linewidth=1.6, label=label)
            if way == "all":
                axis.fill_between(grid, height, color=COLOURS[i], alpha=0.12, linewidth=0)
        axis.set(title=name, xlabel="UMAP", ylim=(0, None), yticks=[])
    axes[0].set_ylabel("density")
    legend_below(figure, axes)
    headline(figure, title)
    return figure


def density(places: Floats) -> Callable[[Floats], Floats]:
    """A Gaussian kernel density with Scott's bandwidth; of places that are all the same there is none: zero."""
    try:
        from scipy.stats import gaussian_kde  # type: ignore[import-untyped]
    except ImportError as error:
        raise NotDrawnError("needs scipy: pip install 'endocil[report]'") from error
    if len(places) < 2 or np.ptp(places) == 0:
        return np.zeros_like
    return gaussian_kde(places)  # type: ignore[no-any-return]
