"""Near duplicates: which images of a table are nearly the same, and the groups that they form.

The details of all images are compared with each other, in blocks and two steps. Search: by the detail at 16 x 16, one
matrix product per block, so that no index misses anything; a correlation of at least SEARCH makes a candidate.
Verification: the middle 28 x 28 of one detail is laid over the other one, shifted by up to 2 pixels of 32 each way
where it does not fit unshifted; a correlation of at least SAME makes a pair. Mirrored, rotated and much enlarged
images are not near duplicates.

All sums are integers below 2^24, which float32 adds without rounding: the pairs of the same details depend neither on
the machine nor on the size of the blocks.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from endocil.data.cache import Progress, cached_arrays
from endocil.data.fingerprints import DETAIL, READ, Fingerprints, fingerprints
from endocil.data.fingerprints import RULES as FINGERPRINT_RULES
from endocil.data.table import ImageTable

SEARCH = 0.60  # on 5,003 images of Hyper-Kvasir: 0.23 % of all pairs, and 99 % of those that verify
SAME = 0.86  # there, by eye: none of 48 pairs from 0.86 to 0.88 shows two scenes, 3 of 40 from 0.84 do
SHIFT = 2  # pixels of 32, each way: 6 % of the image

BLOCK = 2048  # images compared with as many others at a time
_CHUNK = 1024  # candidates verified at a time: they stay in the processor's cache
_SHIFTS = [(y, x) for y in range(2 * SHIFT + 1) for x in range(2 * SHIFT + 1)]
_MIDDLE = _SHIFTS.index((SHIFT, SHIFT))
_INNER = DETAIL - 2 * SHIFT  # width and height of the part that is laid over

Pairs = tuple[np.ndarray, np.ndarray, np.ndarray]  # (P,) rows left < right, and their correlation

KEPT = 5_000_000  # pairs; where there are more, only the strongest of each image are kept: memory is bounded
PARTNERS = 200  # of each image, then; groups are made from all pairs, and all are counted
RULES = f"near duplicates 2, {SEARCH}, {SAME}, {SHIFT}, {KEPT}, {PARTNERS}, {FINGERPRINT_RULES}"


@dataclass(frozen=True, eq=False)
class NearDuplicates:
    """Pairs of rows of a table, and the group of each row. Exact duplicates are among them."""

    left: np.ndarray  # (P,) row; its id is smaller than that of right
    right: np.ndarray  # (P,)
    score: np.ndarray  # (P,) correlation, from SAME to 1
    first: np.ndarray  # (N,) of the group's rows the one with the smallest id
    total: int  # all pairs; P unless they were too many to be kept

    @property
    def complete(self) -> bool:
        return self.total == len(self.left)


def near_duplicate_groups(
    table: ImageTable, *, folder: Path | None = None, progress: Progress | None = None
) -> tuple[str, ...]:
    """The group of each image, named after its smallest id; an image without near duplicates is its own group."""
    prints = fingerprints(table, folder=folder, progress=progress)
    near = near_duplicates_of(table, prints, folder=folder)
    return tuple(table.ids[row] for row in near.first)


def near_duplicates_of(
    table: ImageTable, prints: Fingerprints, *, folder: Path | None = None, progress: Progress | None = None
) -> NearDuplicates:
    """As `near_duplicates`, kept in the image cache until a file changes."""
    names = ("left", "right", "score", "first", "total")

    def search() -> dict[str, np.ndarray]:
        near = near_duplicates(prints, progress=progress)
        return {name: np.asarray(getattr(near, name)) for name in names}

    arrays = cached_arrays(table, names, search, rules=RULES, size=READ, folder=folder)
    return NearDuplicates(total=int(arrays.pop("total")), **arrays)


def near_duplicates(prints: Fingerprints, *, block: int = BLOCK, progress: Progress | None = None) -> NearDuplicates:
    """Rows are taken in the order of their ids, so that the order of the table has no influence."""
    order = np.array(sorted(range(len(prints.ids)), key=prints.ids.__getitem__), np.int64)
    first = np.arange(len(order))  # from here on, rows are places in this order
    digests = prints.digests[order]
    by_digest = np.argsort(digests, kind="stable")
    one, other = by_digest[:-1], by_digest[1:]
    same = (digests[one] == digests[other]) & (digests[one] != "")
    _join_groups(first, one[same], other[same])  # by digest too: exact duplicates without detail have no pairs
    chosen = np.flatnonzero(prints.details[order].any((1, 2)))  # (M,) those with any detail
    kept: list[Pairs] = []
    total = 0
    for pairs in near_pairs(prints.details[order[chosen]], block, progress):
        left, right, _ = pairs
        _join_groups(first, chosen[left], chosen[right])
        if total <= KEPT < total + len(left):
            kept = [_strongest(*earlier) for earlier in kept]
        total += len(left)
        kept.append(_strongest(*pairs) if total > KEPT else pairs)
    left, right, score = _concatenated(kept)
    by_row = np.empty_like(first)
    by_row[order] = order[first]
    return NearDuplicates(order[chosen[left]], order[chosen[right]], score, by_row, total)


def _join_groups(first: np.ndarray, left: np.ndarray, right: np.ndarray) -> None:
    """Join the groups of these pairs; `first` leads each row to the smallest row of its group."""
    from scipy.sparse import coo_array  # here: few need it
    from scipy.sparse.csgraph import connected_components

    ends = np.concatenate([np.arange(len(first)), left]), np.concatenate([first, right])
    links = coo_array((np.ones(len(ends[0]), bool), ends), shape=(len(first), len(first)))
    group = connected_components(links, directed=False)[1]  # (N,)
    _, smallest = np.unique(group, return_index=True)
    first[:] = smallest[group]


def _strongest(left: np.ndarray, right: np.ndarray, score: np.ndarray) -> Pairs:
    """Of each left row the PARTNERS best pairs, by row and strength."""
    by_strength = np.lexsort((right, -score, left))
    _, starts, counts = np.unique(left[by_strength], return_index=True, return_counts=True)
    rank = np.arange(len(by_strength)) - np.repeat(starts, counts)
    few = by_strength[rank < PARTNERS]
    return left[few], right[few], score[few]


def near_pairs(details: np.ndarray, block: int = BLOCK, progress: Progress | None = None) -> Iterator[Pairs]:
    """The pairs of (N, 32, 32) int8 details, none of them all 0: one block of left rows after the other."""
    n, half = len(details), DETAIL // 2
    coarse = np.empty((n, half * half), np.float32)  # whole numbers from -127 to 127
    inner = np.empty((n, len(_SHIFTS)), np.float32)  # lengths of the part under the other's middle, shift by shift
    for start in range(0, n, _CHUNK):
        part = details[start : start + _CHUNK]
        coarse[start : start + _CHUNK] = np.rint(part.reshape(-1, half, 2, half, 2).mean((2, 4))).reshape(-1, half**2)
        squares = part.astype(np.float32) ** 2
        for shift in range(len(_SHIFTS)):
            sums = _window(squares, shift).sum((1, 2), dtype=np.float64)
            inner[start : start + _CHUNK, shift] = np.sqrt(sums)
    np.maximum(inner, 1, out=inner)  # a window without detail correlates with nothing
    lengths = np.sqrt((coarse**2).sum(1, dtype=np.float64)).astype(np.float32)  # (N,)
    starts = range(0, len(details), block)
    done, total = 0, len(starts) * (len(starts) + 1) // 2
    for start in starts:
        pairs = []
        for other in starts[start // block :]:
            here, there = slice(start, start + block), slice(other, other + block)
            products = coarse[here] @ coarse[there].T  # (B, B)
            likely = products >= np.outer(np.float32(SEARCH) * lengths[here], lengths[there])
            left, right = np.divmod(np.flatnonzero(likely), likely.shape[1])  # faster than nonzero
            left, right = left + start, right + other
            pairs.append(_verified(details, inner, left[left < right], right[left < right]))
            done += 1
            if progress:
                progress(done, total)
        yield _concatenated(pairs)


def _concatenated(parts: list[Pairs]) -> Pairs:
    """Pairs one after the other; none where there are no parts."""
    empty = (np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.float32))
    left, right, score = (np.concatenate(column) for column in zip(empty, *parts, strict=True))
    return left, right, score


def _window(details: np.ndarray, shift: int) -> np.ndarray:
    y, x = _SHIFTS[shift]
    return details[:, y : y + _INNER, x : x + _INNER]


def _verified(details: np.ndarray, inner: np.ndarray, left: np.ndarray, right: np.ndarray) -> Pairs:
    """Those pairs that correlate as they are, or else by the shift that fits best."""
    score = np.zeros(len(left), np.float32)
    others = [shift for shift in range(len(_SHIFTS)) if shift != _MIDDLE]
    for start in range(0, len(left), _CHUNK):
        rows = np.arange(start, min(start + _CHUNK, len(left)))
        score[rows] = _correlation(details, inner, left[rows], right[rows], [_MIDDLE])
        rest = rows[score[rows] < np.float32(SAME)]
        shifted = _correlation(details, inner, left[rest], right[rest], others)
        score[rest] = np.maximum(score[rest], shifted)
    same = score >= np.float32(SAME)
    return left[same], right[same], score[same]


def _correlation(
    details: np.ndarray, inner: np.ndarray, left: np.ndarray, right: np.ndarray, shifts: list[int]
) -> np.ndarray:
    """The best correlation of the middle of `left` with the windows of `right`."""
    middle = np.ascontiguousarray(_window(details[left], _MIDDLE), np.float32)  # (P, 28, 28)
    below = details[right].astype(np.float32)  # (P, 32, 32)
    best = np.full(len(left), -1.0, np.float32)
    for shift in shifts:
        products = np.einsum("phw,phw->p", middle, _window(below, shift))
        np.maximum(best, products / (inner[left, _MIDDLE] * inner[right, shift]), out=best)
    return best
