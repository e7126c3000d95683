"""Experiments on the same test images: numbers with intervals, and paired differences with a verdict."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from endocil.errors import DataError, EndocilError, SettingsError
from endocil.io.text_tables import Cell, Column, Spread, Table, either, listed, spread
from endocil.methods import method_title
from endocil.metrics.metrics import NEED_SCORES, TABLE_METRICS
from endocil.metrics.statistics import (
    LEVEL,
    CommonTestSet,
    Floats,
    Measure,
    Resampling,
    bootstrap_p,
    holm,
    mcnemar_p,
    mean_over_seeds,
    observed,
    paired_t_p,
    percentile_interval,
)
from endocil.model.predictions import HEADS, Head
from endocil.reports.averages import HEAD, Runs, mean, metric_spread
from endocil.reports.tables import LOWER_IS_BETTER, METHOD, SEEDS, TITLES, budgets_of, comparison, metric_columns
from endocil.runs.experiments import evaluated_part
from endocil.runs.experiments import groups as grouped
from endocil.runs.paired_predictions import PairedPredictions, has_predictions, read_paired_predictions
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

    def having(self, metric: str) -> list[int]:
        """The groups that have the metric: one task has no average and forgets nothing, and predicted classes without
        scores have no second best."""
        return [
            i
            for i, group in enumerate(self.groups)
            if (group.incremental or metric.endswith("_last"))
            and (metric not in NEED_SCORES or all(one.top5 is not None for one in self.predictions[i]))
        ]

    def measures(self, metric: str, group: int) -> list[Measure]:
        """Of each seed."""
        own = self.predictions[group]
        if metric != "fwt":
            return [one.measure(metric) for one in own]
        references = {
            run.settings["seed"]: one
            for other, predictions in zip(self.groups, self.predictions, strict=True)
            for run, one in zip(other.results, predictions, strict=True)
            if not other.incremental and one.task_aware is not None
        }
        if not references:
            raise SettingsError(
                "fwt compares with a model that learned all classes at once; add runs with method.name=joint on the "
                "same images"
            )
        same_seed = [references.get(seed) for seed in self.groups[group].seeds]
        return [
            one.forward_transfer([own_seed] if own_seed else [*references.values()])
            for one, own_seed in zip(own, same_seed, strict=True)
        ]

    def resampled(self, metric: str, resamples: int) -> dict[int, Floats]:
        """Of each group, by its number: (R, seeds), the same resamples for all."""
        members = self.having(metric)
        measures = [measure for i in members for measure in self.measures(metric, i)]
        if not measures:
            return {}
        values = self.test_set.resampling(metric, resamples).values(measures)
        ends = np.cumsum([len(self.predictions[i]) for i in members])[:-1]
        return dict(zip(members, np.split(values, ends, axis=1), strict=True))


def comparable_runs(runs: Sequence[RunRecord], head: Head = "softmax") -> ComparableRuns:
    """Read the predictions; methods that lack the head are left out."""
    with_head = [run for run in runs if run.metrics.get(head) is not None]
    if not with_head:
        raise SettingsError(f"none of these runs has a {head.replace('_', '-')} head; leave out --head")
    groups = sorted(grouped(with_head), key=lambda group: not group.incremental)
    each = iter(read_paired_predictions([run for group in groups for run in group.results], head))
    predictions = tuple(tuple(next(each) for _ in group.results) for group in groups)
    return ComparableRuns(tuple(groups), predictions, head)


def comparable_or_none(runs: Sequence[RunRecord], head: Head = "softmax") -> ComparableRuns | None:
    """None where predictions are not at hand, or are of different images, which can be shown but not paired."""
    if not all(map(has_predictions, runs)):
        return None
    try:
        return comparable_runs(runs, head)
    except EndocilError:
        return None


def interval_table(
    compared: ComparableRuns,
    resamples: int | None = RESAMPLES,
    *,
    metrics: Sequence[str] = TABLE_METRICS,
    rank_anyway: bool = False,
) -> Table:
    """The table of results with the 95 % interval of each number over test images; none for no intervals."""
    table = comparison(compared.runs, compared.head, rank_anyway=rank_anyway)
    stored = len(table.columns) - len(TABLE_METRICS)
    rows: list[list[Cell]] = [list(row[:stored]) for row in table.rows]
    for metric in metrics:
        having = compared.having(metric)
        values = compared.resampled(metric, resamples) if resamples and having else {}
        for i, row in enumerate(rows):
            cell = _observed(compared, metric, i) if i in having else None
            row.append(replace(cell, interval=percentile_interval(values[i].mean(axis=1))) if cell and values else cell)
    columns = (*table.columns[:stored], *metric_columns(metrics))
    return replace(table, columns=columns, rows=tuple(map(tuple, rows)))


def _observed(compared: ComparableRuns, metric: str, group: int) -> Spread | None:
    """The metric's mean and spread over the seeds: as a run recorded it, or from its predictions."""
    if metric in TABLE_METRICS:
        return metric_spread(compared.groups[group], metric, compared.head)
    return spread(map(observed, compared.measures(metric, group)))


