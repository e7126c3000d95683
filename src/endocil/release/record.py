"""A comparison as plain data, for `endocil compare --json` and for its page."""

import math
from dataclasses import asdict
from typing import Any

import numpy as np

from endocil.metrics.intervals import Distance, Figure, Share
from endocil.metrics.statistics import LEVEL
from endocil.release.compare import RESAMPLES, Comparison, Pair
from endocil.release.gate import Verdict
from endocil.release.versions import Evaluation

Record = dict[str, Any]
FLIP_COLUMNS = ("image", "group", "class_name", "kind", "old", "old_probability", "new", "new_probability")


def record(evaluation: Evaluation, comparison: Comparison, verdict: Verdict | None) -> Record:
    """Percentages and points, with 95 % intervals as [low, high]; None where there is none."""
    versions, tested = comparison.versions, comparison.versions.tested
    return {
        "verdict": "no rules" if verdict is None else "pass" if verdict.passed else "refused",
        "line": "No rules were given; nothing is refused." if verdict is None else verdict.line,
        "checks": [
            asdict(check) | {"value": _number(check.value), "interval": check.interval and list(check.interval)}
            for check in (verdict.checks if verdict else ())
        ],
        "old": evaluation.old,
        "new": evaluation.new,
        "new_made_from_old": evaluation.is_descendant,
        "head": evaluation.head,
        "test": {
            "name": evaluation.test,
            "images": len(evaluation.table),
            "compared": len(tested.images),
            "of_classes_the_old_version_knows": int(versions.base.sum()),
            "groups": int(tested.units.max()) + 1 if tested.grouped else None,
        },
        "method": _method(comparison),
        "classes": [
            {
                "class": each.name,
                "status": each.status,
                "images": each.images,
                "groups": each.groups,
                "sensitivity": _pair(each.sensitivity),
                "specificity": _pair(each.specificity),
                "specificity_all_images": _pair(each.specificity_all),
            }
            for each in comparison.classes
        ],
        "sources": [
            {"source": each.name, "images": each.accuracy.old.n if each.accuracy.old else 0}
            | {"accuracy": _pair(each.accuracy)}
            for each in comparison.sources
        ],
        "overall": {
            "accuracy": _pair(comparison.accuracy),
            "macro_f1": _pair(comparison.macro_f1),
            "accuracy_all_images": _figure(comparison.accuracy_all),
            "positive_flips": _figure(comparison.positive, count="flips"),
            "negative_flips": _figure(comparison.negative, count="flips"),
            "mcnemar_p": comparison.p_exact,
            "p_by_group": comparison.p_by_group,
        },
        "calibration": {
            "error": _pair(comparison.calibration),
            "error_all_images": _figure(comparison.calibration_all),
            "bins": {
                version: [asdict(each) for each in bins]
                for version, bins in zip(("old", "new"), comparison.reliability, strict=True)
            },
        },
        "flags": [
            {"images_of_classes": each.where, "old": _figure(each.old), "new": _figure(each.new)}
            for each in comparison.flags
        ],
        "flips": _flips(evaluation, comparison),
        "unknown_classes": [{"image": image, "class": name} for image, name in versions.left_out],
        "unreadable": [{"image": image, "reason": reason} for image, reason in evaluation.unreadable],
        "inside_a_model": [{"image": image, "version": version} for image, version in evaluation.inside],
    }


def _method(comparison: Comparison) -> str:
    return (
        f"Intervals of 95 % over {comparison.versions.tested.describe()}: for shares, from the lower low end to the "
        f"higher high end of the paired percentile bootstrap ({RESAMPLES:,} resamples, the same for both versions) "
        f"and of a score interval (Wilson's for a share, Tango's for a change; images of a group count as if they all "
        f"had the same result); for macro F1 and changes of the calibration error the percentile bootstrap; for the "
        f"calibration error itself the basic bootstrap, down to 0 where chance alone could have made it. Classes keep "
        f"their sizes in the resamples of sensitivity, specificity and macro F1."
    )


def _flips(evaluation: Evaluation, comparison: Comparison) -> list[Record]:
    """The images for which only one version is correct: the old one (negative flips), then the new one; by class.

    Images of classes that the old version knows."""
    versions, tested = comparison.versions, comparison.versions.tested
    old, new = versions.old, versions.new
    group_of = dict(zip(evaluation.table.ids, evaluation.table.groups, strict=True))
    flips = []
    for kind, selected in (("negative", old.correct & ~new.correct), ("positive", ~old.correct & new.correct)):
        rows = np.flatnonzero(versions.base & selected)
        for row in rows[np.argsort(tested.labels[rows], kind="stable")].tolist():
            image, label = tested.images[row], versions.classes[tested.labels[row]]
            sides = [(versions.classes[own.predicted[row]], float(own.confidence[row])) for own in (old, new)]
            values = (image, group_of[image], label, kind, *sides[0], *sides[1])
            flips.append(dict(zip(FLIP_COLUMNS, values, strict=True)))
    return flips


def _pair(pair: Pair[Any, Any]) -> Record:
    return {"old": _figure(pair.old), "new": _figure(pair.new), "change": _figure(pair.change)}


def _figure(figure: Figure | None, count: str = "right") -> Record | None:
    """A number with its interval and the number of images; `count`: the name of the number that a share counts."""
    if figure is None or not figure.n:
        return None
    low, high = figure.interval(LEVEL)
    record = {"value": _number(figure.value), "interval": [_number(low), _number(high)], "images": figure.n}
    if isinstance(figure, Share):
        record[count] = figure.right
    if isinstance(figure, Distance):
        record["by_chance"] = _number(float(np.mean(figure.by_chance)))
    return record


def _number(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else round(value, 6)
