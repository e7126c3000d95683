"""Experiments on the same test images: numbers with intervals, and paired differences with a verdict."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from endocil.errors import EndocilError, SettingsError
from endocil.io.tables import Cell, Column, Spread, Table, either, listed, spread
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
from endocil.reports.tables import LOWER_IS_BETTER, TITLES, budgets_of, comparison
from endocil.runs.experiments import groups as grouped
from endocil.runs.experiments import method_title
from endocil.runs.paired_predictions import (
    CommonTestSet,
    PairedPredictions,
    has_predictions,
    read_paired_predictions,
)
from endocil.runs.records import RunRecord

SIGNIFICANT = 0.05
NOT_SIGNIFICANT = "not significant"
RESAMPLES = 2000  # for intervals
COMPARING = 10_000  # for p, which cannot fall below 2 / 10,001: low enough for a hundred comparisons


@dataclass(frozen=True, eq=False)
class ComparableRuns:
    """Experiments with the predictions of their runs, all for the same images."""

    groups: tuple[Runs, ...]
    predictions: tuple[tuple[PairedPredictions, ...], ...]  # of each group, one for each seed
    head: Head = "softmax"

    @property
    def test_set(self) -> CommonTestSet:
        return self.predictions[0][0].test_set

    @property
    def runs(self) -> list[RunRecord]:
        return [run for group in self.groups for run in group.results]

    def incremental(self, metric: str) -> list[int]:
        """The groups that have the metric: one task has no average and forgets nothing."""
        return [i for i, group in enumerate(self.groups) if group.incremental or metric.endswith("_last")]

    def resampled(self, metric: str, resamples: int) -> dict[int, Floats]:
        """Of each group, by its number: (R, seeds), the same resamples for all."""
        members = self.incremental(metric)
        measures = [one.measure(metric) for i in members for one in self.predictions[i]]
        if not measures:
            return {}
        values = self.test_set.resampling(metric, resamples).values(measures)
        ends = np.cumsum([len(self.predictions[i]) for i in members])[:-1]
        return dict(zip(members, np.split(values, ends, axis=1), strict=True))


def comparable_runs(runs: Sequence[RunRecord], head: Head = "softmax") -> ComparableRuns:
    """Read the predictions; methods that lack the head are left out."""
    with_head = [run for run in runs if run.metrics.get(head) is not None]
    if not with_head:
        raise EndocilError(f"none of these runs has a {head.replace('_', '-')} head")
    groups = sorted(grouped(with_head), key=lambda group: not group.incremental)
    each = iter(read_paired_predictions([run for group in groups for run in group.results], head))
    predictions = tuple(tuple(next(each) for _ in group.results) for group in groups)
    return ComparableRuns(tuple(groups), predictions, head)


def comparable_or_none(runs: Sequence[RunRecord], head: Head = "softmax") -> ComparableRuns | None:
    """None where predictions are not at hand, or are of different images, which a page may show but nobody can pair."""
    if not all(map(has_predictions, runs)):
        return None
    try:
        return comparable_runs(runs, head)
    except EndocilError:
        return None


def interval_table(
    compared: ComparableRuns, resamples: int = RESAMPLES, *, rank_anyway: bool = False
) -> Table:
    """The table of results with the 95 % interval of each number over test images."""
    table = comparison(compared.runs, compared.head, rank_anyway=rank_anyway)
    rows = [list(row) for row in table.rows]
    for j, metric in enumerate(TABLE_METRICS, start=len(table.columns) - len(TABLE_METRICS)):
        for i, values in compared.resampled(metric, resamples).items():
            cell = rows[i][j]
            assert isinstance(cell, Spread)
            rows[i][j] = replace(cell, interval=percentile_interval(values.mean(axis=1)))
    return replace(table, rows=tuple(map(tuple, rows)))


def interval_note(compared: ComparableRuns, resamples: int = RESAMPLES) -> str:
    """What the intervals are."""
    return (
        f"± is the sample standard deviation over the seeds. In brackets: 95 % percentile bootstrap interval over "
        f"{compared.test_set.described()}, {resamples:,} resamples. The seeds are held fixed, and for F1 and AF "
        f"the classes keep their sizes."
    )


def source_table(compared: ComparableRuns, resamples: int = RESAMPLES, *, rank_anyway: bool = False) -> Table:
    """Accuracy after the last task on the images of each source alone, with its interval over test images."""
    sources = np.array(compared.test_set.sources)
    if not any(sources):
        raise EndocilError("the images of these runs do not say which source they come from")
    rows: list[tuple[Cell, ...]] = []
    rankings: list[str | None] = []
    budgets = budgets_of(compared.groups)
    for name in sorted(set(sources.tolist())):
        counted = sources == name
        measures = [[one.accuracy_on(counted) for one in own] for own in compared.predictions]
        drawn = compared.test_set.resampling("acc_last", resamples)
        for group, own, ranking in zip(compared.groups, measures, budgets.rankings(rank_anyway), strict=True):
            accuracy = spread(map(observed, own))
            assert accuracy is not None
            cell = replace(accuracy, interval=percentile_interval(drawn.values(own).mean(axis=1)))
            rows.append((name or "unknown", int(counted.sum()), group.label, len(group.seeds), cell))
            rankings.append(None if ranking is None else f"{name} {ranking}")
    columns = (
        Column("source", "Source"),
        Column("images", "Images", True),
        Column("method", "Method"),
        Column("seeds", "Seeds", True),
        Column("acc_last", TITLES["acc_last"], True, "max"),
    )
    head = compared.head.replace("_", "-")
    caption = f"Accuracy of the {head} head after the last task for each source, in percent"
    return Table(caption + budgets.note(rank_anyway), columns, tuple(rows), tuple(rankings))


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
            return NOT_SIGNIFICANT
        higher = self.difference > 0
        return "better" if higher != (self.metric in LOWER_IS_BETTER) else "worse"


def versus(
    compared: ComparableRuns, baseline: Runs, metrics: Sequence[str], resamples: int = COMPARING
) -> list[Versus]:
    """Every other experiment against the baseline, in each metric, with p adjusted for all these comparisons."""
    differences: list[Versus] = []
    base = compared.groups.index(baseline)
    for metric in metrics:
        values = compared.resampled(metric, resamples) if base in compared.incremental(metric) else {}
        differences += [_versus(compared, metric, i, base, values) for i in values if i != base]
    adjusted = holm([one.p for one in differences])
    return [replace(one, adjusted=p) for one, p in zip(differences, adjusted, strict=True)]


def _versus(compared: ComparableRuns, metric: str, i: int, base: int, values: dict[int, Floats]) -> Versus:
    one, other = compared.groups[i], compared.groups[base]
    means = [np.mean([observed(run.measure(metric)) for run in compared.predictions[k]]) for k in (i, base)]
    if one.seeds == other.seeds:
        differences = mean_over_seeds(values[i] - values[base])
    else:
        differences = mean_over_seeds(values[i], seed=1) - mean_over_seeds(values[base], seed=2)
    exact = metric == "acc_last" and len(one.seeds) == len(other.seeds) == 1 and not compared.test_set.grouped
    right = [compared.predictions[k][0].right[-1] for k in (i, base)]
    p = mcnemar_p(*right) if exact else bootstrap_p(differences)
    interval = percentile_interval(differences)
    return Versus(one, metric, compared.head, float(means[0] - means[1]), interval, p, exact)


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


def named(compared: ComparableRuns, label: str | None, first: str) -> Runs:
    """The experiment with this label (icarl or iCaRL); that of the run named `first` where none is given."""
    for group in compared.groups:
        if label is None and any(run.name == first for run in group.results):
            return group
        if label is not None and label.casefold() in _spellings(group):
            return group
    known = ", ".join(f"'{group.label}'" for group in compared.groups)
    raise SettingsError(f"no experiment '{label or first}' among these runs; there are {known}")


def _spellings(group: Runs) -> set[str]:
    """The label with the method's title, and with its name in settings."""
    name = str(group.first.settings["method"]["name"])
    return {group.label.casefold(), group.label.replace(method_title(name), name, 1).casefold()}


