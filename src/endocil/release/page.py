"""Charts of a comparison as SVG text: changes with their intervals, class by class, and how true confidence is."""

from collections.abc import Sequence
from importlib import resources
from typing import Any

from endocil.audit.page import Picture, name_line, paragraph, section, sheet
from endocil.html.charts import WIDTH, Axis, Series, line_chart, sample
from endocil.html.markup import (
    NUMERIC,
    details,
    escaped,
    figure,
    head_row,
    legend,
    number,
    plain_table,
    policy_hash,
    scrolling,
)
from endocil.model.disclaimer import DISCLAIMER
from endocil.release.gate import QUANTITIES
from endocil.runs.experiments import DASH

Record = dict[str, Any]
LEFT, RIGHT, ROW, TOP, BOTTOM = 12, 12, 42, 8, 44
OLD, NEW, DIAGONAL = 1, 0, 6  # styles of lines


def change_chart(
    rows: Sequence[tuple[str, float, tuple[float, float]]], limits: dict[str, float], title: str
) -> str:
    """(class, change, interval) -> a line for each; a dash at what a class may lose by the rules."""
    shown = [end for _, _, interval in rows for end in interval] + [-limit for limit in limits.values()]
    low, high, step = _span([*shown, 0.0])
    height = TOP + ROW * len(rows) + BOTTOM
    base = height - BOTTOM

    def across(value: float) -> float:
        return round(LEFT + (value - low) / (high - low) * (WIDTH - LEFT - RIGHT), 1)

    parts = []
    for k in range(round((high - low) / step) + 1):
        at = low + k * step
        kind = "nought" if abs(at) < 1e-9 else "grid"
        parts.append(f'<path class="{kind}" d="M{across(at)} {TOP}V{base}"/>')
        parts.append(f'<text class="tick mid" x="{across(at)}" y="{base + 17}">{number(at, 0)}</text>')
    for i, (name, value, (start, end)) in enumerate(rows):
        y = TOP + ROW * i + 30
        told = f"{escaped(name)}: {number(value)} ({number(start)} to {number(end)})"
        parts.append(f'<text x="{LEFT}" y="{y - 13}">{escaped(_cut(name))}</text>')
        if name in limits:
            parts.append(f'<path class="limit" d="M{across(-limits[name])} {y - 8}v16"/>')
        parts.append(
            f'<g class="c0"><title>{told}</title><path class="whisker" d="M{across(start)} {y}H{across(end)}'
            f'M{across(start)} {y - 4}v8M{across(end)} {y - 4}v8"/>'
            f'<path class="mark" transform="translate({across(value)} {y})" d="M-4-4h8v8h-8z"/></g>'
        )
    parts.append(
        f'<text class="mid" x="{WIDTH / 2:g}" y="{height - 6}">change in points; left of 0: lost</text>'
    )
    return (
        f'<svg class="chart" viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escaped(title)}">'
        f"{''.join(parts)}</svg>"
    )


