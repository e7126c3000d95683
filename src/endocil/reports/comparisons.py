"""Experiments on the same test images: numbers with intervals, and paired differences with a verdict."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from endocil.errors import EndocilError
from endocil.metrics.metrics import TABLE_METRICS
from endocil.metrics.statistics import (
    Floats,
    bootstrap_p,
    holm,
    mcnemar_p,
    mean_over_seeds,
    observed,
    paired_t_p,
    percentile_interval,
)
from endocil.model.predictions import Head
from endocil.reports.averages import HEAD, Runs, mean
from endocil.reports.paired_predictions import Answers, SharedTest, read_answers
from endocil.reports.tables import (
    LOWER_IS_BETTER,
    TITLES,
    Cell,
    Column,
    Spread,
    Table,
    comparison,
    either,
    listed,
    spread,
)
from endocil.runs.experiments import groups
from endocil.runs.experiments import groups as grouped
from endocil.runs.records import RunRecord

SIGNIFICANT = 0.05
RESAMPLES = 2000  # for intervals
COMPARING = 10_000  # for p, which cannot fall below 2 / 10,001: low enough for a hundred comparisons


@dataclass(frozen=True, eq=False)
class Examined:
    """Experiments with the answers of their runs, all on the same images."""

    groups: tuple[Runs, ...]
    answers: tuple[tuple[Answers, ...], ...]  # of each group, one for each seed
    head: Head = "softmax"

    @property
    def tested(self) -> SharedTest:
        return self.answers[0][0].tested

    def incremental(self, metric: str) -> list[int]:
        """The groups that have the metric: one task has no average and forgets nothing."""
        return [i for i, group in enumerate(self.groups) if group.incremental or metric.endswith("_last")]

    def resampled(self, metric: str, resamples: int) -> dict[int, Floats]:
        """Of each group, by its number: (R, seeds), the same resamples for all."""
        those = self.incremental(metric)
        measures = [answers.measure(metric) for i in those for answers in self.answers[i]]
        if not measures:
            return {}
        values = self.tested.resampling(metric, resamples).values(measures)
        ends = np.cumsum([len(self.answers[i]) for i in those])[:-1]
        return dict(zip(those, np.split(values, ends, axis=1), strict=True))


def examine(runs: Sequence[RunRecord], head: Head = "softmax") -> Examined:
    """Read the predictions; methods that lack the head are left out."""
    with_head = [run for run in runs if run.metrics.get(head) is not None]
    if not with_head:
        raise EndocilError(f"none of these runs has a {head.replace('_', '-')} head")
    found = sorted(grouped(with_head), key=lambda group: not group.incremental)
    answers = iter(read_answers([run for group in found for run in group.results], head))
    return Examined(tuple(found), tuple(tuple(next(answers) for _ in group.results) for group in found), head)


def interval_table(examined: Examined, resamples: int = RESAMPLES) -> Table:
    """The table of results with the 95 % interval of each number over test images."""
    table = comparison([run for group in examined.groups for run in group.results], examined.head)
    rows = [list(row) for row in table.rows]
    for j, metric in enumerate(TABLE_METRICS, start=len(table.columns) - len(TABLE_METRICS)):
        for i, values in examined.resampled(metric, resamples).items():
            cell = rows[i][j]
            assert isinstance(cell, Spread)
            rows[i][j] = replace(cell, interval=percentile_interval(values.mean(axis=1)))
    return replace(table, rows=tuple(map(tuple, rows)))


def interval_note(examined: Examined, resamples: int = RESAMPLES) -> str:
    """What the intervals are."""
    return (
        f"± is the sample standard deviation over the seeds. In brackets: 95 % percentile bootstrap interval over "
        f"{examined.tested.described()}, {resamples:,} resamples; the seeds are held fixed, and for F1 and AF "
        f"the classes keep their sizes."
    )


def source_table(examined: Examined, resamples: int = RESAMPLES) -> Table:
    """Accuracy after the last task on the images of each source alone, with its interval over test images."""
    sources = np.array(examined.tested.sources)
    if not any(sources):
        raise EndocilError("the images of these runs do not say which source they come from")
    rows: list[tuple[Cell, ...]] = []
    contests: list[str | None] = []  # none for upper bounds
    for name in sorted(set(sources.tolist())):
        counted = sources == name
        measures = [[one.accuracy_of(counted) for one in answers] for answers in examined.answers]
        drawn = examined.tested.resampling("acc_last", resamples)
        for group, own in zip(examined.groups, measures, strict=True):
            interval = percentile_interval(drawn.values(own).mean(axis=1))
            known = spread(map(observed, own))
            assert known is not None
            cell = replace(known, interval=interval)
            rows.append((name or "unknown", int(counted.sum()), group.label, len(group.seeds), cell))
            contests.append(name if group.incremental else None)
    columns = (
        Column("source", "Source"),
        Column("images", "Images", True),
        Column("method", "Method"),
        Column("seeds", "Seeds", True),
        Column("acc_last", TITLES["acc_last"], True, "max"),
    )
    head = examined.head.replace("_", "-")
    caption = f"Accuracy of the {head} head after the last task, source by source, in percent"
    return Table(caption, columns, tuple(rows), tuple(contests))


@dataclass(frozen=True)
class Versus:
    """One experiment against another in one metric: its mean over seeds minus the other's."""

    group: Runs
    metric: str
    head: Head
    difference: float
    interval: tuple[float, float]
    p: float
    exact: bool  # McNemar's test instead of the bootstrap
    adjusted: float = 1.0

    @property
    def verdict(self) -> str:
        if self.adjusted >= SIGNIFICANT or self.difference == 0:
            return "inside noise"
        higher = self.difference > 0
        return "better" if higher != (self.metric in LOWER_IS_BETTER) else "worse"


