"""Intervals of shares of images and of their paired changes that stay honest where images are few.

A bootstrap cannot see what did not happen: for ten images that both versions get right it claims, at any level, that
nothing can be lost. So each interval reaches as far as the farther of two: the percentile bootstrap over units
(images or groups), and a score interval, Wilson's for a share and Tango's for a paired change. Tango, Statistics in
Medicine 17 (1998). Images of a group may be right and wrong together, so the score interval counts them as if they
were: n images in groups of m_g count as n^2 / sum m_g^2 (Kish)."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from endocil.metrics.statistics import LEVEL, Bools, Floats, Indices, percentile_interval

Interval = tuple[float, float]
_STEPS = 60  # of a bisection
_MOST = 1e7  # images; more than that are as good as no number


def effective_number(units: Indices, counted: Bools) -> float:
    """How many independent images the counted ones are worth if all images of a group have the same result."""
    sizes = np.bincount(units[counted])
    return float(sizes.sum() ** 2 / np.sum(sizes**2)) if sizes.sum() else 0.0


@dataclass(frozen=True, eq=False)
class Share:
    """How many of n images are right (or flagged, or flipped)."""

    right: int
    n: int
    effective: float
    drawn: Floats  # (R,) the share in each resample

    @property
    def value(self) -> float:
        return 100.0 * self.right / self.n if self.n else math.nan

    def interval(self, level: float = LEVEL) -> Interval:
        if not self.n:
            return 0.0, 100.0
        return _hull(self.drawn, wilson(self.right / self.n, self.effective, level), level)

    def needed(self, limit: float, level: float = LEVEL) -> int | None:
        """How many images with this share would put the interval beyond the limit, on the side of the share."""
        share = self.right / self.n if self.n else math.nan

        def enough(n: float) -> bool:
            low, high = wilson(share, n, level)
            return 100 * low >= limit if 100 * share > limit else 100 * high <= limit

        return _smallest(enough, self.n / self.effective) if self.n and 100 * share != limit else None


@dataclass(frozen=True, eq=False)
class Change:
    """The new version's share minus the old one's, of the same n images."""

    lost: int  # the old version right, the new one wrong
    gained: int
    n: int
    effective: float
    drawn: Floats  # (R,) the change in each resample

    @property
    def value(self) -> float:
        return 100.0 * (self.gained - self.lost) / self.n if self.n else math.nan

    def interval(self, level: float = LEVEL) -> Interval:
        if not self.n:
            return -100.0, 100.0
        lost, gained = self.lost / self.n, self.gained / self.n
        return _hull(self.drawn, tango(gained, lost, self.effective, level), level)

    def needed(self, loss: float, level: float = LEVEL) -> int | None:
        """How many images with these shares would show that less than `loss` points are lost; None: no number."""
        if not self.n or -self.value >= loss:
            return None
        lost, gained = self.lost / self.n, self.gained / self.n
        return _smallest(lambda n: -100 * tango(gained, lost, n, level)[0] <= loss, self.n / self.effective)


@dataclass(frozen=True, eq=False)
class Resampled:
    """A number that is no share, such as a macro F1, with its percentile interval."""

    value: float
    n: int
    drawn: Floats

    def interval(self, level: float = LEVEL) -> Interval:
        return percentile_interval(self.drawn, level)


@dataclass(frozen=True, eq=False)
class Distance(Resampled):
    """A mean of distances, such as a calibration error: chance alone makes it larger, and resampling again.

    The resamples are mirrored at the observed value, which removes that bias (basic bootstrap). A value that chance
    alone explains where the truth is 0 may be 0."""

    by_chance: Floats  # (R,) what would be seen where the truth is 0

    def interval(self, level: float = LEVEL) -> Interval:
        low, high = percentile_interval(self.drawn, level)
        _, chance = percentile_interval(self.by_chance, level)
        may_be_0 = self.value <= chance
        return 0.0 if may_be_0 else max(0.0, 2 * self.value - high), max(0.0, 2 * self.value - low)


Figure = Share | Change | Resampled  # a number in percent or points, and how far it may be trusted


def _hull(drawn: Floats, scored: Interval, level: float) -> Interval:
    """From the lower low end to the higher high end; resamples without any counted image tell nothing."""
    low, high = (100 * end for end in scored)
    if np.isnan(drawn).all():
        return low, high
    drawn_low, drawn_high = percentile_interval(drawn, level)
    return min(low, drawn_low), max(high, drawn_high)


def wilson(share: float, n: float, level: float = LEVEL) -> Interval:
    """Score interval of a share of n."""
    z = _quantile(level)
    middle = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n)) / (1 + z * z / n)
    return max(0.0, middle - half), min(1.0, middle + half)


def tango(gained: float, lost: float, n: float, level: float = LEVEL) -> Interval:
    """Score interval of gained - lost, two shares of the same n pairs: the differences that a score test accepts."""
    z = _quantile(level)
    seen = gained - lost

    def score(difference: float) -> float:
        """How many standard errors, as large as they would be with this difference, the seen one is away."""
        b = -gained - lost + (2 - gained + lost) * difference
        c = -lost * difference * (1 - difference)
        q = (math.sqrt(max(0.0, b * b - 8 * c)) - b) / 4  # the likeliest share of losses with this difference
        variance = max(0.0, 2 * q + difference * (1 - difference)) / n
        gap = seen - difference
        return gap / math.sqrt(variance) if variance > 0 else math.copysign(math.inf, gap) if gap else 0.0

    low = _edge(lambda difference: score(difference) > z, -1.0, seen)
    high = -_edge(lambda difference: score(-difference) < -z, -1.0, -seen)
    return low, high


def _edge(outside: Callable[[float], bool], low: float, high: float) -> float:
    """Where outside ends, between `low` and `high`, which is inside; `low` where that is inside as well."""
    if not outside(low):
        return low
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if outside(middle) else (low, middle)
    return high


def _smallest(enough: Callable[[float], bool], images_each: float) -> int | None:
    """The smallest effective number that is enough, times the images that count as one."""
    return math.ceil(_edge(lambda n: not enough(n), 1.0, _MOST) * images_each) if enough(_MOST) else None


def _quantile(level: float) -> float:
    return NormalDist().inv_cdf((1 + level) / 2)
