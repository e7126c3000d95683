"""MultiStage: linear discriminants on the pooled maps of several stages of a frozen backbone, and on random features.

Endoscopic findings are told apart by colour and texture, which the last features of an ImageNet network have mostly
left behind. So the maps of its inner stages count, and its last features do not:

    f = (mean and standard deviation over places of the map of each stage from stride 8 on), each made length 1
    h = (f, sqrt(2 a / M) cos(f W + u)),   W of variance 2 gamma, u uniform on a circle: a kernel exp(-gamma |f - f'|^2)
    Sigma = (S + lambda trace(S) / n I) / n,   S = sum_i (h_i - mu_{y_i})(h_i - mu_{y_i})^T
    score_c = mu_c^T Sigma^-1 h - mu_c^T Sigma^-1 mu_c / 2 + q log(n_c / n)

n_c, sum h of each class and sum h h^T are enough for it: after any order of tasks it is the solution of all images at
once. The head is that of Deep SLDA (Hayes and Kanan, CVPR-W 2020), the random features are those of Rahimi and Recht
(NeurIPS 2007). Differs from Deep SLDA: the features, exact sums where it updates a mean and a covariance, a penalty
that falls with the number of images, and the prior.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from endocil.components.ridge import add_products, packed_length, solve, trace
from endocil.data.scenario import Task
from endocil.data.seeding import generator
from endocil.methods import common
from endocil.methods.frozen import COUNTS, FrozenMethod, refuse_large_statistics
from endocil.networks import GrowingClassifier

SUMS = "sums"  # (n_seen, d + M) float64: the sum of h
PRODUCTS = "products"  # (packed_length(d + M),) float64: the sum of h h^T over all classes, packed
GAMMA, SHARE = 0.25, 1.0  # gamma and a: chosen on training images (docs/successor.md)
CHUNK = 1024  # images whose random features are computed at a time
LEAST_VARIANCE = 1e-6  # of h, whose parts have length 1: where every class has a single image S is 0
NEVER = -1e6  # the score of a class whose images were all subtracted


class MultiStage(FrozenMethod):
    """The joint linear discriminants over all images ever learned, from sums."""

    w: Tensor  # (d, M)
    u: Tensor  # (M,)

    def __init__(
        self,
        backbone: nn.Module,
        *,
        features: str = "stages",  # or "last": the backbone's own, made length 1
        random: int = 3000,  # M; 0: the pooled maps alone
        penalty: float = 0.3,  # lambda
        prior: float = 0.5,  # q: 1 classes are as frequent as they were learned, 0 all alike
        **inherited: Any,
    ) -> None:
        super().__init__(backbone, features=features, **inherited)
        common.check_number("random", random, random >= 0, "0 (none) or more (the default is 3000)")
        common.check_number("penalty", penalty, penalty > 0.0, "a number above 0 (the default is 0.3)")
        common.check_number("prior", prior, 0.0 <= prior <= 1.0, "a number from 0 to 1 (the default is 0.5)")
        self.random, self.penalty, self.prior = random, penalty, prior
        self.n_features = self.classifier.in_features
        self.classifier = GrowingClassifier(self.n_features + random)

    def problems(self, n_classes: int) -> list[str]:
        d = self.classifier.in_features
        return refuse_large_statistics(8 * (packed_length(d) + n_classes * d), "lower method.random")

    def grow(self, task: Task) -> None:
        if task.index == 0:
            drawn = generator(self.seed, "random features")
            w = math.sqrt(2.0 * GAMMA) * torch.randn(self.n_features, self.random, generator=drawn)
            self.register_buffer("w", w.to(self.classifier.weight))
            self.register_buffer("u", (math.tau * torch.rand(self.random, generator=drawn)).to(w))
        super().grow(task)

    def classify(self, features: Tensor) -> Tensor:
        return self.classifier(self._expanded(features, self.w, self.u))  # type: ignore[no-any-return]

    def _expanded(self, f: Tensor, w: Tensor, u: Tensor) -> Tensor:
        """(B, d + M): h."""
        f = functional.normalize(f) if self.pooled is None else f
        return torch.cat([f, math.sqrt(2.0 * SHARE / max(1, self.random)) * torch.cos(f @ w + u)], dim=1)

    def add(self, features: Tensor, labels: Tensor, n: int, sign: float = 1.0) -> None:
        super().add(features, labels, n, sign)
        d = self.classifier.in_features
        sums, known = self.grown_statistic(SUMS, n, d), self.statistics.get(PRODUCTS)
        products = torch.zeros(packed_length(d), dtype=torch.float64) if known is None else known.cpu().clone()
        w, u = self.w.cpu().double(), self.u.cpu().double()
        for f, own in zip(torch.split(features, CHUNK), torch.split(labels, CHUNK), strict=True):
            h = self._expanded(f, w, u)
            sums.index_add_(0, own, h, alpha=sign)
            add_products(products, h, sign)
        self.statistics |= {SUMS: sums, PRODUCTS: products}

    def solve(self) -> None:
        counts, sums, products = (self.statistics[name].cpu() for name in (COUNTS, SUMS, PRODUCTS))
        n, centre = counts.sum(), sums.sum(dim=0) / counts.sum()
        there = counts[:, None] > 0
        means = torch.where(there, sums / counts.clamp_min(1.0)[:, None], centre)  # (C, d)
        within = products.clone()
        add_products(within, means * counts.sqrt()[:, None], -1.0)
        variance = max(trace(within, len(centre)) / float(n), LEAST_VARIANCE)
        away = means - centre  # the same ranking as with the means themselves, and smaller numbers
        rows = n * solve(within, away.T, self.penalty * variance).T  # (C, d)
        bias = self.prior * torch.log(counts / n) - rows @ centre - (rows * away).sum(dim=1) / 2.0
        self.set_classifier(rows, torch.where(counts > 0, bias, NEVER))
