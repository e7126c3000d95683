"""Confidence intervals, paired tests and corrections for many comparisons, from arrays alone.

A measure is a function of sums over test images, so a resample is one matrix product: how often each unit was
drawn times what each unit adds to the sums. A unit is an image, or a group of images (a patient, a clip, near
duplicates), which is drawn whole, because images of a group are right and wrong together.
scipy.stats is imported where it is used: it takes a second, and most commands need none of it.
docs/compare.md defines every number."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from endocil.metrics.metrics import accuracy_from, f1_from
from endocil.model.calibration import BINS

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
        return accuracy_from(sums[:, 0], sums[:, 1])

    return Measure(np.stack([right & counted, counted], axis=1).astype(np.float32), value)


def macro_f1_measure(labels: Indices, predicted: Indices, n_classes: int, counted: Bools) -> Measure:
    """Plain mean over the classes of 2 TP / (images + predicted), 0 where a class has neither."""
    own, given = (np.eye(n_classes, dtype=np.float32)[rows] * counted[:, None] for rows in (labels, predicted))
    tally = np.concatenate([own * given, own + given], axis=1)  # (N, 2C)

    def value(sums: Floats) -> Floats:
        return np.asarray(f1_from(sums[:, :n_classes], sums[:, n_classes:]).mean(axis=1))

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
        by_unit = [[np.bincount(self.units, column, n_units) for column in measure.tally.T] for measure in measures]
        pairs = [(m, np.stack(own, axis=1).astype(np.float32)) for m, own in zip(measures, by_unit, strict=True)]
        blocks = [[m.value((drawn @ tally).astype(float)) for m, tally in pairs] for drawn in self._draws(n_units)]
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


def _counts(random: np.random.Generator, rows: int, n: int) -> NDArray[np.int64]:
    """How often each of n is among n draws with replacement, for each row."""
    drawn = random.integers(0, n, (rows, n)) + n * np.arange(rows)[:, None]
    return np.bincount(drawn.ravel(), minlength=rows * n).reshape(rows, n)


@dataclass(frozen=True, eq=False)
class CommonTestSet:
    """The test images that all runs or versions predicted after their last task."""

    images: tuple[str, ...]
    classes: tuple[str, ...]
    labels: Indices  # (N,) into classes
    units: Indices  # (N,) images of a group share one
    sources: tuple[str, ...]

    @property
    def grouped(self) -> bool:
        return int(self.units.max()) + 1 < len(self.images)

    def resampling(self, metric: str, resamples: int) -> Resampling:
        """Macro F1 and forgetting are means over fixed classes and tasks, so their resamples keep the classes' sizes:
        without that a rare class may vanish and count as 0. For accuracy the mixture of classes is chance, too."""
        if metric.startswith("acc"):
            return Resampling(self.units, None, resamples)
        counts = np.zeros((int(self.units.max()) + 1, len(self.classes)), dtype=np.int64)
        np.add.at(counts, (self.units, self.labels), 1)
        most_frequent = np.asarray(counts.argmax(axis=1))  # (U,) a group may have several classes
        return Resampling(self.units, most_frequent, resamples)

    def describe(self) -> str:
        """942 test images, or 942 test images in 310 groups."""
        groups = f" in {int(self.units.max()) + 1:,} groups, drawn whole" if self.grouped else ""
        return f"{len(self.images):,} test images{groups}"


def units_of(images: Sequence[str], groups: Sequence[str]) -> Indices:
    """Images of a group form one unit; an image without a group is a unit of its own."""
    names = [f"group {group}" if group else f"image {image}" for image, group in zip(images, groups, strict=True)]
    return np.unique(names, return_inverse=True)[1].astype(np.int64)


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
    """Exact two-sided McNemar test: of the images that only one of two gets right, does each get half?"""
    from scipy.special import bdtr  # scipy.stats takes most of a second to import

    only, other_only = int(np.sum(right & ~other_right)), int(np.sum(~right & other_right))
    return min(1.0, 2.0 * float(bdtr(min(only, other_only), only + other_only, 0.5)))


def holm(p_values: Sequence[float]) -> list[float]:
    """p adjusted for their number, step by step from the smallest; in the order given."""
    adjusted, largest = [0.0] * len(p_values), 0.0
    for place, i in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        largest = max(largest, min(1.0, (len(p_values) - place) * p_values[i]))
        adjusted[i] = largest
    return adjusted


def ranks(scores: Floats) -> Floats:
    """(data sets, methods) scores -> rank of each method on each data set, 1 the highest; ties share a mean rank."""
    from scipy.stats import rankdata

    return np.asarray(rankdata(-scores, axis=1), dtype=np.float64)


def friedman(scores: Floats) -> tuple[float, float]:
    """Friedman's chi-squared of (data sets, methods) scores, corrected for ties, and its p; NaN if all are tied.

    scipy's own function refuses two methods, so only the tail is taken from there."""
    from scipy.stats import chi2

    (n, k), each = scores.shape, ranks(scores)
    variation = float(np.sum((each - (k + 1) / 2) ** 2))
    if not variation:
        return math.nan, math.nan
    statistic = float((k - 1) * np.sum((each.sum(axis=0) - n * (k + 1) / 2) ** 2) / variation)
    return statistic, float(chi2.sf(statistic, k - 1))


