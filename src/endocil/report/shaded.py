"""Tables whose cells show a percentage twice, as a number and as a shade or a bar: nobody needs the colours."""

import math
from collections.abc import Iterable, Sequence

from endocil.report.markup import NUMERIC, captioned, escaped, head_row, number, scrolling
from endocil.report.names import DASH

INK_TURNS = (
    76  # above this percentage of the heat colour the letters change; either way their contrast is over 4.5
)
SHADES = "".join(
    f".v{n}{{--v:{n}}}" for n in range(101)
)  # the policy of the page allows no style on an element


def heat_table(
    caption: str,
    corner: str,
    rows: Sequence[str],
    columns: Sequence[str],
    values: Sequence[Sequence[float | None]],
    *,
    upright: bool = False,
    when: str = "",
    view: str = "",
) -> str:
    """Percentages as a table whose cells grow darker with the value; `upright` turns long column headings. `when` ends
    the caption, and the script changes it with the table, which it finds by `view`."""
    kind = "heat upright" if upright else "heat"
    heads = "".join(f'<th scope="col"><span>{escaped(name)}</span></th>' for name in columns)
    body = "".join(
        f'<tr><th scope="row">{escaped(name)}</th>{"".join(map(_heat_cell, line))}</tr>'
        for name, line in zip(rows, values, strict=True)
    )
    whole = (
        f'<table class="{kind}"{viewed(view)}>{captioned(caption, when)}'
        f'<thead><tr><th scope="col">{escaped(corner)}</th>{heads}</tr></thead><tbody>{body}</tbody></table>'
    )
    return scrolling(whole, caption)


def viewed(view: str) -> str:
    return f' data-view="{view}"' if view else ""


def heat_value(value: float | None) -> float | None:
    """A percentage as a cell shows it: whole, or 0.1 where there is something that rounds to nothing."""
    if value is None or not math.isfinite(value):
        return None
    whole = round(min(max(value, 0.0), 100.0))
    return 0.1 if whole == 0 and value > 0 else whole


def _heat_cell(value: float | None) -> str:
    shown = heat_value(value)
    if shown is None:
        return "<td></td>"
    whole = round(shown)
    turned = " hot" if whole > INK_TURNS else ""
    # A nought in each empty cell of a confusion matrix would hide the few that matter.
    return f'<td class="v{whole}{turned}">{"·" if shown == 0 else whole}</td>'


def bar_cell(value: float | None) -> str:
    """A percentage with a bar behind it."""
    if value is None or not math.isfinite(value):
        return f"<td{NUMERIC}>{DASH}</td>"
    return f'<td class="n bar v{round(value)}">{value:.1f}</td>'


def bar_table(
    caption: str,
    titles: Sequence[str],
    rows: Iterable[tuple[str, int, Sequence[float | None]]],
    *,
    when: str = "",
    view: str = "",
) -> str:
    """(name, images, percentages) as rows; the first percentage has a bar. For `when` and `view` see heat_table."""
    body = "".join(
        f'<tr><th scope="row">{escaped(name)}</th><td{NUMERIC}>{images:,}</td>{bar_cell(rates[0])}'
        + "".join(f"<td{NUMERIC}>{number(rate)}</td>" for rate in rates[1:])
        + "</tr>"
        for name, images, rates in rows
    )
    told = captioned(caption, when)
    return scrolling(
        f"<table{viewed(view)}>{told}{head_row(titles)}<tbody>{body}</tbody></table>", caption.rstrip(",")
    )
