"""Squared MMD between some rows of a class and all of them: its kernel matrix, the greedy minimum, and swaps.

The kernel is a sum of Gaussians whose bandwidths are powers of `scale` times the mean squared distance in the
class. Features are centred (distances stay, cancellation goes) and scaled so that the widest Gaussian is
exp(x.y - |x|^2/2 - |y|^2/2); two more columns, (-|x|^2/2, 1), let one matrix product give that exponent.
The matrix itself is kept only where that is cheaper; else rows are computed anew. Torch and the standard library alone.
"""

import math
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

Bandwidth = Literal["index", "literal"]

ROWS_BYTES = 1 << 24  # of whole rows at a time
SQUARINGS = 8  # of an exponential in a row; each doubles its relative rounding

TIE = 1e-11  # scores this near are equal: rounding must not choose between twins
MEAN_ROUNDING = 2e-14  # of a mean of kernel values; over 500 picks this is the wider of the two
PASSES = 100  # of swaps over all chosen rows; a few are enough

EXACT_ROWS = 1024  # up to so many rows float64 costs a few hundredths of a second
KEEP = 16  # from 1/16 of the rows on, a matrix in float64 costs less than float32 and a row for each pick
KEPT_BYTES = 1 << 29  # of a matrix that is kept: 8192 rows
TRIANGLE = 8  # more than 1/8 of the rows one by one cost more than all of them by the upper triangle
STEEPEST = 32.0  # a kernel of which float32 would tell too little: the default's steepness is 7.75
CHECKED_ROWS = 16
MARGIN = 16  # times what they show
ROUNDING = math.ldexp(1.0, -24)  # of a float32, relative
CACHE_BYTES = 4 * 320 * 320  # two such tiles stay in a core's second-level cache of 1 MB
DEVICE_BYTES = 1 << 26  # enough to keep a graphics card busy

_thread_count = threading.Lock()  # torch has one thread count for the whole process


