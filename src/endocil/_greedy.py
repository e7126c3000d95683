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
STEEPEST = 32.0  # a kernel of which float32 would tell too little: the default's steepness is 7.75
CHECKED_ROWS = 16
MARGIN = 16  # times what they show
ROUNDING = math.ldexp(1.0, -24)  # of a float32, relative
CACHE_BYTES = 4 * 320 * 320  # two such tiles stay in a core's second-level cache of 1 MB
DEVICE_BYTES = 1 << 26  # enough to keep a graphics card busy


class RowMeans:
    """Row sums / m and how far each may be off: float32 where that will do, float64 on demand."""

    entry_error = 0.0  # how far a single kernel value of float32 may be off

    def __init__(self, matrix: KernelMatrix, picks: int, tile_bytes: int | None) -> None:
        self.matrix = matrix
        self.rows = torch.arange(matrix.size, device=matrix.points.device)
        self.tile_bytes = tile_bytes or (CACHE_BYTES if matrix.on_cpu else DEVICE_BYTES)
        # Graphics cards are fast enough in float64, which `allow_tf32` does not touch; TF32's error would be
        # far above the ties, and float32 on a card is never used here.
        small = matrix.size <= max(EXACT_ROWS, KEEP * picks)
        self.exact = small or not matrix.on_cpu or matrix.steepness > STEEPEST
        self._compute(keep=self.exact and 8 * matrix.size**2 <= KEPT_BYTES)
        self.error = torch.zeros_like(self.values)
        if not self.exact:
            self._measure_float32()

    def sharpen(self, indices: Tensor) -> None:
        """Make these rows exact."""
        if len(indices) > self.matrix.size // SHARE:
            self.exact = True
            self._compute(keep=False)
            self.error.zero_()
        else:
            self.values[indices] = self.matrix.sums(indices) / self.matrix.size
            self.error[indices] = 0.0

    def _compute(self, keep: bool) -> None:
        dtype = torch.float64 if self.exact else torch.float32
        self.values = self.matrix.all_sums(dtype, self.tile_bytes, keep) / self.matrix.size

    def _measure_float32(self) -> None:
        """Roundings of |x|^2, times 1/s_i in each Gaussian; or, if worse, far above what some rows show."""
        spread = torch.arange(0, self.matrix.size, self.matrix.size // CHECKED_ROWS)
        farthest = self.matrix.points[:, -2].topk(CHECKED_ROWS, largest=False).indices
        of_means = 8 * ROUNDING * self.matrix.steepness / MARGIN
        of_entries = 4 * of_means  # one has no others to be averaged with
        for index in self.matrix.parts(torch.cat([spread, farthest])):
            exact = self.matrix.rows(index)
            of_means = max(of_means, float((exact.mean(1) - self.values[index]).abs().max()))
            of_entries = max(of_entries, float((exact - self.matrix.rows(index, torch.float32)).abs().max()))
            twins = self.matrix.between(index, index, torch.float32).diagonal()  # where rounding shows most
            of_entries = max(of_entries, float((twins - self.matrix.kernels).abs().max()))
        self.error.fill_(MARGIN * of_means)
        self.entry_error = MARGIN * of_entries


class Nearness:
    """The chosen rows and every row's kernel sum to them: float32 where that will do for the means."""

    def __init__(self, means: RowMeans, among: list[int] | None) -> None:
        self.matrix, self.means = means.matrix, means
        self.exact = means.exact
        self.values = torch.zeros_like(means.values)  # infinite for rows that must not be chosen
        if among is not None:
            self.values.fill_(math.inf)[among] = 0.0
        self.chosen = self.values.new_empty(0, dtype=torch.int64)

    def add(self, index: int) -> None:
        new = self.chosen.new_tensor([index])
        row = self.matrix.rows(new, torch.float64 if self.exact else torch.float32)[0]
        self.values += row
        self.values[index] = math.inf
        self.chosen = torch.cat([self.chosen, new])

    def best(self) -> tuple[int, float]:
        """The row to choose next and its kernel sum to the chosen: float32 leaves candidates, float64 decides."""
        size = len(self.chosen) + 1
        tie = _tie(size)
        if not self.exact:
            score = self.values / size - self.means.values
            error = float(self.means.error.max()) + self.means.entry_error * (size - 1) / size
            candidates = (score <= score.min() + (2 * error + tie)).nonzero().flatten()
            if len(candidates) * size <= self.matrix.size:
                near = self.matrix.between(candidates, self.chosen).sum(1)
                place = _best(near / size, candidates, self.means, tie)
                return int(candidates[place]), float(near[place])
            self._sharpen()  # for whole rows in float64 cost less
        index = _best(self.values / size, self.means.rows, self.means, tie)
        return index, float(self.values[index])

    def _sharpen(self) -> None:
        """All sums in float64, now and from now on."""
        self.exact = True
        self.values = torch.where(self.values.isinf(), self.values, 0.0)
        for index in torch.split(self.chosen, 1):
            self.values += self.matrix.rows(index)[0]


def greedy(n: int, means: RowMeans, among: list[int] | None = None) -> tuple[list[int], Tensor]:
    """n rows, of all or of some, in order of choice, and MMD^2 after each, (n,) float64."""
    near, sums = Nearness(means, among), list[float]()
    for _ in range(n):
        index, to_chosen = near.best()
        near.add(index)
        sums.append(2.0 * to_chosen + means.matrix.kernels)
    inside = means.values.new_tensor(sums).cumsum(0)  # kernel sum over chosen x chosen
    across = means.values[near.chosen].cumsum(0)  # over chosen x class / m
    sizes = torch.arange(1, n + 1, device=across.device)
    mmd2 = means.values.mean() + inside / sizes**2 - 2.0 * across / sizes
    return near.chosen.tolist(), mmd2.clamp_(min=0.0)


def swapped(chosen: list[int], means: RowMeans) -> list[int]:
    """Each chosen row in turn gives way to the best of all others, until no swap of one row lowers MMD^2."""
    matrix, n, chosen = means.matrix, len(chosen), list(chosen)
    rows = matrix.rows(torch.tensor(chosen, device=means.values.device))  # (n, m)
    near = rows.sum(0)
    for _ in range(PASSES):
        before = list(chosen)
        for place, old in enumerate(before):
            others = (near - rows[place]).index_fill_(0, _others(chosen, place, near), math.inf)
            new = _best(others / n, means.rows, means, _tie(n), prefer=old)
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


def _best(near: Tensor, rows: Tensor, means: RowMeans, tie: float, prefer: int | None = None) -> int:
    """The place in `rows` of the least near - mean; of equals `prefer` or the first."""
    score = near - means.values[rows]
    if not means.exact:
        error = means.error[rows]
        candidates = (score - error <= (score + error).min() + tie).nonzero().flatten()
        unsure = candidates[error[candidates] > 0]
        if len(candidates) > 1 and len(unsure) > 0:
            means.sharpen(rows[unsure])
            return _best(near, rows, means, tie, prefer)
    if prefer is not None and float(score[prefer]) <= float(score.min()) + tie:
        return prefer
    return first_minimum(score, tie)


def first_minimum(score: Tensor, tie: float) -> int:
    return int((score <= score.min() + tie).nonzero()[0])


def _tie(size: int) -> float:
    return max(TIE / size, MEAN_ROUNDING)
