"""Which images of a class to keep: pure functions from features or scores to indices, in order of choice.

`select_by_mmd` is EndoCIL's selection (MDBR, Algorithm 1): greedily keep the maximum mean discrepancy between
the kept images and their class small. The kernel's diagonal is constant: kernel herding without repeats.
Differs from the authors: exact at any size without the m x m matrix; swaps after it, if chosen, lower MMD^2
further. Torch and the standard library alone.
"""

import math
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from endocil.components.mmd import (
    TIE,
    Bandwidth,
    KernelMatrix,
    RowMeans,
    centred,
    first_minimum,
    greedy,
    one_thread_each,
    swapped,
)

Refinement = Literal["none", "swap"]
MOST_KERNELS, WIDEST_SCALE = 100, 1000.0  # the widest bandwidth over the narrowest is still a number


@dataclass(frozen=True, eq=False)
class Selection:
    """Chosen rows, best first: the first k of n are the selection of k, or after swaps a good one."""

    indices: Tensor  # (n,) int64, in order of choice
    mmd2: Tensor | None = None  # (n,) float64: squared MMD after each pick, where the selector measures it
    bound: float | None = None  # the paper's bound on the last of them


@torch.no_grad()
def select_by_mmd(
    features: Tensor,
    n: int,
    *,
    kernels: int = 5,  # the paper gives no number: that of the "MMD loss" code whose bandwidths it prints
    scale: float = 2.0,  # likewise
    bandwidth: Bandwidth = "index",
    self_pairs: bool = False,
    refine: Refinement = "none",
    block_bytes: int | None = None,
) -> Selection:
    """Greedy minimum of MMD^2(chosen, class) for sum_i exp(-|x-y|^2/s_i), s_i = dbar scale^(i - K//2), i < K.

    `features` (m, d) are not normalised here; n >= m returns all of them. dbar is the mean squared distance in the
    class, without self pairs unless `self_pairs`; `bandwidth="literal"` takes i = 1..K and K/2 as printed.
    `refine="swap"` continues until no swap of one row lowers MMD^2, then orders the rows greedily.
    `block_bytes` bounds a worker's tile and changes no pick. With the default kernel MMD^2 is good to about 1e-12,
    over 1024 rows to 1e-6. Memory grows with m, and swaps hold n rows of the matrix.
    """
    _check_rows(features, n, "features")
    _check_kernel(kernels, scale, bandwidth, block_bytes)
    _check_name("refine", refine, get_args(Refinement))
    n = min(n, len(features))
    with one_thread_each() as workers:
        matrix = KernelMatrix(features, kernels, scale, bandwidth, self_pairs, workers)
        means = RowMeans(matrix, n, block_bytes)
        indices, mmd2 = greedy(n, means)
        if refine == "swap":
            indices, mmd2 = greedy(n, means, among=swapped(indices, means))
    chosen = torch.tensor(indices, device=features.device)
    return Selection(chosen, mmd2, mmd_bound(len(indices), kernels))


@torch.no_grad()
def squared_mmd(
    features: Tensor,
    indices: Tensor,
    *,
    kernels: int = 5,
    scale: float = 2.0,
    bandwidth: Bandwidth = "index",
    self_pairs: bool = False,
    block_bytes: int | None = None,
) -> float:
    """MMD^2 between the rows at `indices`, however chosen, and their class; the kernel of `select_by_mmd`."""
    n = len(indices)
    _check_rows(features, n, "features")
    _check_kernel(kernels, scale, bandwidth, block_bytes)
    if indices.min() < 0 or indices.max() >= len(features):
        raise ValueError(f"indices must be rows of features, 0 to {len(features) - 1}; got {indices.tolist()}")
    with one_thread_each() as workers:
        matrix = KernelMatrix(features, kernels, scale, bandwidth, self_pairs, workers)
        means = RowMeans(matrix, n, block_bytes).values
        indices = indices.to(means.device)
        inside = sum(float(matrix.between(part, indices).sum()) for part in torch.split(indices, 256))
    return max(0.0, float(means.mean()) + inside / n**2 - 2.0 * float(means[indices].mean()))


