"""Tables of results: one row for each experiment, ranked only where the budgets are the same."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from endocil.io.text_tables import Column, Spread, Table, spread
from endocil.metrics.metrics import TABLE_METRICS
from endocil.model.predictions import Head
from endocil.runs.experiments import UNKNOWN, Budget, Group, Result, budget, groups

TITLES = {
    "acc_last": "Acc_last",
    "f1_last": "F1_last",
    "acc_avg": "Acc_avg",
    "f1_avg": "F1_avg",
    "af": "AF",
    "top5_last": "Top-5_last",
    "top5_avg": "Top-5_avg",
    "task_aware_last": "TAw_last",
    "task_aware_avg": "TAw_avg",
    "bwt": "BWT",
    "fwt": "FWT",
}
LOWER_IS_BETTER = frozenset({"af"})
METHOD, SEEDS = Column("method", "Method"), Column("seeds", "Seeds", True)
BUDGET_TITLES = {  # each item as a column, and in words
    "epochs": ("Epochs", "{} epochs"),
    "size": ("Pixels", "images of {} pixels"),
    "width": ("Width", "width {}"),
    "exemplars": ("Exemplars", ""),
    "tasks": ("Classes per task", "tasks of {} classes"),
}


@dataclass(frozen=True)
class Budgets:
    """What each of several experiments was allowed to use, and in which items they differ.

    More of it makes any method better, so that methods are ranked only where their budgets are the same."""

    own: tuple[Budget, ...]
    incremental: tuple[bool, ...]

    @property
    def differing(self) -> list[str]:
        """Items with more than one value; None (no exemplars, one task) goes with all, what is unknown with none."""
        return [item for item in BUDGET_TITLES if len(self._values(item)) > 1 or item in self._unknown]

    def _values(self, item: str) -> set[int | str]:
        return {value for one in self.own if (value := one[item]) is not None}

    @property
    def _unknown(self) -> list[str]:
        """Items that are not known of some of several experiments."""
        return [item for item in BUDGET_TITLES if len(self.own) > 1 and UNKNOWN in self._values(item)]

    @property
    def reason(self) -> str:
        """ "the runs differ in their budget (epochs, pixels)"; empty where the budgets are the same."""
        differ = [item for item in self.differing if len(self._values(item) - {UNKNOWN}) > 1]
        parts = {"the runs differ in their budget": differ, "the budget of some runs is not known": self._unknown}
        return " and ".join(
            f"{text} ({', '.join(BUDGET_TITLES[item][0].lower() for item in items)})"
            for text, items in parts.items()
            if items
        )

    def rankings(self, rank_anyway: bool = False) -> tuple[str | None, ...]:
        """For Table.rankings: rows of the same budget together, upper bounds in none."""
        keys = [] if rank_anyway else self.differing
        return tuple(
            repr([(own[item], row if own[item] == UNKNOWN else None) for item in keys]) if incremental else None
            for row, (own, incremental) in enumerate(zip(self.own, self.incremental, strict=True))
        )

    def note(self, rank_anyway: bool = False) -> str:
        """The end of a caption; empty where the budgets are the same."""
        if not self.reason:
            return ""
        ranked = "ranked all the same" if rank_anyway else "so only rows with the same budget are ranked"
        return f"; {self.reason}, {ranked}"

    def describe(self, row: int) -> str:
        """The items that differ, in words: 4 epochs, 20 exemplars per class"""
        words = {item: BUDGET_TITLES[item][1].format(self.own[row][item]) for item in self.differing}
        if "exemplars" in words:
            number, _, limit = str(self.own[row]["exemplars"] or "no").partition(" ")  # 20, "200 in all" or None
            words["exemplars"] = f"{number} exemplars {limit or ('' if number == 'no' else 'per class')}".rstrip()
        words |= {item: f"{BUDGET_TITLES[item][0].lower()} unknown" for item in words if self.own[row][item] == UNKNOWN}
        return ", ".join(words.values())


def budgets_of(experiments: Sequence[Group[Any]]) -> Budgets:
    return Budgets(
        tuple(budget(group.first) for group in experiments), tuple(group.incremental for group in experiments)
    )


def metric_columns(metrics: Sequence[str] = TABLE_METRICS) -> tuple[Column, ...]:
    return tuple(
        Column(name, TITLES.get(name, name), True, "min" if name in LOWER_IS_BETTER else "max") for name in metrics
    )


def metric_cells(group: Group[Any], head: str = "softmax") -> tuple[Spread | None, ...]:
    """The table's metrics of one experiment; one task has no average over tasks and nothing to forget."""
    return tuple(
        spread(result.metrics[head][name] for result in group.results)
        if group.incremental or name.endswith("_last")
        else None
        for name in TABLE_METRICS
    )


def comparison(results: Iterable[Result], head: str = "softmax", *, rank_anyway: bool = False) -> Table:
    """One row per experiment: mean ± sample standard deviation over its seeds; upper bounds at the end.

    Where budgets differ they are columns, and without `rank_anyway` only the same budgets are ranked together."""
    with_head = [result for result in results if result.metrics.get(head) is not None]
    ordered = sorted(groups(with_head), key=lambda group: not group.incremental)
    budgets = budgets_of(ordered)
    items = budgets.differing
    columns = (METHOD, SEEDS, *(Column(item, BUDGET_TITLES[item][0], True) for item in items), *metric_columns())
    rows = tuple(
        (group.label, len(group.seeds), *(own[item] for item in items), *metric_cells(group, head))
        for group, own in zip(ordered, budgets.own, strict=True)
    )
    caption = f"Results of the {head.replace('_', '-')} head in percent{budgets.note(rank_anyway)}"
    return Table(caption, columns, rows, budgets.rankings(rank_anyway))


def class_table(experiments: Sequence[Group[Any]], head: Head = "softmax") -> Table:
    """A row for each experiment, a column for each class and one for their mean, as the paper's Table 4.

    A class without test images has no recall."""
    classes = experiments[0].first.metrics["classes"]
    by_class = (Column(name, name, True, "max") for name in classes)
    columns = (METHOD, SEEDS, *by_class, Column("mean", "Mean", True, "max"))
    rows = []
    for group in experiments:
        metrics = [run.metrics[head] for run in group.results]
        recalls = (spread(one["per_class"][name]["recall"] for one in metrics) for name in classes)
        rows.append((group.label, len(group.seeds), *recalls, spread(one["balanced_last"] for one in metrics)))
    budgets = budgets_of(experiments)
    caption = f"Recall of each class after the last task, {head.replace('_', '-')} head, in percent{budgets.note()}"
    return Table(caption, columns, tuple(rows), budgets.rankings())
