"""The score of images that are unlike anything learned; the larger, the more unlike. One for each kind of model.

A model with exemplars: the Mahalanobis distance of an image's feature to the nearest class mean, by the covariance of
the exemplars around their class means (Lee et al., NeurIPS 2018). A plain distance hardly sees the directions in which
the learned classes do not vary, and noise, wrong colours or another organ move features there.

A model that keeps sums over all learned images (frozen.py): ViM (Wang et al., CVPR 2022). The part of the feature
outside the principal space of all learned images, scaled to the logits, minus their energy. Of the scores compared by
holding out each class of two data sets in turn it notices most new findings; with 20 exemplars of each class in place
of all images it does not (docs/evidence.md). Differs from the paper: the space is centred on the mean feature,
the logits are divided by the calibrated temperature, and the scale is set on held-out images.
"""

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from endocil.learning.features import Outputs, outputs_of
from endocil.learning.memory import KeptImages
from endocil.methods import Method
from endocil.methods.frozen import FrozenMethod

MOST_FEATURES = 4096  # the matrix has this number squared: beyond, it would be larger than the network
SHRINKAGE = 0.1  # share of the mean variance that every direction gets: few exemplars, many directions
DIMENSIONS = 256  # of ViM's principal space, at most; half the features where these are few
MEANS, WHITENING = "means", "whitening"  # of the Mahalanobis distance
CENTRE, PRINCIPAL, SCALE = "centre", "principal", "scale"  # of ViM; the scale stands with the temperature
KINDS = (frozenset({MEANS, WHITENING}), frozenset({CENTRE, PRINCIPAL, SCALE}))
MEASURED = {  # new findings that a score notices, in words; the figures are those of docs/evidence.md
    "ViM": "holding out each class of two public sets in turn (frozen EfficientNet-Lite0), AUROC 0.72 and 0.63, and "
    "18 % and 11 % of the images of the new class are flagged at a rate of 5 %",
    "Mahalanobis": "holding out a class of a public set (small networks), AUROC 0.36 to 0.51: nearly blind to a new "
    "finding of the same organ; noise and wrong colours are flagged",
    "distance": "not measured",
}


def score_name(spread: Mapping[str, Tensor]) -> str:
    """Which of the scores of MEASURED a model has."""
    return "ViM" if PRINCIPAL in spread else "Mahalanobis" if WHITENING in spread else "distance"


def spread_of(
    method: Method,
    exemplars: KeptImages,
    classes: Sequence[str],
    *,
    held_out: tuple[Outputs, float] | None = None,
    batch: int = 64,
) -> dict[str, Tensor]:
    """What the score needs: ViM's space for a method that keeps sums, for another the exemplars' covariance.

    `held_out`: outputs for the held-out images, and the temperature that calibrates them; without them there is no
    ViM. Empty if a class has no exemplars, or there are very many features (DER concatenates those of all tasks)."""
    if isinstance(method, FrozenMethod):
        moments = method.feature_moments()
        return {} if moments is None or held_out is None else vim_space(*moments, *held_out)
    if {one.class_name for one in exemplars.provenance} != set(classes):
        return {}
    labels = torch.tensor([classes.index(one.class_name) for one in exemplars.provenance])
    return spread_of_features(outputs_of(method, exemplars.pixels, batch).features, labels)


