"""Calibrated probabilities, and a score and a threshold for out-of-distribution images.

Temperatures and threshold are fitted on held-out images, which were never trained on. The softmax head's logits are
divided by one temperature (Guo et al., ICML 2017); minus the squared distances to the class means by another.
The out-of-distribution score is that of `out_of_distribution.py`. What a model cannot do for want of images is said
here too.
"""

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.nn import functional

from endocil.data.decode import RULES
from endocil.data.seeding import generator
from endocil.learning.features import Outputs, outputs_of
from endocil.learning.memory import KeptImages
from endocil.methods import Method, method_title
from endocil.model.manifest import Calibration, HeldOutScores, Manifest
from endocil.model.out_of_distribution import ood_scores, spread_of

FOLDS = 5
BINS = 15
RATE = 0.05
NAMED = 10  # classes in a note
COLDEST, HOTTEST = 1e-4, 1e4  # temperatures that are tried


def spread_and_calibration(
    method: Method,
    exemplars: KeptImages,
    held_out: KeptImages,
    classes: Sequence[str],
    *,
    rate: float = RATE,
    batch: int = 64,
) -> tuple[dict[str, Tensor], Calibration | None]:
    """What the out-of-distribution score needs, and the calibration: one pass over the held-out images for both."""
    outputs = outputs_of(method, held_out.pixels, batch) if len(held_out) else None
    measured = None
    if outputs is not None:
        labels = torch.tensor([classes.index(one.class_name) for one in held_out.provenance])
        measured = outputs, fit_temperature(outputs.logits, labels)
    spread = spread_of(method, exemplars, classes, held_out=measured, batch=batch)
    return spread, calibrate(method, held_out, classes, spread, rate=rate, batch=batch, outputs=outputs)


def calibrate(
    method: Method,
    held_out: KeptImages,
    classes: Sequence[str],
    spread: Mapping[str, Tensor],
    *,
    rate: float = RATE,
    batch: int = 64,
    outputs: Outputs | None = None,
) -> Calibration | None:
    """Fit both temperatures and the threshold on the held-out images.

    None if a class has no held-out images, or there are too few groups to cross-fit. `spread`: from `spread_of`.
    `outputs`: those for the held-out images, where they are at hand."""
    if without_held_out(held_out, classes):
        return None
    labels = torch.tensor([classes.index(one.class_name) for one in held_out.provenance])
    folds = folds_of([one.group or f"image {i}" for i, one in enumerate(held_out.provenance)])
    if len(set(folds.tolist())) < 2:
        return None
    outputs = outputs or outputs_of(method, held_out.pixels, batch)
    temperature, error_before, error = _fitted(outputs.logits, labels, folds)
    own = probabilities(outputs.logits, None).gather(1, labels[:, None])[:, 0]
    own_of = {name: tuple(sorted(own[labels == label].tolist())) for label, name in enumerate(classes)}
    return Calibration(
        images=len(labels),
        temperature=temperature,
        mean_temperature=None if outputs.distances is None else _fitted(-outputs.distances, labels, folds)[0],
        error_before=error_before,
        error=error,
        folds=int(folds.max()) + 1,
        ood_threshold=threshold_of(ood_scores(outputs, spread), rate),
        ood_rate=rate,
        scores=HeldOutScores(of_class=own_of),
    )


def _fitted(scores: Tensor, labels: Tensor, folds: Tensor) -> tuple[float, float, float]:
    """The temperature, and the calibration error with temperature 1 and with those fitted on the other folds.

    Where the fitted ones are worse on images that they were not fitted on, the temperature stays 1."""
    before = calibration_error(probabilities(scores, None), labels)
    after = calibration_error(cross_fitted(scores, labels, folds), labels)
    return (fit_temperature(scores, labels) if after <= before else 1.0), before, after


def without_held_out(held_out: KeptImages, classes: Sequence[str]) -> list[str]:
    """Classes without held-out images."""
    have = {one.class_name for one in held_out.provenance}
    return [name for name in classes if name not in have]


def why_uncalibrated(held_out: KeptImages, classes: Sequence[str]) -> str:
    if not len(held_out):
        return "no held-out images"
    lacking = without_held_out(held_out, classes)
    more = f" and {len(lacking) - NAMED:,} more classes" if len(lacking) > NAMED else ""
    return f"no held-out images of {', '.join(lacking[:NAMED])}{more}" if lacking else "too few held-out images"


