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

from endocil.data.fingerprints import (
    DETAIL,
    READ,
    Fingerprints,
    Progress,
    cache_path,
    fingerprints,
    load_arrays,
    save_arrays,
)
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
    table: ImageTable,
    prints: Fingerprints,
    *,
    folder: Path | None = None,
    progress: Progress | None = None,
) -> NearDuplicates:
    """As `near_duplicates`, kept in the image cache until a file changes."""
    path = cache_path(table, READ, RULES, folder)
    kept = load_arrays(path, ("left", "right", "score", "first", "total"))
    if kept is not None and len(kept["first"]) == len(table):
        total = int(kept.pop("total"))
        return NearDuplicates(total=total, **kept)
    near = near_duplicates(prints, progress=progress)
    save_arrays(path, {**vars(near), "total": np.array(near.total)})
    return near


def near_duplicates(
    prints: Fingerprints, *, block: int = BLOCK, progress: Progress | None = None
) -> NearDuplicates:
    """Rows are taken in the order of their ids, so that the order of the table has no influence."""
    order = np.array(sorted(range(len(prints.ids)), key=prints.ids.__getitem__), np.int64)
    first = np.arange(len(order))  # from here on, rows are places in this order
    _join_groups(first, *_exact_links(prints.digests[order]))
    chosen = np.flatnonzero(prints.details[order].any((1, 2)))  # (M,) those with any detail
    kept: list[Pairs] = []
    total = 0
    for pairs in near_pairs(prints.details[order[chosen]], block, progress):
        left, right, score = pairs
        _join_groups(first, chosen[left], chosen[right])
        if total <= KEPT < total + len(left):
            kept = [_strongest(*earlier) for earlier in kept]
        total += len(left)
        kept.append(_strongest(*pairs) if total > KEPT else pairs)
    left, right, score = _concatenated(kept)
    left, right = chosen[left], chosen[right]
    by_row = np.empty_like(first)
    by_row[order] = order[first]
    return NearDuplicates(order[left], order[right], score, by_row, total)


def _exact_links(digests: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Each image with the next one of the same digest: images without detail have no pairs."""
    by_digest = np.argsort(digests, kind="stable")
    one, other = by_digest[:-1], by_digest[1:]
    same = (digests[one] == digests[other]) & (digests[one] != "")
    return one[same], other[same]


def _join_groups(first: np.ndarray, left: np.ndarray, right: np.ndarray) -> None:
    """Join the groups of these pairs; `first` always leads straight to the smallest row of a group."""
    apart = first[left] != first[right]
    for one, other in zip(first[left[apart]].tolist(), first[right[apart]].tolist(), strict=True):
        one, other = _root(first, one), _root(first, other)
        first[max(one, other)] = min(one, other)
    while (first[first] != first).any():
        first[:] = first[first]


def _root(first: np.ndarray, row: int) -> int:
    while first[row] != row:
        row = int(first[row])
    return row


def _strongest(left: np.ndarray, right: np.ndarray, score: np.ndarray) -> Pairs:
    """Of each left row the PARTNERS best pairs, by row and strength."""
    by_strength = np.lexsort((right, -score, left))
    _, starts, counts = np.unique(left[by_strength], return_index=True, return_counts=True)
    rank = np.arange(len(by_strength)) - np.repeat(starts, counts)
    few = by_strength[rank < PARTNERS]
    return left[few], right[few], score[few]


def near_pairs(details: np.ndarray, block: int = BLOCK, progress: Progress | None = None) -> Iterator[Pairs]:
    """The pairs of (N, 32, 32) int8 details, none of them all 0: one block of left rows after the other."""
    coarse = _coarse(details)  # (N, 256)
    lengths = np.sqrt((coarse**2).sum(1, dtype=np.float64)).astype(np.float32)  # (N,)
    inner = _inner_lengths(details)  # (N, 25)
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


def _coarse(details: np.ndarray) -> np.ndarray:
    """(N, 256) whole numbers from -127 to 127 in float32."""
    half = DETAIL // 2
    result = np.empty((len(details), half * half), np.float32)
    for start in range(0, len(details), _CHUNK):
        means = details[start : start + _CHUNK].reshape(-1, half, 2, half, 2).mean((2, 4))
        result[start : start + _CHUNK] = np.rint(means).reshape(-1, half * half)
    return result


def _inner_lengths(details: np.ndarray) -> np.ndarray:
    """(N, 25) lengths of the part under the other's middle, shift by shift."""
    lengths = np.empty((len(details), len(_SHIFTS)), np.float32)
    for start in range(0, len(details), _CHUNK):
        squares = details[start : start + _CHUNK].astype(np.float32) ** 2
        for shift in range(len(_SHIFTS)):
            window = _window(squares, shift)
            lengths[start : start + _CHUNK, shift] = np.sqrt(window.sum((1, 2), dtype=np.float64))
    return np.maximum(lengths, np.float32(1))  # a window without detail correlates with nothing


def _window(details: np.ndarray, shift: int) -> np.ndarray:
    y, x = _SHIFTS[shift]
    return details[:, y : y + _INNER, x : x + _INNER]


def _verified(details: np.ndarray, inner: np.ndarray, left: np.ndarray, right: np.ndarray) -> Pairs:
    score = np.zeros(len(left), np.float32)
    for start in range(0, len(left), _CHUNK):
        part = slice(start, start + _CHUNK)
        score[part] = _correlation(details, inner, left[part], right[part])
    same = score >= np.float32(SAME)
    return left[same], right[same], score[same]


def _correlation(details: np.ndarray, inner: np.ndarray, left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """As they are where that is enough; else of the shift that fits best."""
    score = _overlaid(details, inner, left, right, [_MIDDLE])
    rest = np.flatnonzero(score < np.float32(SAME))
    others = [shift for shift in range(len(_SHIFTS)) if shift != _MIDDLE]
    shifted = _overlaid(details, inner, left[rest], right[rest], others)
    score[rest] = np.maximum(score[rest], shifted)
    return score


def _overlaid(
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
