"""Two versions of a model on the same test images: what each class gains and loses, flips, calibration, flags.

Sensitivity of a class: the share of its images that are called so. Specificity: the share of the images of other
classes that are not called so. A class that the old version does not know has no sensitivity there; a class that the
new version has dropped is one it always misses."""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from endocil.release.drawing import Drawn, Numbers, Pair, Shares
from endocil.release.intervals import Distance, Resampled, Share
from endocil.release.reliability import Bin, calibration_measure, errors_by_chance, reliability
from endocil.release.versions import Versions, View
from endocil.statistics import Bools, Measure, bootstrap_p, macro_f1_measure, mcnemar_p

RESAMPLES = 10_000  # the ends of an interval that is corrected for many classes lie far out
CHANCES = 2_000  # of errors that chance alone makes
Status = Literal["known", "new", "dropped"]
Calibrations = Pair[Distance, Resampled]


@dataclass(frozen=True, eq=False)
class ClassChange:
    name: str
    status: Status
    images: int
    groups: int  # that hold them; as many as images where none are known
    sensitivity: Shares
    specificity: Shares  # on the images of classes that the old version knows
    specificity_all: Shares  # on all images


@dataclass(frozen=True, eq=False)
class Flags:
    """Shares of images flagged as unlike anything learned."""

    where: str
    old: Share | None
    new: Share | None


@dataclass(frozen=True, eq=False)
class Comparison:
    versions: Versions
    classes: tuple[ClassChange, ...]
    accuracy: Shares  # on the images of classes that the old version knows, as all that follows
    macro_f1: Numbers  # over the classes that the old version knows
    accuracy_all: Share  # the new version's, on all images
    positive: Share  # flips: old wrong, new right
    negative: Share
    p_exact: float  # McNemar's test; images count as independent
    p_by_group: float | None  # the bootstrap's, where there are groups
    calibration: Calibrations
    calibration_all: Distance  # the new version's, on all images
    reliability: tuple[tuple[Bin, ...], tuple[Bin, ...]]  # of the old and of the new version
    flags: tuple[Flags, ...]


def compare(versions: Versions, resamples: int = RESAMPLES) -> Comparison:
    """All figures; classes keep their sizes in the resamples of what belongs to a class, and of macro F1."""
    old, new, base = versions.old, versions.new, versions.base
    by_class = Drawn(versions, "f1", resamples, _class_shares(versions), _f1_measures(versions))
    mixed = Drawn(versions, "accuracy", resamples, _mixed_shares(versions), _error_measures(versions))
    accuracy, n = mixed.pair("old", "new"), int(base.sum())
    assert accuracy.change is not None
    return Comparison(
        versions,
        tuple(_class(versions, c, by_class) for c in range(len(versions.classes))),
        accuracy,
        Pair(
            by_class.number("f1 old", n), by_class.number("f1 new", n), by_class.change("f1 old", "f1 new", n)
        ),
        mixed.share("new on all"),
        mixed.share("positive"),
        mixed.share("negative"),
        mcnemar_p(old.right[base], new.right[base]),
        bootstrap_p(accuracy.change.drawn) if versions.tested.grouped else None,
        Pair(
            _error(mixed.number("error old", n), old, base),
            _error(mixed.number("error new", n), new, base),
            mixed.change("error old", "error new", n),
        ),
        _error(mixed.number("error all", len(base)), new, versions.every),
        (
            reliability(old.confidence[base], old.right[base]),
            reliability(new.confidence[base], new.right[base]),
        ),
        _flags(versions, mixed),
    )


def _class_shares(versions: Versions) -> dict[Hashable, tuple[Bools, Bools]]:
    labels, shares = versions.tested.labels, dict[Hashable, tuple[Bools, Bools]]()
    for c in range(len(versions.classes)):
        own = labels == c
        for which, view in (("old", versions.old), ("new", versions.new)):
            shares[c, "sensitivity", which] = (view.right, own)
            shares[c, "specificity", which] = (view.predicted != c, versions.base & ~own)
            shares[c, "specificity_all", which] = (view.predicted != c, ~own)
    return shares


def _class(versions: Versions, c: int, drawn: Drawn) -> ClassChange:
    in_old, in_new = bool(versions.old.known[c]), bool(versions.new.known[c])
    status: Status = "new" if not in_old else "known" if in_new else "dropped"
    own = versions.tested.labels == c
    groups = len(np.unique(versions.tested.units[own]))
    kinds = ("sensitivity", "specificity", "specificity_all")
    pairs = [drawn.pair((c, kind, "old"), (c, kind, "new")) for kind in kinds]
    if not in_old:
        pairs = [Pair(None, pair.new, None) for pair in pairs]
    return ClassChange(versions.classes[c], status, int(own.sum()), groups, *pairs)


def _f1_measures(versions: Versions) -> dict[Hashable, Measure]:
    """The mean over the classes of the old version that have images; what is called otherwise is a miss of its own
    class and no other's false alarm."""
    there = np.flatnonzero(
        np.bincount(versions.tested.labels[versions.base], minlength=len(versions.classes))
    )
    n = len(there)
    place = np.full(len(versions.classes), n)  # the last place is for all that is called otherwise
    place[there] = np.arange(n)
    labels = place[versions.tested.labels]
    return {
        f"f1 {which}": _without_last(macro_f1_measure(labels, place[view.predicted], n + 1, versions.base), n)
        for which, view in (("old", versions.old), ("new", versions.new))
    }


def _without_last(measure: Measure, n: int) -> Measure:
    """The mean over n classes of one over n + 1, of which the last is none and has no hits."""
    return Measure(measure.tally, lambda sums: measure.value(sums) * (n + 1) / n)


def _mixed_shares(versions: Versions) -> dict[Hashable, tuple[Bools, Bools]]:
    old, new, base = versions.old, versions.new, versions.base
    shares: dict[Hashable, tuple[Bools, Bools]] = {
        "old": (old.right, base),
        "new": (new.right, base),
        "new on all": (new.right, versions.every),
        "positive": (~old.right & new.right, base),
        "negative": (old.right & ~new.right, base),
    }
    for which, view in (("old", old), ("new", new)):
        for where, counted in (("known", base), ("new", ~base)):
            if view.unlike is not None:
                shares["flags", where, which] = (view.unlike, counted)
    return shares


def _error_measures(versions: Versions) -> dict[Hashable, Measure]:
    old, new = versions.old, versions.new
    return {
        "error old": calibration_measure(old.confidence, old.right, versions.base),
        "error new": calibration_measure(new.confidence, new.right, versions.base),
        "error all": calibration_measure(new.confidence, new.right, versions.every),
    }


def _error(number: Resampled, view: View, counted: Bools) -> Distance:
    chance = errors_by_chance(view.confidence[counted], CHANCES)
    return Distance(number.value, number.n, number.drawn, chance)


def _flags(versions: Versions, drawn: Drawn) -> tuple[Flags, ...]:
    found = []
    for where, counted in (("known", versions.base), ("new", ~versions.base)):
        names = [("flags", where, which) for which in ("old", "new")]
        if counted.any():
            found.append(
                Flags(where, *(drawn.share(name) if name in drawn.shares else None for name in names))
            )
    if versions.left_out:
        found.append(Flags("neither", *(_plain_share(flags) for flags in versions.left_out_flags)))
    return tuple(found)


def _plain_share(flags: Bools | None) -> Share | None:
    """Images that are left out belong to no resample."""
    return None if flags is None else Share(int(flags.sum()), len(flags), len(flags), np.full(1, np.nan))
