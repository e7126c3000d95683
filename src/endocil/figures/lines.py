"""Lines with the spread over seeds as a band."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray

from endocil.figures.style import line_style

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Curve:
    """The mean over seeds, and their standard deviation where there are several."""

    label: str
    style: int
    x: Floats
    mean: Floats
    deviation: Floats | None = None


def curve_of(label: str, style: int, per_seed: Sequence[Sequence[float] | Floats], first: int = 0) -> Curve:
    """One line from the values of each seed, at first, first + 1, ..."""
    values = np.array(per_seed, dtype=np.float64)  # (seeds, n)
    deviation = values.std(axis=0, ddof=1) if len(values) > 1 else None
    return Curve(label, style, np.arange(first, first + values.shape[1]), values.mean(axis=0), deviation)


def draw_curve(axis: Axes, curve: Curve) -> None:
    """Long lines carry a dozen markers at most."""
    every = max(1, len(curve.x) // 12)
    start = curve.style % every  # so that the markers of lines on one another are beside one another
    look = line_style(curve.style)
    axis.plot(curve.x, curve.mean, label=curve.label, markevery=(start, every), markeredgewidth=0, **look)
    if curve.deviation is not None:
        low, high = curve.mean - curve.deviation, curve.mean + curve.deviation
        axis.fill_between(curve.x, low, high, color=look["color"], alpha=0.15, linewidth=0)
