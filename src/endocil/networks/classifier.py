"""The linear classifier that grows by one row for each new class."""

import math

import torch
from torch import Tensor, nn


class GrowingClassifier(nn.Linear):
    """A linear layer with bias. Old rows and biases stay as they are when it grows.

    New rows are uniform in +-sqrt(3 / d) (Kaiming with gain 1) and new biases 0, as in PyCIL.
    """

    def __init__(self, n_features: int) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = n_features, 0
        self.weight = nn.Parameter(torch.empty(0, n_features))
        self.bias = nn.Parameter(torch.empty(0))

    def grow(self, n_new: int, generator: torch.Generator) -> None:
        bound = math.sqrt(3.0 / self.in_features)
        rows = (2.0 * torch.rand(n_new, self.in_features, generator=generator) - 1.0) * bound
        self.weight = nn.Parameter(_joined(self.weight, rows))
        self.bias = nn.Parameter(_joined(self.bias, torch.zeros(n_new)))
        self.out_features += n_new


def _joined(old: Tensor, new: Tensor) -> Tensor:
    return torch.cat([old.detach(), new.to(old)])
