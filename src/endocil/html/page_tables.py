"""Tables as plain data, which the template `macros.html` draws: texts, numbers, shades and bars.

A percentage is shown twice, as a number and as a shade or a bar, so that nobody needs the colours."""

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from endocil.html.markup import number

NUMERIC = "n"  # the class of cells that stand to the right
INK_CHANGES = 76  # above this percentage of the heat colour letters change theirs: contrast is over 4.5 either way


@dataclass(frozen=True)
class Cell:
    """What stands in one place. The template escapes `text`, unless it is markup already."""

    text: str
    kind: str = ""  # classes of the style sheet
    best: bool = False
    below: str = ""  # a second, smaller line, such as an interval
    mark: str = ""  # a word behind the text
    swatch: str = ""  # a colour before the text


@dataclass(frozen=True)
class Row:
    """The first cell is the row's heading."""

    cells: tuple[Cell, ...]
    kind: str = ""


@dataclass(frozen=True)
class PageTable:
    """`when` ends the caption; the script changes it with the table, which it finds by `view`."""

    caption: str
    head: tuple[Cell, ...]
    rows: tuple[Row, ...]
    kind: str = ""
    when: str = ""
    view: str = ""


def number_cell(value: float | None, decimals: int = 1) -> Cell:
    return Cell(number(value, decimals), NUMERIC)


def bar_cell(value: float | None, unit: str = "") -> Cell:
    """A percentage with a bar behind it."""
    if value is None or not math.isfinite(value):
        return Cell(number(None), NUMERIC)
    return Cell(f"{value:.1f}{unit}", f"{NUMERIC} bar v{round(min(max(value, 0.0), 100.0))}")


def heat_value(value: float | None) -> float | None:
    """A percentage as a cell shows it: whole, or 0.1 where there is something that rounds to nothing."""
    if value is None or not math.isfinite(value):
        return None
    whole = round(min(max(value, 0.0), 100.0))
    return 0.1 if whole == 0 and value > 0 else whole


def heat_cell(value: float | None) -> Cell:
    shown = heat_value(value)
    if shown is None:
        return Cell("")
    whole = round(shown)
    # A nought in each empty cell of a confusion matrix would hide the few that matter.
    return Cell("·" if shown == 0 else str(whole), f"v{whole}{' hot' if whole > INK_CHANGES else ''}")


def head_cells(titles: Sequence[str], numeric_from: int = 1) -> tuple[Cell, ...]:
    return tuple(Cell(title, NUMERIC if j >= numeric_from else "") for j, title in enumerate(titles))


def text_table(
    caption: str,
    titles: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    numeric_from: int = 1,
    long: Collection[str] = (),
) -> PageTable:
    """Rows of texts. `long`: titles of columns with long names, which may be broken anywhere."""
    kinds = [NUMERIC if j >= numeric_from else "name" if t in long else "" for j, t in enumerate(titles)]
    body = [Row(tuple(Cell(text, kind) for text, kind in zip(row, ["", *kinds[1:]], strict=True))) for row in rows]
    return PageTable(caption, head_cells(titles, numeric_from), tuple(body))


def heat_table(
    caption: str,
    corner: str,
    rows: Sequence[str],
    columns: Sequence[str],
    values: Iterable[Iterable[float | None]],
    *,
    upright: bool = False,
    when: str = "",
    view: str = "",
) -> PageTable:
    """Percentages in cells that grow darker with the value; `upright` turns long column headings."""
    body = tuple(Row((Cell(name), *map(heat_cell, line))) for name, line in zip(rows, values, strict=True))
    kind = "heat upright" if upright else "heat"
    return PageTable(caption, tuple(map(Cell, (corner, *columns))), body, kind, when, view)


def bar_table(
    caption: str,
    titles: Sequence[str],
    rows: Iterable[tuple[str, int, Sequence[float | None]]],
    *,
    when: str = "",
    view: str = "",
) -> PageTable:
    """(name, images, percentages) as rows; the first percentage has a bar."""
    body = tuple(
        Row((Cell(name), Cell(f"{images:,}", NUMERIC), bar_cell(rates[0]), *map(number_cell, rates[1:])))
        for name, images, rates in rows
    )
    return PageTable(caption, head_cells(titles), body, when=when, view=view)