def interval_note(compared: ComparableRuns, resamples: int = RESAMPLES) -> str:
    """What the intervals are."""
    return (
        f"± is the sample standard deviation over the seeds. In brackets: 95 % percentile bootstrap interval over "
        f"{compared.test_set.describe()}, {resamples:,} resamples. The seeds are held fixed, and for F1 and AF "
        f"the classes keep their sizes."
    )


def source_table(compared: ComparableRuns, resamples: int = RESAMPLES, *, rank_anyway: bool = False) -> Table:
    """Accuracy after the last task on the images of each source alone, with its interval over test images."""
    sources = np.array(compared.test_set.sources)
    if not any(sources):
        raise DataError("the images of these runs do not say which source they come from; leave out --per source")
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
    first = (Column("source", "Source"), Column("images", "Images", True))
    columns = (*first, METHOD, SEEDS, Column("acc_last", TITLES["acc_last"], True, "max"))
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
    value: Spread | None = None  # of the experiment itself

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
        values = compared.resampled(metric, resamples) if base in compared.having(metric) else {}
        differences += [_versus(compared, metric, i, base, values) for i in values if i != base]
    adjusted = holm([one.p for one in differences])
    return [replace(one, adjusted=p) for one, p in zip(differences, adjusted, strict=True)]


def _versus(compared: ComparableRuns, metric: str, i: int, base: int, values: dict[int, Floats]) -> Versus:
    one, other = compared.groups[i], compared.groups[base]
    means = [np.mean([*map(observed, compared.measures(metric, k))]) for k in (i, base)]
    if one.seeds == other.seeds:
        differences = mean_over_seeds(values[i] - values[base])
    else:
        differences = mean_over_seeds(values[i], seed=1) - mean_over_seeds(values[base], seed=2)
    exact = metric == "acc_last" and len(one.seeds) == len(other.seeds) == 1 and not compared.test_set.grouped
    right = [compared.predictions[k][0].correct[-1] for k in (i, base)]
    p = mcnemar_p(*right) if exact else bootstrap_p(differences)
    interval = percentile_interval(differences)
    value = _observed(compared, metric, i)
    return Versus(one, metric, compared.head, float(means[0] - means[1]), interval, p, exact, value=value)


@dataclass(frozen=True)
class Signed(Spread):
    """A difference."""

    def __str__(self) -> str:
        return f"{round(self.mean, 2) + 0.0:+.2f}"


@dataclass(frozen=True)
class PValue(Spread):
    def __str__(self) -> str:
        return "<0.001" if self.mean < 0.001 else f"{self.mean:.3f}"


def find_experiment(compared: ComparableRuns, label: str | None, first: str) -> Runs:
    """The experiment of this run folder, or with this label (icarl or iCaRL); that of the run named `first` where none
    is given."""
    if label is not None and is_run_folder(label):
        folder = Path(label).resolve()
        for group in compared.groups:
            if any(run.folder is not None and run.folder.resolve() == folder for run in group.results):
                return group
    for group in compared.groups:
        name = str(group.first.settings["method"]["name"])
        spellings = {group.label.casefold(), group.label.replace(method_title(name), name, 1).casefold()}
        if any(run.name == first for run in group.results) if label is None else label.casefold() in spellings:
            return group
    known = ", ".join(f"'{group.label}'" for group in compared.groups)
    raise SettingsError(f"no experiment '{label or first}' among these runs; there are {known}")


def is_run_folder(label: str) -> bool:
    return (Path(label) / "settings.toml").is_file()


def versus_table(differences: Sequence[Versus], baseline: Runs) -> Table:
    numeric = {
        "value": "Value",
        "difference": "Difference",
        "low": "Low",
        "high": "High",
        "p": "p",
        "p_holm": "p (Holm)",
    }
    numbers = (Column(key, title, True) for key, title in numeric.items())
    columns = (Column("metric", "Metric"), METHOD, SEEDS, *numbers, Column("verdict", "Verdict"))
    rows: list[tuple[Cell, ...]] = []
    for one in differences:
        differences_in_points = map(Signed, (one.difference, *one.interval))
        p_values = map(PValue, (one.p, one.adjusted))
        first = (TITLES[one.metric], one.group.label, len(one.group.seeds), one.value)
        rows.append((*first, *differences_in_points, *p_values, one.verdict))
    reason = budgets_of([baseline, *(one.group for one in differences)]).reason
    differ = f"; {reason}" if reason else ""
    return Table(f"Difference from {baseline.label} in points, on the same test images{differ}", columns, tuple(rows))