def _span(values: Sequence[float]) -> tuple[float, float, float]:
    """Round ends around all values, and the step between labels."""
    width = max(max(values) - min(values), 1.0)
    step = next(step for step in (1.0, 2.0, 5.0, 10.0, 20.0, 50.0) if width / step <= 8 or step == 50.0)
    low = -step * -(min(values) // step)
    high = -step * (-max(values) // step)
    return low, max(high, low + step), step


def _cut(name: str, most: int = 48) -> str:
    return name if len(name) <= most else f"{name[: most - 1]}…"


def reliability_chart(bins: dict[str, list[Record]]) -> str:
    """The share of right images over the mean confidence, bin by bin, with the line on which all confidence is true."""
    ticks = tuple((float(at), str(at)) for at in range(0, 101, 20))
    x = Axis("confidence, %", 0.0, 100.0, ticks)
    y = Axis("right, %", 0.0, 100.0, ticks)
    lines = [Series("confidence is true", (0.0, 100.0), (0.0, 100.0), DIAGONAL, markers=False)]
    for which, style in (("old", OLD), ("new", NEW)):
        points = [(each["confidence"], each["right"]) for each in bins[which]]
        lines.append(Series(which, tuple(p for p, _ in points), tuple(q for _, q in points), style))
    return line_chart(lines, x, y, title="Share of right images over confidence, old and new version")


# The figures of a comparison as tables and charts, from its record.


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


# The parts of the page of a comparison, from its record.

SHOWN = 60  # flips of one kind with their pictures; all are in the CSV file
FOLDED = 12  # checks that hold; more are folded away below those that fail
LINES = 100  # of a list
WHERE = {
    "known": "classes the old version knows",
    "new": "classes new in the new version",
    "neither": "classes neither knows (left out elsewhere)",
}


def opening(record: Record) -> str:
    """The verdict, and what was compared."""
    kind = {"pass": "pass", "refused": "refused"}.get(record["verdict"], "")
    test, old, new = record["test"], record["old"], record["new"]
    groups = f" in {test['groups']:,} groups" if test["groups"] else ""
    made = "was made from the old one" if record["new_made_from_old"] else "was not made from the old one"
    head = record["head"].replace("_", "-")
    facts = (
        f"{test['compared']:,} test images{groups} of {test['name']}, {test['of_classes_the_old_version_knows']:,} of "
        f"them of classes that the old version knows; {head} head. The old version knows {old['classes']} classes, "
        f"the new one {new['classes']}; the new version {made}."
    )
    prints = " ".join(
        f"{which}: <code>{escaped(each['digest'][:16])}</code> of {escaped(each['made'][:10])}."
        for which, each in (("Old", old), ("New", new))
    )
    notes = "".join(
        paragraph(f"The {which} version is {note}.", "warning")
        for which, each in (("old", old), ("new", new))
        for note in each["notes"]
    )
    return (
        f'<p class="verdict {kind}">{escaped(record["line"])}</p><p class="lead">{escaped(facts)}</p>'
        f'<p class="facts">{prints}</p>{notes}'
    )


def rules(record: Record) -> str:
    """The checks, failed ones first."""
    if not record["checks"]:
        return paragraph("No rules were given (--rules): this page reports, and nothing is refused.")
    passed = [check for check in record["checks"] if check["passed"]]
    failed = [check for check in record["checks"] if not check["passed"]]
    if not failed or len(passed) <= FOLDED:
        return _table([*failed, *passed])
    return _table(failed) + details(f"{len(passed)} checks hold", _table(passed))


def _table(checks: list[Record]) -> str:
    rows = []
    for check in checks:
        mark = "pass" if check["passed"] else "fail"
        sign = "✓ holds" if check["passed"] else "✗ fails"
        rows.append(
            f'<tr><td class="mark-{mark}">{sign}</td><th scope="row">{escaped(_about(check))}</th>'
            f"<td{NUMERIC}>{_limit(check)}</td>"
            f'<td class="words">{escaped(check["explanation"])}</td><td>{_refuse(check)}</td></tr>'
        )
    caption = "In brackets: the interval that the limit is held against. A loss below 0 is a gain"
    head = head_row(["", "what", "limit", "measured", "rule"], numeric_from=99)
    whole = f'<table class="rules"><caption>{caption}</caption>{head}<tbody>{"".join(rows)}</tbody></table>'
    return scrolling(whole, "The rules")


def _about(check: Record) -> str:
    what = QUANTITIES[check["key"]]
    return f"{check['about']}: {what}" if check["about"] else what[0].upper() + what[1:]


def _limit(check: Record) -> str:
    return f"{'≥' if check['key'].startswith('smallest') else '≤'}&nbsp;{check['limit']:g}"


def _refuse(check: Record) -> str:
    kind = f": {check['refuse']}, {100 * check['level']:.4g}&nbsp;%" if check["refuse"] else ""
    return f"<code>[{escaped(check['section'])}]</code>{kind.replace('_', ' ')}"


def flips(record: Record, kind: str, picture: Picture | None) -> str:
    own = [flip for flip in record["flips"] if flip["kind"] == kind]
    if not own:
        return paragraph("None.")
    text = (
        paragraph(f"The first {SHOWN} of {len(own):,}; all are in the CSV file (--csv).")
        if len(own) > SHOWN
        else ""
    )
    return text + sheet(_flip(flip, picture) for flip in own[:SHOWN])


def _flip(flip: Record, picture: Picture | None) -> str:
    shown = picture(flip["image"]) if picture else ""
    group = f"<br>group {escaped(flip['group'])}" if flip["group"] else ""
    said = "".join(
        f"<br>{which}: {escaped(flip[which])}, {100 * flip[f'{which}_probability']:.0f}&nbsp;%"
        for which in ("old", "new")
    )
    return f"{shown}<strong>{escaped(flip['class_name'])}</strong>{said}{group}{name_line(flip['image'])}"


def flags(record: Record) -> str:
    rows = [
        (WHERE[each["images_of_classes"]], *(share_of(each[w]) if each[w] else DASH for w in ("old", "new")))
        for each in record["flags"]
    ]
    caption = (
        "Share of images flagged, with 95 % intervals; a dash: the version is not calibrated and has no flag"
    )
    return plain_table(caption, ("images of", "old", "new"), rows)


def left_out(record: Record) -> str:
    lists = (
        ("unknown_classes", "of a class that neither version knows", "class"),
        ("unreadable", "not readable", "reason"),
        (
            "inside_a_model",
            "found inside a model, as exemplar or held-out image, and so no test",
            "version",
        ),
    )
    return "".join(
        details(
            f"{_image_lines(len(found))} {what}",
            plain_table(
                f"{_image_lines(len(found))}{f'; the first {LINES}' if len(found) > LINES else ''}",
                ("image", key),
                [(each["image"], each[key]) for each in found[:LINES]],
                numeric_from=99,
            ),
        )
        for name, what, key in lists
        if (found := record[name])
    )


def _image_lines(n: int) -> str:
    return f"{n:,} image{'' if n == 1 else 's'}"


def method(record: Record) -> str:
    words = (
        "Sensitivity of a class: the share of its images that are called so. Specificity: the share of the images of "
        "other classes that are not called so. A class that the old version does not know has no sensitivity there. "
        "A class that the new version has dropped is always missed by it."
    )
    rule = (
        "A rule that refuses unless shown harmless wants the whole interval on the good side of its limit; one that "
        "refuses if shown harmful wants the whole interval on the bad side. An interval of 95 % lies wholly on the "
        "wrong side of the truth in at most about 2.5 % of all test sets."
    )
    return "".join(map(paragraph, (words, rule, record["method"])))


# The comparison of two versions as one HTML page: opens offline, asks nothing from outside, runs no script.


def gate_page(record: Record, picture: Picture | None = None) -> str:
    """The page of a record (`gate_record.record`); without `picture` there are names and numbers alone."""
    parts = [
        ("rules", "The rules", rules(record)),
        ("classes", "Class by class", classes(record)),
        ("overall", "All images", overall(record)),
        ("lost", "Negative flips: right before, wrong now", flips(record, "negative", picture)),
        ("won", "Positive flips: wrong before, right now", flips(record, "positive", picture)),
        ("calibration", "Is confidence true?", calibration(record)),
        ("flags", "Flagged as out of distribution", flags(record)),
        ("left-out", "Images left out", left_out(record)),
        ("method", "How the numbers are made", method(record)),
    ]
    there = [(name, title, body) for name, title, body in parts if body]
    links = "".join(
        f'<li><a href="#{name}">{escaped(title.partition(":")[0])}</a></li>' for name, title, _ in there
    )
    title = f"{record['new']['file']} in place of {record['old']['file']}?"
    style = _asset("endocil.reports", "page.css") + _asset("endocil.release", "gate.css")
    policy = f"default-src 'none'; style-src '{policy_hash(style)}'; img-src data:; base-uri 'none'; form-action 'none'"
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{escaped(title)}</title><style>{style}</style></head><body>"
        f'<a class="skip" href="#main">Skip to the rules</a><header><h1>{escaped(title)}</h1>'
        f"{opening(record)}"
        f'<p class="warning">{DISCLAIMER}</p>'
        f'<nav aria-label="On this page"><ul>{links}</ul></nav></header><main id="main" tabindex="-1">'
        f"{''.join(section(*part) for part in there)}</main>"
        f"<footer><p>Written by endocil. {DISCLAIMER}</p></footer></body></html>\n"
    )


def _asset(package: str, name: str) -> str:
    return resources.files(package).joinpath("assets", name).read_text("utf-8")
