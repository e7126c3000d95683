"""Near duplicates of a table: the pairs that the search finds, and the groups they make.

Groups are connected: two images are in one group where a chain of pairs leads from one to the other. Only so
does a split that keeps groups together leave no pair on both sides; a stricter rule would cut chains, and with
them pairs. A video that moves on slowly becomes one group, which is meant: its frames are of one patient.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from endocil.audit import measure, search, store
from endocil.audit.fingerprints import RULES as MEASURED
from endocil.audit.fingerprints import Fingerprints, Progress, fingerprints
from endocil.images.table import ImageTable

KEPT = 5_000_000  # pairs; where there are more, only the strongest of each image are kept: memory is bounded
PARTNERS = 200  # of each image, then; groups are made from all pairs, and all are counted
RULES = f"near duplicates 2, {search.SEARCH}, {search.SAME}, {search.SHIFT}, {KEPT}, {PARTNERS}, {MEASURED}"


@dataclass(frozen=True, eq=False)
class NearDuplicates:
    """Pairs of rows of a table, and the group of each row. Exact duplicates are among them."""

    left: np.ndarray  # (P,) row; its id is smaller than that of right
    right: np.ndarray  # (P,)
    score: np.ndarray  # (P,) correlation, from search.SAME to 1
    first: np.ndarray  # (N,) the row of the group that has the smallest id; itself for an image alone
    total: int  # pairs that were found; P unless they were too many to be kept

    @property
    def complete(self) -> bool:
        return self.total == len(self.left)


def near_duplicate_groups(
    table: ImageTable, *, folder: Path | None = None, progress: Progress | None = None
) -> tuple[str, ...]:
    """The group of each image, named after its smallest id; an image alone is a group of its own."""
    prints = fingerprints(table, folder=folder, progress=progress)
    return group_names(prints, near_duplicates_of(table, prints, folder=folder))


def group_names(prints: Fingerprints, near: NearDuplicates) -> tuple[str, ...]:
    return tuple(prints.ids[row] for row in near.first)


def near_duplicates_of(
    table: ImageTable,
    prints: Fingerprints,
    *,
    folder: Path | None = None,
    progress: Progress | None = None,
) -> NearDuplicates:
    """As `near_duplicates`, kept in the image cache until a file changes."""
    path = store.place(table, measure.READ, RULES, folder)
    kept = store.load(path, ("left", "right", "score", "first", "total"))
    if kept is not None and len(kept["first"]) == len(table):
        total = int(kept.pop("total"))
        return NearDuplicates(total=total, **kept)
    found = near_duplicates(prints, progress=progress)
    store.save(path, {**vars(found), "total": np.array(found.total)})
    return found


def near_duplicates(
    prints: Fingerprints, *, block: int = search.BLOCK, progress: Progress | None = None
) -> NearDuplicates:
    """Rows are taken in the order of their ids, so that the order of the table has no influence."""
    order = np.array(sorted(range(len(prints.ids)), key=prints.ids.__getitem__), np.int64)
    first = np.arange(len(order))  # from here on, rows are places in this order
    _connect(first, *_exact_links(prints.digests[order]))
    chosen = np.flatnonzero(prints.details[order].any((1, 2)))  # (M,) those with any detail
    kept: list[search.Pairs] = []
    total = 0
    for pairs in search.near_pairs(prints.details[order[chosen]], block, progress):
        left, right, score = pairs
        _connect(first, chosen[left], chosen[right])
        if total <= KEPT < total + len(left):
            kept = [_strongest(*earlier) for earlier in kept]
        total += len(left)
        kept.append(_strongest(*pairs) if total > KEPT else pairs)
    left, right, score = search.joined(kept)
    left, right = chosen[left], chosen[right]
    by_row = np.empty_like(first)
    by_row[order] = order[first]
    return NearDuplicates(order[left], order[right], score, by_row, total)


def _exact_links(digests: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Each image with the next one of the same digest: pictures without detail have no pairs."""
    by_digest = np.argsort(digests, kind="stable")
    one, other = by_digest[:-1], by_digest[1:]
    same = (digests[one] == digests[other]) & (digests[one] != "")
    return one[same], other[same]


def _connect(first: np.ndarray, left: np.ndarray, right: np.ndarray) -> None:
    """Join the groups of these pairs; `first` always leads straight to the smallest row of a group."""
    apart = first[left] != first[right]
    for one, other in zip(first[left[apart]].tolist(), first[right[apart]].tolist(), strict=True):
        one, other = _end(first, one), _end(first, other)
        first[max(one, other)] = min(one, other)
    while (first[first] != first).any():
        first[:] = first[first]


def _end(first: np.ndarray, row: int) -> int:
    while first[row] != row:
        row = int(first[row])
    return row


def _strongest(left: np.ndarray, right: np.ndarray, score: np.ndarray) -> search.Pairs:
    """Of each left row the PARTNERS best pairs, by row and strength."""
    by_strength = np.lexsort((right, -score, left))
    _, starts, counts = np.unique(left[by_strength], return_index=True, return_counts=True)
    rank = np.arange(len(by_strength)) - np.repeat(starts, counts)
    few = by_strength[rank < PARTNERS]
    return left[few], right[few], score[few]
