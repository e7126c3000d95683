"""Analytic: ridge regression on frozen features in closed form, classes weighted by a power of their counts.

After ACIL (Zhuang et al., NeurIPS 2022), weighted in the spirit of AIR (Fang et al., 2024):

    minimise  sum_c w_c sum_{i in c} |y_i - A^T f_i - b|^2 + lambda |A|^2
    w_c = n_c^-p,   lambda = ratio trace(S) / d

with S the weighted scatter of the features around their weighted mean; the intercept b is not penalised.
Differs from ACIL: no recursion (the sums of each class are kept, so weights may change as counts grow and classes may
come back), no random expansion, an intercept, and a penalty that follows the scale of the features.
"""

from typing import Any

import torch
from torch import Tensor, nn

from endocil.components.ridge import (
    add_products,
    fit_and_held_back,
    packed_length,
    solve,
    squared_errors,
    trace,
    unpacked,
)
from endocil.data.scenario import Task
from endocil.data.seeding import generator
from endocil.methods import common
from endocil.methods.frozen import COUNTS, FrozenMethod, refuse_large_statistics

SUMS = "sums"  # (n_seen, d) float64: the sum of f
PRODUCTS = "products"  # (n_seen, packed_length(d)) float64: the sum of f f^T, packed
RATIO = "ratio"  # (1,) float64: of the penalty to the mean variance of a feature
RATIOS = 10.0 ** torch.arange(-4.0, 3.5, 0.5, dtype=torch.float64)  # ours
MOST_TO_CHOOSE = 10_000  # images on which the ratio is chosen


class Analytic(FrozenMethod):
    """The joint ridge solution over all images ever learned, from sums for each class."""

    keeps_moments = False

    def __init__(
        self,
        backbone: nn.Module,
        *,
        power: float = 0.5,  # p: 0 weights every image alike, 1 every class alike
        ratio: float = 0.0,  # of the penalty; 0: chosen on a fifth of the first task's images, and kept
        **inherited: Any,
    ) -> None:
        super().__init__(backbone, **inherited)
        common.check_number("power", power, 0.0 <= power <= 1.0, "a number from 0 to 1 (the default is 0.5)")
        common.check_number("ratio", ratio, ratio >= 0.0, "0 (chosen on images) or a number above it")
        self.power, self.ratio, self.chooses_penalty = power, ratio, not ratio

    def problems(self, n_classes: int) -> list[str]:
        n_bytes = 8 * n_classes * packed_length(self.classifier.in_features)
        return refuse_large_statistics(n_bytes, "take a backbone with fewer features, or method.name=simplecil")

    def choose(self, task: Task, features: Tensor, labels: Tensor) -> None:
        if self.ratio > 0.0:
            self.statistics[RATIO] = torch.tensor([self.ratio], dtype=torch.float64)
        elif RATIO not in self.statistics:
            random = generator(self.seed, task.index, "held back")
            fit, held = fit_and_held_back(len(features), random, MOST_TO_CHOOSE)
            counts = torch.bincount(labels[fit], minlength=task.n_seen).double()
            weights = self.class_weights(counts)[labels]  # (n,); 0 for a class without images to fit
            targets = torch.eye(task.n_seen, dtype=torch.float64)[labels]  # (n, n_seen)
            total = weights[fit].sum()
            x = features - weights[fit] @ features[fit] / total
            y = targets - weights[fit] @ targets[fit] / total
            x, y = x * weights.sqrt()[:, None], y * weights.sqrt()[:, None]
            penalties = RATIOS * x[fit].square().sum() / features.shape[1]
            errors = squared_errors(x[fit], y[fit], x[held], y[held], penalties)
            self.statistics[RATIO] = RATIOS[errors.argmin()].reshape(1)
        self.measurements["ratio"] = float(self.statistics[RATIO])

    def add(self, features: Tensor, labels: Tensor, n: int, sign: float = 1.0) -> None:
        super().add(features, labels, n, sign)
        d = features.shape[1]
        sums, products = self.grown_statistic(SUMS, n, d), self.grown_statistic(PRODUCTS, n, packed_length(d))
        for label in torch.unique(labels).tolist():
            mine = features[labels == label]
            sums[label] += sign * mine.sum(dim=0)
            add_products(products[label], mine, sign)
        self.statistics |= {SUMS: sums, PRODUCTS: products}

    def feature_moments(self) -> tuple[float, Tensor, Tensor] | None:
        if PRODUCTS not in self.statistics:
            return None
        counts, sums, products = (self.statistics[name].cpu() for name in (COUNTS, SUMS, PRODUCTS))
        return float(counts.sum()), sums.sum(dim=0), unpacked(products.sum(dim=0), sums.shape[1])

    def class_weights(self, counts: Tensor) -> Tensor:
        """w_c = n_c^-p; 0 for a class without images."""
        return torch.where(counts > 0, counts.clamp_min(1.0) ** -self.power, 0.0)

    def solve(self) -> None:
        counts, sums, products = (self.statistics[name].cpu() for name in (COUNTS, SUMS, PRODUCTS))
        weights, d = self.class_weights(counts), sums.shape[1]
        share = weights * counts / (weights * counts).sum()  # (C,) the weighted mean of y
        mean = weights @ sums / (weights * counts).sum()  # (d,)
        scatter = weights @ products  # (d, d), packed
        add_products(scatter, mean[None], -float((weights * counts).sum()))
        moments = (weights[:, None] * (sums - counts[:, None] * mean)).T  # (d, C): centred, so y need not be
        penalty = float(self.statistics[RATIO]) * trace(scatter, d) / d
        solution = solve(scatter, moments, penalty)  # (d, C)
        self.set_classifier(solution.T, share - mean @ solution)
