"""The part of the page about one experiment: what it forgets and confuses, how it trained, what it kept."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from endocil.report import averages, svg
from endocil.report.averages import Row, Runs
from endocil.report.markup import (
    bar_cell,
    escaped,
    figure,
    head_row,
    heat_table,
    legend,
    number,
    plain_table,
    scrolling,
)
from endocil.report.runs import RunRecord

MOST_POINTS = 240  # of one line; more cannot be told apart on a screen


def method_section(group: Runs, index: int) -> str:
    """One experiment. Numbers are means over its seeds; curves and exemplars are those of the first seed."""
    name = f"method-{index}"
    run = group.first
    top = f'<div class="pair">{_block(_tasks(group))}{_block(_confusion(group))}</div>'
    rest = _block(_classes(group), _sources(group)) + _block(_training(run), _exemplars(run))
    return (
        f'<section class="method" id="{name}" aria-labelledby="{name}-title">'
        f'<h3 id="{name}-title">{escaped(group.label)}</h3>{top}<div class="columns">{rest}</div></section>'
    )


def _block(*parts: str) -> str:
    return f'<div class="block">{"".join(parts)}</div>' if any(parts) else ""


def _tasks(group: Runs) -> str:
    if not group.incremental:
        return ""
    matrix = averages.task_accuracy(group)
    numbers = [str(t) for t in range(len(matrix))]  # as in the names of the files
    rows = [f"after task {t}" for t in numbers]
    columns = [f"task {s}" for s in numbers]
    caption = "Accuracy (%) on the test images of each task: a column that pales downwards is forgetting"
    return "<h4>Forgetting</h4>" + heat_table(caption, "", rows, columns, matrix)


def _confusion(group: Runs) -> str:
    classes = group.first.metrics["classes"]
    caption = "Percent of each true class (row) given to each class (column), after the last task"
    table = heat_table(caption, "True class", classes, classes, averages.confusion(group), upright=True)
    return "<h4>Confusion</h4>" + table


def _classes(group: Runs) -> str:
    caption = "Test images of each class after the last task, in percent"
    return "<h4>Classes</h4>" + _bars(caption, "Class", averages.CLASS_RATES, averages.per_class(group))


def _sources(group: Runs) -> str:
    rows = averages.per_source(group)
    if not rows:
        return ""
    caption = (
        "Test images of each source after the last task, in percent; recall and F1: means over its classes"
    )
    return "<h4>Sources</h4>" + _bars(caption, "Source", averages.SOURCE_RATES, rows)


def _bars(caption: str, what: str, rates: Sequence[str], rows: Sequence[Row]) -> str:
    """The first rate has a bar."""
    body = "".join(
        f'<tr><th scope="row">{escaped(row.name)}</th><td class="n">{row.images:,}</td>'
        + bar_cell(row.rates[0])
        + "".join(f'<td class="n">{number(rate)}</td>' for rate in row.rates[1:])
        + "</tr>"
        for row in rows
    )
    head = head_row([what, "Images", *(rate.capitalize() for rate in rates)])
    return scrolling(f"<table><caption>{caption}</caption>{head}<tbody>{body}</tbody></table>", caption)


def _training(run: RunRecord) -> str:
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
