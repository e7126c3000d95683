"""Tables of texts and numbers: the same rows as Markdown, plain text and CSV. LaTeX: reports/latex.py; HTML: html/."""

import html
import itertools
import math
import re
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from endocil.io.files import csv_text
from endocil.io.terminal import printable

DASH = "\N{EN DASH}"
TIE = "\N{ALMOST EQUAL TO}"


@dataclass(frozen=True)
class Spread:
    """Mean over seeds with the sample standard deviation, which one seed does not have, and the 95 % interval over
    test images where it was computed."""

    mean: float
    deviation: float | None = None
    interval: tuple[float, float] | None = None

    def __str__(self) -> str:
        mean = f"{round(self.mean, 2) + 0.0:.2f}"  # a mean of -0.001 would otherwise read as minus nothing
        return mean if self.deviation is None else f"{mean} ± {self.deviation:.2f}"


Cell = str | int | Spread | None


@dataclass(frozen=True)
class Column:
    """A key for CSV, a title for people; `best` is max or min where the best value is to be marked. Neighbours with
    the same `group` stand below its name."""

    key: str
    title: str
    numeric: bool = False
    best: str | None = None
    group: str = ""

    @property
    def whole_title(self) -> str:
        return f"{self.group} {self.title}".strip()


@dataclass(frozen=True)
class Table:
    """Cells under columns.

    `rankings`: rows with the same key are ranked together, and the best of them is marked; None is not ranked, such
    as an upper bound. Without it all rows are ranked together. `sections`: the name above each row, such as its data
    set, shown once for neighbours that share it. `ties`: (row, column) of values that may be as good as the best;
    where they are known, Markdown marks them and underlines the second best."""

    caption: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    rankings: tuple[str | None, ...] = ()
    sections: tuple[str, ...] = ()
    ties: frozenset[tuple[int, int]] | None = None

    def by_section(self) -> list[tuple[str, list[int]]]:
        """The name of each section with the numbers of its rows; one without a name where there are no sections."""
        if not self.sections:
            return [("", list(range(len(self.rows))))]
        named = itertools.groupby(range(len(self.rows)), key=self.sections.__getitem__)
        return [(name, list(rows)) for name, rows in named]

    def marked(self, place: int = 1) -> set[tuple[int, int]]:
        """(row, column) of the best values, or of the second best; equal as printed means equally good."""
        rankings = self.rankings or ("",) * len(self.rows)
        marked = set[tuple[int, int]]()
        for ranking in set(rankings) - {None}:
            ranked = [(i, row) for i, row in enumerate(self.rows) if rankings[i] == ranking]
            for j, column in enumerate(self.columns):
                means = {i: round(cell.mean, 2) for i, row in ranked if isinstance(cell := row[j], Spread)}
                order = sorted(set(means.values()), reverse=column.best == "max")
                if column.best and len(means) > place and len(order) >= place:
                    marked |= {(i, j) for i, mean in means.items() if mean == order[place - 1]}
        return marked

    def markdown(self) -> str:
        """A Markdown table for each section, below its name, with the best values in bold. Columns in groups need two
        lines of titles, which Markdown has not: then it is an HTML table, which Markdown may contain."""
        if any(column.group for column in self.columns):
            return self._html()
        best, second = self.marked(), set() if self.ties is None else self.marked(2)

        def with_marks(i: int, j: int, cell: Cell) -> str:
            value = markdown_text(shown(cell))
            value = f"**{value}**" if (i, j) in best else f"<u>{value}</u>" if (i, j) in second else value
            return f"{value} {TIE}" if (i, j) in (self.ties or ()) else value

        head = "| " + " | ".join(markdown_text(column.title) for column in self.columns) + " |\n"
        rule = "|" + "|".join("---:" if column.numeric else ":---" for column in self.columns) + "|\n"
        tables = []
        for section, rows in self.by_section():
            lines = [f"**{markdown_text(section)}**\n\n" if section else "", head, rule]
            for i in rows:
                texts = (with_marks(i, j, cell) for j, cell in enumerate(self.rows[i]))
                below = (f"<br>{text}" if (text := within(cell)) else "" for cell in self.rows[i])
                lines.append("| " + " | ".join(map("".join, zip(texts, below, strict=True))) + " |\n")
            tables.append("".join(lines))
        return "\n".join(tables)

    def _html(self) -> str:
        best, second = self.marked(), set() if self.ties is None else self.marked(2)

        def cell(i: int, j: int) -> str:
            value = html.escape(shown(self.rows[i][j]))
            value = f"<b>{value}</b>" if (i, j) in best else f"<u>{value}</u>" if (i, j) in second else value
            value = f"{value} {TIE}" if (i, j) in (self.ties or ()) else value
            return f'<td align="right">{value}</td>' if self.columns[j].numeric else f"<td>{value}</td>"

        grouped = [(name, len(list(own))) for name, own in itertools.groupby(column.group for column in self.columns)]
        above = "".join(f'<th colspan="{n}">{html.escape(name)}</th>' for name, n in grouped)
        below = "".join(f"<th>{html.escape(column.title)}</th>" for column in self.columns)
        lines = ["<table>", f"<tr>{above}</tr>", f"<tr>{below}</tr>"]
        for section, rows in self.by_section():
            lines += [f'<tr><th colspan="{len(self.columns)}">{html.escape(section)}</th></tr>'] if section else []
            lines += ["<tr>" + "".join(cell(i, j) for j in range(len(self.columns))) + "</tr>" for i in rows]
        return "\n".join([*lines, "</table>"]) + "\n"

    def text(self) -> str:
        """Aligned plain text for a terminal; a star follows the best values, a section's name has its own line."""
        marked = self.marked()
        titles = [column.whole_title + self._star(marked, -1, j) for j, column in enumerate(self.columns)]
        lines: list[str | list[str]] = [titles]
        for section, rows in self.by_section():
            lines += [section] if section else []
            for i in rows:
                row = self.rows[i]
                lines.append([shown(cell) + self._star(marked, i, j) for j, cell in enumerate(row)])
                if any(below := [within(cell) for cell in row]):
                    lines.append([text + self._star(marked, -1, j) for j, text in enumerate(below)])
        cells = [line for line in lines if not isinstance(line, str)]
        widths = [max(len(line[j]) for line in cells) for j in range(len(self.columns))]
        lines.insert(1, ["-" * width for width in widths])
        shown_lines = [f"\n{line}" if isinstance(line, str) else self._aligned(line, widths) for line in lines]
        return "\n".join(shown_lines) + "\n"

    def _star(self, marked: set[tuple[int, int]], i: int, j: int) -> str:
        """A space keeps the digits of unmarked values under those of marked ones."""
        if (i, j) in marked:
            return "*"
        return " " if any(column == j for _, column in marked) else ""

    def _aligned(self, line: Sequence[str], widths: Sequence[int]) -> str:
        pairs = zip(self.columns, line, widths, strict=True)
        return "  ".join(t.rjust(w) if column.numeric else t.ljust(w) for column, t, w in pairs).rstrip()

    def csv(self) -> str:
        """Unrounded numbers; each metric has a second column for its standard deviation, and two for the interval.
        A section is the first column."""
        parts = 4 if any(within(cell) for row in self.rows for cell in row) else 2
        widths = [parts if column.best else 1 for column in self.columns]
        endings = ("", "_sd", "_low", "_high")
        heads = [[c.key + end for end in endings[:n]] for c, n in zip(self.columns, widths, strict=True)]
        section = [[name] for name in self.sections] or [[]] * len(self.rows)
        lines = [[*(["section"] if self.sections else []), *(key for keys in heads for key in keys)]]
        for first, row in zip(section, self.rows, strict=True):
            values = [_numbers(cell)[:n] for cell, n in zip(row, widths, strict=True)]
            lines.append([*first, *(value for own in values for value in own)])
        return csv_text(lines)