def vim_space(n: float, total: Tensor, products: Tensor, held_out: Outputs, temperature: float) -> dict[str, Tensor]:
    """From n features' sum (d,) and products (d, d). The scale makes the residuals of held-out images as large as
    their largest logits, on average."""
    d = len(total)
    k = min(DIMENSIONS, d // 2, int(n) // 2)
    if d > MOST_FEATURES or k < 1:
        return {}
    mean = total / n
    covariance = products / n - torch.outer(mean, mean)
    principal = torch.linalg.eigh(covariance).eigenvectors[:, -k:]  # (d, k)
    space = {CENTRE: mean.float(), PRINCIPAL: principal.float().contiguous()}
    residual = float(_residual(held_out.features, space).mean())
    if not residual > 1e-12 * float(covariance.diagonal().sum().clamp_min(0).sqrt()):  # too few images to leave any
        return {}
    largest = float((held_out.logits / temperature).amax(dim=1).mean())
    return {**space, SCALE: torch.tensor([max(largest, 0.0) / residual, temperature], dtype=torch.float32)}


def _residual(features: Tensor, space: Mapping[str, Tensor]) -> Tensor:
    """(n,) the length of what lies outside the principal space."""
    apart = features - space[CENTRE]
    lengths: Tensor = (apart - (apart @ space[PRINCIPAL]) @ space[PRINCIPAL].T).norm(dim=1)
    return lengths


def spread_of_features(features: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """`whitening` (d, d): whitened features lie about 1 from their class mean. `means` (C, d): whitened."""
    rows = features.double()
    if rows.shape[1] > MOST_FEATURES:
        return {}
    means = torch.stack([rows[labels == label].mean(dim=0) for label in range(int(labels.max()) + 1)])
    apart = rows - means[labels]
    covariance = apart.T @ apart / len(rows)  # (d, d)
    level = float(covariance.diagonal().mean())
    if not level > 1e-12 * float(rows.square().mean()):  # one exemplar a class, or all the same
        return {}
    n = len(covariance)
    shrunk = (1.0 - SHRINKAGE) * covariance + SHRINKAGE * level * torch.eye(n, dtype=torch.float64)
    whitening = torch.linalg.cholesky(torch.linalg.inv(shrunk)) / math.sqrt(n)
    return {MEANS: (means @ whitening).float(), WHITENING: whitening.float()}


def ood_scores(outputs: Outputs, spread: Mapping[str, Tensor]) -> Tensor:
    """(n,) ViM's score, or the Mahalanobis distance to the nearest class mean, which is about 1 for an exemplar.

    Without `spread`: the plain distance to the nearest class mean. Without class means: minus the largest logit."""
    if PRINCIPAL in spread:
        return vim_scores(outputs.features, outputs.logits, spread)
    if spread:
        return torch.cdist(
            outputs.features @ spread[WHITENING], spread[MEANS], compute_mode="donot_use_mm_for_euclid_dist"
        ).amin(dim=1)
    if outputs.distances is not None:
        return outputs.distances.min(dim=1).values.clamp_min(0).sqrt()
    return -outputs.logits.max(dim=1).values


def vim_scores(features: Tensor, logits: Tensor, space: Mapping[str, Tensor]) -> Tensor:
    """(n,); also part of the exported graph."""
    scale, temperature = space[SCALE][0], space[SCALE][1]
    return scale * _residual(features, space) - torch.logsumexp(logits / temperature, dim=1)


def wrong_shapes(spread: Mapping[str, Tensor], n_classes: int) -> str:
    """What is wrong with a spread that was read from a file; "" where nothing is. Whether it fits the network's
    features is seen once there is a network."""
    if set(spread) not in KINDS:
        return f"a spread of {sorted(spread)[:5]!a}; expected {' or '.join(', '.join(sorted(kind)) for kind in KINDS)}"
    first = spread[CENTRE if PRINCIPAL in spread else MEANS]
    d = first.shape[-1] if first.ndim else 0
    k = spread[PRINCIPAL].shape[-1] if PRINCIPAL in spread and spread[PRINCIPAL].ndim else 0
    shapes = {MEANS: (n_classes, d), WHITENING: (d, d), CENTRE: (d,), PRINCIPAL: (d, k), SCALE: (2,)}
    for name, matrix in spread.items():
        if tuple(matrix.shape) != shapes[name] or matrix.dtype != torch.float32:
            return f"the spread's {name} is {matrix.dtype} of shape {tuple(matrix.shape)}"
    if SCALE in spread and not bool((spread[SCALE] >= torch.tensor([0.0, 1e-6])).all()):
        return "the spread's scale is negative, or its temperature not above 0"
    return ""


def features_in(spread: Mapping[str, Tensor]) -> int:
    """How many features of the network it is made for."""
    return int(spread[CENTRE if PRINCIPAL in spread else MEANS].shape[-1])
