"""Is what a model calls 80 % right in 80 % of the cases? Bins of confidence, and the expected calibration error.

Bins of equal width as in calibration.py; the error is the mean over images of the distance between a bin's
mean confidence and its share of right images."""

from dataclasses import dataclass

import numpy as np

from endocil.bundle.calibration import BINS
from endocil.statistics import BLOCK, Bools, Floats, Indices, Measure


@dataclass(frozen=True)
class Bin:
    """Images whose predicted class has a probability between low and high; both numbers in percent."""

    low: float
    high: float
    images: int
    confidence: float  # mean
    right: float  # share


def calibration_measure(confidence: Floats, right: Bools, counted: Bools) -> Measure:
    """Expected calibration error in points; a sum over bins of distances of sums, so that it can be resampled."""
    which = np.eye(BINS)[_bins(confidence)] * counted[:, None]  # (N, BINS)
    tally = np.concatenate([which * (right - confidence)[:, None], counted[:, None]], axis=1)

    def value(sums: Floats) -> Floats:
        n = sums[:, -1]
        return np.where(n > 0, 100 * np.abs(sums[:, :-1]).sum(axis=1) / np.maximum(n, 1), np.nan)

    return Measure(tally.astype(np.float32), value)


def errors_by_chance(confidence: Floats, resamples: int, seed: int = 0) -> Floats:
    """(R,) the errors that these confidences show where each of them is true: a few images never look calibrated."""
    which = np.eye(BINS, dtype=np.float32)[_bins(confidence)]
    random = np.random.default_rng(seed)
    rows = max(1, BLOCK // len(confidence))
    found = []
    for start in range(0, resamples, rows):
        n = min(rows, resamples - start)
        right = random.random((n, len(confidence)), dtype=np.float32) < confidence
        gaps = (right - confidence).astype(np.float32) @ which  # (n, BINS)
        found.append(100 * np.abs(gaps).sum(axis=1) / len(confidence))
    return np.concatenate(found).astype(float)


def reliability(confidence: Floats, right: Bools) -> tuple[Bin, ...]:
    """The bins that hold images."""
    where = _bins(confidence)
    return tuple(
        Bin(
            100 * b / BINS,
            100 * (b + 1) / BINS,
            int(own.sum()),
            100 * float(confidence[own].mean()),
            100 * float(right[own].mean()),
        )
        for b in range(BINS)
        if (own := where == b).any()
    )


def _bins(confidence: Floats) -> Indices:
    return np.minimum((confidence * BINS).astype(np.int64), BINS - 1)