def shown(cell: Cell) -> str:
    return DASH if cell is None else str(cell)


def within(cell: Cell) -> str:
    """The interval of a cell; empty where there is none."""
    if not isinstance(cell, Spread) or cell.interval is None:
        return ""
    low, high = (round(end, 1) + 0.0 for end in cell.interval)
    return f"[{low:.1f}, {high:.1f}]"


def markdown_text(text: str) -> str:
    """Text that Markdown shows as it is: no HTML, no link, no picture, no mark, no heading or list, on one line."""
    plain = re.sub(r"([\\|<*`\[\]~&])|(?<=\w)(:)(?=//)|(?<=www)(\.)", r"\\\g<0>", printable(" ".join(text.split())))
    plain = re.sub(r"(?<!\w)_|_(?!\w)|^(?=>|[#+-]+(\s|$)|=+$)", lambda found: f"\\{found[0]}", plain)
    return re.sub(r"^(\d+)(?=[.)](\s|$))", r"\1\\", plain)


def _numbers(cell: Cell) -> tuple[Any, ...]:
    if not isinstance(cell, Spread):
        return (cell, None, None, None)
    return (cell.mean, cell.deviation, *(cell.interval or (None, None)))


def spread(values: Iterable[float | None]) -> Spread | None:
    """None where a value is undefined: a mean over some of the seeds cannot be compared with one over all."""
    values = list(values)
    known = [value for value in values if value is not None and math.isfinite(value)]
    if not known or len(known) < len(values):
        return None
    return Spread(statistics.fmean(known), statistics.stdev(known) if len(known) > 1 else None)


def either(values: Iterable[Any]) -> str:
    """The different values, joined by "or"; empty when there are none."""
    return " or ".join(dict.fromkeys(str(value) for value in values if value is not None))


def listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
