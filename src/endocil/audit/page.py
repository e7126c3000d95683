"""The audit as one HTML page: opens offline, asks nothing from outside, with contact sheets of the worst pairs."""

from collections import Counter
from importlib import resources
from typing import Any

from endocil.audit.leaks import RATES
from endocil.audit.markup import (
    Picture,
    colour_cell,
    details,
    escaped,
    name_line,
    paragraph,
    section,
    share_cell,
    sheet,
    table_of,
)
from endocil.audit.summary import Record, counted, lines

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
