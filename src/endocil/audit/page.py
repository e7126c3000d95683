"""The audit as one HTML page: opens offline, asks nothing from outside, with contact sheets of the worst pairs."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from endocil.audit.findings import Record, counted, lines
from endocil.data.leaks import RATES
from endocil.data.table import ImageTable, UnreadableImageError
from endocil.html.markup import jpeg_uri, render_page
from endocil.html.tables import NUMERIC, Cell, PageTable, Row, bar_cell, number_cell
from endocil.model.disclaimer import DISCLAIMER

SHOWN = 112  # pixels of an image on the page
PAIRS = 24  # on a contact sheet
PER_GROUP = 2  # of them from one group, so that one long video does not fill the sheet
GROUPS, MEMBERS = 8, 16  # groups shown, and images of each
LINES = 50  # of a table

Picture = Callable[[str], str]  # an image's id -> its data URI, or nothing

NAVIGATION = {
    "leaks": "Train and test",
    "split": "Pairs across train and test",
    "classes": "Pairs of two classes",
    "groups": "Near duplicates",
    "exact": "Exact duplicates",
    "counts": "Images by class",
    "sources": "Sizes and colours",
    "files": "Unreadable files",
}


def pictures_of(table: ImageTable) -> Picture:
    """Small pictures inside the page; one that cannot be read any more is left out."""

    def picture(image_id: str) -> str:
        try:
            return jpeg_uri(table.reader.read(image_id, SHOWN), SHOWN, quality=75)
        except UnreadableImageError:
            return ""

    return picture


def page(record: Record, picture: Picture | None = None) -> str:
    """The page as text; without `picture` there are names and numbers alone."""
    parts: dict[str, Any] = {
        "leaks": _leaks(record),
        "split": _split(record, picture),
        "classes": _classes(record, picture),
        "groups": _groups(record, picture),
        "exact": _exact(record),
        "counts": _counts(record),
        "sources": _sources(record),
        "files": _unreadable(record),
    }
    absent = {name for name in ("leaks", "split", "files") if parts[name] is None}
    return render_page(
        "endocil.audit",
        title=f"Audit: {record['title']}",
        disclaimer=DISCLAIMER,
        navigation=[(name, text) for name, text in NAVIGATION.items() if name not in absent],
        lines=[_unbroken(line[0].upper() + line[1:] + ".") for line in lines(record)],
        notes=record["notes"],
        **parts,
    )


def _unbroken(text: str) -> str:
    return text.replace(" %", "\N{NO-BREAK SPACE}%")


def _table(caption: str, titles: Sequence[str], rows: Iterable[Sequence[Any]]) -> PageTable:
    """Numbers stand to the right; at most LINES rows."""
    body = [Row(tuple(map(_cell, row))) for row in rows]
    numeric = [all(row.cells[j].kind.startswith(NUMERIC) for row in body) for j in range(len(titles))]
    head = (Cell(title, NUMERIC if right else "") for title, right in zip(titles, numeric, strict=True))
    more = f"; the first {LINES}" if len(body) > LINES else ""
    return PageTable(caption + more, tuple(head), tuple(body[:LINES]))


def _cell(value: Any) -> Cell:
    if isinstance(value, Cell):
        return value
    if isinstance(value, float):
        return number_cell(value)
    return Cell(f"{value:,}", NUMERIC) if isinstance(value, int) else Cell(str(value))


def _leaks(record: Record) -> PageTable | None:
    if record["leaks"] is None:
        return None
    rates = [(name, rate) for name, rate in record["leaks"].items() if name != "test_images"]
    rows = [
        (
            RATES[name].capitalize(),
            bar_cell(None if rate is None else 100 * rate, "\N{NO-BREAK SPACE}%"),
            record["definitions"][name],
        )
        for name, rate in rates
    ]
    caption = f"Shares of {record['leaks']['test_images']:,} test images; a dash where the data does not tell"
    return _table(caption, ("in the training part", "test images", "definition"), rows)


def _split(record: Record, picture: Picture | None) -> dict[str, Any] | None:
    split = record["across_split"]
    if split is None:
        return None
    groups = [(group["group"], group["train"], group["test"]) for group in split["listed_groups"]]
    caption = f"{split['groups']:,} groups of the data are on both sides"
    none = "None: no near duplicate of a test image is in the training part."
    return {
        "pairs": _pairs(split["near"], picture, none),
        "groups": _table(caption, ("group", "training images", "test images"), groups) if groups else None,
    }


def _classes(record: Record, picture: Picture | None) -> dict[str, Any]:
    conflicts = record["conflicts"]
    return {
        "warning": f"{conflicts['sets']:,} images are in two classes with the same pixels.",
        "conflicts": _sets(conflicts, "The same image in two classes") if conflicts["sets"] else None,
        "pairs": _pairs(record["across_classes"], picture, "No near duplicates of two classes."),
    }


def _pairs(pairs: Record, picture: Picture | None, none: str) -> dict[str, Any]:
    """The strongest pairs, few of one group."""
    if not pairs["pairs"]:
        return {"text": none, "pairs": []}
    taken: Counter[str] = Counter()
    chosen: list[Record] = []
    for pair in pairs["worst"]:
        taken[pair["group"]] += 1
        if taken[pair["group"]] <= PER_GROUP and len(chosen) < PAIRS:
            chosen.append(pair)
    text = f"{counted(pairs)} pairs. Shown: the {len(chosen)} strongest, at most {PER_GROUP} of one group."
    return {
        "text": text[0].upper() + text[1:],
        "pairs": [
            {
                "images": _images(pair["images"], picture),
                "classes": " / ".join(dict.fromkeys(pair["classes"])),
                "correlation": pair["correlation"],
            }
            for pair in chosen
        ],
    }


def _images(ids: Iterable[str], picture: Picture | None) -> list[dict[str, str | None]]:
    return [{"uri": picture(name) if picture else None, "text": name} for name in ids]


def _groups(record: Record, picture: Picture | None) -> dict[str, Any]:
    near = record["near"]
    parts: dict[str, Any] = {"rule": record["rule"], "text": "", "table": None, "sheet": []}
    if not near["groups"]:
        return parts | {"text": "No near duplicates."}
    if picture is None:
        return parts | {"table": _sets(near, f"{near['groups']:,} groups, the largest first")}
    largest = near["listed"][:GROUPS]
    text = f"The largest {len(largest)} of {near['groups']:,} groups, at most {MEMBERS} images of each:"
    return parts | {"text": text, "sheet": [_group(group, picture) for group in largest]}


def _group(group: Record, picture: Picture) -> dict[str, Any]:
    ids = group["images"]
    step = max(1, len(ids) / MEMBERS)  # spread over the group: its first images alone would look too alike
    chosen = [ids[int(k * step)] for k in range(min(MEMBERS, len(ids)))]
    text = f"{len(ids)} images: {_class_counts(group['classes'])}"
    return {"images": _images(chosen, picture), "text": text, "first": ids[0]}


def _exact(record: Record) -> PageTable | None:
    exact = record["exact"]
    if not exact["sets"]:
        return None
    return _sets(exact, f"{exact['images']:,} images in {exact['sets']:,} sets with the same pixels")


def _sets(sets: Record, caption: str) -> PageTable:
    rows = [(s["images"][0], len(s["images"]), _class_counts(s["classes"])) for s in sets["listed"]]
    return _table(caption, ("first image", "images", "classes"), rows)


def _class_counts(classes: dict[str, int]) -> str:
    return ", ".join(f"{name} {n}" for name, n in classes.items())


def _counts(record: Record) -> PageTable:
    """Tasks are counted from 1 here and from 0 in the record."""
    rows = [row | ({"task": row["task"] + 1} if "task" in row else {}) for row in record["counts"]]
    titles = tuple(rows[0]) if rows else ("class", "images")
    return _table("Classes in the order of learning", titles, [tuple(row.values()) for row in rows])


def _sources(record: Record) -> list[PageTable]:
    sources = [
        (
            s["source"],
            s["images"],
            s["brightness"],
            s["brightness_deviation"],
            _colour(s["red"], s["green"], s["blue"]),
            100 * s["view"],
        )
        for s in record["sources"]
    ]
    titles = ("source", "images", "brightness", "its deviation", "red green blue", "view, %")
    return [
        _table("Means over the view, from 0 to 255; the view is what is not black", titles, sources),
        _table("Width x height", ("size", "images"), [(s["size"], s["images"]) for s in record["sizes"]]),
    ]


def _colour(red: float, green: float, blue: float) -> Cell:
    values = f"{red:.0f} {green:.0f} {blue:.0f}"
    return Cell(values, swatch=f"rgb({values})")


def _unreadable(record: Record) -> PageTable | None:
    rows = [(each["image"], each["reason"]) for each in record["unreadable"]]
    return _table(f"{len(rows):,} images", ("image", "reason"), rows) if rows else None
