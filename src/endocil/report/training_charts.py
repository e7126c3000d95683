"""How one run trained: losses and learning rate, epoch by epoch."""

from collections.abc import Mapping, Sequence
from typing import Any

from endocil.report import svg
from endocil.report.markup import escaped, figure, legend, number
from endocil.report.runs import RunRecord

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
