"""Tables whose cells show a percentage twice, as a number and as a shade or a bar: nobody needs the colours."""

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from endocil.html import charts as svg
from endocil.html.markup import (
    NUMERIC,
    captioned,
    details,
    escaped,
    figure,
    head_row,
    legend,
    number,
    plain_table,
    scrolling,
    switches,
)
from endocil.io.tables import DASH
from endocil.reports import averages
from endocil.reports.averages import Runs
from endocil.runs.records import RunRecord

INK_TURNS = (
    76  # above this percentage of the heat colour the letters change; either way their contrast is over 4.5
)
SHADES = "".join(
    f".v{n}{{--v:{n}}}" for n in range(101)
)  # the policy of the page allows no style on an element


def heat_table(
    caption: str,
    corner: str,
    rows: Sequence[str],
    columns: Sequence[str],
    values: Sequence[Sequence[float | None]],
    *,
    upright: bool = False,
    when: str = "",
    view: str = "",
) -> str:
    """Percentages as a table whose cells grow darker with the value; `upright` turns long column headings. `when` ends
    the caption, and the script changes it with the table, which it finds by `view`."""
    kind = "heat upright" if upright else "heat"
    heads = "".join(f'<th scope="col"><span>{escaped(name)}</span></th>' for name in columns)
    body = "".join(
        f'<tr><th scope="row">{escaped(name)}</th>{"".join(map(_heat_cell, line))}</tr>'
        for name, line in zip(rows, values, strict=True)
    )
    whole = (
        f'<table class="{kind}"{viewed(view)}>{captioned(caption, when)}'
        f'<thead><tr><th scope="col">{escaped(corner)}</th>{heads}</tr></thead><tbody>{body}</tbody></table>'
    )
    return scrolling(whole, caption)


def viewed(view: str) -> str:
    return f' data-view="{view}"' if view else ""


def heat_value(value: float | None) -> float | None:
    """A percentage as a cell shows it: whole, or 0.1 where there is something that rounds to nothing."""
    if value is None or not math.isfinite(value):
        return None
    whole = round(min(max(value, 0.0), 100.0))
    return 0.1 if whole == 0 and value > 0 else whole


def _heat_cell(value: float | None) -> str:
    shown = heat_value(value)
    if shown is None:
        return "<td></td>"
    whole = round(shown)
    turned = " hot" if whole > INK_TURNS else ""
    # A nought in each empty cell of a confusion matrix would hide the few that matter.
    return f'<td class="v{whole}{turned}">{"·" if shown == 0 else whole}</td>'


def bar_cell(value: float | None) -> str:
    """A percentage with a bar behind it."""
    if value is None or not math.isfinite(value):
        return f"<td{NUMERIC}>{DASH}</td>"
    return f'<td class="n bar v{round(value)}">{value:.1f}</td>'


def bar_table(
    caption: str,
    titles: Sequence[str],
    rows: Iterable[tuple[str, int, Sequence[float | None]]],
    *,
    when: str = "",
    view: str = "",
) -> str:
    """(name, images, percentages) as rows; the first percentage has a bar. For `when` and `view` see heat_table."""
    body = "".join(
        f'<tr><th scope="row">{escaped(name)}</th><td{NUMERIC}>{images:,}</td>{bar_cell(rates[0])}'
        + "".join(f"<td{NUMERIC}>{number(rate)}</td>" for rate in rates[1:])
        + "</tr>"
        for name, images, rates in rows
    )
    told = captioned(caption, when)
    return scrolling(
        f"<table{viewed(view)}>{told}{head_row(titles)}<tbody>{body}</tbody></table>", caption.rstrip(",")
    )


# What changes from task to task: what is forgotten, each class, the confusion.

LAST = "after the last task"


def forgetting(group: Runs) -> str:
    if not group.incremental:
        return ""
    matrix = averages.task_accuracy(group)
    numbers = [str(t) for t in range(len(matrix))]  # as in the names of the files
    rows = [f"after task {t}" for t in numbers]
    columns = [f"task {s}" for s in numbers]
    caption = "Accuracy (%) on the test images of each task: a column that pales downwards is forgetting"
    return "<h4>Forgetting</h4>" + heat_table(caption, "", rows, columns, matrix, view="forgetting")


def confusion(group: Runs) -> str:
    classes = group.first.metrics["classes"]
    caption = "Percent of each true class (row) given to each class (column),"
    last = averages.confusions(group)[-1]
    table = heat_table(
        caption, "True class", classes, classes, last, upright=True, when=LAST, view="confusion"
    )
    return "<h4>Confusion</h4>" + table


