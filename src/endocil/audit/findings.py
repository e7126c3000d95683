"""The findings of an audit: pure functions of a table, its fingerprints, its near duplicates and its split.

`summary` is the record that the page shows and the JSON file beside it holds.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np

from endocil.data import near_duplicates as search
from endocil.data.fingerprints import Fingerprints
from endocil.data.leaks import DEFINITIONS, RATES, exact_in_train, frame_in_train, leak_rate
from endocil.data.near_duplicates import NearDuplicates
from endocil.data.scenario import Scenario
from endocil.data.splits import TEST, TRAIN, VALIDATION
from endocil.data.table import ImageTable

Rows = tuple[int, ...]
Pair = tuple[int, int, float]  # two rows and their correlation
Record = dict[str, Any]

LISTED = 1000  # of each kind; counts are of all, or of at least so many
RULE = (
    f"Near duplicates: detail at 32 x 32 correlates by at least {search.SAME}, shifted by up to {search.SHIFT} pixels; "
    f"candidates correlate by at least {search.SEARCH} at 16 x 16. A group is connected by pairs."
)


def summary(
    title: str,
    table: ImageTable,
    prints: Fingerprints,
    near: NearDuplicates,
    scenario: Scenario | None,
    unreadable: tuple[tuple[str, str], ...] = (),
) -> Record:
    """`table` and `prints` are of the readable images; rows of `near` and of the scenario are theirs."""
    part = None if scenario is None else scenario.part
    return {
        "title": title,
        "images": len(table),
        "classes": len(table.classes),
        "notes": list(table.notes) + list(scenario.notes if scenario else ()),
        "unreadable": [{"image": name, "reason": reason} for name, reason in unreadable],
        "rule": RULE,
        "leaks": None if part is None else leak_rate(table, part, digests=prints.digests, near=near),
        "definitions": DEFINITIONS,
        **_duplicates(table, prints, near),
        "across_split": None if part is None else _across_split(table, prints, near, part),
        "counts": counts_by_class(table, scenario),
        "sizes": [{"size": size, "images": n} for size, n in sizes(prints)],
        "sources": colours_by_source(table, prints),
    }


def leaks_exist(record: Record) -> bool:
    """Whether any test image is known in the training part, by any of the rates."""
    rates = {name: rate for name, rate in (record["leaks"] or {}).items() if name != "test_images"}
    return any(rate for rate in rates.values())


def lines(record: Record) -> list[str]:
    """The audit in a few lines, for the terminal and the top of the page."""
    exact, near = record["exact"], record["near"]
    shown = [
        f"{record['images']:,} images in {record['classes']} classes; {len(record['unreadable']):,} cannot be read",
        f"exact duplicates: {exact['images']:,} images in {exact['sets']:,} sets, "
        f"{record['conflicts']['sets']:,} of them with two classes",
        f"near duplicates: {near['pairs']:,} pairs; {near['images']:,} images in {near['groups']:,} groups; "
        f"{counted(record['across_classes'])} pairs of two classes",
    ]
    split = record["across_split"]
    if split is None:
        return [*shown, "no split: give a settings file to see what leaks from train to test"]
    rates = {name: rate for name, rate in record["leaks"].items() if rate is not None}
    n = rates.pop("test_images")
    shown.append(f"across train and test: {counted(split['near'])} near-duplicate pairs")
    least = {} if split["near"]["all"] else {"near_in_train": "at least "}
    leaks = (f"{RATES[name]} {least.get(name, '')}{100 * rate:.1f} %" for name, rate in rates.items())
    return [*shown, f"of {n:,} test images, in train: {', '.join(leaks)}"]


def counted(pairs: Record) -> str:
    """The number of pairs of a kind, in words."""
    return f"{'' if pairs['all'] else 'at least '}{pairs['pairs']:,}"


def _duplicates(table: ImageTable, prints: Fingerprints, near: NearDuplicates) -> Record:
    exact = exact_duplicates(prints.digests)
    conflicts = label_conflicts(table, exact)
    groups = groups_of(near)
    return {
        "exact": {"sets": len(exact), "images": sum(map(len, exact)), "listed": _sets(table, exact)},
        "conflicts": {"sets": len(conflicts), "listed": _sets(table, conflicts)},
        "near": {
            "pairs": near.total,
            "groups": len(groups),
            "images": sum(map(len, groups)),
            "listed": _sets(table, groups),
            "worst": _pairs(table, near, np.ones(len(near.left), bool)),
        },
        "across_classes": _kind(table, near, across_classes(table, near)),
    }


def _across_split(table: ImageTable, prints: Fingerprints, near: NearDuplicates, part: np.ndarray) -> Record:
    groups = groups_across_split(table, part)
    frames = frames_across_split(table, part)
    return {
        "exact_images": exact_across_split(prints.digests, part),
        "near": _kind(table, near, across_split(part, near)),
        "groups": len(groups),
        "listed_groups": [{"group": g, "train": a, "test": b} for g, a, b in groups[:LISTED]],
        "frames_1": frames[1],
        "frames_2": frames[2],
    }


def _kind(table: ImageTable, near: NearDuplicates, mask: np.ndarray) -> Record:
    """Pairs of a kind; where not all pairs were kept, there may be more."""
    return {"pairs": int(mask.sum()), "all": near.complete, "worst": _pairs(table, near, mask)}


def _pairs(table: ImageTable, near: NearDuplicates, mask: np.ndarray) -> list[Record]:
    return [
        {
            "images": [table.ids[left], table.ids[right]],
            "classes": [table.classes[table.labels[left]], table.classes[table.labels[right]]],
            "group": table.ids[near.first[left]],
            "correlation": round(score, 4),
        }
        for left, right, score in pairs_where(near, mask)[:LISTED]
    ]


def _sets(table: ImageTable, sets: list[Rows]) -> list[Record]:
    return [
        {
            "images": [table.ids[row] for row in rows],
            "classes": dict(Counter(table.classes[table.labels[row]] for row in rows)),
        }
        for rows in sets[:LISTED]
    ]


def exact_duplicates(digests: np.ndarray) -> list[Rows]:
    """Rows of exact duplicates, the largest set first."""
    rows_of: dict[str, list[int]] = defaultdict(list)
    for row, digest in enumerate(digests.tolist()):
        if digest:
            rows_of[digest].append(row)
    sets = [tuple(rows) for rows in rows_of.values() if len(rows) > 1]
    return sorted(sets, key=lambda rows: (-len(rows), rows))


def groups_of(near: NearDuplicates) -> list[Rows]:
    """Rows of each group of near duplicates, the largest first; images without near duplicates are left out."""
    rows_of: dict[int, list[int]] = defaultdict(list)
    for row, first in enumerate(near.first.tolist()):
        rows_of[first].append(row)
    groups = [tuple(rows) for rows in rows_of.values() if len(rows) > 1]
    return sorted(groups, key=lambda rows: (-len(rows), rows))


def label_conflicts(table: ImageTable, sets: Sequence[Rows]) -> list[Rows]:
    """Exact duplicates with more than one class."""
    return [rows for rows in sets if len({int(table.labels[row]) for row in rows}) > 1]


def pairs_where(near: NearDuplicates, mask: np.ndarray) -> list[Pair]:
    """The pairs that a mask over pairs chooses, the strongest first."""
    chosen = np.flatnonzero(mask)
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
    return sorted(both, key=lambda entry: (-entry[2], entry[0]))


def exact_across_split(digests: np.ndarray, part: np.ndarray) -> int:
    """Test images whose pixels are in the training part."""
    return int(exact_in_train(digests, part).sum())


def frames_across_split(table: ImageTable, part: np.ndarray) -> dict[int, int]:
    """Test images with a training frame of their video at most 1 and at most 2 away."""
    return {distance: int(frame_in_train(table, part, distance).sum()) for distance in (1, 2)}


def sizes(prints: Fingerprints) -> list[tuple[str, int]]:
    """(width x height, images), the most frequent first."""
    shown = Counter(f"{w} x {h}" if w else "unknown" for w, h in prints.sizes[prints.readable].tolist())
    return sorted(shown.items(), key=lambda entry: (-entry[1], entry[0]))


def colours_by_source(table: ImageTable, prints: Fingerprints) -> list[dict[str, Any]]:
    """Means over the images of each source, of the view alone; deviation of the brightness between images."""
    sources = np.array([source or "unknown" for source in table.sources], dtype=object)
    rows = []
    for source in sorted(set(sources[prints.readable].tolist())):
        colours = prints.colours[(sources == source) & prints.readable].astype(np.float64)
        red, green, blue, brightness, view = colours.mean(0).tolist()
        means = {"red": red, "green": green, "blue": blue, "brightness": brightness}
        spread = float(colours[:, 3].std())
        rows.append(
            {"source": source, "images": len(colours), **means, "brightness_deviation": spread, "view": view}
        )
    return rows


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
