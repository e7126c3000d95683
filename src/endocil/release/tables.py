"""The figures of a comparison as tables and charts, from its record."""

from collections.abc import Sequence
from typing import Any

from endocil.audit.markup import paragraph
from endocil.release.charts import NEW, OLD, change_chart, reliability_chart
from endocil.report.markup import NUMERIC, details, escaped, figure, head_row, legend, number, scrolling
from endocil.report.names import DASH
from endocil.report.svg import sample

Record = dict[str, Any]


def classes(record: Record) -> str:
    rows = record["classes"]
    changes = [
        (row["class"], found["value"], tuple(found["interval"]))
        for row in rows
        if (found := row["sensitivity"]["change"])
    ]
    limits = {
        check["about"]: check["limit"]
        for check in record["checks"]
        if check["key"] == "largest_loss_of_sensitivity"
    }
    caption = "Change of sensitivity with its 95 % interval"
    caption += "; the dashed mark is what the rules allow to be lost" if limits else ""
    chart = figure(change_chart(changes, limits, caption), caption) if changes else ""
    return chart + _shares(rows) + _all_images(rows)


def _shares(rows: Sequence[Record]) -> str:
    body = "".join(
        f'<tr><th scope="row">{escaped(row["class"])}{_tag(row)}</th><td{NUMERIC}>{_images(row)}</td>'
        f"{_cells(row['sensitivity'])}{_cells(row['specificity'])}</tr>"
        for row in rows
    )
    images = "images in groups" if any(row["groups"] < row["images"] for row in rows) else "images"
    titles = ["class", images, *("sensitivity old", "new", "change"), *("specificity old", "new", "change")]
    caption = "Percent and points with 95 % intervals; specificity on the images of classes that the old version knows"
    head = head_row(titles)
    whole = f"<table><caption>{caption}</caption>{head}<tbody>{body}</tbody></table>"
    return scrolling(whole, "Sensitivity and specificity of each class")


def _tag(row: Record) -> str:
    return "" if row["status"] == "known" else f' <span class="tag">{row["status"]}</span>'


def _images(row: Record) -> str:
    return f"{row['images']:,}" + (f" in {row['groups']:,}" if row["groups"] < row["images"] else "")


def _cells(pair: Record) -> str:
    return f"{_cell(pair['old'])}{_cell(pair['new'])}{_cell(pair['change'], signed=True)}"


def _cell(found: Record | None, *, signed: bool = False) -> str:
    if found is None:
        return f"<td{NUMERIC}>{DASH}</td>"
    value, (low, high) = found["value"], found["interval"]
    sign = "+" if signed and round(value, 1) > 0 else ""
    within = f'<span class="within">{number(low)} to {number(high)}</span>'
    return f"<td{NUMERIC}>{sign}{number(value)}<br>{within}</td>"


def _all_images(rows: Sequence[Record]) -> str:
    """The old version calls images of new classes something else, so all images flatter the change."""
    if all(row["status"] != "new" or not row["images"] for row in rows):
        return ""
    body = "".join(
        f'<tr><th scope="row">{escaped(row["class"])}{_tag(row)}</th>{_cells(row["specificity_all_images"])}</tr>'
        for row in rows
    )
    caption = (
        "Specificity on all images. The old version can only be wrong about images of new classes, so here the change "
        "looks better than above"
    )
    head = head_row(["class", "old", "new", "change"])
    whole = f"<table><caption>{caption}</caption>{head}<tbody>{body}</tbody></table>"
    return details("Specificity on all images, those of new classes too", scrolling(whole, caption))


def overall(record: Record) -> str:
    found, test = record["overall"], record["test"]
    body = "".join(
        f'<tr><th scope="row">{name}</th>{_cells(found[key])}</tr>'
        for name, key in (("accuracy", "accuracy"), ("macro F1", "macro_f1"))
    )
    whole_images = {"old": None, "new": found["accuracy_all_images"], "change": None}
    if test["compared"] > test["of_classes_the_old_version_knows"]:
        body += f'<tr><th scope="row">accuracy, all images</th>{_cells(whole_images)}</tr>'
    caption = (
        f"On {test['of_classes_the_old_version_knows']:,} images of classes that the old version knows, unless a line "
        f"says otherwise; percent and points with 95 % intervals"
    )
    head = head_row(["", "old", "new", "change"])
    table = scrolling(f"<table><caption>{caption}</caption>{head}<tbody>{body}</tbody></table>", caption)
    lost, won = found["negative_flips"], found["positive_flips"]
    text = (
        f"{won['flips']:,} positive flips ({share_of(won)}) and {lost['flips']:,} negative flips ({share_of(lost)}). "
        f"McNemar's exact test of the two: p {_p(found['mcnemar_p'])}"
    )
    if found["p_by_group"] is not None:
        text += f", which takes images for independent; by group p {_p(found['p_by_group'])}"
    return table + paragraph(f"{text}.")


def _p(value: float) -> str:
    return f"= {value:.3f}" if value >= 0.001 else "< 0.001"


def share_of(found: Record) -> str:
    low, high = found["interval"]
    return f"{number(found['value'])} %, {number(low)} to {number(high)}"


def calibration(record: Record) -> str:
    found = record["calibration"]
    key = legend(
        [(sample(OLD), "old version"), (sample(NEW), "new version"), (sample(6, False), "confidence is true")]
    )
    chart = figure(
        reliability_chart(found["bins"]),
        "Images in bins of confidence, of classes that the old version knows; below the line a version is too sure",
        key,
    )
    rows = [("expected calibration error", found["error"])]
    rows.append(("the same, all images", {"old": None, "new": found["error_all_images"], "change": None}))
    body = "".join(f'<tr><th scope="row">{name}</th>{_cells(pair)}</tr>' for name, pair in rows)
    head = head_row(["", "old", "new", "change"])
    caption = "In points, with 95 % intervals; 0 is best"
    table = scrolling(f"<table><caption>{caption}</caption>{head}<tbody>{body}</tbody></table>", caption)
    chance = {which: found["error"][which]["by_chance"] for which in ("old", "new")}
    text = (
        f"Chance makes the error larger than it is: versions whose confidence is perfectly true would show about "
        f"{number(chance['old'])} (old) and {number(chance['new'])} (new) on so many images."
    )
    return chart + table + paragraph(text)