def recall_over_tasks(group: Runs) -> str:
    """Only where there are several tasks that can be averaged."""
    rates = averages.class_rates(group)
    if len(rates) < 2:
        return ""
    classes = group.first.metrics["classes"]
    values = [[seen[i][0] if i < len(seen) else None for seen in rates] for i in range(len(classes))]
    columns = [f"task {t}" for t in range(len(rates))]
    caption = "Percent of each class's test images recognised after each task"
    table = heat_table(caption, "Class", classes, columns, values, view="recall")
    return "<h4>Recall of each class over the tasks</h4>" + table


def classes(group: Runs) -> str:
    rows = [(row.name, row.images, row.rates) for row in averages.per_class(group)]
    titles = ["Class", "Images", *(rate.capitalize() for rate in averages.CLASS_RATES)]
    caption = "Test images of each class, in percent,"
    return "<h4>Classes</h4>" + bar_table(caption, titles, rows, when=LAST, view="classes")


def controls(groups: Sequence[Runs], best: int) -> str:
    """Which method and which task; shown by the script, which is what makes them work."""
    n_tasks = max(len(averages.confusions(group)) for group in groups)
    parts = []
    if len(groups) > 1:
        names = "".join(
            f'<option value="{i}"{" selected" if i == best else ""}>{escaped(group.label)}</option>'
            for i, group in enumerate(groups)
        )
        parts.append(
            f'<p><label for="method-choice">Method</label> <select id="method-choice">{names}'
            f'<option value="all">all methods</option></select></p>'
        )
    if n_tasks > 1:
        parts.append(
            f'<p><label for="task-choice">After task</label> <input type="range" id="task-choice" min="0" '
            f'max="{n_tasks - 1}" step="1" value="{n_tasks - 1}"></p>'
            f'<p><output id="task-told" for="task-choice"></output></p>'
        )
    return f'<div class="controls script" hidden>{"".join(parts)}</div>' if parts else ""


def data(groups: Sequence[Runs]) -> str:
    """The numbers of all tasks as JSON that can stand inside a script element."""
    text = json.dumps([_of_method(group) for group in groups], separators=(",", ":"))
    return text.replace("<", "\\u003c")


def _of_method(group: Runs) -> dict[str, Any]:
    known = averages.task_by_task(group)
    return {
        "tasks": averages.tasks(group) if known else [],
        "confusions": [
            [list(map(heat_value, line)) for line in matrix] for matrix in averages.confusions(group)
        ],
        "rates": [
            [[None if rate is None else round(rate, 1) for rate in rates] for rates in seen]
            for seen in averages.class_rates(group)
        ],
    }


# How one run trained: losses and learning rate, epoch by epoch.

MOST_POINTS = 240  # of one line; more cannot be told apart on a screen


def training(run: RunRecord) -> str:
    epochs = _thinned(run.events_of("epoch"))
    if not epochs:
        return ""
    where = [number_of for number_of, _ in epochs]
    events = [event for _, event in epochs]
    starts = [
        x
        for x, event, before in zip(where[1:], events[1:], events, strict=False)
        if event["task"] != before["task"]
    ]
    x = svg.linear_axis("epoch, counted over all tasks", where)
    charts = _losses(where, events, x, starts) + _learning_rate(where, events, x, starts)
    return f"<h4>Training</h4>{_notes(run)}{charts}"


def _notes(run: RunRecord) -> str:
    """What the method said about a task before it was trained."""
    told = [(event["task"], note) for event in run.events_of("task") for note in event.get("notes", ())]
    return "".join(f"<p>{escaped(f'Task {task}: {note}.')}</p>" for task, note in told)


