"""Pieces of the audit's page. Every text passes through `escaped`: file and class names come from outside."""

import base64
import html
import io
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from importlib import resources
from typing import Any

from PIL import Image

from endocil.audit.findings import Record, counted, lines
from endocil.data.leaks import RATES
from endocil.data.table import ImageTable, UnreadableImageError

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


# The audit as one HTML page: opens offline, asks nothing from outside, with contact sheets of the worst pairs.

PAIRS = 24  # on a contact sheet
PER_GROUP = 2  # of them from one group, so that one long video does not fill the sheet
GROUPS, MEMBERS = 8, 16  # groups shown, and images of each
LINES = 50  # of a table


def page(record: Record, picture: Picture | None = None) -> str:
    """The page as text; without `picture` there are names and numbers alone."""
    parts = [
        ("leaks", "Train and test", _leaks(record)),
        ("split", "Pairs across train and test", _split(record, picture)),
        ("classes", "Pairs of two classes", _classes(record, picture)),
        ("groups", "Near duplicates", _groups(record, picture)),
        ("exact", "Exact duplicates", _exact(record)),
        ("counts", "Images by class", _counts(record)),
        ("sources", "Sizes and colours", _sources(record)),
        ("files", "Unreadable files", _unreadable(record)),
    ]
    there = [(name, title, body) for name, title, body in parts if body]
    links = "".join(f'<li><a href="#{name}">{escaped(title)}</a></li>' for name, title, _ in there)
    style = resources.files("endocil.audit").joinpath("assets", "page.css").read_text("utf-8")
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>Audit: {escaped(record['title'])}</title><style>{style}</style></head><body>"
        f"<h1>Audit: {escaped(record['title'])}</h1>{_lead(record)}<nav><ul>{links}</ul></nav><main>"
        f"{''.join(section(*part) for part in there)}</main></body></html>\n"
    )


def _lead(record: Record) -> str:
    text = "".join(paragraph(line[0].upper() + line[1:] + ".", "lead") for line in lines(record))
    return text + "".join(paragraph(note, "faint") for note in record["notes"])


def _leaks(record: Record) -> str:
    if record["leaks"] is None:
        return ""
    rates = [(name, rate) for name, rate in record["leaks"].items() if name != "test_images"]
    rows = [(RATES[name].capitalize(), share_cell(rate), record["definitions"][name]) for name, rate in rates]
    caption = f"Shares of {record['leaks']['test_images']:,} test images; a dash where the data does not tell"
    return table_of(caption, ("in the training part", "test images", "what is counted"), rows)


def _split(record: Record, picture: Picture | None) -> str:
    split = record["across_split"]
    if split is None:
        return ""
    groups = [(g["group"], g["train"], g["test"]) for g in split["listed_groups"]]
    text = _sheet(split["near"], picture, "None: no near duplicate of a test image is in the training part.")
    if groups:
        caption = f"{split['groups']:,} groups of the data are on both sides{_first(groups)}"
        text += table_of(caption, ("group", "training images", "test images"), groups[:LINES])
    return text


def _classes(record: Record, picture: Picture | None) -> str:
    conflicts = record["conflicts"]
    text = ""
    if conflicts["sets"]:
        text += paragraph(f"{conflicts['sets']:,} pictures have two classes with the same pixels.", "warning")
        text += _sets_table(conflicts, "The same picture in two classes")
    return text + _sheet(record["across_classes"], picture, "No near duplicates of two classes.")


def _groups(record: Record, picture: Picture | None) -> str:
    near, text = record["near"], paragraph(record["rule"], "faint")
    if not near["groups"]:
        return text + paragraph("No near duplicates.")
    largest = near["listed"][: GROUPS if picture else LINES]
    if picture:
        text += paragraph(
            f"The largest {len(largest)} of {near['groups']:,} groups, at most {MEMBERS} images of each:"
        )
        return text + sheet((_group(found, picture) for found in largest), wide=True)
    return text + _sets_table(near, f"{near['groups']:,} groups, the largest first")


def _group(found: Record, picture: Picture) -> str:
    ids = found["images"]
    step = max(1, len(ids) / MEMBERS)  # spread over the group: its first images alone would look too alike
    shown = [ids[int(k * step)] for k in range(min(MEMBERS, len(ids)))]
    title = f"{len(ids)} images: {_classes_text(found['classes'])}"
    return f'<div class="pictures">{"".join(map(picture, shown))}</div>{escaped(title)}{name_line(ids[0])}'


def _exact(record: Record) -> str:
    exact = record["exact"]
    if not exact["sets"]:
        return paragraph("No two images have the same pixels.")
    return _sets_table(exact, f"{exact['images']:,} images in {exact['sets']:,} sets with the same pixels")


def _sets_table(found: Record, caption: str) -> str:
    rows = [(s["images"][0], len(s["images"]), _classes_text(s["classes"])) for s in found["listed"]]
    return table_of(f"{caption}{_first(rows)}", ("first image", "images", "classes"), rows[:LINES])


def _sheet(found: Record, picture: Picture | None, none: str) -> str:
    if not found["pairs"]:
        return paragraph(none)
    taken: Counter[str] = Counter()
    chosen: list[Record] = []
    for pair in found["worst"]:
        taken[pair["group"]] += 1
        if taken[pair["group"]] <= PER_GROUP and len(chosen) < PAIRS:
            chosen.append(pair)
    title = f"{counted(found)} pairs. Shown: the {len(chosen)} strongest, at most {PER_GROUP} of one group."
    return paragraph(title[0].upper() + title[1:]) + sheet(_pair(pair, picture) for pair in chosen)


def _pair(pair: Record, picture: Picture | None) -> str:
    shown = f'<div class="pictures">{"".join(map(picture, pair["images"]))}</div>' if picture else ""
    names = " / ".join(dict.fromkeys(pair["classes"]))
    text = f"{escaped(names)}<br>correlation {pair['correlation']:.3f}"
    return shown + text + "".join(name_line(name) for name in pair["images"])


def _counts(record: Record) -> str:
    rows = record["counts"]
    titles = tuple(rows[0]) if rows else ("class", "images")
    return table_of("Classes in the order of learning", titles, [tuple(row.values()) for row in rows])


def _sources(record: Record) -> str:
    sizes = [(s["size"], s["images"]) for s in record["sizes"]]
    sources = [
        (
            s["source"],
            s["images"],
            s["brightness"],
            s["brightness_deviation"],
            colour_cell(s["red"], s["green"], s["blue"]),
            100 * s["view"],
        )
        for s in record["sources"]
    ]
    titles = ("source", "images", "brightness", "its deviation", "red green blue", "view, %")
    text = table_of("Means over the view, from 0 to 255; the view is what is not black", titles, sources)
    return text + table_of(f"Width x height{_first(sizes)}", ("size", "images"), sizes[:LINES])


def _unreadable(record: Record) -> str:
    if not record["unreadable"]:
        return ""
    rows = [(found["image"], found["reason"]) for found in record["unreadable"]]
    whole = table_of(f"{len(rows):,} images{_first(rows)}", ("image", "reason"), rows[:LINES])
    return details(f"{len(rows):,} images cannot be read", whole) if len(rows) > 10 else whole


def _classes_text(classes: dict[str, int]) -> str:
    return ", ".join(f"{name} {n}" for name, n in classes.items())


def _first(rows: list[Any]) -> str:
    return f"; the first {LINES}" if len(rows) > LINES else ""
