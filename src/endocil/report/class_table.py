"""Class by class: how much of each was recognised after the last task."""

from collections.abc import Sequence

from endocil.predictions import Head
from endocil.report.averages import Runs
from endocil.report.tables import Cell, Column, Table, spread


def class_table(groups: Sequence[Runs], head: Head = "softmax") -> Table:
    """A row for each experiment, a column for each class and one for their mean, as the paper's Table 4.

    A class without test images has no recall."""
    classes = groups[0].first.metrics["classes"]
    columns = (
        Column("method", "Method"),
        Column("seeds", "Seeds", True),
        *(Column(name, name, True, "max") for name in classes),
        Column("mean", "Mean", True, "max"),
    )
    caption = f"Recall of each class after the last task, {head.replace('_', '-')} head, in percent"
    contests = tuple("" if group.incremental else None for group in groups)
    return Table(caption, columns, tuple(_row(group, classes, head) for group in groups), contests)


def _row(group: Runs, classes: Sequence[str], head: Head) -> tuple[Cell, ...]:
    found = [run.metrics[head] for run in group.results]
    recalls = (spread(one["per_class"][name]["recall"] for one in found) for name in classes)
    mean = spread(one["balanced_last"] for one in found)
    return (group.label, len(group.seeds), *recalls, mean)
