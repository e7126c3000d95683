"""The comparison of two versions as one HTML page: opens offline, asks nothing from outside, runs no script."""

from collections.abc import Callable, Sequence
from typing import Any

from endocil.html.charts import Axis, Series, interval_chart, line_chart, sample
from endocil.html.markup import number, render_page
from endocil.html.tables import NUMERIC, Cell, PageTable, Row, head_cells, text_table
from endocil.model.disclaimer import DISCLAIMER
from endocil.release.gate import QUANTITIES

Record = dict[str, Any]
Picture = Callable[[str], str]  # an image's id -> its data URI, or nothing

OLD, NEW, DIAGONAL = 1, 0, 6  # styles of lines
SHOWN = 60  # flips of one kind with their images; all are in the CSV file
FOLDED = 12  # checks that hold; more are folded away below those that fail
LINES = 100  # of a list
CHANGES = ("old", "new", "change")
IMAGES_OF = {
    "known": "classes the old version knows",
    "new": "classes new in the new version",
    "neither": "classes neither knows (left out elsewhere)",
}
LEFT_OUT = {  # key of the record -> why, and the column beside the image
    "unknown_classes": ("of a class that neither version knows", "class"),
    "unreadable": ("not readable", "reason"),
    "inside_a_model": ("found inside a model, as exemplar or held-out image, and so no test", "version"),
}
NAVIGATION = {
    "rules": "The rules",
    "classes": "Class by class",
    "overall": "All images",
    "lost": "Negative flips",
    "won": "Positive flips",
    "calibration": "Is confidence true?",
    "flags": "Flagged as out of distribution",
    "left-out": "Images left out",
    "method": "How the numbers are made",
}


def gate_page(record: Record, picture: Picture | None = None) -> str:
    """The page of a record; without `picture` there are names and numbers alone."""
    left_out = _left_out(record)
    return render_page(
        "endocil.release",
        title=f"{record['new']['file']} in place of {record['old']['file']}?",
        disclaimer=DISCLAIMER,
        navigation=[(name, text) for name, text in NAVIGATION.items() if name != "left-out" or left_out],
        verdict={"pass": "pass", "refused": "refused"}.get(record["verdict"], ""),
        line=record["line"],
        facts=_facts(record),
        versions=[(name, record[name]) for name in ("old", "new")],
        rules=_rules(record),
        classes=_classes(record),
        overall=_overall(record),
        flips=[(kind, _flips(record, kind, picture)) for kind in ("negative", "positive")],
        calibration=_calibration(record),
        flags=_flags(record),
        left_out=left_out,
        method=record["method"],
    )


def _facts(record: Record) -> str:
    test, old, new = record["test"], record["old"], record["new"]
    groups = f" in {test['groups']:,} groups" if test["groups"] else ""
    made = "was made from the old one" if record["new_made_from_old"] else "was not made from the old one"
    head = record["head"].replace("_", "-")
    return (
        f"{test['compared']:,} test images{groups} of {test['name']}, {test['of_classes_the_old_version_knows']:,} of "
        f"them of classes that the old version knows; {head} head. The old version knows {old['classes']} classes, "
        f"the new one {new['classes']}; the new version {made}."
    )


def _rules(record: Record) -> dict[str, Any]:
    """The checks, failed ones first; many that hold are folded away."""
    passed = [_check(check) for check in record["checks"] if check["passed"]]
    failed = [_check(check) for check in record["checks"] if not check["passed"]]
    folded = bool(failed) and len(passed) > FOLDED
    return {"shown": failed if folded else [*failed, *passed], "folded": passed if folded else []}