def _thinned(events: Sequence[Mapping[str, Any]]) -> list[tuple[float, Mapping[str, Any]]]:
    """(epoch counted from the start, event), the last one always among them."""
    step = -(-len(events) // MOST_POINTS)
    last = len(events) - 1
    return [(float(i + 1), event) for i, event in enumerate(events) if i % step == 0 or i == last]


def _losses(
    where: Sequence[float], events: Sequence[Mapping[str, Any]], x: svg.Axis, starts: Sequence[float]
) -> str:
    named = [_by_phase(event, events) for event in events]
    names = list(dict.fromkeys(name for losses in named for name in losses))
    lines = [
        svg.Series(name, tuple(where), tuple(losses.get(name) for losses in named), style, markers=False)
        for style, name in enumerate(names)
    ]
    y = svg.linear_axis("loss", [value for line in lines for value in line.y if value is not None])
    last = {line.name: [value for value in line.y if value is not None][-1] for line in lines}
    ends = ", ".join(f"{name} ends at {number(value, 3)}" for name, value in last.items())
    picture = svg.line_chart(lines, x, y, title=f"Losses per epoch: {ends}", height=220, boundaries=starts)
    shown = legend((svg.sample(line.style, markers=False), line.name) for line in lines)
    return figure(picture, "Mean loss per epoch; upright lines: a new task begins.", shown)


def _by_phase(event: Mapping[str, Any], events: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """An epoch's losses; where a task has several phases, with the phase's name, as each has its own losses."""
    several = len({(each["task"], each.get("phase")) for each in events}) > len({e["task"] for e in events})
    return {f"{event['phase']}: {name}" if several else name: loss for name, loss in event["losses"].items()}


def _learning_rate(
    where: Sequence[float], events: Sequence[Mapping[str, Any]], x: svg.Axis, starts: Sequence[float]
) -> str:
    rates = tuple(event.get("learning_rate") for event in events)
    known = [rate for rate in rates if rate]
    if not known:
        return ""
    shown = tuple(rate or None for rate in rates)  # a rate of 0 has no place on a logarithmic axis
    line = svg.Series("learning rate", tuple(where), shown, 0, markers=False, steps=True)
    title = f"Learning rate per epoch, from {max(known):g} to {min(known):g}"
    picture = svg.line_chart([line], x, svg.log_axis("", known), title=title, height=140, boundaries=starts)
    return figure(picture, "Learning rate per epoch.")


# Accuracy after each task for all experiments, in one picture whose lines can be switched off.


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
    entries = [(svg.sample(line.style), line.name) for line in lines]
    shown = switches(entries) if len(entries) > 1 else legend(entries)
    caption = "Accuracy on the test images of all classes learned so far, after each task."
    if not all(group.incremental for group in groups):
        caption += " A method trained on everything at once is a single point."
    if any(line.deviations and any(line.deviations) for line in lines):
        caption += " Upright strokes: ± one standard deviation over the seeds."
    return figure(picture, caption, shown) + _curve_numbers(lines)


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


# The part of the page about one experiment: what it forgets and confuses, how it trained, what it kept.


def method_section(group: Runs, index: int) -> str:
    """One experiment. Numbers are means over its seeds; curves and exemplars are those of the first seed."""
    name = f"method-{index}"
    run = group.first
    over_tasks = _block(forgetting(group), recall_over_tasks(group))
    top = f'<div class="pair">{_block(confusion(group))}{over_tasks}</div>'
    rest = _block(classes(group), _sources(group)) + _block(training(run), _exemplars(run))
    return (
        f'<section class="method" id="{name}" data-method="{index}" aria-labelledby="{name}-title">'
        f'<h3 id="{name}-title">{escaped(group.label)}</h3>{_orders(group)}{top}'
        f'<div class="columns">{rest}</div></section>'
    )


def _block(*parts: str) -> str:
    return f'<div class="block">{"".join(parts)}</div>' if any(parts) else ""


def _orders(group: Runs) -> str:
    """Why a method of several tasks shows the last one only."""
    if not group.incremental or averages.task_by_task(group):
        return ""
    orders = {tuple(run.metrics["classes"]) for run in group.results}
    earlier = "its record is of an earlier version and has no other"
    why = "the seeds learned the classes in different orders" if len(orders) > 1 else earlier
    return f"<p>Class by class only the last task is shown: {why}.</p>"


def _sources(group: Runs) -> str:
    rows = averages.per_source(group)
    if not rows:
        return ""
    caption = (
        "Test images of each source after the last task, in percent; recall and F1: means over its classes"
    )
    titles = ["Source", "Images", *(rate.capitalize() for rate in averages.SOURCE_RATES)]
    return "<h4>Sources</h4>" + bar_table(
        caption, titles, [(row.name, row.images, row.rates) for row in rows]
    )


def _exemplars(run: RunRecord) -> str:
    chosen = {event["class"]: event for event in run.events_of("selection")}
    if not chosen:
        return ""
    measured = any(event.get("mmd2") is not None for event in chosen.values())
    rows = [[name, *_chosen(event, measured)] for name, event in chosen.items()]
    titles = ["Class", "Kept", "Of", "MMD²", "Bound"] if measured else ["Class", "Kept", "Of"]
    caption = "Exemplars of each class when they were chosen"
    if measured:
        caption += "; MMD² is their distance from the whole class, beside the paper's bound on it"
    return f"<h4>Exemplars</h4>{plain_table(caption, titles, rows)}{_kept_by_source(run)}"


def _chosen(event: Mapping[str, Any], measured: bool) -> list[str]:
    kept = [f"{event['kept']:,}", f"{event['of']:,}"]
    return [*kept, number(event.get("mmd2"), 4), number(event.get("bound"), 3)] if measured else kept


def _kept_by_source(run: RunRecord) -> str:
    sources = Counter(row["source"] for row in run.exemplars if row.get("source"))
    told = ", ".join(f"{source} {count}" for source, count in sorted(sources.items()))
    return f"<p>{len(run.exemplars):,} exemplars in the end{escaped(f': {told}') if told else ''}.</p>"
