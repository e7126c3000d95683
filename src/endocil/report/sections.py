"""The parts of the page that speak of all runs together."""

import base64
import io
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from PIL import Image

from endocil.audit.leaks import RATES
from endocil.metrics import METRICS, TABLE_METRICS
from endocil.report import averages, svg
from endocil.report.averages import Runs
from endocil.report.grouping import differing, flat
from endocil.report.markup import (
    details,
    escaped,
    figure,
    heat_table,
    legend,
    number,
    plain_table,
    result_table,
    subscripted,
)
from endocil.report.names import portable, written
from endocil.report.runs import RunRecord
from endocil.report.sentences import what_is_seen
from endocil.report.tables import TITLES, comparison

THUMBNAIL = 64  # pixels

Gallery = Mapping[str, list[tuple[str, np.ndarray]]]


def section(name: str, title: str, body: str) -> str:
    head = f'<h2 id="{name}-title">{escaped(title)}</h2>'
    return f'<section id="{name}" aria-labelledby="{name}-title">{head}{body}</section>'


def results(groups: Sequence[Runs]) -> str:
    table = comparison([run for group in groups for run in group.results])
    note = "<p>Bold: the best of the methods that learn task by task.</p>" if table.marked() else ""
    said = "".join(f"<p>{escaped(sentence)}</p>" for sentence in what_is_seen(groups))
    return section(
        "results", "Results", result_table(table) + note + _definitions() + f'<div class="seen">{said}</div>'
    )


def _definitions() -> str:
    items = "".join(
        f"<dt>{subscripted(TITLES.get(name, name))}</dt><dd>{escaped(METRICS[name])}</dd>"
        for name in TABLE_METRICS
    )
    return f"<details><summary>What the columns mean</summary><dl>{items}</dl></details>"


def curves(groups: Sequence[Runs]) -> str:
    """Accuracy after each task for all experiments; one trained on everything at once is a single point."""
    lines = [_curve(group, style) for style, group in enumerate(groups)]
    counts = sorted({count for group in groups for count in averages.classes_seen(group)})
    margin = 0.06 * max(1, counts[-1] - counts[0])
    ticks = tuple((float(count), str(count)) for count in counts)
    x = svg.Axis("classes learned so far", counts[0] - margin, counts[-1] + margin / 2, ticks)
    y = svg.Axis("accuracy (%)", 0, 100, tuple((value, str(value)) for value in range(0, 101, 20)))
    told = "; ".join(f"{line.name}: {', '.join(number(value) for value in line.y)}" for line in lines)
    picture = svg.line_chart(lines, x, y, title=f"Accuracy after each task in percent. {told}")
    shown = legend((svg.sample(line.style), line.name) for line in lines)
    caption = "Accuracy on the test images of all classes learned so far, after each task."
    if not all(group.incremental for group in groups):
        caption += " A method trained on everything at once is a single point."
    if any(line.deviations and any(line.deviations) for line in lines):
        caption += " Upright strokes: ± one standard deviation over the seeds."
    return section(
        "accuracy", "Accuracy as classes arrive", figure(picture, caption, shown) + _curve_numbers(lines)
    )


def _curve(group: Runs, style: int) -> svg.Series:
    values = averages.accuracy_per_task(group)
    return svg.Series(
        group.label,
        tuple(map(float, averages.classes_seen(group))),
        tuple(value.mean if value else None for value in values),
        style,
        tuple(value.deviation if value else None for value in values),
    )


def _curve_numbers(lines: Sequence[svg.Series]) -> str:
    counts = sorted({x for line in lines for x in line.x})
    rows = [
        [line.name, *(number(dict(zip(line.x, line.y, strict=True)).get(count)) for count in counts)]
        for line in lines
    ]
    table = plain_table(
        "Accuracy in percent by the number of classes learned",
        ["Method", *(f"{c:.0f}" for c in counts)],
        rows,
    )
    return details("The numbers of this picture", table)


