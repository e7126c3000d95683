"""Features to select from, and plain, dense, float64 references for greedy MMD."""

import math

import torch
from torch import Tensor


def gaussian(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def cases(m: int, d: int) -> dict[str, Tensor]:
    """Features that look like a network's, and those that float32 or ties make hard."""
    random = torch.nn.functional.normalize(gaussian(m, d).relu(), dim=1)
    centres = 3 * gaussian(10, d, seed=1)[torch.arange(m) % 10]
    clustered = centres + 0.3 * gaussian(m, d, seed=2)
    tight = centres.double() + 1e-4 * gaussian(m, d, seed=3).double() + 100.0
    shuffled = torch.randperm(m, generator=torch.Generator().manual_seed(4))
    duplicates = random[torch.arange(m) % math.ceil(m / 2)][shuffled]
    same = torch.where(torch.arange(m)[:, None] % 3 > 0, random[:1], random)
    zeros = torch.where(torch.arange(m)[:, None] % 4 > 0, random, 0.0)
    outliers = torch.where(torch.arange(m)[:, None] % 997 == 0, 1000.0 + random, random)
    named = {"random": random, "clustered": clustered, "tight": tight, "duplicates": duplicates}
    return named | {"two thirds the same": same, "zero rows": zeros, "outliers": outliers}


CASES = list(cases(10, 2))


def dense_kernel(features: Tensor, kernels: int = 5, scale: float = 2.0, widths: float = 1.0) -> Tensor:
    """The kernel as the formula reads: pairwise distances, one exp for each Gaussian. (m, m) float64"""
    x = features.double()
    distances = torch.cdist(x, x, compute_mode="donot_use_mm_for_euclid_dist").square()
    mean = float(distances.sum()) / max(1, len(x) * (len(x) - 1)) or 1.0
    total = torch.zeros_like(distances)
    for i in range(kernels):
        total += (distances / (-widths * mean * scale ** (i - kernels // 2))).exp_()
    return total


def objective(kernel: Tensor, chosen: list[int]) -> float:
    """MMD^2 between the chosen rows and all rows, from its definition."""
    inside, across = kernel[chosen][:, chosen].mean(), kernel[chosen].mean()
    return float(kernel.mean() + inside - 2 * across)


def dense_greedy(kernel: Tensor, n: int) -> list[int]:
    near, sums, chosen = torch.zeros(len(kernel)).double(), kernel.sum(1), list[int]()
    for size in range(1, min(n, len(kernel)) + 1):
        score = near - size / len(kernel) * sums
        score[chosen] = math.inf
        chosen.append(int((score <= score.min() + 1e-11).nonzero()[0]))
        near += kernel[chosen[-1]]
    return chosen