def versus_table(differences: Sequence[Versus], baseline: Runs) -> Table:
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
    rows = tuple(map(_versus_row, differences))
    items = budgets_of([baseline, *(one.group for one in differences)]).items
    differ = f"; the runs differ in their budget ({items})" if items else ""
    return Table(
        f"Difference from {baseline.label} in points, on the same test images{differ}", columns, rows
    )


def _versus_row(one: Versus) -> tuple[Cell, ...]:
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
    compared: ComparableRuns, differences: Sequence[Versus], baseline: Runs, resamples: int = COMPARING
) -> str:
    """Exactly what was computed."""
    sentences = [
        f"Difference: the method's mean over its seeds minus that of {baseline.label}. Low and High: its 95 % "
        f"interval, by a paired bootstrap of {resamples:,} resamples over {compared.test_set.described()}"
        f"{_resampled_seeds(compared, baseline)}.",
        _test_used(differences),
        f"Holm: adjusted for the {len(differences)} comparisons of this table. A difference is significant if "
        f"p (Holm) is below {SIGNIFICANT}.",
    ]
    if 2 / (resamples + 1) * len(differences) >= SIGNIFICANT:
        sentences.append(f"{resamples:,} resamples are too few for so many comparisons; use more.")
    return " ".join(filter(None, sentences))


