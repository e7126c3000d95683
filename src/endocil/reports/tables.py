"""Tables of results: one row for each experiment, ranked only where the budgets are the same."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from endocil.io.tables import Column, Spread, Table, spread
from endocil.metrics.metrics import TABLE_METRICS
from endocil.runs.experiments import Budget, Group, Result, budget, groups

TITLES = {
    "acc_last": "Acc_last",
    "f1_last": "F1_last",
    "acc_avg": "Acc_avg",
    "f1_avg": "F1_avg",
    "af": "AF",
}
LOWER_IS_BETTER = frozenset({"af"})
BUDGET_TITLES = {
    "epochs": "Epochs",
    "size": "Pixels",
    "width": "Width",
    "exemplars": "Exemplars",
    "tasks": "Classes per task",
}


@dataclass(frozen=True)
class Budgets:
    """What each of several experiments was allowed to use, and in which items they differ."""

    own: tuple[Budget, ...]
    incremental: tuple[bool, ...]

    @property
    def differing(self) -> list[str]:
        """Items with more than one value; None (no exemplars, one task) goes with all."""
        return [
            item
            for item in BUDGET_TITLES
            if len({one[item] for one in self.own if one[item] is not None}) > 1
        ]

    @property
    def items(self) -> str:
        """ "epochs, pixels"; empty where the budgets are the same."""
        return ", ".join(BUDGET_TITLES[item].lower() for item in self.differing)

    def rankings(self, rank_anyway: bool = False) -> tuple[str | None, ...]:
        """For Table.rankings: rows of the same budget together, upper bounds in none."""
        keys = [] if rank_anyway else self.differing
        return tuple(
            repr([own[item] for item in keys]) if incremental else None
            for own, incremental in zip(self.own, self.incremental, strict=True)
        )

    def columns(self) -> list[Column]:
        return [Column(item, BUDGET_TITLES[item], True) for item in self.differing]

    def cells(self, row: int) -> list[str | int | None]:
        return [self.own[row][item] for item in self.differing]

    def note(self, rank_anyway: bool = False) -> str:
        """The end of a caption; empty where the budgets are the same."""
        if not self.items:
            return ""
        ranked = "ranked all the same" if rank_anyway else "so only rows with the same budget are ranked"
        return f"; the runs differ in their budget ({self.items}), {ranked}"


def budgets_of(experiments: Sequence[Group[Any]]) -> Budgets:
    return Budgets(
        tuple(budget(group.first) for group in experiments), tuple(group.incremental for group in experiments)
    )


def metric_columns() -> tuple[Column, ...]:
    return tuple(
        Column(name, TITLES.get(name, name), True, "min" if name in LOWER_IS_BETTER else "max")
        for name in TABLE_METRICS
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
    columns = (Column("method", "Method"), Column("seeds", "Seeds", True), *budgets.columns())
    rows = tuple(
        (group.label, len(group.seeds), *budgets.cells(i), *metric_cells(group, head))
        for i, group in enumerate(ordered)
    )
    caption = f"Results of the {head.replace('_', '-')} head in percent{budgets.note(rank_anyway)}"
    return Table(caption, (*columns, *metric_columns()), rows, budgets.rankings(rank_anyway))