class KernelMatrix:
    """The (m, m) kernel matrix of `features`; holds a float64 copy of these, and one in float32 once needed."""

    kept: Tensor | None = None  # the whole of it, (m, m) float64, once `all_sums` has kept it

    def __init__(
        self, features: Tensor, kernels: int, scale: float, bandwidth: Bandwidth, self_pairs: bool, workers: int = 1
    ) -> None:
        self.kernels, self.scale, self.size = kernels, scale, len(features)
        self.points = centred(features)  # (m, d + 2)
        self.workers = workers if self.on_cpu else 1
        distance = mean_squared_distance(self.points, self_pairs)
        widest = math.pow(scale, widest_exponent(kernels, bandwidth))  # over the mean squared distance
        self.steepness = math.fsum(scale**step for step in range(kernels)) / widest
        self.points *= math.sqrt(2.0 / (widest * (distance or 1.0)))
        self.points[:, -2] = torch.linalg.vector_norm(self.points, dim=1).square_().mul_(-0.5)
        self.points[:, -1] = 1.0

    @property
    def on_cpu(self) -> bool:
        return self.points.device.type == "cpu"

    @cached_property
    def columns32(self) -> Tensor:
        """(d + 2, m): in this layout the product with a single row takes half the time."""
        columns = self.points.new_empty(self.points.shape[1], self.size, dtype=torch.float32)
        for part, rows in zip(torch.split(columns, 256, 1), torch.split(self.points, 256), strict=True):
            part.copy_(rows.float().T)  # a few at a time stay in the cache
        return columns

    def columns(self, dtype: torch.dtype) -> Tensor:
        return self.columns32 if dtype == torch.float32 else self.points.T

    def rows(self, indices: Tensor, dtype: torch.dtype = torch.float64) -> Tensor:
        """Some rows, (r, m)."""
        if self.kept is not None:
            return self.kept[indices]
        columns = self.columns(dtype)
        exponent = _product(columns[:, indices], columns)
        exponent.scatter_(1, indices[:, None], 0.0)  # the distance to itself, whatever the rounding
        return gaussians_(exponent, self.kernels, self.scale)

    def between(self, rows: Tensor, others: Tensor, dtype: torch.dtype = torch.float64) -> Tensor:
        """The kernel of some rows with some others, (r, c); of a row with itself as of twins, rounded."""
        columns = self.columns(dtype)
        return gaussians_(_product(columns[:, rows], columns[:, others]), self.kernels, self.scale)

    def sums(self, indices: Tensor) -> Tensor:
        """The sums of some rows in float64, (r,)."""
        return torch.cat([self.rows(part).sum(1) for part in self.parts(indices)])

    def parts(self, indices: Tensor) -> tuple[Tensor, ...]:
        """So many at a time that their rows take little memory."""
        return torch.split(indices, max(1, ROWS_BYTES // (8 * self.size)))

    def all_sums(self, dtype: torch.dtype, tile_bytes: int, keep: bool = False) -> Tensor:
        """The sums of all rows, (m,) float64, from tiles of the upper triangle computed in `dtype`."""
        columns = self.columns(dtype)
        kept = columns.new_empty(self.size, self.size) if keep else None
        panels = math.ceil(self.size / max(1, math.isqrt(tile_bytes // columns.element_size())))
        tiles = _Tiles(math.ceil(self.size / panels), columns)
        starts = range(0, self.size, tiles.side)
        total = self.points.new_zeros(self.size)
        with ThreadPoolExecutor(self.workers) as pool:
            parts = pool.map(lambda start: self._panel_sums(columns, start, tiles, kept), starts)
            for start, part in zip(starts, parts, strict=True):  # in this order with any number of workers
                total[start:] += part
        self.kept = kept
        return total

    def _panel_sums(self, columns: Tensor, start: int, tiles: "_Tiles", kept: Tensor | None) -> Tensor:
        """What the tiles from the diagonal to the right add to the sums of their rows and their columns."""
        side = tiles.side
        left = _left_factor(columns[:, start : start + side])
        total = self.points.new_zeros(self.size - start)
        for offset in range(0, len(total), side):
            right = columns[:, start + offset : start + offset + side]
            exponent, out = tiles.shaped(len(left), right.shape[1])
            torch.mm(left, right, out=exponent)
            if offset == 0:
                exponent.fill_diagonal_(0.0)
            kernel = gaussians_(exponent, self.kernels, self.scale, out)
            total[: len(left)] += kernel.sum(1)
            if offset > 0:
                total[offset : offset + right.shape[1]] += kernel.sum(0)
            if kept is not None:
                here, there = slice(start, start + side), slice(start + offset, start + offset + side)
                kept[here, there], kept[there, here] = kernel, kernel.T
        return total


def centred(features: Tensor) -> Tensor:
    """Rows minus their mean, in float64, and two columns of zeros."""
    device = "cpu" if features.device.type == "mps" else features.device  # Apple's GPUs have no float64
    points = torch.empty(features.shape[0], features.shape[1] + 2, dtype=torch.float64, device=device)
    points[:, -2:] = 0.0
    rows = points[:, :-2]
    rows.copy_(features)
    rows -= rows[0].clone()  # so that equal rows have distance 0 exactly
    rows -= rows.mean(0)
    return points


def mean_squared_distance(centred_rows: Tensor, self_pairs: bool) -> float:
    """Over ordered pairs: 2 sum|x|^2 / (m - 1), or / m when each row is paired with itself too."""
    pairs = len(centred_rows) if self_pairs else max(1, len(centred_rows) - 1)
    distance = 2.0 * float(torch.linalg.vector_norm(centred_rows)) ** 2 / pairs
    if not math.isfinite(distance):
        raise ValueError("features are too large for squared distances in float64; divide them by a constant")
    return distance


def widest_exponent(kernels: int, bandwidth: Bandwidth) -> float:
    """Power of `scale` in the widest Gaussian: i - K//2, i < K, as coded, or i - K/2, i <= K, as printed."""
    return kernels - 1 - kernels // 2 if bandwidth == "index" else kernels / 2


def gaussians_(exponent: Tensor, kernels: int, scale: float, out: Tensor | None = None) -> Tensor:
    """sum_i exp(exponent * scale^i) for i < kernels; overwrites `exponent`."""
    squarings = math.log2(scale)
    total = torch.exp(exponent, out=out)
    if not squarings.is_integer() or squarings * (kernels - 1) > SQUARINGS:
        for step in range(1, kernels):
            total.add_((exponent * scale**step).exp_())
        return total
    value = exponent.copy_(total)
    for _ in range(1, kernels):
        for _ in range(int(squarings)):  # the next narrower Gaussian is a power of this one: one exp in all
            value.square_()
        total.add_(value)
    return total


def _product(left: Tensor, right: Tensor) -> Tensor:
    exponent = left.new_empty(left.shape[1], right.shape[1])
    return torch.mm(_left_factor(left), right, out=exponent)  # autocast leaves a product with `out` alone


def _left_factor(columns: Tensor) -> Tensor:
    """The last two features change places, so that times columns they add -|x|^2/2 and -|y|^2/2."""
    return torch.cat([columns[:-2], columns[-1:], columns[-2:-1]]).T


class _Tiles(threading.local):
    """Two tiles for each worker; new ones for each product would cost page faults."""

    def __init__(self, side: int, like: Tensor) -> None:
        self.side = side
        self.first, self.second = like.new_empty(2, side * side)

    def shaped(self, *shape: int) -> tuple[Tensor, Tensor]:
        return self.first[: math.prod(shape)].view(shape), self.second[: math.prod(shape)].view(shape)


@contextmanager
def one_thread_each() -> Iterator[int]:
    """Operations with one thread each, and how many of them may run side by side.

    Faster than threads inside small operations, whose waiting costs more than they do on a busy machine.
    """
    with _thread_count:
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            yield threads
        finally:
            torch.set_num_threads(threads)


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

    def make_exact(self, indices: Tensor) -> None:
        """Make these rows exact."""
        if len(indices) > self.matrix.size // TRIANGLE:
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


class KernelSums:
    """The chosen rows, and for every row the sum of its kernel to them: in float32 where that is precise enough."""

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
            self._make_exact()  # for whole rows in float64 cost less
        index = _best(self.values / size, self.means.rows, self.means, tie)
        return index, float(self.values[index])

    def _make_exact(self) -> None:
        """Compute all sums in float64 from now on."""
        self.exact = True
        self.values = torch.where(self.values.isinf(), self.values, 0.0)
        for index in torch.split(self.chosen, 1):
            self.values += self.matrix.rows(index)[0]


def greedy(n: int, means: RowMeans, among: list[int] | None = None) -> tuple[list[int], Tensor]:
    """n rows, of all or of some, in order of choice, and MMD^2 after each, (n,) float64."""
    near, sums = KernelSums(means, among), list[float]()
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
            means.make_exact(rows[unsure])
            return _best(near, rows, means, tie, prefer)
    if prefer is not None and float(score[prefer]) <= float(score.min()) + tie:
        return prefer
    return first_minimum(score, tie)


def first_minimum(score: Tensor, tie: float) -> int:
    return int((score <= score.min() + tie).nonzero()[0])


def _tie(size: int) -> float:
    return max(TIE / size, MEAN_ROUNDING)