def versus_note(
    compared: ComparableRuns, differences: Sequence[Versus], baseline: Runs, resamples: int = COMPARING
) -> str:
    """Exactly what was computed."""
    if all(len(group.seeds) == 1 for group in compared.groups):
        seeds = "; one seed each, so variation between seeds is not included"
    elif all(group.seeds == baseline.seeds for group in compared.groups):
        seeds = " and over the seeds"
    else:
        seeds = " and over the seeds, which are paired where both methods have the same ones"
    exact = [one.exact for one in differences]
    if not any(exact):
        test = "p: from the same resamples." if differences else ""
    elif all(exact):
        test = "p: exact McNemar test."
    else:
        test = "p: exact McNemar test for the accuracy of two single runs, otherwise from the same resamples."
    sentences = [
        f"Difference: the method's mean over its seeds minus that of {baseline.label}. Low and High: its 95 % "
        f"interval, by a paired bootstrap of {resamples:,} resamples over {compared.test_set.describe()}{seeds}.",
        test,
        f"Holm: adjusted for the {len(differences)} comparisons of this table. A difference is significant if "
        f"p (Holm) is below {SIGNIFICANT}.",
    ]
    if 2 / (resamples + 1) * len(differences) >= SIGNIFICANT:
        sentences.append(f"{resamples:,} resamples are too few for so many comparisons; use more.")
    return " ".join(filter(None, sentences))


Pair = tuple[Runs, Runs]  # the lower mean first


def compared_over_seeds(runs: Sequence[RunRecord]) -> str:
    """One line: between which methods the accuracy after the last task differs significantly over the seeds."""

    def accuracies(group: Runs) -> dict[int, float]:
        return {run.settings["seed"]: run.metrics[HEAD]["acc_last"] for run in group.results}

    by_mean = sorted(grouped(runs), key=lambda group: mean(accuracies(group).values()) or 0.0)
    pairs = list(itertools.combinations(by_mean, 2))
    differences = []  # of the seeds that both have
    for pair in pairs:
        one, other = map(accuracies, pair)
        differences.append([other[seed] - one[seed] for seed in sorted(one.keys() & other.keys())])
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


def _pairs(pairs: Sequence[Pair], word: str) -> str:
    """Each method once: "Finetune below iCaRL and EndoCIL", "Finetune and iCaRL or EndoCIL"."""
    by_first = itertools.groupby(pairs, key=lambda pair: pair[0].label)
    join = listed if word == "below" else " or ".join
    return "; ".join(f"{one} {word} {join([b.label for _, b in own])}" for one, own in by_first) or "none"


def results_of(run: RunRecord) -> dict[str, Any]:
    """The results of a run as a model file states them, by head: the metrics of the tables and the recall of each
    class, in percent, each with its interval."""
    return {
        "part": evaluated_part(run.settings),
        "images": run.metrics["test_images"][-1],
        "level": LEVEL,
        "resamples": RESAMPLES,
        "heads": {head: _results_of_head(run, head) for head in HEADS if run.metrics[head] is not None},
    }


def _results_of_head(run: RunRecord, head: Head) -> dict[str, Any]:
    (paired,) = read_paired_predictions([run], head)
    test_set = paired.test_set
    metrics = TABLE_METRICS if len(run.metrics["task_sizes"]) > 1 else TABLE_METRICS[:-1]  # one task cannot forget
    results: dict[str, Any] = {
        name: _with_interval(paired.measure(name), test_set.resampling(name, RESAMPLES)) for name in metrics
    }
    resampling, recalls = test_set.resampling("f1_last", RESAMPLES), {}
    for label, name in enumerate(test_set.classes):
        counted = test_set.labels == label
        recall = _with_interval(paired.accuracy_on(counted), resampling)
        # Where all or none of a class's images are right, resamples say nothing: the exact binomial bound does.
        units = len(np.unique(resampling.units[counted]))
        if recall["value"] == 0.0:
            recall["high"] = upper_limit_if_none_seen(units)
        elif recall["value"] == 100.0:
            recall["low"] = 100.0 - upper_limit_if_none_seen(units)
        recalls[name] = recall
    return results | {"recall": recalls}


def upper_limit_if_none_seen(units: int) -> float:
    """How many percent something may have that was seen in none of the units."""
    return float(100.0 * (1.0 - ((1.0 - LEVEL) / 2) ** (1.0 / units)))


def _with_interval(measure: Measure, resampling: Resampling) -> dict[str, float | None]:
    value = observed(measure)
    if math.isnan(value):  # a class without test images
        return {"value": None, "low": None, "high": None}
    low, high = percentile_interval(resampling.values([measure])[:, 0])
    return {"value": value, "low": low, "high": high}
