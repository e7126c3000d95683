"""What an audit finds: pure functions of a table, its fingerprints, its near duplicates and its split."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np

from endocil.audit.fingerprints import Fingerprints
from endocil.audit.leaks import exact_in_train, frame_in_train
from endocil.audit.near import NearDuplicates
from endocil.images.table import ImageTable
from endocil.scenario import Scenario
from endocil.splitting import TEST, TRAIN, VALIDATION

Rows = tuple[int, ...]
Pair = tuple[int, int, float]  # two rows and their correlation


def exact_duplicates(digests: np.ndarray) -> list[Rows]:
    """Rows of exact duplicates, the largest set first."""
    rows_of: dict[str, list[int]] = defaultdict(list)
    for row, digest in enumerate(digests.tolist()):
        if digest:
            rows_of[digest].append(row)
    sets = [tuple(rows) for rows in rows_of.values() if len(rows) > 1]
    return sorted(sets, key=lambda rows: (-len(rows), rows))


def groups_of(near: NearDuplicates) -> list[Rows]:
    """Rows of each group of near duplicates, the largest first; images alone are left out."""
    rows_of: dict[int, list[int]] = defaultdict(list)
    for row, first in enumerate(near.first.tolist()):
        rows_of[first].append(row)
    groups = [tuple(rows) for rows in rows_of.values() if len(rows) > 1]
    return sorted(groups, key=lambda rows: (-len(rows), rows))


def label_conflicts(table: ImageTable, sets: Sequence[Rows]) -> list[Rows]:
    """Exact duplicates with more than one class: the same picture, two answers."""
    return [rows for rows in sets if len({int(table.labels[row]) for row in rows}) > 1]


def pairs_where(near: NearDuplicates, wanted: np.ndarray) -> list[Pair]:
    """The pairs that a mask over pairs chooses, the strongest first."""
    chosen = np.flatnonzero(wanted)
    order = chosen[np.lexsort((near.right[chosen], near.left[chosen], -near.score[chosen]))]
    left, right, score = near.left[order], near.right[order], near.score[order]
    return list(zip(left.tolist(), right.tolist(), score.tolist(), strict=True))


def across_classes(table: ImageTable, near: NearDuplicates) -> np.ndarray:
    """(P,) bool: pairs of two classes."""
    return np.asarray(table.labels[near.left] != table.labels[near.right])


def across_split(part: np.ndarray, near: NearDuplicates) -> np.ndarray:
    """(P,) bool: pairs with one image in train and the other in test."""
    left, right = part[near.left], part[near.right]
    return np.asarray(((left == TRAIN) & (right == TEST)) | ((left == TEST) & (right == TRAIN)))


def groups_across_split(table: ImageTable, part: np.ndarray) -> list[tuple[str, int, int]]:
    """(group, training images, test images) of the groups that are on both sides, most test images first."""
    train, test = (
        Counter(group for group, here in zip(table.groups, part, strict=True) if here == name and group)
        for name in (TRAIN, TEST)
    )
    both = [(group, train[group], test[group]) for group in train.keys() & test.keys()]
    return sorted(both, key=lambda found: (-found[2], found[0]))


def exact_across_split(digests: np.ndarray, part: np.ndarray) -> int:
    """Test images whose pixels are in the training part."""
    return int(exact_in_train(digests, part).sum())


def frames_across_split(table: ImageTable, part: np.ndarray) -> dict[int, int]:
    """Test images with a training frame of their video at most 1 and at most 2 away."""
    return {distance: int(frame_in_train(table, part, distance).sum()) for distance in (1, 2)}


def sizes(prints: Fingerprints) -> list[tuple[str, int]]:
    """(width x height, images), the most frequent first."""
    shown = Counter(f"{w} x {h}" if w else "not told" for w, h in prints.sizes[prints.readable].tolist())
    return sorted(shown.items(), key=lambda found: (-found[1], found[0]))


def colours_by_source(table: ImageTable, prints: Fingerprints) -> list[dict[str, Any]]:
    """Means over the images of each source, of the view alone; deviation of the brightness between images."""
    sources = np.array([source or "not told" for source in table.sources], dtype=object)
    found = []
    for source in sorted(set(sources[prints.readable].tolist())):
        mine = prints.colours[(sources == source) & prints.readable].astype(np.float64)
        red, green, blue, brightness, view = mine.mean(0).tolist()
        means = {"red": red, "green": green, "blue": blue, "brightness": brightness}
        spread = float(mine[:, 3].std())
        found.append(
            {"source": source, "images": len(mine), **means, "brightness_deviation": spread, "view": view}
        )
    return found


def counts_by_class(table: ImageTable, scenario: Scenario | None) -> list[dict[str, Any]]:
    """Images of each class in its task and parts; without a split, images alone."""
    whole = table.counts().tolist()
    if scenario is None:
        return [{"class": name, "images": n} for name, n in zip(table.classes, whole, strict=True)]
    task_of = {label: t.index for t in scenario.tasks for label in range(t.n_old, t.n_seen)}
    parts = {name: scenario.counts(name).tolist() for name in (TRAIN, VALIDATION, TEST)}
    return [
        {"class": name, "task": task_of[label], "images": whole[label]}
        | {part: counts[label] for part, counts in parts.items()}
        for label, name in enumerate(table.classes)
    ]
