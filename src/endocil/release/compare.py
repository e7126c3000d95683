"""Figures of two versions of a model from the same resamples of the test images, so that differences are paired.

What each class gains and loses, overall accuracy and macro F1, flips, calibration, and out-of-distribution flags.
"""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

import numpy as np

from endocil.metrics.intervals import Change, Distance, Figure, Resampled, Share, effective_number
from endocil.metrics.reliability import Bin, calibration_measure, errors_by_chance, reliability
from endocil.metrics.statistics import (
    Bools,
    Measure,
    accuracy_measure,
    bootstrap_p,
    combined,
    macro_f1_measure,
    mcnemar_p,
    observed,
)
from endocil.release.versions import AlignedPredictions, Versions

RESAMPLES = 10_000  # the ends of an interval that is corrected for many classes lie far out
CHANCE_RESAMPLES = 2_000  # of calibration errors that chance alone makes

F = TypeVar("F", bound=Figure)
C = TypeVar("C", bound=Figure)
Status = Literal["known", "new", "dropped"]
Selections = Mapping[Hashable, tuple[Bools, Bools]]  # name -> (correct, counted), (N,) each


@dataclass(frozen=True, eq=False)
class Pair(Generic[F, C]):
    """A figure of the old version, of the new one, and the change; None where a version has none."""

    old: F | None
    new: F | None
    change: C | None


Shares = Pair[Share, Change]


@dataclass(frozen=True, eq=False)
class ClassChange:
    name: str
    status: Status
    images: int
    groups: int  # of these images; as many as images where no groups are known
    sensitivity: Shares
    specificity: Shares  # on the images of classes that the old version knows
    specificity_all: Shares  # on all images


@dataclass(frozen=True, eq=False)
class SourceChange:
    """Of the images of one device or centre, those of classes that the old version knows."""

    name: str
    accuracy: Shares


@dataclass(frozen=True, eq=False)
class Flags:
    """Shares of images flagged as out of distribution."""

    where: str  # images of classes that are known to the old version, new, or known to neither
    old: Share | None
    new: Share | None


@dataclass(frozen=True, eq=False)
class Comparison:
    versions: Versions
    classes: tuple[ClassChange, ...]
    accuracy: Shares  # on the images of classes that the old version knows, as all that follows
    macro_f1: Pair[Resampled, Resampled]  # over the classes that the old version knows
    accuracy_all: Share  # of the new version, on all images
    positive: Share  # flips: old wrong, new correct
    negative: Share
    p_exact: float  # McNemar's test; images count as independent
    p_by_group: float | None  # the bootstrap's, where there are groups
    calibration: Pair[Distance, Resampled]
    calibration_all: Distance  # of the new version, on all images
    reliability: tuple[tuple[Bin, ...], tuple[Bin, ...]]  # of the old and of the new version
    flags: tuple[Flags, ...]
    sources: tuple[SourceChange, ...]  # in alphabetical order; none where no source is known


class ResampledMeasures:
    """Named shares and other measures, all resampled in one pass; a name is (quantity, version)."""

    def __init__(
        self,
        versions: Versions,
        metric: str,
        resamples: int,
        shares: Selections,
        measures: Mapping[Hashable, Measure] | None = None,
    ) -> None:
        """`metric` as in `CommonTestSet.resampling`."""
        self.units = versions.tested.units
        self.shares = shares
        self.measures = {name: accuracy_measure(*share) for name, share in shares.items()} | dict(measures or {})
        values = versions.tested.resampling(metric, resamples).values(list(self.measures.values()))  # (R, M)
        self.drawn = dict(zip(self.measures, values.T, strict=True))

    def share(self, name: Hashable) -> Share:
        correct, counted = self.shares[name]
        n, effective = int(counted.sum()), effective_number(self.units, counted)
        return Share(int((correct & counted).sum()), n, effective, self.drawn[name])

    def share_pair(self, quantity: Hashable) -> Shares:
        """Two shares of the same images."""
        names = (quantity, "old"), (quantity, "new")
        (before, counted), (after, _) = (self.shares[name] for name in names)
        old, new = (self.share(name) for name in names)
        lost, gained = int((before & ~after & counted).sum()), int((~before & after & counted).sum())
        return Pair(old, new, Change(lost, gained, old.n, old.effective, new.drawn - old.drawn))

    def number(self, name: Hashable, n: int) -> Resampled:
        return Resampled(observed(self.measures[name]), n, self.drawn[name])

    def number_pair(self, quantity: Hashable, n: int) -> Pair[Resampled, Resampled]:
        old, new = self.number((quantity, "old"), n), self.number((quantity, "new"), n)
        return Pair(old, new, Resampled(new.value - old.value, n, new.drawn - old.drawn))


