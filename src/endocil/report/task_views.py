"""What changes from task to task: what is forgotten, each class, the confusion.

Everything stands on the page as it is after the last task. Where the script runs, a slider shows any other task: it
writes the numbers of `data` into the same tables."""

import json
from collections.abc import Sequence
from typing import Any

from endocil.report import averages
from endocil.report.averages import Runs
from endocil.report.markup import escaped
from endocil.report.shaded import bar_table, heat_table, heat_value

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