def versus(
    examined: Examined, against: Runs, metrics: Sequence[str], resamples: int = COMPARING
) -> list[Versus]:
    """Every other experiment against one, in each metric, with p adjusted for all these comparisons."""
    found: list[Versus] = []
    base = examined.groups.index(against)
    for metric in metrics:
        values = examined.resampled(metric, resamples) if base in examined.incremental(metric) else {}
        found += [_versus(examined, metric, i, base, values) for i in values if i != base]
    adjusted = holm([each.p for each in found])
    return [replace(each, adjusted=p) for each, p in zip(found, adjusted, strict=True)]


def _versus(examined: Examined, metric: str, i: int, base: int, values: dict[int, Floats]) -> Versus:
    one, other = examined.groups[i], examined.groups[base]
    means = [np.mean([observed(run.measure(metric)) for run in examined.answers[k]]) for k in (i, base)]
    if one.seeds == other.seeds:
        differences = mean_over_seeds(values[i] - values[base])
    else:
        differences = mean_over_seeds(values[i], seed=1) - mean_over_seeds(values[base], seed=2)
    exact = metric == "acc_last" and len(one.seeds) == len(other.seeds) == 1 and not examined.tested.grouped
    right = [examined.answers[k][0].right[-1] for k in (i, base)]
    p = mcnemar_p(*right) if exact else bootstrap_p(differences)
    return Versus(
        one, metric, examined.head, float(means[0] - means[1]), percentile_interval(differences), p, exact
    )


# The paired differences as a table, and what was computed in words.


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


# Which methods the seeds tell apart: a t test of the paired differences, for every two methods.

Pair = tuple[Runs, Runs]  # the lower mean first


def told_by_seeds(runs: Sequence[RunRecord]) -> str:
    """One line: in accuracy after the last task, which methods can be told apart and which cannot."""
    pairs = list(itertools.combinations(sorted(groups(runs), key=_accuracy), 2))
    differences = [_differences(pair) for pair in pairs]
    adjusted = holm([paired_t_p(each) for each in differences])
    apart = [pair for pair, p in zip(pairs, adjusted, strict=True) if p < SIGNIFICANT]
    alike = [pair for pair, p in zip(pairs, adjusted, strict=True) if p >= SIGNIFICANT]
    seeds = either(sorted(map(len, differences)))
    plural = "seed" if seeds == "1" else "seeds"
    test = f"paired t test, p < {SIGNIFICANT} after Holm's correction for {len(pairs)} pairs"
    return (
        f"Told apart by {seeds} {plural} in Acc_last ({test}): {_named(apart, 'below')}. "
        f"Not told apart: {_named(alike, 'from')}."
    )


def _accuracy(group: Runs) -> float:
    return mean(run.metrics[HEAD]["acc_last"] for run in group.results) or 0.0


def _differences(pair: Pair) -> list[float]:
    """Of the seeds that both have."""
    one, other = ({run.settings["seed"]: run.metrics[HEAD]["acc_last"] for run in g.results} for g in pair)
    return [other[seed] - one[seed] for seed in sorted(one.keys() & other.keys())]


def _named(pairs: Sequence[Pair], word: str) -> str:
    """Each method once, with all that are told beside it."""
    by_first = itertools.groupby(pairs, key=lambda pair: pair[0].label)
    told = [f"{first} {word} {listed([other.label for _, other in those])}" for first, those in by_first]
    return "; ".join(told) or "none"
