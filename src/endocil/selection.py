"""Which images of a class to keep: pure functions from features or scores to indices, in order of choice.

`select_by_mmd` is EndoCIL's selection (MDBR, Algorithm 1): greedily keep the maximum mean discrepancy between
the kept images and their class small. The kernel's diagonal is constant: kernel herding without repeats.
Differs from the authors: exact at any size without the m x m matrix. Torch and the standard library alone.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from endocil._mmd import Bandwidth, KernelMatrix, RowSums, centred

TIE = 1e-11  # scores this near are equal: rounding must not choose between twins
ROUNDING = 2e-14  # of a mean of kernel values, which many hundred picks lift above TIE


@dataclass(frozen=True, eq=False)
class Selection:
    """Chosen rows, best first: the first k of n are the selection of k."""

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
    block_bytes: int | None = None,
) -> Selection:
    """Greedy minimum of MMD^2(chosen, class) for sum_i exp(-|x-y|^2/s_i), s_i = dbar scale^(i - K//2), i < K.

    `features` (m, d) are used as given; n >= m returns all of them. dbar is the mean squared distance in the
    class, without self pairs unless asked for; `bandwidth="literal"` takes i = 1..K and K/2 as printed.
    `block_bytes` bounds a worker's tile and changes no pick. MMD^2 is good to 1e-12, over 2048 rows to 1e-7.
    """
    _check_rows(features, n, "features")
    matrix = KernelMatrix(features, kernels, scale, bandwidth, self_pairs)
    sums = RowSums(matrix, n, block_bytes)
    level = float(sums.values.mean()) / matrix.size
    near = torch.zeros_like(sums.values)  # kernel sum to the chosen rows; infinite for these themselves
    indices: list[int] = []
    mmd2: list[float] = []
    inside = across = 0.0  # kernel sums over chosen x chosen and chosen x class
    for size in range(1, min(n, matrix.size) + 1):
        index = _best(near / size, sums, max(TIE / size, ROUNDING))
        row = matrix.rows(torch.tensor([index], device=near.device))[0]
        inside += 2.0 * float(near[index]) + kernels
        across += float(row.sum())
        near += row
        near[index] = math.inf
        indices.append(index)
        mmd2.append(max(0.0, level + inside / size**2 - 2.0 * across / (matrix.size * size)))
    bound = mmd_bound(len(indices), kernels)
    return Selection(torch.tensor(indices, device=features.device), near.new_tensor(mmd2), bound)


def _best(near: Tensor, sums: RowSums, tie: float) -> int:
    """Lowest index of the minimum of near - sums/m: float32 sums leave candidates, float64 decides."""
    while True:
        score = near - sums.values / len(near)
        candidates = (score - sums.error <= (score + sums.error).min() + tie).nonzero().flatten()
        unsure = candidates[sums.error[candidates] > 0]
        if len(candidates) == 1 or len(unsure) == 0:
            return int(candidates[0])
        sums.sharpen(unsure)


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
    if indices.min() < 0 or indices.max() >= len(features):
        raise ValueError(
            f"indices must be rows of features, 0 to {len(features) - 1}; got {indices.tolist()}"
        )
    matrix = KernelMatrix(features, kernels, scale, bandwidth, self_pairs)
    level = float(RowSums(matrix, n, block_bytes).values.mean()) / matrix.size
    inside = across = 0.0
    for index in torch.split(indices.to(matrix.points.device), 1):
        row = matrix.rows(index)[0]
        inside += float(row[indices].sum())
        across += float(row.sum())
    return max(0.0, level + inside / n**2 - 2.0 * across / (matrix.size * n))


def mmd_bound(n: int, kernels: int = 5) -> float:
    """The paper's bound on MMD^2 after n picks, 2 K (1 + ln n) / n: a theorem where picks may repeat."""
    return 2.0 * kernels * (1.0 + math.log(n)) / n


@torch.no_grad()
def select_by_mean(features: Tensor, n: int) -> Selection:
    """Herding (iCaRL): each pick brings the mean of the chosen as near as it can to the mean of the class.

    Features are used as given; iCaRL's are unit vectors.
    """
    _check_rows(features, n, "features")
    rows = centred(features)
    rows /= float(torch.linalg.vector_norm(rows)) / math.sqrt(len(rows)) or 1.0
    score = torch.linalg.vector_norm(rows, dim=1).square() / 2  # |x|^2/2 + x.(sum of the chosen)
    indices: list[int] = []
    for _ in range(min(n, len(rows))):
        index = int((score <= score.min() + TIE).nonzero()[0])
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
