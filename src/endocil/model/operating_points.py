"""Operating points from held-out images: prediction sets of a stated coverage, thresholds for a required sensitivity.

Split conformal prediction (Vovk et al., 2005; Sadinle et al., JASA 2019). The score of an image for a class is its
softmax probability, without a temperature, which was fitted on the same images. Let n held-out images of a class have
the scores s_(1) <= ... <= s_(n). With k = floor((n + 1)(1 - coverage)), a new image of the class reaches s_(k) with a
probability of (n + 1 - k) / (n + 1), at least `coverage`, whatever the network, if it is exchangeable with the held-out
ones: from the same devices and patients like theirs. Images of one patient are worth less than their number. Over all
draws of held-out images the sensitivity that a threshold really has is distributed as Beta(n + 1 - k, k).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from endocil.errors import SettingsError
from endocil.model.manifest import HeldOutScores

COVERAGE = 0.9  # of the sets that `predict` and the API give unless told otherwise
LEVEL = 0.95  # of the interval of a sensitivity


def rank_of(n: int, coverage: float) -> int:
    """k: the threshold is the k-th smallest of n scores; 0: n are too few for this coverage."""
    if not 0.0 < coverage < 1.0:
        raise SettingsError(f"a coverage or sensitivity of {coverage:g} is asked for; expected one between 0 and 1")
    return math.floor((n + 1) * (1.0 - coverage) + 1e-9)


def least_images(coverage: float) -> int:
    """How many held-out images of a class this coverage needs."""
    return math.ceil(1.0 / (1.0 - coverage) - 1.0 - 1e-9)


def threshold_of(scores: Sequence[float], coverage: float) -> float | None:
    """The score that a new image like these reaches with at least this probability; None: too few images."""
    k = rank_of(len(scores), coverage)
    return sorted(scores)[k - 1] if k else None


def prediction_sets(
    scores: NDArray[np.float64], classes: Sequence[str], held_out: HeldOutScores, coverage: float, *, by_class: bool
) -> list[tuple[str, ...]]:
    """The classes of each image, (n, C) scores, whose threshold it reaches, the most probable first.

    `by_class`: a threshold for each class, so that every class is covered, whatever its share among the images; a class
    with too few held-out images is in every set. Otherwise one for all: the coverage then holds for images whose
    classes are mixed as the held-out ones are, rare classes may be covered less, and a set may be empty."""
    if by_class:
        found = [threshold_of(held_out.of_class.get(name, ()), coverage) for name in classes]
        thresholds = np.array([-np.inf if one is None else one for one in found])
    else:
        one = threshold_of([score for own in held_out.of_class.values() for score in own], coverage)
        thresholds = np.full(len(classes), -np.inf if one is None else one)
    order = np.argsort(-scores, axis=1, kind="stable")
    return [
        tuple(classes[c] for c in best.tolist() if row[c] >= thresholds[c])
        for row, best in zip(scores, order, strict=True)
    ]


@dataclass(frozen=True)
class OperatingPoint:
    """A threshold on the score of one class, and how sensitive it is."""

    class_name: str
    required: float  # sensitivity
    threshold: float
    images: int  # held-out images of the class
    expected: float  # sensitivity: (n + 1 - k) / (n + 1)
    interval: tuple[float, float]  # of 95 %, over all draws of held-out images


def operating_point(held_out: HeldOutScores, name: str, sensitivity: float) -> OperatingPoint:
    """The largest threshold with at least this sensitivity; refused where held-out images are too few."""
    from scipy.stats import beta  # takes a second, and most commands need none of it

    if name not in held_out.of_class:
        raise SettingsError(f"a sensitivity of '{name}' is asked for; known: {', '.join(held_out.of_class)}")
    scores = held_out.of_class[name]
    n, k = len(scores), rank_of(len(scores), sensitivity)
    if not k:
        raise SettingsError(
            f"{n} held-out images of '{name}' are too few for a sensitivity of {sensitivity:g}; at least "
            f"{least_images(sensitivity)} are needed: ask for less, or hold out more (run.held_out, --validation)"
        )
    low, high = beta.ppf([(1 - LEVEL) / 2, (1 + LEVEL) / 2], n + 1 - k, k)
    expected = (n + 1 - k) / (n + 1)
    return OperatingPoint(name, sensitivity, sorted(scores)[k - 1], n, expected, (float(low), float(high)))


def decisions(
    scores: NDArray[np.float64], classes: Sequence[str], points: Mapping[str, OperatingPoint]
) -> list[tuple[str, ...]]:
    """Of each image the classes whose operating point it reaches, the most probable first; where it reaches none, the
    most probable of the classes without an operating point."""
    limits = np.array([points[name].threshold if name in points else np.nan for name in classes])
    decided = []
    for row in scores:
        order = np.argsort(-row, kind="stable").tolist()
        reached = [classes[c] for c in order if row[c] >= limits[c]]  # never of NaN
        free = [classes[c] for c in order if np.isnan(limits[c])] or [classes[order[0]]]
        decided.append(tuple(reached or free[:1]))
    return decided
