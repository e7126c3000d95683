"""Mean ranks over data sets, with Friedman's test and Nemenyi's critical difference (Demšar, JMLR 7, 2006).

Only data sets count on which each of the paper's methods that learn task by task was run with two seeds or more: a
method that was left out on one of them would change the ranks of all others.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from endocil.errors import EndocilError
from endocil.io.text_tables import Cell, Column, Spread, Table, listed
from endocil.methods import COMPARED, method_title
from endocil.metrics.statistics import LEVEL, critical_difference, friedman, ranks
from endocil.reports.side_by_side import Comparison, DataSet
from endocil.reports.tables import METHOD, metric_cells

FEWEST_SEEDS = 2
FEWEST_DATA = 2
FEWEST_METHODS = 3


@dataclass(frozen=True)
class Ranks:
    """Of each method on each data set by Acc_last, 1 the highest; the best mean rank first."""

    methods: tuple[str, ...]
    data: tuple[str, ...]
    by_data: tuple[tuple[float, ...], ...]  # of each method, one for each data set
    statistic: float
    p: float

    @property
    def mean(self) -> tuple[float, ...]:
        return tuple(sum(own) / len(own) for own in self.by_data)

    @property
    def critical_difference(self) -> float:
        return critical_difference(len(self.methods), len(self.data))

    @property
    def can_differ(self) -> bool:
        """On too few data sets not even the first and the last of all methods can be told apart."""
        return self.critical_difference < len(self.methods) - 1

    def not_different(self) -> list[tuple[int, int]]:
        """First and last of each run of neighbours whose mean ranks differ by less than the critical difference; a run
        inside another is left out."""
        mean, runs = self.mean, list[tuple[int, int]]()
        for first in range(len(mean)):
            last = max(i for i in range(first, len(mean)) if mean[i] - mean[first] < self.critical_difference)
            if last > first and (not runs or last > runs[-1][1]):
                runs.append((first, last))
        return runs


def ranked(methods: Sequence[str], data: Sequence[str], scores: Sequence[Sequence[float]]) -> Ranks:
    """Of scores by method and data set, the higher the better."""
    table = np.array(scores, dtype=np.float64).T  # (data sets, methods)
    each = ranks(table)
    order = [int(i) for i in np.argsort(each.mean(axis=0), kind="stable")]
    statistic, p = friedman(table)
    names, by_data = tuple(methods[i] for i in order), tuple(tuple(map(float, each[:, i])) for i in order)
    return Ranks(names, tuple(data), by_data, statistic, p)


def ranks_over_data(comparison: Comparison | None, needed: Sequence[str] = COMPARED) -> Ranks:
    """Of one scale. `needed`: the methods that make a data set complete."""
    titles = [method_title(name) for name in needed]
    data_sets = () if comparison is None else comparison.data_sets
    missing = {data.title: _missing(data, titles) for data in data_sets}
    complete = [data for data in data_sets if not missing[data.title]]
    if len(complete) < FEWEST_DATA or len(titles) < FEWEST_METHODS:
        waiting = "; ".join(f"{title} lacks {listed(names)}" for title, names in missing.items() if names)
        raise EndocilError(
            f"ranks need {FEWEST_DATA} data sets on which all of at least {FEWEST_METHODS} methods have {FEWEST_SEEDS} "
            f"seeds; complete: {', '.join(data.title for data in complete) or 'none'}{'; ' if waiting else ''}{waiting}"
        )
    scores = [[_accuracy(data, title) for data in complete] for title in titles]
    return ranked(titles, [data.title for data in complete], scores)


def _missing(data: DataSet, titles: Sequence[str]) -> list[str]:
    known = {one.label for one in data.methods if len(one.seeds) >= FEWEST_SEEDS}
    return [title for title in titles if title not in known]


def _accuracy(data: DataSet, title: str) -> float:
    group = data.method(title)
    value = metric_cells(group)[0] if group is not None else None
    assert isinstance(value, Spread)
    return value.mean


def ranks_text(comparison: Comparison | None, picture: str) -> str:
    """The ranks as a table, the test in words and the picture where there is one; or why there are none."""
    try:
        found = ranks_over_data(comparison)
    except EndocilError as too_few:
        return f"No ranks yet: {too_few}.\n"
    columns = (METHOD, Column("mean", "Mean rank", True), *(Column(name, name, True) for name in found.data))
    rows: list[tuple[Cell, ...]] = [
        (name, f"{mean:.2f}", *(f"{rank:g}" for rank in own))
        for name, mean, own in zip(found.methods, found.mean, found.by_data, strict=True)
    ]
    return f"{Table('', columns, tuple(rows)).markdown()}\n{_test(found)}\n" + (
        f"\n![Mean ranks of the methods with Nemenyi's critical difference]({picture})\n" if found.can_differ else ""
    )


def _test(found: Ranks) -> str:
    n, k, difference = len(found.data), len(found.methods), found.critical_difference
    text = (
        f"Rank 1 is the highest Acc_last. Friedman's test of equal ranks: {found.statistic:.1f}, p = {found.p:.2g} "
        f"({k} methods, {n} data sets). Nemenyi's critical difference at {1 - LEVEL:.2f} is {difference:.2f}"
    )
    if not found.can_differ:
        return f"{text}, more than the {k - 1} by which two mean ranks can differ: {n} data sets are too few."
    behind = [name for name, mean in zip(found.methods, found.mean, strict=True) if mean - found.mean[0] >= difference]
    if not behind:
        return f"{text}: no method ranks significantly below {found.methods[0]}."
    return f"{text}: significantly below {found.methods[0]}: {listed(behind)}."