def why_unimproved(calibration: Calibration) -> str:
    """Why probabilities are as the network gives them despite held-out images; "" where they are calibrated."""
    if calibration.improved:
        return ""
    return (
        f"a temperature fitted on {calibration.images:,} held-out images makes the expected calibration error worse "
        f"(cross-fitted: {calibration.error_before:.3f} before, {calibration.error:.3f} after): it stays 1, and "
        f"probabilities are not calibrated"
    )


def why_unflagged(calibration: Calibration) -> str:
    """Why a calibrated model flags no image as out of distribution; "" if it has a threshold."""
    if calibration.ood_threshold is not None:
        return ""
    rate = calibration.ood_rate
    return (
        f"{calibration.images:,} held-out images are too few for a threshold that flags {100 * rate:g} %; at least "
        f"{least_images(rate):,} are needed: no image is flagged as out of distribution"
    )


def notes_of(manifest: Manifest, held_out: KeptImages) -> tuple[str, ...]:
    """What users of a model's predictions must know."""
    fitted, notes = manifest.calibration, list[str]()
    if fitted is None:
        why = "the model is kept without images, and so without held-out images"
        if manifest.keeps_images:
            why = why_uncalibrated(held_out, manifest.class_names)
        notes.append(f"{why}: probabilities are not calibrated, and no image is flagged as out of distribution")
    else:
        notes += filter(None, (why_unimproved(fitted), why_unflagged(fitted)))
    if manifest.preprocessing.rules != RULES:
        notes.append(f"made with {manifest.preprocessing.rules}, here are {RULES}: pixels may differ slightly")
    return tuple(notes)


def limits_of(manifest: Manifest, held_out: KeptImages) -> tuple[str, ...]:
    """What the model cannot do, and why."""
    unable = () if manifest.learns else ("no images inside: the model predicts but cannot learn new classes",)
    return (*notes_of(manifest, held_out), *unable)


def why_unable(manifest: Manifest, method: Method) -> str | None:
    """Why a model cannot learn any images, whatever they are; None if it can."""
    title = method_title(manifest.settings["method"]["name"])
    if method.joint:
        return (
            f"{title} learns all classes at once and cannot add one; start a run with all images, or use a model of "
            f"another method"
        )
    if method.replay and not manifest.learns:
        return (
            f"the model holds no exemplars (it was made without them), and {title} needs them to learn; make it again "
            f"with 'endocil bundle RUN', without --without-exemplars"
        )
    return None


def fit_temperature(logits: Tensor, labels: Tensor) -> float:
    """The temperature with the least negative log-likelihood, where one label in n + 1 is a blind guess.

    Without that guess, images that are all classified correctly would make every probability exactly 1. The loss is
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
    """Probabilities of each image by the temperature fitted on the other folds, as for an unseen image."""
    fitted = torch.empty(logits.shape, dtype=torch.float64)
    for fold in torch.unique(folds).tolist():
        mine = folds == fold
        fitted[mine] = probabilities(logits[mine], fit_temperature(logits[~mine], labels[~mine]))
    return fitted


def probabilities(scores: Tensor, temperature: float | None) -> Tensor:
    return functional.softmax(scores.double() / (temperature or 1.0), dim=1)


def folds_of(groups: Sequence[str], n: int = FOLDS) -> Tensor:
    """The fold of each image; images of one group are in the same fold. Folds are as even as the groups allow."""
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


def calibration_error(predicted_probabilities: Tensor, labels: Tensor, bins: int = BINS) -> float:
    """Expected calibration error: |accuracy - mean probability| of the predicted class, over bins of equal width."""
    probability, predicted = predicted_probabilities.max(dim=1)
    correct = (predicted == labels).to(probability)
    bin_of = (probability * bins).long().clamp_max(bins - 1)
    gaps = torch.zeros(bins, dtype=probability.dtype).index_add_(0, bin_of, correct - probability)
    return float(gaps.abs().sum() / len(labels))


def least_images(rate: float) -> int:
    """How many held-out scores a threshold for this rate needs."""
    return math.ceil(1.0 / rate - 1.0 - 1e-9)


def threshold_of(scores: Tensor, rate: float) -> float | None:
    """The threshold that a new image like these exceeds with probability `rate` at most (split conformal).

    None if there are too few scores for that."""
    n = len(scores)
    if n < least_images(rate):
        return None
    place = min(n, math.ceil((n + 1) * (1.0 - rate)))
    return float(scores.double().sort().values[place - 1])
