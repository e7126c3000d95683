"""An audit as one record: what the page shows, and what stands in the JSON file beside it."""

from collections import Counter
from typing import Any

import numpy as np

from endocil.audit import findings, search
from endocil.audit.fingerprints import Fingerprints
from endocil.audit.leaks import DEFINITIONS, RATES, leak_rate
from endocil.audit.near import NearDuplicates
from endocil.images.table import ImageTable
from endocil.scenario import Scenario

LISTED = 1000  # of each kind; counts are of all, or say that they are the least there can be
RULE = (
    f"Near duplicates: detail at 32 x 32 correlates by at least {search.SAME}, shifted by up to {search.SHIFT} pixels; "
    f"candidates correlate by at least {search.SEARCH} at 16 x 16. A group is connected by pairs."
)

Record = dict[str, Any]


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
        "counts": findings.counts_by_class(table, scenario),
        "sizes": [{"size": size, "images": n} for size, n in findings.sizes(prints)],
        "sources": findings.colours_by_source(table, prints),
    }


def leaks_exist(record: Record) -> bool:
    """Whether any test image is known in the training part, by any of the rates."""
    rates = {name: rate for name, rate in (record["leaks"] or {}).items() if name != "test_images"}
    return any(rate for rate in rates.values())


def lines(record: Record) -> list[str]:
    """The audit in a few lines, for the terminal and the head of the page."""
    exact, near = record["exact"], record["near"]
    found = [
        f"{record['images']:,} images in {record['classes']} classes; {len(record['unreadable']):,} cannot be read",
        f"exact duplicates: {exact['images']:,} images in {exact['sets']:,} sets, "
        f"{record['conflicts']['sets']:,} of them with two classes",
        f"near duplicates: {near['pairs']:,} pairs; {near['images']:,} images in {near['groups']:,} groups; "
        f"{counted(record['across_classes'])} pairs of two classes",
    ]
    split = record["across_split"]
    if split is None:
        return [*found, "no split: give a settings file to see what leaks from train to test"]
    rates = {name: rate for name, rate in record["leaks"].items() if rate is not None}
    n = rates.pop("test_images")
    found.append(f"across train and test: {counted(split['near'])} near-duplicate pairs")
    least = {} if split["near"]["all"] else {"near_in_train": "at least "}
    shown = (f"{RATES[name]} {least.get(name, '')}{100 * rate:.1f} %" for name, rate in rates.items())
    return [*found, f"of {n:,} test images, in train: {', '.join(shown)}"]


def counted(found: Record) -> str:
    """The number of pairs of a kind, in words."""
    return f"{'' if found['all'] else 'at least '}{found['pairs']:,}"


def _duplicates(table: ImageTable, prints: Fingerprints, near: NearDuplicates) -> Record:
    exact = findings.exact_duplicates(prints.digests)
    conflicts = findings.label_conflicts(table, exact)
    groups = findings.groups_of(near)
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
        "across_classes": _kind(table, near, findings.across_classes(table, near)),
    }


def _across_split(table: ImageTable, prints: Fingerprints, near: NearDuplicates, part: np.ndarray) -> Record:
    groups = findings.groups_across_split(table, part)
    frames = findings.frames_across_split(table, part)
    return {
        "exact_images": findings.exact_across_split(prints.digests, part),
        "near": _kind(table, near, findings.across_split(part, near)),
        "groups": len(groups),
        "listed_groups": [{"group": g, "train": a, "test": b} for g, a, b in groups[:LISTED]],
        "frames_1": frames[1],
        "frames_2": frames[2],
    }


def _kind(table: ImageTable, near: NearDuplicates, wanted: np.ndarray) -> Record:
    """Where not all pairs were kept, there are at least so many."""
    return {"pairs": int(wanted.sum()), "all": near.complete, "worst": _pairs(table, near, wanted)}


def _pairs(table: ImageTable, near: NearDuplicates, wanted: np.ndarray) -> list[Record]:
    return [
        {
            "images": [table.ids[left], table.ids[right]],
            "classes": [table.classes[table.labels[left]], table.classes[table.labels[right]]],
            "group": table.ids[near.first[left]],
            "correlation": round(score, 4),
        }
        for left, right, score in findings.pairs_where(near, wanted)[:LISTED]
    ]


def _sets(table: ImageTable, sets: list[findings.Rows]) -> list[Record]:
    return [
        {
            "images": [table.ids[row] for row in rows],
            "classes": dict(Counter(table.classes[table.labels[row]] for row in rows)),
        }
        for rows in sets[:LISTED]
    ]
