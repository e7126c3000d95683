"""Tables of results: the same rows as Markdown, plain text and CSV, and as HTML on the page."""

import csv
import io
import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from endocil.metrics.metrics import TABLE_METRICS
from endocil.runs.experiments import DASH, Group, Result, groups

TITLES = {
    "acc_last": "Acc_last",
    "f1_last": "F1_last",
    "acc_avg": "Acc_avg",
    "f1_avg": "F1_avg",
    "af": "AF",
}
LOWER_IS_BETTER = frozenset({"af"})


@dataclass(frozen=True)
class Spread:
    """Mean over seeds with the sample standard deviation, which one seed does not have, and the 95 % interval over
    test images where it was computed."""

    mean: float
    deviation: float | None = None
    interval: tuple[float, float] | None = None

    def __str__(self) -> str:
        # A mean of -0.001 would otherwise read as minus nothing.
        mean = f"{round(self.mean, 2) + 0.0:.2f}"
        return mean if self.deviation is None else f"{mean} ± {self.deviation:.2f}"


Cell = str | int | Spread | None


@dataclass(frozen=True)
class Column:
    """A key for CSV, a title for people; `best` is max or min where the best value is to be marked."""

    key: str
    title: str
    numeric: bool = False
    best: str | None = None


@dataclass(frozen=True)
class Table:
    """Cells under columns. The best value is sought among the rows of the same contest; all rows are in one
    unless `contests` says otherwise, and None, for upper bounds, takes part in none."""

    caption: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    contests: tuple[str | None, ...] = ()

    def marked(self, place: int = 1) -> set[tuple[int, int]]:
        """(row, column) of the best values, or of the second best; equal as printed means equally good."""
        contests = self.contests or ("",) * len(self.rows)
        return {
            (i, j)
            for contest in set(contests) - {None}
            for j, column in enumerate(self.columns)
            for i in self._placed(
                [i for i, own in enumerate(contests) if own == contest], j, column.best, place
            )
        }

    def _placed(self, among: Sequence[int], j: int, best: str | None, place: int) -> list[int]:
        cells = {i: self.rows[i][j] for i in among}
        means = {i: round(cell.mean, 2) for i, cell in cells.items() if isinstance(cell, Spread)}
        order = sorted(set(means.values()), reverse=best == "max")
        if best is None or len(means) < place + 1 or len(order) < place:
            return []
        return [i for i, mean in means.items() if mean == order[place - 1]]

    def markdown(self) -> str:
        """A Markdown table with the best values in bold."""
        marked = self.marked()
        head = "| " + " | ".join(_escaped(column.title) for column in self.columns) + " |"
        rule = "|" + "|".join("---:" if column.numeric else ":---" for column in self.columns) + "|"
        lines = [head, rule]
        for i, row in enumerate(self.rows):
            texts = (_bold(_escaped(shown(cell)), (i, j) in marked) for j, cell in enumerate(row))
            below = (f"<br>{text}" if (text := within(cell)) else "" for cell in row)
            lines.append("| " + " | ".join(map("".join, zip(texts, below, strict=True))) + " |")
        return "\n".join(lines) + "\n"

    def text(self) -> str:
        """Aligned plain text for a terminal; a star follows the best values."""
        marked = self.marked()
        cells = [[column.title + self._star(marked, -1, j) for j, column in enumerate(self.columns)]]
        for i, row in enumerate(self.rows):
            cells.append([shown(cell) + self._star(marked, i, j) for j, cell in enumerate(row)])
            below = [within(cell) for cell in row]
            cells += (
                [[text + self._star(marked, -1, j) for j, text in enumerate(below)]] if any(below) else []
            )
        widths = [max(len(line[j]) for line in cells) for j in range(len(self.columns))]
        cells.insert(1, ["-" * width for width in widths])
        return "\n".join(self._aligned(line, widths) for line in cells) + "\n"

    def _star(self, marked: set[tuple[int, int]], i: int, j: int) -> str:
        """A space keeps the digits of unmarked values under those of marked ones."""
        if (i, j) in marked:
            return "*"
        return " " if any(column == j for _, column in marked) else ""

    def _aligned(self, line: Sequence[str], widths: Sequence[int]) -> str:
        pairs = zip(self.columns, line, widths, strict=True)
        return "  ".join(t.rjust(w) if column.numeric else t.ljust(w) for column, t, w in pairs).rstrip()

    def csv(self) -> str:
        """Unrounded numbers; each metric has a second column for its standard deviation, and two for the interval."""
        text = io.StringIO(newline="")
        writer = csv.writer(text, lineterminator="\n")
        parts = 4 if any(within(cell) for row in self.rows for cell in row) else 2
        widths = [parts if column.best else 1 for column in self.columns]
        endings = ("", "_sd", "_low", "_high")
        heads = [[c.key + end for end in endings[:n]] for c, n in zip(self.columns, widths, strict=True)]
        writer.writerow([key for keys in heads for key in keys])
        for row in self.rows:
            values = [_numbers(cell)[:n] for cell, n in zip(row, widths, strict=True)]
            writer.writerow([value for own in values for value in own])
        return text.getvalue()


def shown(cell: Cell) -> str:
    return DASH if cell is None else str(cell)


def within(cell: Cell) -> str:
    """The interval of a cell; empty where there is none."""
    if not isinstance(cell, Spread) or cell.interval is None:
        return ""
    low, high = (round(end, 1) + 0.0 for end in cell.interval)
    return f"[{low:.1f}, {high:.1f}]"


def _escaped(text: str) -> str:
    for character in ("\\", "|", "<", "*", "`"):
        text = text.replace(character, "\\" + character)
    return " ".join(text.split())


def _bold(text: str, best: bool) -> str:
    return f"**{text}**" if best else text


def _numbers(cell: Cell) -> tuple[Any, ...]:
    if not isinstance(cell, Spread):
        return (cell, None, None, None)
    return (cell.mean, cell.deviation, *(cell.interval or (None, None)))


def spread(values: Iterable[float | None]) -> Spread | None:
    """None where a value is undefined: a mean over some of the seeds would compare unlike things."""
    given = list(values)
    known = [value for value in given if value is not None and math.isfinite(value)]
    if not known or len(known) < len(given):
        return None
    return Spread(statistics.fmean(known), statistics.stdev(known) if len(known) > 1 else None)


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


def comparison(results: Iterable[Result], head: str = "softmax") -> Table:
    """One row per experiment: mean ± sample standard deviation over its seeds; upper bounds at the end."""
    with_head = [result for result in results if result.metrics.get(head) is not None]
    ordered = sorted(groups(with_head), key=lambda group: not group.incremental)
    rows = tuple((group.label, len(group.seeds), *metric_cells(group, head)) for group in ordered)
    contests = tuple("" if group.incremental else None for group in ordered)
    columns = (Column("method", "Method"), Column("seeds", "Seeds", True), *metric_columns())
    return Table(f"Results of the {head.replace('_', '-')} head in percent", columns, rows, contests)


def either(values: Iterable[Any]) -> str:
    """The different values, joined by "or"; empty when there are none."""
    return " or ".join(dict.fromkeys(str(value) for value in values if value is not None))


def listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
