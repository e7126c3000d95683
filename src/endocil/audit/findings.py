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
Record = dict[str, Any]

LISTED = 1000  # of each kind; a count covers all, or at least this many
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
    exact, groups = rows_with_equal(prints.digests), rows_with_equal(near.first)
    conflicts = label_conflicts(table, exact)
    return {
        "title": title,
        "images": len(table),
        "classes": len(table.classes),
        "notes": list(table.notes) + list(scenario.notes if scenario else ()),
        "unreadable": [{"image": name, "reason": reason} for name, reason in unreadable],
        "rule": RULE,
        "leaks": None if part is None else leak_rate(table, part, digests=prints.digests, near=near),
        "definitions": DEFINITIONS,
        "exact": {"sets": len(exact), "images": sum(map(len, exact)), "listed": _sets(table, exact)},
        "conflicts": {"sets": len(conflicts), "listed": _sets(table, conflicts)},
        "near": {
            "pairs": near.total,
            "groups": len(groups),
            "images": sum(map(len, groups)),
            "listed": _sets(table, groups),
            "worst": strongest_pairs(table, near, np.ones(len(near.left), bool)),
        },
        "across_classes": _counted_pairs(table, near, across_classes(table, near)),
        "across_split": None if part is None else _across_split(table, prints, near, part),
        "counts": counts_by_class(table, scenario),
        "sizes": [{"size": size, "images": n} for size, n in sizes(prints)],
        "sources": colours_by_source(table, prints),
    }


def leaks_exist(record: Record) -> bool:
    """Whether any test image is known in the training part, by any of the rates."""
    return any(rate for name, rate in (record["leaks"] or {}).items() if name != "test_images")


def lines(record: Record) -> list[str]:
    """The audit in a few lines, for the terminal and the top of the page."""
    exact, near, split = record["exact"], record["near"], record["across_split"]
    shown = [
        f"{record['images']:,} image{'s' * (record['images'] != 1)} in {record['classes']} "
        f"class{'es' * (record['classes'] != 1)}; {len(record['unreadable']):,} cannot be read",
        f"exact duplicates: {exact['images']:,} images in {exact['sets']:,} sets, "
        f"{record['conflicts']['sets']:,} of them with two classes",
        f"near duplicates: {near['pairs']:,} pairs; {near['images']:,} images in {near['groups']:,} groups; "
        f"{number_of(record['across_classes'])} pairs of two classes",
    ]
    if split is None:
        return [*shown, "no split: give a settings file to see what leaks from train to test"]
    rates = {name: rate for name, rate in record["leaks"].items() if rate is not None}
    n = rates.pop("test_images")
    least = {} if split["near"]["all"] else {"near_in_train": "at least "}
    leaks = (f"{RATES[name]} {least.get(name, '')}{100 * rate:.1f} %" for name, rate in rates.items())
    return [
        *shown,
        f"across train and test: {number_of(split['near'])} near-duplicate pairs",
        f"of {n:,} test images, in train: {', '.join(leaks)}",
    ]


def number_of(pairs: Record) -> str:
    """The number of pairs of a kind, in words."""
    return f"{'' if pairs['all'] else 'at least '}{pairs['pairs']:,}"


def _across_split(table: ImageTable, prints: Fingerprints, near: NearDuplicates, part: np.ndarray) -> Record:
    groups = groups_across_split(table, part)
    return {
        "exact_images": int(exact_in_train(prints.digests, part).sum()),
        "near": _counted_pairs(table, near, across_split(part, near)),
        "groups": len(groups),
        "listed_groups": [{"group": g, "train": a, "test": b} for g, a, b in groups[:LISTED]],
        "frames_1": int(frame_in_train(table, part, 1).sum()),
        "frames_2": int(frame_in_train(table, part, 2).sum()),
    }


def _counted_pairs(table: ImageTable, near: NearDuplicates, mask: np.ndarray) -> Record:
    """Pairs of a kind; where not all pairs were kept, there may be more."""
    return {"pairs": int(mask.sum()), "all": near.complete, "worst": strongest_pairs(table, near, mask)}


def strongest_pairs(table: ImageTable, near: NearDuplicates, mask: np.ndarray) -> list[Record]:
    """The pairs that a mask over pairs chooses, the strongest first."""
    chosen = np.flatnonzero(mask)
    order = chosen[np.lexsort((near.right[chosen], near.left[chosen], -near.score[chosen]))][:LISTED]
    pairs = zip(near.left[order].tolist(), near.right[order].tolist(), near.score[order].tolist(), strict=True)
    return [
        {
            "images": [table.ids[left], table.ids[right]],
            "classes": [table.classes[table.labels[left]], table.classes[table.labels[right]]],
            "group": table.ids[near.first[left]],
            "correlation": round(score, 4),
        }
        for left, right, score in pairs
    ]


def _sets(table: ImageTable, sets: list[Rows]) -> list[Record]:
    return [
        {
            "images": [table.ids[row] for row in rows],
            "classes": dict(Counter(table.classes[table.labels[row]] for row in rows)),
        }
        for rows in sets[:LISTED]
    ]


def rows_with_equal(keys: np.ndarray) -> list[Rows]:
    """Sets of two or more rows with the same key, the largest set first; an empty text is no key."""
    rows_of: dict[Any, list[int]] = defaultdict(list)
    for row, key in enumerate(keys.tolist()):
        if key != "":
            rows_of[key].append(row)
    sets = [tuple(rows) for rows in rows_of.values() if len(rows) > 1]
    return sorted(sets, key=lambda rows: (-len(rows), rows))


def label_conflicts(table: ImageTable, sets: Sequence[Rows]) -> list[Rows]:
    """Exact duplicates with more than one class."""
    return [rows for rows in sets if len({int(table.labels[row]) for row in rows}) > 1]


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


def sizes(prints: Fingerprints) -> list[tuple[str, int]]:
    """(width x height, images), the most frequent first."""
    counts = Counter(f"{w} x {h}" if w else "unknown" for w, h in prints.sizes[prints.readable].tolist())
    return sorted(counts.items(), key=lambda entry: (-entry[1], entry[0]))


def colours_by_source(table: ImageTable, prints: Fingerprints) -> list[Record]:
    """Means over the images of each source, of the view alone; deviation of the brightness between images."""
    sources = np.array([source or "unknown" for source in table.sources], dtype=object)
    rows = []
    for source in sorted(set(sources[prints.readable].tolist())):
        colours = prints.colours[(sources == source) & prints.readable].astype(np.float64)
        red, green, blue, brightness, view = colours.mean(0).tolist()
        means = {"red": red, "green": green, "blue": blue, "brightness": brightness}
        spread = float(colours[:, 3].std())
        rows.append({"source": source, "images": len(colours), **means, "brightness_deviation": spread, "view": view})
    return rows


def counts_by_class(table: ImageTable, scenario: Scenario | None) -> list[Record]:
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
