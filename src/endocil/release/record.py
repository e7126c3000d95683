"""A comparison as plain data, for `endocil compare --json` and for its page."""

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from endocil.metrics.intervals import Distance, Figure, Share
from endocil.metrics.statistics import LEVEL, Bools
from endocil.release.compare import RESAMPLES, ClassChange, Comparison, Flags, Pair
from endocil.release.gate import Check, Verdict
from endocil.release.versions import Evaluation

Record = dict[str, Any]


@dataclass(frozen=True)
class Flip:
    """An image for which only one of the two versions is correct."""

    image: str
    group: str
    class_name: str
    kind: str  # "negative": the old version is correct; "positive": the new one
    old: str  # predicted class
    old_probability: float
    new: str
    new_probability: float


def record(evaluation: Evaluation, comparison: Comparison, verdict: Verdict | None) -> Record:
    """Percentages and points, with 95 % intervals as [low, high]; None where there is none."""
    tested = comparison.versions.tested
    return {
        "verdict": "no rules" if verdict is None else "pass" if verdict.passed else "refused",
        "line": "No rules were given; nothing is refused." if verdict is None else verdict.line,
        "checks": [] if verdict is None else [_check(check) for check in verdict.checks],
        "old": asdict(evaluation.old),
        "new": asdict(evaluation.new),
        "new_made_from_old": evaluation.is_descendant,
        "head": evaluation.head,
        "test": {
            "name": evaluation.test,
            "images": len(evaluation.table),
            "compared": len(tested.images),
            "of_classes_the_old_version_knows": int(comparison.versions.base.sum()),
            "groups": int(tested.units.max()) + 1 if tested.grouped else None,
        },
        "method": method(comparison),
        "classes": [_class(each) for each in comparison.classes],
        "overall": _overall(comparison),
        "calibration": _calibration(comparison),
        "flags": [_flags(each) for each in comparison.flags],
        "flips": [asdict(flip) for flip in flips(evaluation, comparison)],
        "unknown_classes": [{"image": image, "class": name} for image, name in comparison.versions.left_out],
        "unreadable": [{"image": image, "reason": reason} for image, reason in evaluation.unreadable],
        "inside_a_model": [{"image": image, "version": version} for image, version in evaluation.inside],
    }


def method(comparison: Comparison) -> str:
    return (
        f"Intervals of 95 % over {comparison.versions.tested.described()}: for shares, from the lower low end to the "
        f"higher high end of the paired percentile bootstrap ({RESAMPLES:,} resamples, the same for both versions) "
        f"and of a score interval (Wilson's for a share, Tango's for a change; images of a group count as if they all "
        f"had the same result); for macro F1 and changes of the calibration error the percentile bootstrap; for the "
        f"calibration error itself the basic bootstrap, down to 0 where chance alone could have made it. Classes keep "
        f"their sizes in the resamples of sensitivity, specificity and macro F1."
    )


def flips(evaluation: Evaluation, comparison: Comparison) -> list[Flip]:
    """Of the images of classes that the old version knows, negative ones first, class by class."""
    versions = comparison.versions
    lost = versions.base & versions.old.correct & ~versions.new.correct
    gained = versions.base & ~versions.old.correct & versions.new.correct
    group_of = dict(zip(evaluation.table.ids, evaluation.table.groups, strict=True))
    return [
        *_flips(comparison, "negative", lost, group_of),
        *_flips(comparison, "positive", gained, group_of),
    ]


def _flips(comparison: Comparison, kind: str, selected: Bools, group_of: dict[str, str]) -> Iterator[Flip]:
    versions, tested = comparison.versions, comparison.versions.tested
    rows = np.flatnonzero(selected)
    for row in rows[np.argsort(tested.labels[rows], kind="stable")].tolist():
        old, new = (versions.classes[each.predicted[row]] for each in (versions.old, versions.new))
        yield Flip(
            tested.images[row],
            group_of[tested.images[row]],
            versions.classes[tested.labels[row]],
            kind,
            old,
            float(versions.old.confidence[row]),
            new,
            float(versions.new.confidence[row]),
        )


def _check(check: Check) -> Record:
    return asdict(check) | {
        "value": _number(check.value),
        "interval": check.interval and list(check.interval),
    }


def figure(own: Figure | None) -> Record | None:
    """A number with its interval and the number of images."""
    if own is None or not own.n:
        return None
    low, high = own.interval(LEVEL)
    record = {"value": _number(own.value), "interval": [_number(low), _number(high)], "images": own.n}
    if isinstance(own, Share):
        record["right"] = own.right
    if isinstance(own, Distance):
        record["by_chance"] = _number(float(np.mean(own.by_chance)))
    return record


def pair(own: Pair[Any, Any]) -> Record:
    return {"old": figure(own.old), "new": figure(own.new), "change": figure(own.change)}


def _class(each: ClassChange) -> Record:
    return {
        "class": each.name,
        "status": each.status,
        "images": each.images,
        "groups": each.groups,
        "sensitivity": pair(each.sensitivity),
        "specificity": pair(each.specificity),
        "specificity_all_images": pair(each.specificity_all),
    }


def _overall(comparison: Comparison) -> Record:
    return {
        "accuracy": pair(comparison.accuracy),
        "macro_f1": pair(comparison.macro_f1),
        "accuracy_all_images": figure(comparison.accuracy_all),
        "positive_flips": _count(comparison.positive),
        "negative_flips": _count(comparison.negative),
        "mcnemar_p": comparison.p_exact,
        "p_by_group": comparison.p_by_group,
    }


def _count(share: Share) -> Record | None:
    record = figure(share)
    return record and {"flips" if key == "right" else key: value for key, value in record.items()}


def _calibration(comparison: Comparison) -> Record:
    bins = dict(zip(("old", "new"), comparison.reliability, strict=True))
    return {
        "error": pair(comparison.calibration),
        "error_all_images": figure(comparison.calibration_all),
        "bins": {version: [asdict(each) for each in own] for version, own in bins.items()},
    }


def _flags(each: Flags) -> Record:
    return {"images_of_classes": each.where, "old": figure(each.old), "new": figure(each.new)}


def _number(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else round(value, 6)
