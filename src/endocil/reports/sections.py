"""The parts of the page that compare all experiments: results, their worth, classes, sources, the other head."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from endocil.data.leaks import RATES
from endocil.html.markup import details, escaped, number, plain_table, result_table, subscripted
from endocil.io.files import portable
from endocil.io.tables import Table
from endocil.metrics.metrics import METRICS
from endocil.reports import averages
from endocil.reports.averages import HEAD, Runs
from endocil.reports.comparisons import (
    ComparableRuns,
    comparable_or_none,
    interval_note,
    interval_table,
    source_table,
    versus_note,
    versus_table,
)
from endocil.reports.method_section import heat_table
from endocil.reports.ranking import Ranking, findings, metric
from endocil.reports.tables import TITLES, budgets_of, comparison
from endocil.runs.experiments import differing, flat, written
from endocil.runs.records import RunRecord

FURTHER = ("balanced_last", "af_printed", "forgetting_max")
TURNED = 6  # more columns than these have upright headings


def results(groups: Sequence[Runs], examined: ComparableRuns | None, found: Ranking | None) -> str:
    """The table, then what it says in words."""
    table = interval_table(examined) if examined else comparison(_records(groups))
    notes = [interval_note(examined)] if examined else []
    if table.marked():
        notes.insert(0, "Bold: the best of the methods that learn task by task.")
    said = "".join(f"<p>{_with_metrics(sentence)}</p>" for sentence in findings(groups, found))
    return (
        f'<div class="pair"><div class="block">{result_table(table)}</div><div class="seen">{said}</div></div>'
        f'<p class="note">{escaped(" ".join(notes))}</p>{_further(groups)}'
    )


def _with_metrics(sentence: str) -> str:
    """Names of metrics as in the table's head."""
    text = escaped(sentence)
    for title in TITLES.values():
        text = text.replace(title, subscripted(title))
    return text


def _records(groups: Sequence[Runs]) -> list[RunRecord]:
    return [run for group in groups for run in group.results]


def _further(groups: Sequence[Runs]) -> str:
    """Other ways to count the same: mean and deviation over the seeds."""
    rows = [
        [group.label, *(str(metric(group, name) or number(None)) for name in FURTHER)] for group in groups
    ]
    meanings = "".join(
        f"<dt>{escaped(name)}</dt><dd>{escaped(METRICS[name].replace('`', ''))}</dd>" for name in FURTHER
    )
    table = plain_table("Further measures of the same head in percent", ["Method", *FURTHER], rows)
    return details("Balanced accuracy, and forgetting counted otherwise", f"{table}<dl>{meanings}</dl>")


def verdicts(groups: Sequence[Runs], found: Ranking | None) -> str:
    """Every method against the best: accuracy after the last task in the open, the other columns below it."""
    if found is None:
        learners = [group for group in groups if group.incremental]
        why = "the predictions are not beside the runs, or are of different images"
        if items := budgets_of(learners).items:
            why = f"the runs differ in their budget ({items})"
        return f"<p>The differences were not tested: {why}.</p>" if len(learners) > 1 else ""
    best = escaped(found.best.label)
    note = (
        f"<p>The others are compared with {best} because it did best on these very images. That favours it a "
        f"little, and the correction for many comparisons does not know of it.</p>"
    )
    computed = escaped(versus_note(found.compared, found.differences, found.best))
    others = [one for one in found.differences if one.metric != "acc_last"]
    rest = details("The same for the other columns", result_table(versus_table(others, found.best)))
    return f'{_last(found)}{note}<p class="note">{computed}</p>{rest}'


def _last(found: Ranking) -> str:
    """The verdict next to the method, where a phone shows it, and no column that would say Acc_last in every row."""
    table = versus_table(found.of("acc_last"), found.best)
    wanted = ("method", "verdict", "value", "difference", "low", "high", "p", "p_holm", "seeds")
    places = [[column.key for column in table.columns].index(key) for key in wanted]
    return result_table(
        Table(
            f"Accuracy after the last task against {found.best.label}: points, on the same test images",
            tuple(table.columns[j] for j in places),
            tuple(tuple(row[j] for j in places) for row in table.rows),
        )
    )


def recall_by_class(groups: Sequence[Runs]) -> str:
    """Which class each experiment knows in the end; only worth a table when there is something to compare."""
    if len(groups) < 2:
        return ""
    classes = sorted(groups[0].first.metrics["classes"])
    by_group = [{row.name: row.rates[0] for row in averages.per_class(group)} for group in groups]
    values = [[recalls.get(name) for recalls in by_group] for name in classes]
    caption = "Percent of each class's test images recognised after the last task"
    labels = [group.label for group in groups]
    return heat_table(caption, "Class", classes, labels, values, upright=len(labels) > TURNED)


def sources(groups: Sequence[Runs], examined: ComparableRuns | None) -> str:
    """Each source alone, all methods beside each other."""
    if examined is None or len(groups) < 2 or not any(examined.test_set.sources):
        return ""
    shown = result_table(source_table(examined))
    return f'{shown}<p class="note">{escaped(interval_note(examined))}</p>'


def nearest_mean(groups: Sequence[Runs]) -> str:
    """The other head, for methods that have one."""
    runs = [run for run in _records(groups) if run.metrics.get("nearest_mean") is not None]
    if not runs:
        return ""
    examined = comparable_or_none(runs, "nearest_mean")
    table = interval_table(examined) if examined else comparison(runs, head="nearest_mean")
    note = (
        "<p>The same networks, but an image goes to the class whose mean exemplar feature is nearest. "
        f"The results above are those of the {HEAD} head.</p>"
    )
    return note + result_table(table)


# What the numbers of the page rest on: definitions, images, settings, environment.


def definitions() -> str:
    """Every metric, also those of the files."""
    items = "".join(
        f"<dt>{subscripted(TITLES[name]) if name in TITLES else escaped(name)}</dt><dd>{_code(told)}</dd>"
        for name, told in METRICS.items()
    )
    return f'<dl class="terms">{items}</dl>'


def _code(text: str) -> str:
    """`af` as a name of the files."""
    return re.sub(r"`(\w+)`", r"<code>\1</code>", escaped(text))


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
        return told
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
    return table + note + told


def settings_and_environment(runs: Sequence[RunRecord]) -> str:
    """Nobody's folders: absolute paths are shown by their last name."""
    names = [run.name for run in runs]
    settings = _facts("Settings", names, [flat(portable(run.settings)) for run in runs])
    environment = _facts("Environment", names, [flat(portable(run.environment)) for run in runs])
    return settings + environment


def _facts(title: str, names: Sequence[str], facts: Sequence[Mapping[str, Any]]) -> str:
    """What all runs share once, then of each run what it has not in common with all the others."""
    unlike = differing(facts)
    keys = list(dict.fromkeys(key for each in facts for key in each))
    shared = [[key, written(facts[0].get(key))] for key in keys if key not in unlike]
    other = [
        [name, _listed(each, [key for key in keys if key in unlike])]
        for name, each in zip(names, facts, strict=True)
    ]
    of = "of this run" if len(facts) == 1 else "shared by all runs"
    body = plain_table(f"{title} {of}", ["Name", "Value"], shared, numeric_from=2) if shared else ""
    if unlike:
        body += plain_table(f"{title} that differ", ["Run", title], other, numeric_from=2)
    return details(title, body)


def _listed(facts: Mapping[str, Any], keys: Sequence[str]) -> str:
    """A list and not a column for each key: thirteen methods have some thirty keys of their own."""
    return "; ".join(f"{key} = {written(facts[key])}" for key in keys if key in facts)
