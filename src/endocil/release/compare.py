"""Figures of two versions of a model from the same resamples of the test images, so that differences are paired.

What each class gains and loses, overall accuracy and macro F1, flips, calibration, and out-of-distribution flags.
"""

from collections import Counter
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace
from typing import Generic, Literal, TypeVar

import numpy as np

from endocil.metrics.intervals import Change, Distance, Figure, Resampled, Share, effective_number
from endocil.metrics.statistics import (
    Bin,
    Bools,
    Measure,
    accuracy_measure,
    bootstrap_p,
    calibration_measure,
    combined,
    errors_by_chance,
    macro_f1_measure,
    mcnemar_p,
    observed,
    reliability,
)
from endocil.model.model import Model
from endocil.release.versions import AlignedPredictions, Versions, align, of_head

RESAMPLES = 10_000  # the ends of an interval that is corrected for many classes lie far out
CHANCE_RESAMPLES = 2_000  # of calibration errors that chance alone makes
COST_RESAMPLES = 2_000  # after each `learn`
GROWN = 2  # images by which a confusion must grow to be named
NAMED = 5  # confusions

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
    p_by_group: float | None  # the bootstrap's, where there are groups
    calibration: Pair[Distance, Resampled]
    calibration_all: Distance  # of the new version, on all images
    reliability: tuple[tuple[Bin, ...], tuple[Bin, ...]]  # of the old and of the new version
    flags: tuple[Flags, ...]
    sources: tuple[SourceChange, ...]  # in alphabetical order; none where no source is known

    @property
    def p_exact(self) -> float:
        """McNemar's test; images count as independent. When asked for: `learn` has no use for it."""
        base = self.versions.base
        return mcnemar_p(self.versions.old.correct[base], self.versions.new.correct[base])


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


# --- what the last `learn` cost: a model and the version before it on the model's held-out images
#
# Neither was trained on these images, but both may be calibrated on them, so they tell of recall, not of calibration. A
# release is decided by images of its own (`endocil compare`).


@dataclass(frozen=True, eq=False)
class LearningCost:
    """Recall before and after, class by class and source by source, with intervals of 95 %."""

    comparison: Comparison

    @property
    def harmed(self) -> tuple[ClassChange, ...]:
        """The old classes whose recall is shown to have fallen: the whole interval of the change is below 0."""
        changes = ((each, each.sensitivity.change) for each in self.comparison.classes)
        return tuple(each for each, change in changes if change is not None and change.n and change.interval()[1] < 0)

    @property
    def confusions(self) -> tuple[tuple[str, str, int, int], ...]:
        """(class, taken for, images before, after), those that grew by two images or more; the largest growth first."""
        versions = self.comparison.versions
        names, labels = versions.classes, versions.tested.labels[versions.base].tolist()
        before, after = (
            Counter(zip(labels, own.predicted[versions.base].tolist(), strict=True))
            for own in (versions.old, versions.new)
        )
        grown = [(after[pair] - before[pair], pair) for pair in after if pair[0] != pair[1]]
        grown.sort(key=lambda growth: (-growth[0], growth[1]))
        return tuple(
            (names[pair[0]], names[pair[1]], before[pair], after[pair]) for growth, pair in grown if growth >= GROWN
        )

    @property
    def lines(self) -> tuple[str, ...]:
        """For the screen: all figures, then a warning for each class that is shown to be harmed."""
        compared = self.comparison
        known, new = ([each for each in compared.classes if (each.status == "new") == is_new] for is_new in (0, 1))
        lines = [
            f"on {len(compared.versions.base):,} held-out images, recall before -> after in percent "
            f"(95 % interval of the change):"
        ]
        rows = [(each.name, each.sensitivity) for each in known]
        rows += [("all old classes", compared.accuracy)] if len(known) > 1 else []
        lines += [f"  {name}: {_change(pair.old, pair.new, pair.change)}" for name, pair in rows]
        lines += [f"  {each.name} (new): {_share(each.sensitivity.new)}" for each in new]
        for source in compared.sources:
            pair = source.accuracy
            lines.append(f"  source {source.name}, accuracy: {_change(pair.old, pair.new, pair.change)}")
        if self.confusions:
            pairs = [f"{name} taken for {other} {old} -> {now}" for name, other, old, now in self.confusions[:NAMED]]
            lines.append(f"confusions that grew, in images: {'; '.join(pairs)}")
        for each in self.harmed:
            assert each.sensitivity.change is not None
            low, high = each.sensitivity.change.interval()
            lines.append(
                f"WARNING: '{each.name}' has lost {-each.sensitivity.change.value:.1f} points of recall "
                f"({-high:.1f} to {-low:.1f}), shown on {each.images} held-out images; more images of the new "
                f"classes and of '{each.name}' help"
            )
        return tuple(lines)


def learning_cost(model: Model) -> LearningCost | None:
    """What the last `learn` of this model cost; None where it has no held-out images, or has learned once."""
    before, kept = model.held_out_before, model.held_out
    if before is None or not len(kept) or not np.any(before.labels >= 0):
        return None
    after = model.predict_kept(kept)
    names = tuple(map(str, range(len(kept))))  # two kept images may have the same name
    old, new = (
        of_head(replace(predictions, images=names), names, "softmax", version)
        for predictions, version in ((before, "old"), (after, "new"))
    )
    provenance = kept.provenance
    versions = align(
        names,
        [one.class_name for one in provenance],
        [one.group for one in provenance],
        old,
        new,
        sources=[one.source for one in provenance],
    )
    return LearningCost(compare(versions, COST_RESAMPLES))


def why_unmeasured(model: Model) -> str:
    """Why there is no `learning_cost`."""
    if not len(model.held_out):
        return (
            "no held-out images, so what learning cost the old classes is not measured: set scenario.validation in the "
            "run, or give --validation"
        )
    return "no held-out images of old classes, so what learning cost them is not measured"


def _share(share: Share | None) -> str:
    if share is None or not share.n:
        return "no held-out images"
    low, high = share.interval()
    return f"{share.value:.1f} ({low:.1f} to {high:.1f}) of {share.n} images"


def _change(old: Share | None, new: Share | None, change: Change | None) -> str:
    if old is None or new is None or change is None or not change.n:
        return "no held-out images"
    low, high = change.interval()
    return f"{old.value:.1f} -> {new.value:.1f} ({low:+.1f} to {high:+.1f}), {change.n} images"
