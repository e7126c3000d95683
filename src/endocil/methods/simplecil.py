"""SimpleCIL (Zhou et al., IJCV 2024): a frozen backbone, and the nearest class mean by the cosine.

A class's prototype is the mean of its training images' features; an image's score is the cosine between its features
and the prototype. Nothing is trained.
"""

import torch
from torch import Tensor
from torch.nn import functional

from endocil.methods.frozen import COUNTS, FrozenMethod

SUMS = "sums"  # (n_seen, d) float64: the sum of each class's features


class SimpleCIL(FrozenMethod):
    """Prototypes of frozen features; keeps their sums and counts."""

    def add(self, features: Tensor, labels: Tensor, n: int, sign: float = 1.0) -> None:
        super().add(features, labels, n, sign)
        sums = self.grown_statistic(SUMS, n, features.shape[1])
        self.statistics[SUMS] = sums.index_add_(0, labels, features, alpha=sign)

    def solve(self) -> None:
        counts, sums = self.statistics[COUNTS], self.statistics[SUMS]
        # a mean and a sum point the same way; a class without images scores 0
        self.set_classifier(functional.normalize(torch.where(counts[:, None] > 0, sums, 0.0)))

    def classify(self, features: Tensor) -> Tensor:
        """(B, n_seen) cosines."""
        return self.classifier(functional.normalize(features))  # type: ignore[no-any-return]
