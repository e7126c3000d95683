"""Figures of two versions from the same resamples of the test images, so that their differences are paired."""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

import numpy as np

from endocil.metrics.intervals import Change, Distance, Figure, Resampled, Share, effective_number
from endocil.metrics.statistics import (
    BLOCK,
    Bools,
    Floats,
    Indices,
    Measure,
    accuracy_measure,
    bootstrap_p,
    macro_f1_measure,
    mcnemar_p,
    observed,
)
from endocil.model.calibration import BINS
from endocil.release.versions import Versions, View

F = TypeVar("F", bound=Figure)
C = TypeVar("C", bound=Figure)


@dataclass(frozen=True, eq=False)
class Pair(Generic[F, C]):
    """A figure of the old version, of the new one, and the change; None where a version has none."""

    old: F | None
    new: F | None
    change: C | None


Shares = Pair[Share, Change]
Numbers = Pair[Resampled, Resampled]


class Drawn:
    """Shares and other measures, all resampled in one pass, then asked for by their names."""

    def __init__(
        self,
        versions: Versions,
        metric: str,
        resamples: int,
        shares: Mapping[Hashable, tuple[Bools, Bools]],
        measures: Mapping[Hashable, Measure] | None = None,
    ) -> None:
        """`shares`: which images are right, and which are counted; `metric` as in `CommonTestSet.resampling`."""
        self.units = versions.tested.units
        self.shares = dict(shares)
        self.measures = {name: accuracy_measure(*asked) for name, asked in shares.items()} | dict(
            measures or {}
        )
        values = versions.tested.resampling(metric, resamples).values(list(self.measures.values()))  # (R, M)
        self.drawn = dict(zip(self.measures, values.T, strict=True))

    def share(self, name: Hashable) -> Share:
        right, counted = self.shares[name]
        n = int(counted.sum())
        return Share(int((right & counted).sum()), n, effective_number(self.units, counted), self.drawn[name])

    def pair(self, old: Hashable, new: Hashable) -> Shares:
        """Two shares of the same images."""
        (before, counted), (after, _) = self.shares[old], self.shares[new]
        shares = self.share(old), self.share(new)
        lost, gained = int((before & ~after & counted).sum()), int((~before & after & counted).sum())
        drawn = self.drawn[new] - self.drawn[old]
        return Pair(*shares, Change(lost, gained, shares[0].n, shares[0].effective, drawn))

    def number(self, name: Hashable, n: int) -> Resampled:
        return Resampled(observed(self.measures[name]), n, self.drawn[name])

    def change(self, old: Hashable, new: Hashable, n: int) -> Resampled:
        before, after = self.number(old, n), self.number(new, n)
        return Resampled(after.value - before.value, n, after.drawn - before.drawn)


# Is what a model calls 80 % right in 80 % of the cases? Bins of confidence, and the expected calibration error.


@dataclass(frozen=True)
class Bin:
    """Images whose predicted class has a probability between low and high; both numbers in percent."""

    low: float
    high: float
    images: int
    confidence: float  # mean
    right: float  # share


def calibration_measure(confidence: Floats, right: Bools, counted: Bools) -> Measure:
    """Expected calibration error in points; a sum over bins of distances of sums, so that it can be resampled."""
    which = np.eye(BINS)[_bins(confidence)] * counted[:, None]  # (N, BINS)
    tally = np.concatenate([which * (right - confidence)[:, None], counted[:, None]], axis=1)

    def value(sums: Floats) -> Floats:
        n = sums[:, -1]
        return np.where(n > 0, 100 * np.abs(sums[:, :-1]).sum(axis=1) / np.maximum(n, 1), np.nan)

    return Measure(tally.astype(np.float32), value)


def errors_by_chance(confidence: Floats, resamples: int, seed: int = 0) -> Floats:
    """(R,) the errors that these confidences show where each of them is true: a few images never look calibrated."""
    which = np.eye(BINS, dtype=np.float32)[_bins(confidence)]
    random = np.random.default_rng(seed)
    rows = max(1, BLOCK // len(confidence))
    found = []
    for start in range(0, resamples, rows):
        n = min(rows, resamples - start)
        right = random.random((n, len(confidence)), dtype=np.float32) < confidence
        gaps = (right - confidence).astype(np.float32) @ which  # (n, BINS)
        found.append(100 * np.abs(gaps).sum(axis=1) / len(confidence))
    return np.concatenate(found).astype(float)


def reliability(confidence: Floats, right: Bools) -> tuple[Bin, ...]:
    """The bins that hold images."""
    where = _bins(confidence)
    return tuple(
        Bin(
            100 * b / BINS,
            100 * (b + 1) / BINS,
            int(own.sum()),
            100 * float(confidence[own].mean()),
            100 * float(right[own].mean()),
        )
        for b in range(BINS)
        if (own := where == b).any()
    )


def _bins(confidence: Floats) -> Indices:
    return np.minimum((confidence * BINS).astype(np.int64), BINS - 1)


# Two versions of a model on the same test images: what each class gains and loses, flips, calibration, flags.

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