def _resampled_seeds(compared: ComparableRuns, baseline: Runs) -> str:
    counts = {len(group.seeds) for group in compared.groups}
    if counts == {1}:
        return "; one seed each, so variation between seeds is not included"
    if all(group.seeds == baseline.seeds for group in compared.groups):
        return " and over the seeds"
    return " and over the seeds, which are paired where both methods have the same ones"


def _test_used(differences: Sequence[Versus]) -> str:
    exact = [one.exact for one in differences]
    if all(exact):
        return "p: exact McNemar test." if differences else ""
    if not any(exact):
        return "p: from the same resamples."
    return "p: exact McNemar test for the accuracy of two single runs, otherwise from the same resamples."


Pair = tuple[Runs, Runs]  # the lower mean first


def compared_over_seeds(runs: Sequence[RunRecord]) -> str:
    """One line: between which methods the accuracy after the last task differs significantly over the seeds."""
    pairs = list(itertools.combinations(sorted(grouped(runs), key=_accuracy), 2))
    differences = [_seed_differences(pair) for pair in pairs]
    adjusted = holm([paired_t_p(each) for each in differences])
    different = [pair for pair, p in zip(pairs, adjusted, strict=True) if p < SIGNIFICANT]
    others = [pair for pair, p in zip(pairs, adjusted, strict=True) if p >= SIGNIFICANT]
    seeds = either(sorted(map(len, differences)))
    plural = "seed" if seeds == "1" else "seeds"
    test = f"paired t test, p < {SIGNIFICANT} after Holm's correction for {len(pairs)} pairs"
    return (
        f"Significant differences in Acc_last over {seeds} {plural} ({test}): {_pairs(different, 'below')}. "
        f"Not significant: {_pairs(others, 'and')}."
    )


def _accuracy(group: Runs) -> float:
    return mean(run.metrics[HEAD]["acc_last"] for run in group.results) or 0.0


def _seed_differences(pair: Pair) -> list[float]:
    """Of the seeds that both have."""
    one, other = ({run.settings["seed"]: run.metrics[HEAD]["acc_last"] for run in g.results} for g in pair)
    return [other[seed] - one[seed] for seed in sorted(one.keys() & other.keys())]


def _pairs(pairs: Sequence[Pair], word: str) -> str:
    """Each method once: "Finetune below iCaRL and EndoCIL", "Finetune and iCaRL or EndoCIL"."""
    by_first = itertools.groupby(pairs, key=lambda pair: pair[0].label)
    join = listed if word == "below" else " or ".join
    return "; ".join(f"{one} {word} {join([b.label for _, b in own])}" for one, own in by_first) or "none"
