"""Out-of-distribution score: how far an image lies from all that was learned.

The distance of its feature to the nearest class mean, where each direction counts in units of how far exemplars lie
from their own mean along it (Mahalanobis; Lee et al., NeurIPS 2018). A plain distance is blind to directions in which
learned classes hardly vary, and noise, wrong colours or another organ move features along just these.
"""

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from endocil.learning.features import Seen, look
from endocil.learning.memory import KeptImages
from endocil.methods import Method

MOST_FEATURES = 4096  # the matrix has its square: beyond, it would be larger than networks are
SHRINKAGE = 0.1  # share of the mean variance that every direction gets: few exemplars, many directions
MEANS, WHITENING = "means", "whitening"


def spread_of(
    method: Method, exemplars: KeptImages, classes: Sequence[str], *, batch: int = 64
) -> dict[str, Tensor]:
    """How the exemplars' features spread about the means of their classes; empty where a class has none.

    So it is where there are very many features (DER has those of all tasks side by side)."""
    if {one.class_name for one in exemplars.provenance} != set(classes):
        return {}
    labels = torch.tensor([classes.index(one.class_name) for one in exemplars.provenance])
    return spread_of_features(look(method, exemplars.pixels, batch).features, labels)


def spread_of_features(features: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """`whitening` (d, d): features times it lie about 1 from their class's mean. `means` (C, d): these, times it."""
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


def ood_scores(seen: Seen, spread: Mapping[str, Tensor]) -> Tensor:
    """(n,) the larger, the farther from what was learned; about 1 for an exemplar.

    Without a spread the plain distance to the nearest class mean, and without class means minus the largest logit."""
    if spread:
        return torch.cdist(
            seen.features @ spread[WHITENING], spread[MEANS], compute_mode="donot_use_mm_for_euclid_dist"
        ).amin(dim=1)
    if seen.distances is not None:
        return seen.distances.min(dim=1).values.clamp_min(0).sqrt()
    return -seen.logits.max(dim=1).values
