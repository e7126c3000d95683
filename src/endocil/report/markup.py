"""Pieces of HTML. Every text passes through `escaped`, so that a class called `<b>"x"` stays a name."""

import html
import math
import re
from collections.abc import Iterable, Sequence

from endocil.report.names import DASH
from endocil.report.tables import Table, shown

NUMERIC = ' class="n"'
INK_TURNS = (
    0.76  # above this share of the heat colour the letters change; either way their contrast is over 4.5
)


def escaped(text: object) -> str:
    """Safe as text and inside quotes; bytes of file names that are no UTF-8 become question marks."""
    whole = str(text).encode("utf-8", "replace").decode("utf-8")
    return html.escape(whole)


def subscripted(title: str) -> str:
    """Acc_last as Acc with a small `last` below the line."""
    return re.sub(r"_(\w+)", r"<sub>\1</sub>", escaped(title))


def number(value: float | None, decimals: int = 1) -> str:
    if value is None or not math.isfinite(value):
        return DASH
    return f"{round(value, decimals) + 0.0:,.{decimals}f}"


def scrolling(body: str, name: str) -> str:
    """A part that may be wider than a phone; the keyboard can reach and scroll it."""
    return f'<div class="scroll" role="region" tabindex="0" aria-label="{escaped(name)}">{body}</div>'


def details(summary: str, body: str) -> str:
    return f"<details><summary>{escaped(summary)}</summary>{body}</details>"


def figure(picture: str, caption: str, legend: str = "") -> str:
    return f"<figure>{legend}{picture}<figcaption>{escaped(caption)}</figcaption></figure>"


def legend(entries: Iterable[tuple[str, str]]) -> str:
    """(sample, name) pairs."""
    items = "".join(f"<li>{sample}{escaped(name)}</li>" for sample, name in entries)
    return f'<ul class="legend">{items}</ul>'


def head_row(titles: Sequence[str], *, numeric_from: int = 1) -> str:
    """Titles are HTML already."""
    cells = (
        f'<th scope="col"{NUMERIC if j >= numeric_from else ""}>{title}</th>'
        for j, title in enumerate(titles)
    )
    return f"<thead><tr>{''.join(cells)}</tr></thead>"


def plain_table(
    caption: str, titles: Sequence[str], rows: Iterable[Sequence[str]], *, numeric_from: int = 1
) -> str:
    """Rows of texts; the first cell of a row is its heading."""
    body = "".join(
        f'<tr><th scope="row">{escaped(row[0])}</th>'
        + "".join(
            f"<td{NUMERIC if j >= numeric_from else ''}>{escaped(c)}</td>" for j, c in enumerate(row) if j
        )
        + "</tr>"
        for row in rows
    )
    head = head_row([escaped(title) for title in titles], numeric_from=numeric_from)
    whole = f"<table><caption>{escaped(caption)}</caption>{head}<tbody>{body}</tbody></table>"
    return scrolling(whole, caption)


def result_table(table: Table) -> str:
    """A table of results; the best values are bold, upper bounds stand apart below a line."""
    marked = table.marked()
    head = head_row([subscripted(column.title) for column in table.columns])
    rows = []
    for i, row in enumerate(table.rows):
        cells = [f'<th scope="row">{escaped(shown(row[0]))}</th>']
        for j, cell in enumerate(row[1:], 1):
            text = escaped(shown(cell))
            cells.append(f"<td{NUMERIC}>{f'<strong>{text}</strong>' if (i, j) in marked else text}</td>")
        apart = ' class="apart"' if table.contests and table.contests[i] is None else ""
        rows.append(f"<tr{apart}>{''.join(cells)}</tr>")
    whole = f"<table><caption>{escaped(table.caption)}</caption>{head}<tbody>{''.join(rows)}</tbody></table>"
    return scrolling(whole, table.caption)


def heat_table(
    caption: str,
    corner: str,
    rows: Sequence[str],
    columns: Sequence[str],
    values: Sequence[Sequence[float | None]],
    *,
    upright: bool = False,
) -> str:
    """Percentages as a table whose cells grow darker with the value; `upright` turns long column headings."""
    kind = "heat upright" if upright else "heat"
    heads = "".join(f'<th scope="col"><span>{escaped(name)}</span></th>' for name in columns)
    body = "".join(
        f'<tr><th scope="row">{escaped(name)}</th>{"".join(map(_heat_cell, line))}</tr>'
        for name, line in zip(rows, values, strict=True)
    )
    whole = (
        f'<table class="{kind}"><caption>{escaped(caption)}</caption>'
        f'<thead><tr><th scope="col">{escaped(corner)}</th>{heads}</tr></thead><tbody>{body}</tbody></table>'
    )
    return scrolling(whole, caption)


def _heat_cell(value: float | None) -> str:
    if value is None or not math.isfinite(value):
        return "<td></td>"
    share = min(max(value / 100, 0.0), 1.0)
    turned = ' class="hot"' if share > INK_TURNS else ""
    # A nought in each empty cell of a confusion matrix would hide the few that matter.
    return f'<td{turned} style="--v:{share:.2f}">{"·" if value == 0 else f"{value:.0f}"}</td>'


def bar_cell(value: float | None) -> str:
    """A percentage with a bar behind it."""
    if value is None or not math.isfinite(value):
        return f"<td{NUMERIC}>{DASH}</td>"
    return f'<td class="n bar" style="--v:{value:.1f}%"><span>{value:.1f}</span></td>'
