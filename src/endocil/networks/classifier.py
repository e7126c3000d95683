"""The linear classifier that grows by one row for each new class, and FOSTER's network with two backbones."""

import copy
import math

import torch
from torch import Tensor, nn

from endocil.data.seeding import generator
from endocil.networks.heads import Head


class GrowingClassifier(nn.Linear, Head):
    """A linear layer with bias. Old weights and biases stay as they are when it grows.

    New weights are uniform in +-sqrt(3 / d) (Kaiming with gain 1) and new biases 0, as in PyCIL.
    """

    weight: nn.Parameter
    bias: nn.Parameter
    in_features: int
    out_features: int

    def __init__(self, n_features: int) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = n_features, 0
        self.weight = nn.Parameter(torch.empty(0, n_features))
        self.bias = nn.Parameter(torch.empty(0))

    def grow(self, n_new: int, generator: torch.Generator, *, n_features: int | None = None) -> None:
        """Add rows for new classes; with `n_features`, also columns for new features."""
        width = n_features or self.in_features
        bound = math.sqrt(3.0 / width)
        rows = _uniform(n_new, width, bound, generator)
        columns = _uniform(self.out_features, width - self.in_features, bound, generator)
        self.weight = nn.Parameter(_append(_append(self.weight, columns, dim=1), rows))
        self.bias = nn.Parameter(_append(self.bias, torch.zeros(n_new)))
        self.in_features, self.out_features = width, self.out_features + n_new


def _uniform(rows: int, columns: int, bound: float, generator: torch.Generator) -> Tensor:
    return (2.0 * torch.rand(rows, columns, generator=generator) - 1.0) * bound


def _append(old: Tensor, new: Tensor, dim: int = 0) -> Tensor:
    return torch.cat([old.detach(), new.to(old)], dim)


class Boosted(nn.Module):
    """FOSTER's teacher: the old network, frozen, and a new backbone; one classifier on the features of both, and one on
    the new features alone."""

    def __init__(self, old: nn.Sequential, backbone: nn.Module, classifier: GrowingClassifier) -> None:
        """`old` is a frozen copy of backbone and classifier; the new parts start as copies of them too."""
        super().__init__()
        self.old = old
        self.new_backbone = copy.deepcopy(backbone)
        self.classifier = copy.deepcopy(classifier)
        self.expansion = GrowingClassifier(classifier.in_features)  # the new features alone must separate all classes

    def grow(self, n_new: int, seed: int, task: int) -> None:
        each = self.classifier.in_features
        self.classifier.grow(n_new, generator(seed, task, "boosted"), n_features=2 * each)
        self.expansion.grow(self.classifier.out_features, generator(seed, task, "expansion"))

    def features(self, images: Tensor) -> Tensor:
        """(B, 2d): the old backbone's, then the new one's."""
        return torch.cat([self.old[0](images), self.new_backbone(images)], dim=1)
