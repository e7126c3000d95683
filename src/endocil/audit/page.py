"""The audit as one HTML page: opens offline, loads nothing from the network, with contact sheets of the worst pairs."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from endocil.audit.findings import Record, lines, number_of
from endocil.data.leaks import RATES
from endocil.data.table import ImageTable, UnreadableImageError
from endocil.html.markup import jpeg_uri, render_page
from endocil.html.page_tables import NUMERIC, Cell, PageTable, Row, bar_cell, number_cell
from endocil.model import DISCLAIMER

SHOWN = 112  # pixels of an image on the page
PAIRS = 24  # on a contact sheet
PER_GROUP = 2  # of them from one group, so that one long video does not fill the sheet
GROUPS, MEMBERS = 8, 16  # groups shown, and images of each
LINES = 50  # of a table
PERCENT = "\N{NO-BREAK SPACE}%"

Picture = Callable[[str], str]  # an image's id -> its data URI, or nothing


def pictures_of(table: ImageTable) -> Picture:
    """Small pictures inside the page; one that cannot be read any more is left out."""

    def picture(image_id: str) -> str:
        try:
            return jpeg_uri(table.reader.read(image_id, SHOWN), SHOWN, quality=75)
        except UnreadableImageError:
            return ""

    return picture


def page(record: Record, picture: Picture | None = None) -> str:
    """The page as text; without `picture` it has only names and numbers."""
    split, near, exact, conflicts = (record[name] for name in ("across_split", "near", "exact", "conflicts"))
    unreadable = [(each["image"], each["reason"]) for each in record["unreadable"]]
    # tasks are counted from 1 here and from 0 in the record
    counts = [row | ({"task": row["task"] + 1} if "task" in row else {}) for row in record["counts"]]
    groups_of_data = [tuple(group.values()) for group in split["listed_groups"]] if split else []
    return render_page(
        "endocil.audit",
        title=f"Audit: {record['title']}",
        disclaimer=DISCLAIMER,
        lines=[(line[0].upper() + line[1:] + ".").replace(" %", PERCENT) for line in lines(record)],
        record=record,
        leaks=_leaks(record) if split else None,
        split_pairs=_pairs(split["near"], picture) if split else None,
        split_groups=_table(
            f"{split['groups']:,} groups of the data are on both sides",
            ("group", "training images", "test images"),
            groups_of_data,
        )
        if groups_of_data
        else None,
        conflicts=_sets(conflicts, "The same image in two classes"),
        class_pairs=_pairs(record["across_classes"], picture),
        group_table=None if picture else _sets(near, f"{near['groups']:,} groups, the largest first"),
        groups=[_group(group, picture) for group in near["listed"][:GROUPS]] if picture else [],
        members=MEMBERS,
        exact=_sets(exact, f"{exact['images']:,} images in {exact['sets']:,} sets with the same pixels"),
        counts=_table(
            "Classes in the order of learning",
            tuple(counts[0]) if counts else ("class", "images"),
            [tuple(row.values()) for row in counts],
        ),
        sources=_sources(record),
        files=_table(f"{len(unreadable):,} images", ("image", "reason"), unreadable) if unreadable else None,
    )


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


def _sets(sets: Record, caption: str) -> PageTable | None:
    rows = [(s["images"][0], len(s["images"]), _class_counts(s["classes"])) for s in sets["listed"]]
    return _table(caption, ("first image", "images", "classes"), rows) if rows else None


def _class_counts(classes: dict[str, int]) -> str:
    return ", ".join(f"{name} {n}" for name, n in classes.items())


def _leaks(record: Record) -> PageTable:
    rates = dict(record["leaks"])
    caption = f"Shares of {rates.pop('test_images'):,} test images; a dash: this data does not tell"
    rows = [
        (RATES[name].capitalize(), bar_cell(None if rate is None else 100 * rate, PERCENT), record["definitions"][name])
        for name, rate in rates.items()
    ]
    return _table(caption, ("in the training part", "test images", "definition"), rows)


def _pairs(pairs: Record, picture: Picture | None) -> dict[str, Any]:
    """The strongest pairs, few of one group."""
    shown_of_group: Counter[str] = Counter()
    chosen: list[Record] = []
    for pair in pairs["worst"]:
        shown_of_group[pair["group"]] += 1
        if shown_of_group[pair["group"]] <= PER_GROUP and len(chosen) < PAIRS:
            chosen.append(pair | {"images": _images(pair["images"], picture)})
    text = f"{number_of(pairs)} pairs. Shown: the {len(chosen)} strongest, at most {PER_GROUP} of one group."
    return {"text": text[0].upper() + text[1:], "pairs": chosen}


def _images(ids: Iterable[str], picture: Picture | None) -> list[dict[str, str | None]]:
    return [{"uri": picture(name) if picture else None, "text": name} for name in ids]


def _group(group: Record, picture: Picture) -> dict[str, Any]:
    ids = group["images"]
    step = max(1, len(ids) / MEMBERS)  # spread over the group: its first images alone would look too alike
    chosen = [ids[int(k * step)] for k in range(min(MEMBERS, len(ids)))]
    text = f"{len(ids)} images: {_class_counts(group['classes'])}"
    return {"images": _images(chosen, picture), "text": text, "first": ids[0]}


def _sources(record: Record) -> list[PageTable]:
    rows = []
    for s in record["sources"]:
        colour = f"{s['red']:.0f} {s['green']:.0f} {s['blue']:.0f}"
        swatch = Cell(colour, swatch=f"rgb({colour})")
        rows.append((s["source"], s["images"], s["brightness"], s["brightness_deviation"], swatch, 100 * s["view"]))
    titles = ("source", "images", "brightness", "its deviation", "red green blue", "view, %")
    return [
        _table("Means over the view, from 0 to 255; the view is what is not black", titles, rows),
        _table("Width x height", ("size", "images"), [(s["size"], s["images"]) for s in record["sizes"]]),
    ]
