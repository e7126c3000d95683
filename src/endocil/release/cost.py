"""What the last `learn` cost: the model and the version before it on the model's held-out images.

Neither was trained on these images, but both may be calibrated on them, so they tell of recall, not of calibration. A
release is decided by images of its own (`endocil compare`).
"""

from collections import Counter
from dataclasses import dataclass, replace

import numpy as np

from endocil.metrics.intervals import Change, Share
from endocil.model.model import Model
from endocil.release.compare import ClassChange, Comparison, compare
from endocil.release.versions import align, of_head

RESAMPLES = 2_000
GROWN = 2  # images by which a confusion must grow to be named
NAMED = 5  # confusions


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
    return LearningCost(compare(versions, RESAMPLES))


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
