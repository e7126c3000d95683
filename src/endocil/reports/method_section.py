"""The part of the page about one experiment: what it forgets and confuses, how it trained, which images it kept.

Tables show the state after the last task; `task_data` has all tasks for the script. Tasks are counted from 1 here and
from 0 in the files."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from endocil.html import charts as svg
from endocil.html.markup import number
from endocil.html.page_tables import PageTable, bar_table, heat_table, heat_value, text_table
from endocil.metrics.metrics import plain
from endocil.reports import averages
from endocil.reports.averages import Runs
from endocil.runs.records import RunRecord

LAST = "after the last task"
MOST_POINTS = 240  # of one line; more cannot be told apart on a screen
MOST_LABELS = 8  # tasks named in words above a chart


def method_section(group: Runs) -> dict[str, Any]:
    """One experiment. Numbers are means over its seeds; curves and exemplars are those of the first seed."""
    metrics, rates = group.first.metrics, averages.class_rates(group)
    classes = metrics["classes"]
    images = [metrics[averages.HEAD]["per_class"][name]["images"] for name in classes]
    sources = averages.per_source(group)
    return {
        "label": group.label,
        "last_only": group.incremental and not averages.task_by_task(group),
        "orders": len({tuple(run.metrics["classes"]) for run in group.results}),
        "confusion": heat_table(
            "Percent of each true class (row) given to each class (column)",
            "True class",
            classes,
            classes,
            averages.confusions(group)[-1],
            upright=True,
            when=LAST,
            view="confusion",
        ),
        "forgetting": _forgetting(group) if group.incremental else None,
        "recall": _recall_over_tasks(classes, rates) if len(rates) > 1 else None,
        "classes": bar_table(
            "Test images of each class, in percent",
            ["Class", "Images", *(rate.capitalize() for rate in averages.CLASS_RATES)],
            zip(classes, images, rates[-1].tolist(), strict=True),
            when=LAST,
            view="classes",
        ),
        "sources": bar_table(
            "Test images of each source after the last task, in percent; recall and F1: means over its classes",
            ["Source", "Images", *(rate.capitalize() for rate in averages.SOURCE_RATES)],
            sources,
        )
        if sources
        else None,
        "training": _training(group.first),
        "exemplars": _exemplars(group.first),
    }


def _forgetting(group: Runs) -> PageTable:
    matrix = averages.task_accuracy(group)
    tasks = [f"task {t}" for t in range(1, len(matrix) + 1)]
    caption = "Accuracy (%) on the test images of each task: forgetting makes a column paler downwards"
    return heat_table(caption, "", [f"after {task}" for task in tasks], tasks, matrix, view="forgetting")


def _recall_over_tasks(classes: Sequence[str], rates: Sequence[averages.Floats]) -> PageTable:
    values = [[seen[i][0] if i < len(seen) else None for seen in rates] for i in range(len(classes))]
    tasks = [f"task {t}" for t in range(1, len(rates) + 1)]
    caption = "Percent of each class's test images recognised after each task"
    return heat_table(caption, "Class", classes, tasks, values, view="recall")


def _exemplars(run: RunRecord) -> dict[str, Any] | None:
    chosen = {event["class"]: event for event in run.events_of("selection")}
    if not chosen:
        return None
    measured = any(event.get("mmd2") is not None for event in chosen.values())
    rows = [
        [name, f"{event['kept']:,}", f"{event['of']:,}"]
        + ([number(event.get("mmd2"), 4), number(event.get("bound"), 3)] if measured else [])
        for name, event in chosen.items()
    ]
    titles = ["Class", "Kept", "Of", *(["MMD²", "Bound"] if measured else [])]
    caption = "Exemplars of each class, and the images they were chosen from"
    if measured:
        caption += "; MMD² is their distance from the whole class, with the paper's bound"
    sources = Counter(row["source"] for row in run.exemplars if row.get("source"))
    return {
        "table": text_table(caption, titles, rows),
        "count": len(run.exemplars),
        "sources": ", ".join(f"{source} {count}" for source, count in sorted(sources.items())),
    }


def task_data(groups: Sequence[Runs]) -> list[dict[str, Any]]:
    """The numbers of all tasks, for the script: the classes that each task brings in the first run's order, and what
    the tables of confusion and of classes show after it."""
    data = []
    for group in groups:
        ends, classes = averages.classes_seen(group), group.first.metrics["classes"]
        tasks = [classes[start:end] for start, end in zip((0, *ends), ends, strict=False)]
        matrices, rates = averages.confusions(group), averages.class_rates(group)
        data.append(
            {
                "tasks": tasks if averages.task_by_task(group) else [],
                "confusions": [[list(map(heat_value, line)) for line in matrix] for matrix in matrices],
                "rates": [plain(seen.round(1)) for seen in rates],
            }
        )
    return data


def accuracy_curves(groups: Sequence[Runs]) -> dict[str, Any]:
    """Accuracy after each task for all experiments; one trained on everything at once is a single point."""
    lines = []
    for style, group in enumerate(groups):
        values = averages.accuracy_per_task(group)
        means = tuple(value.mean if value else None for value in values)
        deviations = tuple(value.deviation if value else None for value in values)
        lines.append(svg.Series(group.label, averages.classes_seen(group), means, style, deviations))
    counts = sorted({count for group in groups for count in averages.classes_seen(group)})
    margin = 0.06 * max(1, counts[-1] - counts[0])
    ticks = tuple((float(count), str(count)) for count in counts)
    x = svg.Axis("classes learned so far", counts[0] - margin, counts[-1] + margin / 2, ticks)
    y = svg.Axis("accuracy (%)", 0, 100, tuple((value, str(value)) for value in range(0, 101, 20)))
    in_words = "; ".join(f"{line.name}: {', '.join(number(value) for value in line.y)}" for line in lines)
    rows = []
    for line in lines:
        by_count = dict(zip(line.x, line.y, strict=True))
        rows.append([line.name, *(number(by_count.get(count)) for count in counts)])
    titles = ["Method", *map(str, counts)]
    return {
        "chart": svg.line_chart(lines, x, y, title=f"Accuracy after each task in percent. {in_words}"),
        "at_once": not all(group.incremental for group in groups),
        "deviations": any(any(line.deviations) for line in lines),
        "entries": [(svg.sample(line.style), line.name) for line in lines],
        "numbers": text_table("Accuracy in percent by the number of classes learned", titles, rows),
    }


def _training(run: RunRecord) -> dict[str, Any] | None:
    """Losses and learning rate of one run, epoch by epoch."""
    epochs = run.events_of("epoch")
    if not epochs:
        return None
    step = -(-len(epochs) // MOST_POINTS)
    kept = [i for i in range(len(epochs)) if i % step == 0 or i == len(epochs) - 1]
    where, events = [i + 1.0 for i in kept], [epochs[i] for i in kept]
    x = svg.end_axis("epoch, counted over all tasks", float(len(epochs)))
    first = {event["task"]: float(i) for i, event in reversed(list(enumerate(epochs)))}  # the epoch before it
    words = "task " if len(first) <= MOST_LABELS else ""
    starts = [(at, f"{words}{task + 1}") for task, at in sorted(first.items())] if len(first) > 1 else []
    notes = [f"Task {event['task'] + 1}: {note}." for event in run.events_of("task") for note in event.get("notes", ())]
    figures = [_losses(where, events, x, starts)]
    rates = tuple(event.get("learning_rate") or None for event in events)  # 0 has no place on a logarithmic axis
    if known := [rate for rate in rates if rate]:
        begin = (*(at - 1.0 for at in where), where[-1])  # an epoch's rate holds from its start to its end
        line = svg.Series("learning rate", begin, (*rates, rates[-1]), 0, markers=False, steps=True)
        title = f"Learning rate per epoch, from {max(known):g} to {min(known):g}"
        unnamed = [(at, "") for at, _ in starts]
        chart = svg.line_chart([line], x, svg.log_axis("", known), title=title, height=140, boundaries=unnamed)
        figures.append({"chart": chart, "caption": "Learning rate per epoch.", "entries": []})
    return {"notes": notes, "figures": figures}


def _losses(
    where: Sequence[float], events: Sequence[Mapping[str, Any]], x: svg.Axis, starts: Sequence[tuple[float, str]]
) -> dict[str, Any]:
    """Where a task has several phases, a loss has the phase's name, as each has its own losses."""
    phases = {(event["task"], event.get("phase")) for event in events}
    several = len(phases) > len({task for task, _ in phases})
    named = [
        {f"{event['phase']}: {name}" if several else name: loss for name, loss in event["losses"].items()}
        for event in events
    ]
    names = list(dict.fromkeys(name for losses in named for name in losses))
    lines = [
        svg.Series(name, tuple(where), tuple(losses.get(name) for losses in named), style, markers=False)
        for style, name in enumerate(names)
    ]
    y = svg.linear_axis("loss", [value for line in lines for value in line.y if value is not None])
    last = {line.name: [value for value in line.y if value is not None][-1] for line in lines}
    ends = ", ".join(f"{name} ends at {number(value, 3)}" for name, value in last.items())
    return {
        "chart": svg.line_chart(lines, x, y, title=f"Losses per epoch: {ends}", height=220, boundaries=starts),
        "caption": "Mean loss per epoch." + (" Dashed lines: a new task begins." if starts else ""),
        "entries": [(svg.sample(line.style, markers=False), line.name) for line in lines],
    }
