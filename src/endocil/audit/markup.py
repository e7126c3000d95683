"""Pieces of the audit's page. Every text passes through `escaped`: file and class names come from outside."""

import base64
import html
import io
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from PIL import Image

from endocil.images.table import ImageTable, UnreadableImageError

SHOWN = 112  # pixels of a picture on the page

Picture = Callable[[str], str]  # an image's id to HTML, or to nothing


def escaped(text: object) -> str:
    """Safe as text and inside quotes; bytes of file names that are no UTF-8 become question marks."""
    return html.escape(str(text).encode("utf-8", "replace").decode("utf-8"))


def pictures_of(table: ImageTable) -> Picture:
    """Small pictures inside the page; one that cannot be read any more is left out."""

    def picture(image_id: str) -> str:
        try:
            pixels = table.reader.read(image_id, SHOWN)
        except UnreadableImageError:
            return ""
        file = io.BytesIO()
        Image.fromarray(pixels).save(file, "JPEG", quality=75)
        data = base64.b64encode(file.getvalue()).decode()
        return (
            f'<img src="data:image/jpeg;base64,{data}" alt="{escaped(image_id)}" title="{escaped(image_id)}">'
        )

    return picture


def section(name: str, title: str, body: str) -> str:
    return f'<section id="{name}"><h2>{escaped(title)}</h2>{body}</section>'


def paragraph(text: str, kind: str = "") -> str:
    unbroken = escaped(text).replace(" %", "&nbsp;%")
    return f'<p class="{kind}">{unbroken}</p>'


def table_of(caption: str, titles: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """The first cell of a row is its heading; numbers stand to the right."""
    filled = [[cell if isinstance(cell, Markup) else _cell(cell) for cell in row] for row in rows]
    numeric = [all(row[j].startswith('<td class="n') for row in filled) for j in range(len(titles))]
    head = "".join(
        f'<th scope="col"{_right(is_number)}>{escaped(title)}</th>'
        for title, is_number in zip(titles, numeric, strict=True)
    )
    body = "".join(f"<tr>{_heading(row[0])}{''.join(row[1:])}</tr>" for row in filled)
    return (
        f'<div class="scroll" role="region" tabindex="0" aria-label="{escaped(caption)}"><table>'
        f"<caption>{escaped(caption)}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


class Markup(str):
    """A table cell that is HTML already."""


def share_cell(share: float | None) -> Markup:
    """A percentage with a bar behind it; a dash where it is not known."""
    if share is None:
        return Markup('<td class="n">-</td>')
    return Markup(f'<td class="n bar" style="--v:{100 * share:.1f}%">{100 * share:.1f} %</td>')


def colour_cell(red: float, green: float, blue: float) -> Markup:
    values = f"{red:.0f} {green:.0f} {blue:.0f}"
    return Markup(f'<td><span class="swatch" style="background:rgb({values})"></span> {values}</td>')


def sheet(items: Iterable[str], *, wide: bool = False) -> str:
    return f'<ul class="sheet{" wide" if wide else ""}">{"".join(f"<li>{item}</li>" for item in items)}</ul>'


def name_line(text: str) -> str:
    """A file name that is cut at its beginning where there is no room: the end tells files apart."""
    return f'<span class="name" title="{escaped(text)}"><bdi>{escaped(text)}</bdi></span>'


def details(title: str, body: str) -> str:
    return f"<details><summary>{escaped(title)}</summary>{body}</details>"


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f'<td class="n">{value:,.1f}</td>'
    return f'<td class="n">{value:,}</td>' if isinstance(value, int) else f"<td>{escaped(value)}</td>"


def _heading(cell: str) -> str:
    return '<th scope="row"' + cell.removeprefix("<td").removesuffix("</td>") + "</th>"


def _right(is_number: bool) -> str:
    return ' class="n"' if is_number else ""
