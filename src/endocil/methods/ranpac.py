"""RanPAC (McDonnell et al., NeurIPS 2023): a frozen backbone, a random projection with ReLU, and ridge regression.

    h = relu(f W),   head = (G + lambda I)^-1 Q,   G = sum h h^T,   Q = sum h y^T   over all images ever learned

Differs from the authors: no adapter is trained in the first task, sums and solution are float64, and the penalty is
chosen on at most 2,500 images of a task.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from endocil.components.ridge import add_products, fit_and_held_back, packed_length, solve, squared_errors
from endocil.data.scenario import Task
from endocil.data.seeding import generator
from endocil.io.process import available_memory
from endocil.methods import common
from endocil.methods.frozen import FrozenMethod, refuse_large_statistics
from endocil.networks import GrowingClassifier

GRAM = "gram"  # (packed_length(M),) float64: G, packed
MOMENTS = "moments"  # (n_seen, M) float64: Q^T
PENALTY = "penalty"  # (1,) float64: lambda
PENALTIES = 10.0 ** torch.arange(-8.0, 9.0, dtype=torch.float64)  # the authors' code
MOST_TO_CHOOSE = 2_500  # images on which lambda is chosen; the authors take all of the task
CHUNK = 512  # images that are projected at a time
MATRICES = 5  # of (M, M) float64 that learning and saving need at once: G, its factor, and copies


class RanPAC(FrozenMethod):
    """Ridge regression on a random projection of frozen features; keeps G and Q."""

    chooses_penalty = True
    projection: Tensor  # W: (d, M)

    def __init__(
        self,
        backbone: nn.Module,
        *,
        projected: int = 10_000,  # M: the paper, and the authors' settings
        **inherited: Any,
    ) -> None:
        super().__init__(backbone, **inherited)
        common.check_number("projected", projected, projected >= 1, "1 or more (the paper's is 10000)")
        self.n_features, self.projected = self.classifier.in_features, projected
        self.classifier = GrowingClassifier(projected)

    def problems(self, n_classes: int) -> list[str]:
        need, free = 8 * MATRICES * self.projected**2, available_memory()
        way_out = f"lower method.projected (it is {self.projected:,})"
        if free is not None and need > free:
            return [
                f"the sums of RanPAC need {need / 1e9:,.1f} GB of memory, and {free / 1e9:,.1f} GB are free; {way_out}"
            ]
        kept = 8 * packed_length(self.projected) + self.projected * (4 * self.n_features + 12 * n_classes)
        return refuse_large_statistics(kept, way_out)

    def grow(self, task: Task) -> None:
        if task.index == 0:  # not earlier: the preflight refuses one that is too large
            random = generator(self.seed, "projection")
            drawn = torch.randn(self.n_features, self.projected, generator=random)
            self.register_buffer("projection", drawn.to(self.classifier.weight))
        super().grow(task)

    def classify(self, features: Tensor) -> Tensor:
        return self.classifier((features @ self.projection).relu())  # type: ignore[no-any-return]

    def projected_features(self, features: Tensor, at_once: int) -> Iterator[Tensor]:
        """(at_once, M) float64: with float32 the last digits would depend on the other images of a batch."""
        projection = self.projection.cpu().double()
        for part in torch.split(features, at_once):
            yield (part @ projection).relu_()

    def choose(self, task: Task, features: Tensor, labels: Tensor) -> None:
        """As the authors: in each task anew, by the task's own images. A task of one class, where a constant has no
        error, and one without a new class keep the penalty of the task before."""
        if PENALTY not in self.statistics or (task.n_new > 0 and len(torch.unique(labels)) > 1):
            random = generator(self.seed, task.index, "held back")
            fit, held = fit_and_held_back(len(features), random, MOST_TO_CHOOSE)
            targets = torch.eye(task.n_seen, dtype=torch.float64)[labels]
            both = torch.cat([fit, held])
            (h,) = self.projected_features(features[both], len(both))
            x, held_x = h[: len(fit)], h[len(fit) :]
            errors = squared_errors(x, targets[fit], held_x, targets[held], PENALTIES)
            self.statistics[PENALTY] = PENALTIES[errors.argmin()].reshape(1)
        self.measurements["penalty"] = float(self.statistics[PENALTY])

    def add(self, features: Tensor, labels: Tensor, n: int, sign: float = 1.0) -> None:
        super().add(features, labels, n, sign)
        moments = self.grown_statistic(MOMENTS, n, self.projected)
        known = self.statistics.get(GRAM)
        gram = torch.zeros(packed_length(self.projected), dtype=torch.float64) if known is None else known.cpu().clone()
        for h, own in zip(self.projected_features(features, CHUNK), torch.split(labels, CHUNK), strict=True):
            add_products(gram, h, sign)
            moments.index_add_(0, own, h, alpha=sign)
        self.statistics |= {GRAM: gram, MOMENTS: moments}

    def solve(self) -> None:
        gram, moments = self.statistics[GRAM].cpu().clone(), self.statistics[MOMENTS].cpu()
        self.set_classifier(solve(gram, moments.T, float(self.statistics[PENALTY])).T)
