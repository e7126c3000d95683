"""The comparison of two versions as one HTML page: opens offline, loads nothing from the network, runs no script."""

from collections.abc import Callable
from typing import Any

from endocil.html.charts import Axis, Series, interval_chart, line_chart, sample
from endocil.html.markup import render_page
from endocil.model import DISCLAIMER
from endocil.release.gate import QUANTITIES

Record = dict[str, Any]
Picture = Callable[[str], str]  # an image's id -> its data URI, or nothing

OLD, NEW, DIAGONAL = 1, 0, 6  # styles of lines
SHOWN = 60  # flips of one kind with their images; all are in the CSV file
FOLDED = 12  # checks that hold; more are folded away below those that fail
LINES = 100  # of a list


def gate_page(record: Record, picture: Picture | None = None) -> str:
    """The page of a record; without `picture` it has only names and numbers."""
    failed = [check for check in record["checks"] if not check["passed"]]
    passed = [check for check in record["checks"] if check["passed"]]
    folded = passed if failed and len(passed) > FOLDED else []
    return render_page(
        "endocil.release",
        title=f"{record['new']['file']} in place of {record['old']['file']}?",
        disclaimer=DISCLAIMER,
        record=record,
        checks_shown=failed if folded else [*failed, *passed],
        checks_folded=folded,
        quantities=QUANTITIES,
        sensitivity_chart=_sensitivity_chart(record),
        reliability_chart=_reliability_chart(record["calibration"]["bins"]),
        picture=picture or (lambda image: ""),
        most_flips=SHOWN,
        most_lines=LINES,
    )


def _sensitivity_chart(record: Record) -> dict[str, Any] | None:
    changes = [
        (row["class"], change["value"], tuple(change["interval"]))
        for row in record["classes"]
        if (change := row["sensitivity"]["change"])
    ]
    limits = {
        check["about"]: check["limit"] for check in record["checks"] if check["key"] == "largest_loss_of_sensitivity"
    }
    caption = "Change of sensitivity with its 95 % interval"
    caption += "; the dashed mark is what the rules allow to be lost" if limits else ""
    if not changes:
        return None
    chart = interval_chart(changes, limits, title=caption, label="change in points; left of 0: lost")
    return {"chart": chart, "caption": caption, "entries": []}


def _reliability_chart(bins_of: dict[str, list[Record]]) -> dict[str, Any]:
    """The share of correct images over the mean confidence, bin by bin, with the line of perfect calibration."""
    ticks = tuple((float(at), str(at)) for at in range(0, 101, 20))
    lines = [Series("perfect calibration", (0.0, 100.0), (0.0, 100.0), DIAGONAL, markers=False)]
    for version, style in (("old", OLD), ("new", NEW)):
        bins = bins_of[version]
        confidence, correct = tuple(each["confidence"] for each in bins), tuple(each["right"] for each in bins)
        lines.append(Series(version, confidence, correct, style))
    chart = line_chart(
        lines,
        Axis("confidence, %", 0.0, 100.0, ticks),
        Axis("correct, %", 0.0, 100.0, ticks),
        title="Share of correct images over confidence, old and new version",
    )
    caption = "Images in bins of confidence, of classes that the old version knows; below the line: overconfident"
    entries = [
        (sample(OLD), "old version"),
        (sample(NEW), "new version"),
        (sample(DIAGONAL, False), "perfect calibration"),
    ]
    return {"chart": chart, "caption": caption, "entries": entries}
