"""Figures of two versions from the same resamples of the test images, so that their differences are paired."""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from endocil.release.intervals import Change, Figure, Resampled, Share, effective_number
from endocil.release.versions import Versions
from endocil.statistics import Bools, Measure, accuracy_measure, observed

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
        """`shares`: which images are right, and which are counted; `metric` as in `SharedTest.resampling`."""
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
