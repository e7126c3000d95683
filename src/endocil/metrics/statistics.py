"""How far a number may be trusted: intervals, paired comparisons, corrections and ranks, from arrays alone.

A measure is a function of sums over test images, so a resample is one matrix product: how often each unit was
drawn times what each unit adds to the sums. A unit is an image, or a group of images (a patient, a clip, near
duplicates), which is drawn whole, because images of a group are right and wrong together.
docs/statistics.md defines every number."""

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Indices = NDArray[np.int64]
Bools = NDArray[np.bool_]
LEVEL = 0.95
BLOCK = 8_000_000  # drawn numbers held at a time: test sets of any size fit into memory


@dataclass(frozen=True, eq=False)
class Measure:
    """What each image adds to the sums, and the number that the sums give, in percent."""

    tally: NDArray[np.float32]  # (N, K) small whole numbers, so that float32 sums are exact
    value: Callable[[Floats], Floats]  # (R, K) sums -> (R,)


def accuracy_measure(right: Bools, counted: Bools) -> Measure:
    """Share of the counted images that are right; NaN where a resample has none of them."""

    def value(sums: Floats) -> Floats:
        return np.where(sums[:, 1] > 0, 100.0 * sums[:, 0] / np.maximum(sums[:, 1], 1), np.nan)

    return Measure(np.stack([right & counted, counted], axis=1).astype(np.float32), value)


def macro_f1_measure(labels: Indices, predicted: Indices, n_classes: int, counted: Bools) -> Measure:
    """Plain mean over the classes of 2 TP / (images + predicted), 0 where a class has neither."""
    true, given = (
        np.eye(n_classes, dtype=np.float32)[rows] * counted[:, None] for rows in (labels, predicted)
    )
    tally = np.concatenate([true * given, true + given], axis=1)  # (N, 2C)

    def value(sums: Floats) -> Floats:
        hits, whole = sums[:, :n_classes], sums[:, n_classes:]
        return np.asarray((200.0 * hits / np.maximum(whole, 1)).mean(axis=1))

    return Measure(tally, value)


def combined(parts: Sequence[tuple[float, Measure]]) -> Measure:
    """The sum of measures times their coefficients, such as a mean over tasks."""
    ends = np.cumsum([part.tally.shape[1] for _, part in parts])[:-1]

    def value(sums: Floats) -> Floats:
        pieces = np.split(sums, ends, axis=1)
        return np.asarray(sum(c * part.value(own) for (c, part), own in zip(parts, pieces, strict=True)))

    return Measure(np.concatenate([part.tally for _, part in parts], axis=1), value)


def observed(measure: Measure) -> float:
    """The measure of the images as they are."""
    return float(measure.value(measure.tally.sum(axis=0, dtype=float)[None])[0])