def compare(versions: Versions, resamples: int = RESAMPLES) -> Comparison:
    """All figures. Resamples keep the sizes of the classes for figures of classes and for macro F1."""
    old, new, base, every = versions.old, versions.new, versions.base, versions.every
    class_shares: dict[Hashable, tuple[Bools, Bools]] = {}
    shares: dict[Hashable, tuple[Bools, Bools]] = {
        ("accuracy on all", "new"): (new.correct, every),
        "positive": (~old.correct & new.correct, base),
        "negative": (old.correct & ~new.correct, base),
    }
    sources = sorted(set(versions.tested.sources) - {""})
    errors: dict[Hashable, Measure] = {"error on all": calibration_measure(new.confidence, new.correct, every)}
    for version, rows in (("old", old), ("new", new)):
        for c in range(len(versions.classes)):
            own = versions.tested.labels == c
            class_shares[(c, "sensitivity"), version] = (rows.correct, own)
            class_shares[(c, "specificity"), version] = (rows.predicted != c, base & ~own)
            class_shares[(c, "specificity on all"), version] = (rows.predicted != c, ~own)
        shares["accuracy", version] = (rows.correct, base)
        for source in sources:
            own = np.array([one == source for one in versions.tested.sources]) & base
            shares[("source", source), version] = (rows.correct, own)
        if rows.out_of_distribution is not None:
            shares["flags known", version] = (rows.out_of_distribution, base)
            shares["flags new", version] = (rows.out_of_distribution, ~base)
        errors["error", version] = calibration_measure(rows.confidence, rows.correct, base)
    by_class = ResampledMeasures(versions, "f1", resamples, class_shares, _f1_measures(versions))
    overall = ResampledMeasures(versions, "accuracy", resamples, shares, errors)
    n = int(base.sum())
    accuracy, error = overall.share_pair("accuracy"), overall.number_pair("error", n)
    assert accuracy.change is not None
    return Comparison(
        versions,
        classes=tuple(_class_change(versions, c, by_class) for c in range(len(versions.classes))),
        accuracy=accuracy,
        macro_f1=by_class.number_pair("f1", n),
        accuracy_all=overall.share(("accuracy on all", "new")),
        positive=overall.share("positive"),
        negative=overall.share("negative"),
        p_exact=mcnemar_p(old.correct[base], new.correct[base]),
        p_by_group=bootstrap_p(accuracy.change.drawn) if versions.tested.grouped else None,
        calibration=Pair(
            _calibration_error(error.old, old, base), _calibration_error(error.new, new, base), error.change
        ),
        calibration_all=_calibration_error(overall.number("error on all", len(base)), new, every),
        reliability=(
            reliability(old.confidence[base], old.correct[base]),
            reliability(new.confidence[base], new.correct[base]),
        ),
        flags=_flags(versions, overall),
        sources=tuple(SourceChange(source, overall.share_pair(("source", source))) for source in sources),
    )


def _f1_measures(versions: Versions) -> dict[Hashable, Measure]:
    """Macro F1 over the classes of the old version that have images.

    A prediction of another class is a miss of the image's own class, and a false alarm of none: all other classes
    share one extra index without hits, so the mean over n + 1 classes is scaled to one over n."""
    present = np.flatnonzero(np.bincount(versions.tested.labels[versions.base], minlength=len(versions.classes)))
    n = len(present)
    index = np.full(len(versions.classes), n)
    index[present] = np.arange(n)
    labels = index[versions.tested.labels]
    return {
        ("f1", version): combined(
            [((n + 1) / n, macro_f1_measure(labels, index[rows.predicted], n + 1, versions.base))]
        )
        for version, rows in (("old", versions.old), ("new", versions.new))
    }


def _class_change(versions: Versions, c: int, resampled: ResampledMeasures) -> ClassChange:
    in_old, in_new = bool(versions.old.known[c]), bool(versions.new.known[c])
    status: Status = "new" if not in_old else "known" if in_new else "dropped"
    own = versions.tested.labels == c
    groups = len(np.unique(versions.tested.units[own]))
    pairs = [resampled.share_pair((c, kind)) for kind in ("sensitivity", "specificity", "specificity on all")]
    if not in_old:
        pairs = [Pair(None, pair.new, None) for pair in pairs]
    return ClassChange(versions.classes[c], status, int(own.sum()), groups, *pairs)


def _calibration_error(number: Resampled | None, rows: AlignedPredictions, counted: Bools) -> Distance:
    assert number is not None
    chance = errors_by_chance(rows.confidence[counted], CHANCE_RESAMPLES)
    return Distance(number.value, number.n, number.drawn, chance)


def _flags(versions: Versions, resampled: ResampledMeasures) -> tuple[Flags, ...]:
    flags = []
    for where, counted in (("known", versions.base), ("new", ~versions.base)):
        names = [(f"flags {where}", version) for version in ("old", "new")]
        if counted.any():
            flags.append(Flags(where, *(resampled.share(name) if name in resampled.shares else None for name in names)))
    if versions.left_out:  # in no resample
        shares = [
            None if own is None else Share(int(own.sum()), len(own), len(own), np.full(1, np.nan))
            for own in versions.left_out_flags
        ]
        flags.append(Flags("neither", *shares))
    return tuple(flags)