def recall_by_class(groups: Sequence[Runs]) -> str:
    """Which class each experiment knows in the end; only worth a table when there is something to compare."""
    if len(groups) < 2:
        return ""
    classes = sorted(groups[0].first.metrics["classes"])
    by_group = [{row.name: row.rates[0] for row in averages.per_class(group)} for group in groups]
    values = [[recalls.get(name) for recalls in by_group] for name in classes]
    caption = "Percent of each class's test images recognised after the last task"
    table = heat_table(caption, "Class", classes, [group.label for group in groups], values)
    return section("recall", "What each method knows in the end", table)


def nearest_mean(groups: Sequence[Runs]) -> str:
    table = comparison([run for group in groups for run in group.results], head="nearest_mean")
    if not table.rows:
        return ""
    note = (
        "<p>The same networks, but an image goes to the class whose mean exemplar feature is nearest. "
        "The results above are those of the softmax head.</p>"
    )
    return section("nearest-mean", "Nearest-mean head", note + result_table(table))


def gallery(pictures: Gallery | None) -> str:
    """Exemplars as small pictures inside the page."""
    if not pictures:
        return ""
    blocks = []
    for name, images in pictures.items():
        shown = "".join(_thumbnail(name, image_id, pixels) for image_id, pixels in images)
        blocks.append(f"<figure><figcaption>{escaped(name)}</figcaption><div>{shown}</div></figure>")
    return section("gallery", "Some exemplars", f'<div class="gallery">{"".join(blocks)}</div>')


def _thumbnail(name: str, image_id: str, pixels: np.ndarray) -> str:
    told = escaped(f"{name}: {image_id}")
    return f'<img alt="{told}" title="{told}" src="{_data_uri(pixels)}">'


def _data_uri(pixels: np.ndarray) -> str:
    picture = Image.fromarray(pixels)
    picture.thumbnail((THUMBNAIL, THUMBNAIL))
    file = io.BytesIO()
    picture.save(file, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode("ascii")


def leaks(runs: Sequence[RunRecord]) -> str:
    """What of the test part the training part knows: the results hold for images as new as these."""
    rows = {
        (RATES[name], f"{100 * rate:.1f} %")
        for run in runs
        for name, rate in run.leaks.items()
        if name in RATES and rate is not None
    }
    notes = dict.fromkeys(note for run in runs for note in run.notes)
    told = f"<ul>{''.join(f'<li>{escaped(note)}</li>' for note in notes)}</ul>" if notes else ""
    if not rows:
        return section("leaks", "The images", told) if told else ""
    order = list(RATES.values())
    table = plain_table(
        "Share of the test images with something like them in the training part",
        ["In the training part there is", "Of the test images"],
        [list(row) for row in sorted(rows, key=lambda row: (order.index(row[0]), row[1]))],
    )
    note = (
        "<p>A split by image puts near duplicates and neighbouring frames on both sides; accuracy on new patients "
        "is lower then. A split by group (scenario.split_by) keeps them together.</p>"
    )
    return section("leaks", "The images, and how new those of the test are", table + note + told)


def settings_and_environment(runs: Sequence[RunRecord]) -> str:
    """Nobody's folders: absolute paths are shown by their last name."""
    names = [run.name for run in runs]
    settings = _facts("Settings", names, [flat(portable(run.settings)) for run in runs])
    environment = _facts("Environment", names, [flat(portable(run.environment)) for run in runs])
    return section("settings", "Settings and environment", settings + environment)


def _facts(title: str, names: Sequence[str], facts: Sequence[Mapping[str, Any]]) -> str:
    """What all runs share once, then what differs with a column for each run."""
    unlike = differing(facts)
    keys = list(dict.fromkeys(key for each in facts for key in each))
    shared = [[key, written(facts[0].get(key))] for key in keys if key not in unlike]
    other = [[key, *(written(each.get(key)) for each in facts)] for key in keys if key in unlike]
    of = "of this run" if len(facts) == 1 else "shared by all runs"
    body = plain_table(f"{title} {of}", ["Name", "Value"], shared, numeric_from=2) if shared else ""
    if other:
        body += plain_table(f"{title} that differ", ["Name", *names], other, numeric_from=len(names) + 1)
    return details(title, body)
