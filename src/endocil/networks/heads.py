"""Heads: what turns features into one score for each seen class; they grow with the classes.

A method has one as its `classifier`; selection, evaluation, calibration and export only call it.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional


class Head(nn.Module):
    """Features (B, d) to scores (B, out_features). It has rows of weights, as many for every class, class by class."""

    is_head = True  # learns at the full rate, whatever the backbone's
    weight: Tensor  # (rows, d)
    in_features: int  # d
    out_features: int  # classes

    def grow(self, n_new: int, generator: torch.Generator) -> None:
        """Make room for new classes; what old ones have stays as it is."""
        raise NotImplementedError(f"{type(self).__name__} does not say how it grows")

    def row_parameters(self) -> Sequence[Tensor]:
        """The parameters that hold the rows, oldest classes first."""
        return (self.weight,)

    @torch.no_grad()
    def class_norms(self, *, gradient: bool = False) -> Tensor | None:
        """(out_features,) the norm of each class's rows, or of their gradient; none where nothing of them has one."""
        parts = self.row_parameters()
        if gradient:
            if all(part.grad is None for part in parts):
                return None
            parts = [torch.zeros_like(part) if part.grad is None else part.grad for part in parts]
        rows = parts[0] if len(parts) == 1 else torch.cat(list(parts))
        norms: Tensor = rows.reshape(self.out_features, -1).norm(dim=1)
        return norms


class Rows(nn.Module):
    """The rows of one task's classes: those of old tasks can stay as they are while these learn."""

    is_head = True

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight)


class Scale(nn.Module):
    """A learned factor."""

    is_head = True

    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.ones(1))

    def forward(self, values: Tensor) -> Tensor:
        return self.factor * values


class CosineClassifier(Head):
    """A learned scale times the cosine of features and rows: neither's length counts (Hou et al., CVPR 2019).

    With several `proxies` for each class their cosines are averaged, weighted by their own softmax (Douillard et al.,
    ECCV 2020). New rows are uniform in +-1 / sqrt(d), as the authors of both have them."""

    def __init__(self, n_features: int, *, proxies: int = 1) -> None:
        super().__init__()
        self.in_features, self.proxies, self.out_features = n_features, proxies, 0
        self.tasks = nn.ModuleList()  # Rows of each task
        self.scale = Scale()

    def grow(self, n_new: int, generator: torch.Generator) -> None:
        drawn = torch.rand(n_new * self.proxies, self.in_features, generator=generator)
        rows = (2.0 * drawn - 1.0) * (1.0 / math.sqrt(self.in_features))
        self.tasks.append(Rows(rows.to(self.scale.factor)))
        self.out_features += n_new

    def row_parameters(self) -> Sequence[Tensor]:
        return [task.weight for task in self.tasks]  # type: ignore[misc]

    @property
    def weight(self) -> Tensor:  # type: ignore[override]
        return torch.cat([self.scale.factor.new_empty(0, self.in_features), *self.row_parameters()])

    def similarities(self, features: Tensor) -> Tensor:
        """(B, out_features) from -1 to 1, before the scale."""
        cosines = functional.linear(functional.normalize(features, dim=1), functional.normalize(self.weight, dim=1))
        if self.proxies == 1:
            return cosines
        each = cosines.view(-1, self.out_features, self.proxies)
        return (functional.softmax(each, dim=2) * each).sum(dim=2)

    def forward(self, features: Tensor) -> Tensor:
        return self.scale(self.similarities(features))  # type: ignore[no-any-return]

    @torch.no_grad()
    def imprint(self, rows: Tensor) -> None:
        """The newest task starts from these directions, as long as the older tasks' rows are on average."""
        newest: Rows = self.tasks[-1]  # type: ignore[assignment]
        lengths = self.weight[: -len(newest.weight)].norm(dim=1)
        newest.weight.copy_(functional.normalize(rows.to(lengths), dim=1) * lengths.mean())


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