def _check(check: Record) -> dict[str, Any]:
    quantity = QUANTITIES[check["key"]]
    refuse = f": {check['refuse']}, {100 * check['level']:.4g}\N{NO-BREAK SPACE}%" if check["refuse"] else ""
    return {
        "passed": check["passed"],
        "about": f"{check['about']}: {quantity}" if check["about"] else quantity[0].upper() + quantity[1:],
        "limit": f"{'≥' if check['key'].startswith('smallest') else '≤'}\N{NO-BREAK SPACE}{check['limit']:g}",
        "measured": check["explanation"],
        "section": check["section"],
        "refuse": refuse.replace("_", " "),
    }


def _classes(record: Record) -> dict[str, Any]:
    rows = record["classes"]
    changes = [
        (row["class"], change["value"], tuple(change["interval"]))
        for row in rows
        if (change := row["sensitivity"]["change"])
    ]
    limits = {
        check["about"]: check["limit"]
        for check in record["checks"]
        if check["key"] == "largest_loss_of_sensitivity"
    }
    caption = "Change of sensitivity with its 95 % interval"
    caption += "; the dashed mark is what the rules allow to be lost" if limits else ""
    label = "change in points; left of 0: lost"
    chart = interval_chart(changes, limits, title=caption, label=label) if changes else None
    flattering = any(row["status"] == "new" and row["images"] for row in rows)
    return {
        "chart": {"chart": chart, "caption": caption, "entries": []} if chart else None,
        "table": _shares(rows),
        "all_images": _all_images(rows) if flattering else None,
    }


def _shares(rows: Sequence[Record]) -> PageTable:
    grouped = any(row["groups"] < row["images"] for row in rows)
    titles = ["class", "images in groups" if grouped else "images", "sensitivity old", "new", "change"]
    body = tuple(
        Row(
            (
                _name(row),
                Cell(_images(row), NUMERIC),
                *_cells(row["sensitivity"]),
                *_cells(row["specificity"]),
            )
        )
        for row in rows
    )
    caption = (
        "Sensitivity and specificity of each class in percent, changes in points, with 95 % intervals; specificity "
        "on the images of classes that the old version knows"
    )
    return PageTable(caption, head_cells([*titles, "specificity old", "new", "change"]), body)


def _all_images(rows: Sequence[Record]) -> PageTable:
    """The old version calls images of new classes something else, so all images flatter the change."""
    caption = (
        "Specificity on all images. The old version can only be wrong about images of new classes, so here the change "
        "looks better than above"
    )
    body = tuple(Row((_name(row), *_cells(row["specificity_all_images"]))) for row in rows)
    return PageTable(caption, head_cells(["class", *CHANGES]), body)


def _name(row: Record) -> Cell:
    return Cell(row["class"], mark="" if row["status"] == "known" else row["status"])


def _images(row: Record) -> str:
    return f"{row['images']:,}" + (f" in {row['groups']:,}" if row["groups"] < row["images"] else "")


def _cells(pair: Record) -> list[Cell]:
    return [_share_cell(pair[which], signed=which == "change") for which in CHANGES]


def _share_cell(share: Record | None, *, signed: bool = False) -> Cell:
    if share is None:
        return Cell(number(None), NUMERIC)
    value, (low, high) = share["value"], share["interval"]
    sign = "+" if signed and round(value, 1) > 0 else ""
    return Cell(f"{sign}{number(value)}", NUMERIC, below=f"{number(low)} to {number(high)}")


def _change_table(caption: str, rows: Sequence[tuple[str, Record]]) -> PageTable:
    return PageTable(
        caption, head_cells(["", *CHANGES]), tuple(Row((Cell(name), *_cells(pair))) for name, pair in rows)
    )


