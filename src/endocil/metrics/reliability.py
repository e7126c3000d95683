"""Is a class with a probability of 80 % correct in 80 % of the cases? Bins of confidence, expected calibration error.

Guo et al., ICML 2017. `model.calibration.calibration_error` is the same number of a model's held-out images.
"""

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


def errors_by_chance(confidence: Floats, resamples: int, seed: int = 0) -> Floats:
    """(R,) calibration errors of perfectly calibrated predictions with these confidences: few images are never 0."""
    bins = np.eye(BINS, dtype=np.float32)[_bin_of(confidence)]
    random = np.random.default_rng(seed)
    rows = max(1, BLOCK // len(confidence))
    errors = []
    for start in range(0, resamples, rows):
        n = min(rows, resamples - start)
        correct = random.random((n, len(confidence)), dtype=np.float32) < confidence
        gaps = (correct - confidence).astype(np.float32) @ bins  # (n, BINS)
        errors.append(100 * np.abs(gaps).sum(axis=1) / len(confidence))
    return np.concatenate(errors).astype(float)


def reliability(confidence: Floats, correct: Bools) -> tuple[Bin, ...]:
    """The bins that contain images."""
    bin_of = _bin_of(confidence)
    return tuple(
        Bin(
            100 * b / BINS,
            100 * (b + 1) / BINS,
            int(inside.sum()),
            100 * float(confidence[inside].mean()),
            100 * float(correct[inside].mean()),
        )
        for b in range(BINS)
        if (inside := bin_of == b).any()
    )


def _bin_of(confidence: Floats) -> Indices:
    return np.minimum((confidence * BINS).astype(np.int64), BINS - 1)