def mmd_bound(n: int, kernels: int = 5) -> float:
    """The paper's bound on MMD^2 after n picks, 2 K (1 + ln n) / n: a theorem where picks may repeat."""
    return 2.0 * kernels * (1.0 + math.log(n)) / n


@torch.no_grad()
def select_by_mean(features: Tensor, n: int) -> Selection:
    """Herding (iCaRL): each pick brings the mean of the chosen as near as it can to the mean of the class.

    Features are not normalised here; iCaRL's are unit vectors.
    """
    _check_rows(features, n, "features")
    indices: list[int] = []
    with one_thread_each():
        rows = centred(features)
        rows /= float(torch.linalg.vector_norm(rows)) / math.sqrt(len(rows)) or 1.0
        score = torch.linalg.vector_norm(rows, dim=1).square() / 2  # |x|^2/2 + x.(sum of the chosen)
        for _ in range(min(n, len(rows))):
            index = first_minimum(score, TIE)
            score += rows @ rows[index]
            score[index] = math.inf
            indices.append(index)
    return Selection(torch.tensor(indices, device=features.device))


def select_at_random(m: int, n: int, generator: torch.Generator) -> Selection:
    """n of m rows, every order equally likely."""
    _check_count(n)
    if m < 1:
        raise ValueError(f"m, the number of rows to choose from, must be at least 1; got {m}")
    return Selection(torch.randperm(m, generator=generator, device=generator.device)[:n])


@torch.no_grad()
def select_by_entropy(scores: Tensor, n: int) -> Selection:
    """Rows of `scores` (m, C), logits, whose softmax has the highest entropy first: the most uncertain."""
    _check_rows(scores, n, "scores")
    entropy = torch.special.entr(scores.double().softmax(1)).sum(1)
    return _lowest_first(-entropy.round(decimals=11), n)  # rounded: permuted logits tie


@torch.no_grad()
def select_by_distance(scores: Tensor, n: int) -> Selection:
    """Rows of `scores` (m, C), logits, whose two highest are nearest first: closest to a boundary."""
    _check_rows(scores, n, "scores")
    if scores.shape[1] < 2:
        raise ValueError("scores must have columns for at least two classes to have a boundary; got one")
    highest = scores.double().topk(2).values  # (m, 2)
    return _lowest_first(highest[:, 0] - highest[:, 1], n)


def _lowest_first(values: Tensor, n: int) -> Selection:
    return Selection(values.sort(stable=True).indices[:n])


def _check_rows(rows: Tensor, n: int, name: str) -> None:
    _check_count(n)
    if rows.dim() != 2 or rows.numel() == 0:
        raise ValueError(f"{name} must be a table with one row per image; got shape {tuple(rows.shape)}")
    bad = int((~rows.isfinite()).any(1).sum())
    if bad:
        raise ValueError(f"{name} must be finite; {bad} of {len(rows)} rows hold NaN or Inf: leave them out")


def _check_count(n: int) -> None:
    if n < 1:
        raise ValueError(f"n, the number of rows to choose, must be at least 1; got {n}")


def _check_kernel(kernels: int, scale: float, bandwidth: str, block_bytes: int | None) -> None:
    if not 1 <= kernels <= MOST_KERNELS:
        raise ValueError(f"kernels, the number of Gaussians, must be 1 to {MOST_KERNELS}; got {kernels}")
    if not 1.0 <= scale <= WIDEST_SCALE:
        raise ValueError(f"scale, the ratio of neighbouring bandwidths, must be 1 to {WIDEST_SCALE:.0f}; got {scale}")
    _check_name("bandwidth", bandwidth, get_args(Bandwidth))
    if block_bytes is not None and block_bytes < 1:
        raise ValueError(f"block_bytes must be positive; got {block_bytes}; None takes a good size")


def _check_name(option: str, name: str, known: tuple[str, ...]) -> None:
    if name not in known:
        raise ValueError(f"unknown {option} {name!r}; known: {', '.join(known)}")
