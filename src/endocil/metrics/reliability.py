"""Is a class with a probability of 80 % correct in 80 % of the cases? Bins of confidence, expected calibration error.

Guo et al., ICML 2017. `model.calibration.calibration_error` is the same number of a model's held-out images.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from endocil.metrics.statistics import BLOCK, Bools, Floats, Indices, Measure
from endocil.model.calibration import BINS


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
