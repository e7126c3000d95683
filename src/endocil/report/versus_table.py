"""The paired differences as a table, and what was computed in words."""

from collections.abc import Sequence
from dataclasses import dataclass

from endocil.errors import EndocilError
from endocil.report.averages import Runs
from endocil.report.comparing import COMPARING, SIGNIFICANT, Examined, Versus
from endocil.report.tables import TITLES, Cell, Column, Spread, Table, spread


@dataclass(frozen=True)
class Signed(Spread):
    """A difference."""

    def __str__(self) -> str:
        return f"{round(self.mean, 2) + 0.0:+.2f}"


@dataclass(frozen=True)
class Chance(Spread):
    """A p-value."""

    def __str__(self) -> str:
        return "<0.001" if self.mean < 0.001 else f"{self.mean:.3f}"


def named(examined: Examined, label: str | None, first: str) -> Runs:
    """The experiment with this label; that of the run named `first` where none is given."""
    for group in examined.groups:
        if group.label == label or (label is None and any(run.name == first for run in group.results)):
            return group
    known = ", ".join(f"'{group.label}'" for group in examined.groups)
    raise EndocilError(f"no experiment '{label or first}' among these runs; there are {known}")


def versus_table(found: Sequence[Versus], against: Runs) -> Table:
    columns = (
        Column("metric", "Metric"),
        Column("method", "Method"),
        Column("seeds", "Seeds", True),
        Column("value", "Value", True),
        Column("difference", "Difference", True),
        Column("low", "Low", True),
        Column("high", "High", True),
        Column("p", "p", True),
        Column("p_holm", "p (Holm)", True),
        Column("verdict", "Verdict"),
    )
    rows = tuple(map(_row, found))
    return Table(f"Against {against.label}: differences in points, on the same test images", columns, rows)


def _row(one: Versus) -> tuple[Cell, ...]:
    value = spread(run.metrics[one.head][one.metric] for run in one.group.results)
    low, high = one.interval
    return (
        TITLES[one.metric],
        one.group.label,
        len(one.group.seeds),
        value,
        Signed(one.difference),
        Signed(low),
        Signed(high),
        Chance(one.p),
        Chance(one.adjusted),
        one.verdict,
    )


def versus_note(
    examined: Examined, found: Sequence[Versus], against: Runs, resamples: int = COMPARING
) -> str:
    """Exactly what was computed."""
    said = [
        f"Difference: the method's mean over its seeds minus that of {against.label}. Low and High: its 95 % "
        f"interval, by a paired bootstrap of {resamples:,} resamples over {examined.tested.described()}"
        f"{_seeds(examined, against)}.",
        _tests(found),
        f"Holm: adjusted for the {len(found)} comparisons of this table. A verdict other than 'inside noise' "
        f"needs p (Holm) below {SIGNIFICANT}.",
    ]
    if 2 / (resamples + 1) * len(found) >= SIGNIFICANT:
        said.append(
            f"With {resamples:,} resamples no p can be small enough for so many comparisons; take more."
        )
    return " ".join(filter(None, said))


def _seeds(examined: Examined, against: Runs) -> str:
    counts = {len(group.seeds) for group in examined.groups}
    if counts == {1}:
        return "; one seed each, so what another seed would change is not in it"
    paired = all(group.seeds == against.seeds for group in examined.groups)
    how = "" if paired else "; seeds are paired where both have the same, and a single seed adds nothing"
    return f" and over the seeds{how}"


def _tests(found: Sequence[Versus]) -> str:
    exact = [one.exact for one in found]
    if all(exact):
        return "p: exact McNemar test." if found else ""
    if not any(exact):
        return "p: from the same resamples."
    return "p: exact McNemar test for the accuracy of two single runs, otherwise from the same resamples."
