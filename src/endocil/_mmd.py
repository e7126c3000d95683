"""The kernel matrix of one class of features: some of its rows, and the sums of all of them.

The kernel is a sum of Gaussians whose bandwidths are powers of `scale` times the mean squared distance in the
class. Features are centred (distances stay, cancellation goes) and scaled so that the widest Gaussian is
exp(x.y - |x|^2/2 - |y|^2/2); two more columns, (-|x|^2/2, 1), let one matrix product give that exponent.
The matrix itself is kept only where asked for; else rows are computed anew. Torch and the standard library alone.
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

_thread_count = threading.Lock()  # torch has one thread count for the whole process


class KernelMatrix:
    """The (m, m) kernel matrix of `features`; holds a float64 copy of these, and one in float32 once needed."""

    kept: Tensor | None = None  # the whole of it, (m, m) float64, once `all_sums` was told to keep it

    def __init__(
        self,
        features: Tensor,
        kernels: int,
        scale: float,
        bandwidth: Bandwidth,
        self_pairs: bool,
        workers: int = 1,
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