@dataclass(frozen=True, eq=False)
class Resampling:
    """Test units drawn with replacement, the same draws for every measure, so that differences are paired.

    With strata (one number for each unit) as many units of each stratum are drawn as there are."""

    units: Indices  # (N,) the unit of each image, 0..U-1
    strata: Indices | None = None  # (U,)
    resamples: int = 2000
    seed: int = 0

    def values(self, measures: Sequence[Measure]) -> Floats:
        """Each measure in each resample, (R, M)."""
        n_units = int(self.units.max()) + 1
        pairs = [(measure, _by_unit(measure.tally, self.units, n_units)) for measure in measures]
        blocks = [
            [m.value((drawn @ tally).astype(float)) for m, tally in pairs] for drawn in self._draws(n_units)
        ]
        return np.concatenate(blocks, axis=1).T

    def _draws(self, n_units: int) -> Iterator[NDArray[np.float32]]:
        """How often each unit is drawn, (rows, U), a block of resamples at a time."""
        random = np.random.default_rng(self.seed)
        strata = np.zeros(n_units, dtype=np.int64) if self.strata is None else self.strata
        members = [np.flatnonzero(strata == stratum) for stratum in np.unique(strata)]
        rows = max(1, BLOCK // n_units)
        for start in range(0, self.resamples, rows):
            n = min(rows, self.resamples - start)
            drawn = np.zeros((n, n_units), dtype=np.float32)
            for own in members:
                drawn[:, own] = _counts(random, n, len(own))
            yield drawn


def _by_unit(tally: NDArray[np.float32], units: Indices, n_units: int) -> NDArray[np.float32]:
    return np.stack([np.bincount(units, column, n_units) for column in tally.T], axis=1).astype(np.float32)


def _counts(random: np.random.Generator, rows: int, n: int) -> NDArray[np.int64]:
    """How often each of n is among n draws with replacement, for each row."""
    drawn = random.integers(0, n, (rows, n)) + n * np.arange(rows)[:, None]
    return np.bincount(drawn.ravel(), minlength=rows * n).reshape(rows, n)


def mean_over_seeds(values: Floats, seed: int = 0) -> Floats:
    """(R, S) a value for each resample of the images and each seed -> (R,) their mean, with the seeds drawn too.

    A draw of S seeds from S varies by (S - 1) / S of what it should, so its distance from the mean is stretched;
    one seed cannot tell how seeds vary and adds nothing."""
    (resamples, n_seeds), means = values.shape, values.mean(axis=1)
    if n_seeds == 1:
        return np.asarray(means)
    drawn = _counts(np.random.default_rng([seed, n_seeds]), resamples, n_seeds)
    stretch = math.sqrt(n_seeds / (n_seeds - 1))
    return np.asarray(means + stretch * ((values * drawn).mean(axis=1) - means))


def percentile_interval(values: Floats, level: float = LEVEL) -> tuple[float, float]:
    """The middle share of the resampled values."""
    tail = (1 - level) / 2
    low, high = np.nanquantile(values, [tail, 1 - tail])
    return float(low), float(high)


def bootstrap_p(differences: Floats) -> float:
    """Two-sided: twice the share of resampled differences on the rarer side of 0, the observed one added to both."""
    n = len(differences)
    tail = min(int(np.sum(differences <= 0)), int(np.sum(differences >= 0)))
    return min(1.0, 2 * (tail + 1) / (n + 1))


def mcnemar_p(right: Bools, other_right: Bools) -> float:
    """Exact two-sided McNemar test: of the images that one of two gets right, is half each a plain guess?"""
    only = int(np.sum(right & ~other_right))
    n = only + int(np.sum(~right & other_right))
    term = ways = 1  # each binomial coefficient from the one before: many images take no minutes
    for i in range(min(only, n - only)):
        term = term * (n - i) // (i + 1)
        ways += term
    return min(1.0, 2 * ways / (1 << n))


def holm(p_values: Sequence[float]) -> list[float]:
    """p adjusted for their number, step by step from the smallest; in the order given."""
    adjusted, largest = [0.0] * len(p_values), 0.0
    for place, i in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        largest = max(largest, min(1.0, (len(p_values) - place) * p_values[i]))
        adjusted[i] = largest
    return adjusted


def ranks(scores: Floats) -> Floats:
    """(data sets, methods) scores -> rank of each method on each data set, 1 the highest; equals share a mean rank."""
    higher = (scores[:, None, :] > scores[:, :, None]).sum(axis=2)
    equal = (scores[:, None, :] == scores[:, :, None]).sum(axis=2)  # itself among them
    return np.asarray(higher + (equal + 1) / 2)


def friedman(scores: Floats) -> tuple[float, float]:
    """Friedman's chi-squared of (data sets, methods) scores, corrected for ties, and its p; NaN if all are tied."""
    (n, k), each = scores.shape, ranks(scores)
    if not (spread := float(np.sum((each - (k + 1) / 2) ** 2))):
        return math.nan, math.nan
    statistic = float((k - 1) * np.sum((each.sum(axis=0) - n * (k + 1) / 2) ** 2) / spread)
    return statistic, chi_squared_tail(statistic, k - 1)


def chi_squared_tail(x: float, freedom: int) -> float:
    """P(chi-squared > x), by its finite sum."""
    half, odd = x / 2, freedom % 2 / 2
    powers = [i + odd for i in range(freedom // 2)]
    tail = math.erfc(math.sqrt(half)) if odd else 0.0
    return tail + math.fsum(math.exp(-half) * half**i / math.gamma(i + 1) for i in powers)


def t_quantile(freedom: int, level: float = LEVEL) -> float:
    """t with P(-t < T < t) = level, by bisection on the finite sum for whole degrees of freedom."""
    low, high = 0.0, 1e5
    while high - low > 1e-9 * max(1.0, low):
        middle = (low + high) / 2
        low, high = (middle, high) if _t_inside(middle, freedom) < level else (low, middle)
    return high


def paired_t_p(differences: Sequence[float]) -> float:
    """Two-sided t test of paired differences: is their mean 0? One difference alone, or nothing but zeros: 1."""
    n = len(differences)
    if n < 2 or not any(differences):
        return 1.0
    error = statistics.stdev(differences) / math.sqrt(n)
    return 1.0 - _t_inside(abs(statistics.fmean(differences)) / error, n - 1) if error else 0.0


def _t_inside(t: float, freedom: int) -> float:
    odd, angle = freedom % 2, math.atan(t / math.sqrt(freedom))
    sine, cosine2 = math.sin(angle), math.cos(angle) ** 2
    term = total = sine * math.cos(angle) if odd else sine
    for i in range(1 + odd, freedom - 1, 2):
        term *= cosine2 * i / (i + 1)
        total += term
    return (angle + (total if freedom > 1 else 0.0)) * 2 / math.pi if odd else total
