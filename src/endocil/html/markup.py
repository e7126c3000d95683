"""Pieces of HTML. Every text passes through `escaped`, so that a class called `<b>"x"` stays a name."""

import base64
import hashlib
import html
import math
import re
from collections.abc import Collection, Iterable, Sequence

from endocil.io.tables import DASH, Cell, Table, shown, within
from endocil.reports.tables import TITLES

NUMERIC = ' class="n"'


def escaped(text: object) -> str:
    """Safe as text and inside quotes; bytes of file names that are no UTF-8 become question marks."""
    whole = str(text).encode("utf-8", "replace").decode("utf-8")
    return html.escape(whole)


def policy_hash(text: str) -> str:
    """For a page's content security policy: this script or style, and no other."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode("ascii")


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


def captioned(text: str, when: str = "") -> str:
    """A table's caption, which stays in sight while the table is scrolled. The script changes `when` with the task."""
    moment = f' <span class="when">{escaped(when)}</span>' if when else ""
    return f"<caption><span>{escaped(text)}{moment}</span></caption>"


def details(summary: str, body: str) -> str:
    return f"<details><summary>{escaped(summary)}</summary>{body}</details>"


def figure(picture: str, caption: str, legend: str = "") -> str:
    return f"<figure>{legend}{picture}<figcaption>{escaped(caption)}</figcaption></figure>"


def legend(entries: Iterable[tuple[str, str]]) -> str:
    """(sample, name) pairs."""
    items = "".join(f"<li>{sample}{escaped(name)}</li>" for sample, name in entries)
    return f'<ul class="legend">{items}</ul>'


def switches(entries: Iterable[tuple[str, str]]) -> str:
    """A legend in which each entry can be switched off. Without a script it is a legend."""
    items = "".join(
        f'<li><label><input type="checkbox" value="{i}" checked hidden>{sample}{escaped(name)}</label></li>'
        for i, (sample, name) in enumerate(entries)
    )
    buttons = (
        '<button type="button" value="all">All</button> <button type="button" value="none">None</button>'
    )
    return (
        f'<fieldset class="switch"><legend>Methods</legend>'
        f'<p class="script" hidden>{buttons}</p><ul class="legend">{items}</ul></fieldset>'
    )


def head_row(titles: Sequence[str], *, numeric_from: int = 1) -> str:
    """Titles are HTML already."""
    cells = (
        f'<th scope="col"{NUMERIC if j >= numeric_from else ""}>{title}</th>'
        for j, title in enumerate(titles)
    )
    return f"<thead><tr>{''.join(cells)}</tr></thead>"


def plain_table(
    caption: str,
    titles: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    numeric_from: int = 1,
    names: Collection[str] = (),
) -> str:
    """Rows of texts; the first cell of a row is its heading. `names`: titles of columns with long names."""
    kinds = [
        NUMERIC if j >= numeric_from else ' class="name"' if title in names else ""
        for j, title in enumerate(titles)
    ]
    body = "".join(
        f'<tr><th scope="row">{escaped(row[0])}</th>'
        + "".join(f"<td{kind}>{escaped(cell)}</td>" for kind, cell in zip(kinds[1:], row[1:], strict=True))
        + "</tr>"
        for row in rows
    )
    head = head_row([escaped(title) for title in titles], numeric_from=numeric_from)
    whole = f"<table>{captioned(caption)}{head}<tbody>{body}</tbody></table>"
    return scrolling(whole, caption)


def result_table(table: Table) -> str:
    """A table of results; the best values are bold, upper bounds stand apart below a line."""
    marked = table.marked()
    head = "".join(
        f'<th scope="col"{NUMERIC if column.numeric else ""}>{subscripted(column.title)}</th>'
        for column in table.columns
    )
    rows = []
    for i, row in enumerate(table.rows):
        first = shown(row[0])
        cells = [f'<th scope="row">{subscripted(first) if first in TITLES.values() else escaped(first)}</th>']
        for j, cell in enumerate(row[1:], 1):
            text = escaped(shown(cell))
            best = f"<strong>{text}</strong>" if (i, j) in marked else text
            numeric = NUMERIC if table.columns[j].numeric else ""
            cells.append(f"<td{numeric}>{best}{_within(cell)}</td>")
        apart = ' class="apart"' if table.rankings and table.rankings[i] is None else ""
        rows.append(f"<tr{apart}>{''.join(cells)}</tr>")
    whole = (
        f"<table>{captioned(table.caption)}<thead><tr>{head}</tr></thead>"
        f"<tbody>{''.join(rows)}</tbody></table>"
    )
    return scrolling(whole, table.caption)


def _within(cell: Cell) -> str:
    interval = within(cell)
    return f'<br><span class="within">{interval}</span>' if interval else ""
