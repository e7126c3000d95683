"""Probabilities that mean what they say, and a threshold for out-of-distribution images.

Both are fitted on held-out images, which were never trained on. The softmax head's logits are divided by one
temperature (Guo et al., ICML 2017); minus the squared distances to the class means by another.
"""

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.nn import functional

from endocil.data.seeding import generator
from endocil.learning.features import look
from endocil.learning.memory import KeptImages
from endocil.methods import Method
from endocil.model.manifest import Calibration
from endocil.model.out_of_distribution import ood_scores

FOLDS = 5
BINS = 15
RATE = 0.05
NAMED = 10  # classes in a note
COLDEST, HOTTEST = 1e-4, 1e4  # temperatures that are looked at


def calibrate(
    method: Method,
    held_out: KeptImages,
    classes: Sequence[str],
    spread: Mapping[str, Tensor],
    *,
    rate: float = RATE,
    batch: int = 64,
) -> Calibration | None:
    """None where a class has no held-out images, or there are too few to fit on some and measure on others.

    `spread` as of `out_of_distribution.spread_of`."""
    if without_held_out(held_out, classes):
        return None
    labels = torch.tensor([classes.index(one.class_name) for one in held_out.provenance])
    folds = folds_of([one.group or f"image {i}" for i, one in enumerate(held_out.provenance)])
    if len(set(folds.tolist())) < 2:
        return None
    seen = look(method, held_out.pixels, batch)
    crossed = cross_fitted(seen.logits, labels, folds)
    scores = ood_scores(seen, spread)
    return Calibration(
        images=len(labels),
        temperature=fit_temperature(seen.logits, labels),
        mean_temperature=None if seen.distances is None else fit_temperature(-seen.distances, labels),
        error_before=calibration_error(functional.softmax(seen.logits.double(), dim=1), labels),
        error=calibration_error(crossed, labels),
        folds=int(folds.max()) + 1,
        ood_threshold=threshold_of(scores, rate),
        ood_rate=rate,
    )


def without_held_out(held_out: KeptImages, classes: Sequence[str]) -> list[str]:
    """Classes that a calibration would say nothing of."""
    have = {one.class_name for one in held_out.provenance}
    return [name for name in classes if name not in have]


def why_uncalibrated(held_out: KeptImages, classes: Sequence[str]) -> str:
    if not len(held_out):
        return "no held-out images"
    lacking = without_held_out(held_out, classes)
    more = f" and {len(lacking) - NAMED:,} more classes" if len(lacking) > NAMED else ""
    return (
        f"no held-out images of {', '.join(lacking[:NAMED])}{more}" if lacking else "too few held-out images"
    )


def why_unflagged(calibration: Calibration) -> str:
    """Why no image is flagged as out of distribution, though probabilities are calibrated; "" where images are."""
    if calibration.ood_threshold is not None:
        return ""
    rate = calibration.ood_rate
    return (
        f"{calibration.images:,} held-out images cannot set a rate of {100 * rate:g} %; at least "
        f"{least_images(rate):,} are needed: no image is flagged as out of distribution"
    )


def fit_temperature(logits: Tensor, labels: Tensor) -> float:
    """The temperature with the least negative log-likelihood, where one label in n + 1 is a blind guess.

    Without that guess, images that are all classified right would ask for probabilities of exactly 1. The loss is
    convex in 1 / temperature, so its slope has one zero, found by bisection."""
    scores = logits.double()
    guess = 1.0 / (len(labels) + 1)
    mine = scores.gather(1, labels[:, None])[:, 0]
    target = (1.0 - guess) * mine + guess * scores.mean(dim=1)  # (n,) the score that the labels ask for
    low, high = math.log(1.0 / HOTTEST), math.log(1.0 / COLDEST)  # of 1 / temperature
    for _ in range(100):
        middle = (low + high) / 2
        expected = (functional.softmax(math.exp(middle) * scores, dim=1) * scores).sum(dim=1)
        if float((expected - target).mean()) < 0:
            low = middle
        else:
            high = middle
    return math.exp(-(low + high) / 2)


def cross_fitted(logits: Tensor, labels: Tensor, folds: Tensor) -> Tensor:
    """Probabilities of each image by the temperature of the other folds: what an image never seen would get."""
    found = torch.empty(logits.shape, dtype=torch.float64)
    for fold in torch.unique(folds).tolist():
        mine = folds == fold
        found[mine] = probabilities(logits[mine], fit_temperature(logits[~mine], labels[~mine]))
    return found


def probabilities(scores: Tensor, temperature: float | None) -> Tensor:
    return functional.softmax(scores.double() / (temperature or 1.0), dim=1)


def folds_of(groups: Sequence[str], n: int = FOLDS) -> Tensor:
    """The fold of each image; images of one group share theirs. As even as the groups allow."""
    names = sorted(set(groups))
    order = torch.randperm(len(names), generator=generator(0, "calibration folds")).tolist()
    members = {name: [i for i, group in enumerate(groups) if group == name] for name in names}
    sizes = [0] * min(n, len(names))
    folds = torch.zeros(len(groups), dtype=torch.int64)
    for name in sorted((names[i] for i in order), key=lambda name: -len(members[name])):
        smallest = sizes.index(min(sizes))
        folds[members[name]] = smallest
        sizes[smallest] += len(members[name])
    return folds


def calibration_error(told: Tensor, labels: Tensor, bins: int = BINS) -> float:
    """Expected calibration error: |accuracy - mean probability| of the predicted class, over bins of equal width."""
    probability, predicted = told.max(dim=1)
    right = (predicted == labels).to(told)
    bin_of = (probability * bins).long().clamp_max(bins - 1)
    gaps = torch.zeros(bins, dtype=told.dtype).index_add_(0, bin_of, right - probability)
    return float(gaps.abs().sum() / len(labels))


def least_images(rate: float) -> int:
    """With fewer even what is farther than all of them is not as rare as `rate`."""
    return math.ceil(1.0 / rate - 1.0 - 1e-9)


def threshold_of(scores: Tensor, rate: float) -> float | None:
    """As many scores lie above it as one more image of the same kind does with the probability `rate`, or fewer.

    None where there are too few scores for that."""
    n = len(scores)
    if n < least_images(rate):
        return None
    place = min(n, math.ceil((n + 1) * (1.0 - rate)))
    return float(scores.double().sort().values[place - 1])
