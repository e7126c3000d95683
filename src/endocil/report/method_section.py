"""The part of the page about one experiment: what it forgets and confuses, how it trained, what it kept."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from endocil.report import averages, task_views
from endocil.report.averages import Runs
from endocil.report.markup import escaped, number, plain_table
from endocil.report.runs import RunRecord
from endocil.report.shaded import bar_table
from endocil.report.training_charts import training


def method_section(group: Runs, index: int) -> str:
    """One experiment. Numbers are means over its seeds; curves and exemplars are those of the first seed."""
    name = f"method-{index}"
    run = group.first
    over_tasks = _block(task_views.forgetting(group), task_views.recall_over_tasks(group))
    top = f'<div class="pair">{_block(task_views.confusion(group))}{over_tasks}</div>'
    rest = _block(task_views.classes(group), _sources(group)) + _block(training(run), _exemplars(run))
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
