"""Greedy minimum of MMD^2 between some rows and all rows, and its refinement by swaps.

MMD^2 = (kernel sum over chosen x chosen) / n^2 - 2 (the chosen rows' means) / n + a constant. With n chosen, of
which one gives way, a row's part in it grows with `score` = (kernel sum to the other n - 1) / n - its mean, as the
kernel's diagonal is constant: half of n times the change of MMD^2 is the difference of two scores. So a greedy
pick and the best swap for one of the chosen are the same search. Torch and the standard library alone.
"""

import math

import torch
from torch import Tensor

from endocil._mmd import KernelMatrix

TIE = 1e-11  # scores this near are equal: rounding must not choose between twins
MEAN_ROUNDING = 2e-14  # of a mean of kernel values; over 500 picks this is the wider of the two
PASSES = 100  # of swaps over all chosen rows; a few are enough

EXACT_ROWS = 1024  # up to so many rows float64 costs a few hundredths of a second
KEEP = 16  # from 1/16 of the rows on, a matrix in float64 costs less than float32 and a row for each pick
KEPT_BYTES = 1 << 29  # of a matrix that is kept: 8192 rows
SHARE = 8  # more than 1/8 of the rows one by one cost more than all of them by the upper triangle
CHECKED_ROWS = 16
ROUNDING = math.ldexp(1.0, -24)  # of a float32, relative
CACHE_BYTES = 4 * 384 * 384  # two such tiles stay in a core's second-level cache
DEVICE_BYTES = 1 << 26  # enough to keep a graphics card busy


class RowMeans:
    """Row sums / m and how far each may be off: float32 where that will do, float64 on demand."""

    def __init__(self, matrix: KernelMatrix, picks: int, tile_bytes: int | None) -> None:
        self.matrix = matrix
        self.tile_bytes = tile_bytes or (CACHE_BYTES if matrix.on_cpu else DEVICE_BYTES)
        # Graphics cards are fast enough in float64, which `allow_tf32` does not touch; TF32's error would be
        # far above the ties, and float32 on a card is never used here.
        self.exact = matrix.size <= max(EXACT_ROWS, KEEP * picks) or not matrix.on_cpu
        self._compute(keep=self.exact and 8 * matrix.size**2 <= KEPT_BYTES)

    def sharpen(self, indices: Tensor) -> None:
        """Make these rows exact."""
        if len(indices) > self.matrix.size // SHARE:
            self.exact = True
            self._compute(keep=False)
        else:
            self.values[indices] = self.matrix.sums(indices) / self.matrix.size
            self.error[indices] = 0.0

    def _compute(self, keep: bool) -> None:
        dtype = torch.float64 if self.exact else torch.float32
        self.values = self.matrix.all_sums(dtype, self.tile_bytes, keep) / self.matrix.size
        self.error = torch.full_like(self.values, 0.0 if self.exact else self._float32_error())

    def _float32_error(self) -> float:
        """Roundings of |x|^2, times 1/s_i in each Gaussian; or, if worse, far above what some rows show."""
        spread = torch.arange(0, self.matrix.size, self.matrix.size // CHECKED_ROWS)
        farthest = self.matrix.points[:, -2].topk(CHECKED_ROWS, largest=False).indices
        checked = torch.cat([spread, farthest])
        off = self.matrix.sums(checked) / self.matrix.size - self.values[checked]
        return max(8 * ROUNDING * self.matrix.steepness, 16 * float(off.abs().max()))


def greedy(
    matrix: KernelMatrix, n: int, means: RowMeans, among: list[int] | None = None
) -> tuple[list[int], list[float]]:
    """n rows, of all or of some, in order of choice, and MMD^2 after each."""
    near = torch.zeros_like(means.values)  # kernel sum to the chosen rows; infinite for these themselves
    if among is not None:
        near.fill_(math.inf)[among] = 0.0
    indices, mmd2 = list[int](), list[float]()
    inside = across = 0.0  # kernel sums over chosen x chosen, and over chosen x class / m
    for size in range(1, n + 1):
        index = _best(near / size, means, _tie(size))
        row = matrix.rows(torch.tensor([index], device=near.device))[0]
        inside += 2.0 * float(near[index]) + matrix.kernels
        across += float(row.mean())
        near += row
        near[index] = math.inf
        indices.append(index)
        mmd2.append(inside / size**2 - 2.0 * across / size)
    level = float(means.values.mean())  # last, when they are sharpest
    return indices, [max(0.0, level + rest) for rest in mmd2]


def swapped(matrix: KernelMatrix, chosen: list[int], means: RowMeans) -> list[int]:
    """Each chosen row in turn gives way to the best of all others, until no swap of one row lowers MMD^2."""
    n, chosen = len(chosen), list(chosen)
    rows = matrix.rows(torch.tensor(chosen, device=means.values.device))  # (n, m)
    near = rows.sum(0)
    for _ in range(PASSES):
        before = list(chosen)
        for place, old in enumerate(before):
            others = (near - rows[place]).index_fill_(0, _others(chosen, place, near), math.inf)
            new = _best(others / n, means, _tie(n), prefer=old)
            if new != old:
                chosen[place] = new
                row = matrix.rows(torch.tensor([new], device=near.device))[0]
                near += row - rows[place]
                rows[place] = row
        if chosen == before:
            break
    return chosen


def _others(chosen: list[int], place: int, like: Tensor) -> Tensor:
    return torch.tensor(chosen[:place] + chosen[place + 1 :], dtype=torch.int64, device=like.device)


def _best(near: Tensor, means: RowMeans, tie: float, prefer: int | None = None) -> int:
    """The minimum of near - means, of equals `prefer` or the first: float32 leaves candidates, float64 decides."""
    score = near - means.values
    if not means.exact:
        candidates = (score - means.error <= (score + means.error).min() + tie).nonzero().flatten()
        unsure = candidates[means.error[candidates] > 0]
        if len(candidates) > 1 and len(unsure) > 0:
            means.sharpen(unsure)
            return _best(near, means, tie, prefer)
    if prefer is not None and float(score[prefer]) <= float(score.min()) + tie:
        return prefer
    return first_minimum(score, tie)


def first_minimum(score: Tensor, tie: float) -> int:
    return int((score <= score.min() + tie).nonzero()[0])


def _tie(size: int) -> float:
    return max(TIE / size, MEAN_ROUNDING)