def _overall(record: Record) -> dict[str, Any]:
    overall, test = record["overall"], record["test"]
    rows = [("accuracy", overall["accuracy"]), ("macro F1", overall["macro_f1"])]
    if test["compared"] > test["of_classes_the_old_version_knows"]:
        rows.append(("accuracy, all images", _new_only(overall["accuracy_all_images"])))
    caption = (
        f"On {test['of_classes_the_old_version_knows']:,} images of classes that the old version knows, unless a line "
        f"says otherwise; percent and points with 95 % intervals"
    )
    lost, won = overall["negative_flips"], overall["positive_flips"]
    text = (
        f"{won['flips']:,} positive flips ({_share(won)}) and {lost['flips']:,} negative flips ({_share(lost)}). "
        f"McNemar's exact test of the two: p {_p(overall['mcnemar_p'])}"
    )
    if overall["p_by_group"] is not None:
        text += f", which takes images for independent; by group p {_p(overall['p_by_group'])}"
    return {"table": _change_table(caption, rows), "text": f"{text}."}


def _new_only(share: Record) -> Record:
    return {"old": None, "new": share, "change": None}


def _p(value: float) -> str:
    return f"= {value:.3f}" if value >= 0.001 else "< 0.001"


def _share(share: Record) -> str:
    low, high = share["interval"]
    return f"{number(share['value'])}\N{NO-BREAK SPACE}%, {number(low)} to {number(high)}"


def _calibration(record: Record) -> dict[str, Any]:
    measured = record["calibration"]
    entries = [
        (sample(OLD), "old version"),
        (sample(NEW), "new version"),
        (sample(DIAGONAL, False), "confidence is true"),
    ]
    rows = [
        ("expected calibration error", measured["error"]),
        ("the same, all images", _new_only(measured["error_all_images"])),
    ]
    return {
        "chart": {
            "chart": _reliability_chart(measured["bins"]),
            "caption": "Images in bins of confidence, of classes that the old version knows; below the line a version "
            "is too sure",
            "entries": entries,
        },
        "table": _change_table("In points, with 95 % intervals; 0 is best", rows),
        "by_chance": {which: measured["error"][which]["by_chance"] for which in ("old", "new")},
    }


def _reliability_chart(bins: dict[str, list[Record]]) -> str:
    """The share of right images over the mean confidence, bin by bin, with the line on which all confidence is true."""
    ticks = tuple((float(at), str(at)) for at in range(0, 101, 20))
    x = Axis("confidence, %", 0.0, 100.0, ticks)
    y = Axis("right, %", 0.0, 100.0, ticks)
    lines = [Series("confidence is true", (0.0, 100.0), (0.0, 100.0), DIAGONAL, markers=False)]
    for which, style in (("old", OLD), ("new", NEW)):
        points = [(each["confidence"], each["right"]) for each in bins[which]]
        lines.append(Series(which, tuple(p for p, _ in points), tuple(q for _, q in points), style))
    return line_chart(lines, x, y, title="Share of right images over confidence, old and new version")


def _flips(record: Record, kind: str, picture: Picture | None) -> dict[str, Any]:
    own = [flip for flip in record["flips"] if flip["kind"] == kind]
    cards = [flip | {"uri": picture(flip["image"]) if picture else ""} for flip in own[:SHOWN]]
    return {"count": len(own), "cards": cards}


def _flags(record: Record) -> PageTable:
    rows = [
        [
            IMAGES_OF[each["images_of_classes"]],
            *(_share(each[which]) if each[which] else number(None) for which in ("old", "new")),
        ]
        for each in record["flags"]
    ]
    caption = (
        "Share of images flagged, with 95 % intervals; a dash: the version is not calibrated and has no flag"
    )
    return text_table(caption, ("images of", "old", "new"), rows)


def _left_out(record: Record) -> list[tuple[str, PageTable]]:
    """(summary, table) of each kind of images that were not compared."""
    found = []
    for key, (reason, column) in LEFT_OUT.items():
        images = record[key]
        if images:
            count = f"{len(images):,} image{'' if len(images) == 1 else 's'}"
            more = f"; the first {LINES}" if len(images) > LINES else ""
            rows = [(each["image"], each[column]) for each in images[:LINES]]
            found.append(
                (f"{count} {reason}", text_table(count + more, ("image", column), rows, numeric_from=2))
            )
    return found