def critical_difference(n_methods: int, n_data: int, level: float = LEVEL) -> float:
    """Nemenyi's: methods whose mean ranks over so many data sets differ by less are not told apart."""
    from scipy.stats import studentized_range

    q = float(studentized_range.ppf(level, n_methods, np.inf)) / math.sqrt(2)
    return q * math.sqrt(n_methods * (n_methods + 1) / (6 * n_data))


def paired_t_p(differences: Sequence[float]) -> float:
    """Two-sided t test of paired differences: is their mean 0? One difference alone, or nothing but zeros: 1."""
    from scipy.stats import ttest_1samp

    if len(differences) < 2 or not any(differences):
        return 1.0
    if np.ptp(differences) == 0:
        return 0.0  # without any spread t is infinite
    return float(ttest_1samp(differences, 0.0).pvalue)


# --- calibration: is a class with a probability of 80 % correct in 80 % of the cases? (Guo et al., ICML 2017)
#
# `model.calibration.calibration_error` is the same number of a model's held-out images.


@dataclass(frozen=True)
class Bin:
    """Images whose predicted class has a probability between low and high; in percent."""

    low: float
    high: float
    images: int
    confidence: float  # mean
    right: float  # share of correct images


def calibration_measure(confidence: Floats, correct: Bools, counted: Bools) -> Measure:
    """Expected calibration error in points: a function of sums over images, so it can be resampled."""
    bins = np.eye(BINS)[_bin_of(confidence)] * counted[:, None]  # (N, BINS)
    tally = np.concatenate([bins * (correct - confidence)[:, None], counted[:, None]], axis=1)

    def value(sums: Floats) -> Floats:
        n = sums[:, -1]
        return np.where(n > 0, 100 * np.abs(sums[:, :-1]).sum(axis=1) / np.maximum(n, 1), np.nan)

    return Measure(tally.astype(np.float32), value)


def errors_by_chance(confidence: Floats, resamples: int) -> Floats:
    """(R,) calibration errors of perfectly calibrated predictions with these confidences: few images are never 0."""
    bins = np.eye(BINS, dtype=np.float32)[_bin_of(confidence)]
    random = np.random.default_rng(0)
    rows = max(1, BLOCK // len(confidence))
    errors = []
    for start in range(0, resamples, rows):
        n = min(rows, resamples - start)
        correct = random.random((n, len(confidence)), dtype=np.float32) < confidence
        gaps = (correct - confidence).astype(np.float32) @ bins  # (n, BINS)
        errors.append(100 * np.abs(gaps).sum(axis=1) / len(confidence))
    return np.concatenate(errors).astype(float)


def reliability(confidence: Floats, correct: Bools, n_bins: int = BINS) -> tuple[Bin, ...]:
    """The bins that contain images."""
    bin_of = _bin_of(confidence, n_bins)
    bins = []
    for b in np.unique(bin_of).tolist():
        inside = bin_of == b
        means = (100 * float(values[inside].mean()) for values in (confidence, correct))
        bins.append(Bin(100 * b / n_bins, 100 * (b + 1) / n_bins, int(inside.sum()), *means))
    return tuple(bins)


def expected_error(bins: Sequence[Bin]) -> float:
    """Expected calibration error in points: |correct - confidence|, mean over the images."""
    return float(np.average([abs(one.right - one.confidence) for one in bins], weights=[one.images for one in bins]))


def _bin_of(confidence: Floats, n_bins: int = BINS) -> Indices:
    return np.minimum((confidence * n_bins).astype(np.int64), n_bins - 1)
