"""The parts of the page that compare all experiments: results, their worth, classes, sources, the other head; and what
they rest on: images, settings, environment. Each function returns plain data for the template, None for no section."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from markupsafe import Markup

from endocil.data.leaks import RATES
from endocil.html.markup import number, subscripted
from endocil.html.tables import NUMERIC, Cell, PageTable, Row, heat_table, text_table
from endocil.io.files import portable
from endocil.io.tables import Column, Table, shown, within
from endocil.metrics.metrics import METRICS
from endocil.reports import averages
from endocil.reports.averages import Runs
from endocil.reports.budgets import Budgets
from endocil.reports.comparisons import (
    ComparableRuns,
    comparable_or_none,
    interval_note,
    interval_table,
    source_table,
    versus_note,
    versus_table,
)
from endocil.reports.ranking import Ranking, findings, metric, ranking
from endocil.reports.tables import TITLES, comparison
from endocil.runs.experiments import differing, flat, method_title, written
from endocil.runs.records import RunRecord

FURTHER = {
    "balanced_last": "Balanced accuracy",
    "af_printed": "AF as printed",
    "forgetting_max": "AF from the best",
}
TURNED = 6  # more columns than these have upright headings


@dataclass(frozen=True)
class Ranked:
    """Experiments of one budget, which may be compared; `heading` names the budget where there are several."""

    heading: str
    groups: tuple[Runs, ...]
    ranking: Ranking | None


def titled(group: Runs) -> Runs:
    """The experiment under the name that the paper gives to its method."""
    name = str(group.first.settings["method"]["name"]).rpartition(":")[2]
    rest = group.label.removeprefix(name)
    return group if rest == group.label else replace(group, label=method_title(name) + rest)


def ranked(
    groups: Sequence[Runs], examined: ComparableRuns | None, spent: Budgets, *, rank_anyway: bool
) -> list[Ranked]:
    """All together where budgets are equal or the reader asks for it; otherwise those of each budget alone."""
    learners = [i for i, group in enumerate(groups) if group.incremental]
    classes = spent.classes(learners)
    if rank_anyway or len(classes) < 2:
        return [Ranked("", tuple(groups), ranking(examined, rank_anyway=rank_anyway))]
    return [
        Ranked(
            spent.describe(members[0]),
            tuple(groups[i] for i in members),
            ranking(_part(examined, members), rank_anyway=True) if examined else None,
        )
        for members in classes
    ]


def _part(examined: ComparableRuns, members: Sequence[int]) -> ComparableRuns:
    groups = tuple(examined.groups[i] for i in members)
    return ComparableRuns(groups, tuple(examined.predictions[i] for i in members), examined.head)


def results(
    groups: Sequence[Runs], examined: ComparableRuns | None, ranks: Sequence[Ranked], spent: Budgets
) -> dict[str, Any]:
    """The table, then what it says in words."""
    anyway, records = len(ranks) == 1, _records(groups)
    table = (
        interval_table(examined, rank_anyway=anyway) if examined else comparison(records, rank_anyway=anyway)
    )
    notes = [interval_note(examined)] if examined else []
    if table.marked():
        same = " of the same budget" if len(ranks) > 1 else ""
        notes.insert(0, f"Bold: the best of the methods that learn task by task{same}.")
    sentences = [
        (rank.heading, findings(rank.groups, rank.ranking, rank_anyway=len(ranks) == 1)) for rank in ranks
    ]
    return {
        "table": page_table(table),
        "budgets": _budget_warning(spent, ranks),
        "sentences": [
            (heading, [subscripted(sentence, TITLES.values()) for sentence in those])
            for heading, those in sentences
        ],
        "note": " ".join(notes),
        "further": text_table(
            "Further measures of the same head in percent",
            ["Method", *FURTHER.values()],
            [
                [group.label, *(str(metric(group, name) or number(None)) for name in FURTHER)]
                for group in groups
            ],
        ),
        "meanings": [(title, METRICS[name].replace("`", "")) for name, title in FURTHER.items()],
    }


def competitions(groups: Sequence[Runs], spent: Budgets, ranks: Sequence[Ranked]) -> tuple[str | None, ...]:
    """Which experiments compete for the best value, by a name: all, or those of one budget; no upper bounds."""
    several = len(ranks) > 1
    return tuple(
        (str(own) if several else "") if group.incremental else None
        for group, own in zip(groups, spent.values, strict=True)
    )


def _budget_warning(spent: Budgets, ranks: Sequence[Ranked]) -> str:
    if not spent.titles:
        return ""
    parts = " and ".join(title.lower() for title in spent.titles)
    if len(ranks) > 1:
        return (
            f"These runs had different budgets ({parts}). Methods are ranked only against those of the same budget; "
            f"`--rank-anyway` ranks all of them."
        )
    return f"These runs had different budgets ({parts}): a method with more of it may be better for that reason alone."


def page_table(table: Table) -> PageTable:
    """A table of results for the template: the best values are bold, upper bounds stand apart below a line."""
    marked = table.marked()
    head = [Cell(_title(column.title), NUMERIC if column.numeric else "") for column in table.columns]
    rows = []
    for i, row in enumerate(table.rows):
        cells = [
            Cell(
                _title(shown(cell)),
                NUMERIC if column.numeric and j else "",
                best=(i, j) in marked,
                below=within(cell),
            )
            for j, (cell, column) in enumerate(zip(row, table.columns, strict=True))
        ]
        apart = bool(table.rankings) and table.rankings[i] is None
        rows.append(Row(tuple(cells), "apart" if apart else ""))
    return PageTable(table.caption, tuple(head), tuple(rows))


def _title(text: str) -> str | Markup:
    return subscripted(text, [text]) if text in TITLES.values() else text


def _records(groups: Sequence[Runs]) -> list[RunRecord]:
    return [run for group in groups for run in group.results]


def verdicts(ranks: Sequence[Ranked]) -> dict[str, Any] | None:
    """Every method against the best of its budget: accuracy after the last task, the other columns below it."""
    tested = [(rank.heading, rank.ranking) for rank in ranks if rank.ranking]
    if not tested:
        comparable = any(sum(group.incremental for group in rank.groups) > 1 for rank in ranks)
        return {"untested": True, "comparisons": []} if comparable else None
    return {
        "untested": False,
        "comparisons": [
            {
                "heading": heading,
                "best": found.best.label,
                "table": _last(found),
                "note": versus_note(found.compared, found.differences, found.best),
                "rest": page_table(
                    versus_table([one for one in found.differences if one.metric != "acc_last"], found.best)
                ),
            }
            for heading, found in tested
        ],
    }


def _last(found: Ranking) -> PageTable:
    """The verdict next to the method, where a phone shows it, and no column with Acc_last in every row."""
    table = versus_table(found.of("acc_last"), found.best)
    order = ("method", "verdict", "value", "difference", "low", "high", "p", "p_holm", "seeds")
    places = [[column.key for column in table.columns].index(key) for key in order]
    return page_table(
        Table(
            f"Accuracy after the last task against {found.best.label}: points, on the same test images",
            tuple(table.columns[j] for j in places),
            tuple(tuple(row[j] for j in places) for row in table.rows),
        )
    )


def recall_by_class(groups: Sequence[Runs]) -> PageTable | None:
    """Which class each experiment knows in the end; only worth a table when there is something to compare."""
    if len(groups) < 2:
        return None
    classes = sorted(groups[0].first.metrics["classes"])
    by_group = [{row.name: row.rates[0] for row in averages.per_class(group)} for group in groups]
    values = [[recalls.get(name) for recalls in by_group] for name in classes]
    caption = "Percent of each class's test images recognised after the last task"
    labels = [group.label for group in groups]
    return heat_table(caption, "Class", classes, labels, values, upright=len(labels) > TURNED)


def sources(
    groups: Sequence[Runs], examined: ComparableRuns | None, competing: tuple[str | None, ...]
) -> dict[str, Any] | None:
    """Accuracy on the images of each source alone: a row for each method, a column for each source."""
    if examined is None or len(groups) < 2 or not any(examined.test_set.sources):
        return None
    cells = source_table(examined).rows  # source by source, all methods of each
    named = list(dict.fromkeys((str(row[0]), row[1]) for row in cells))
    columns = (
        Column("method", "Method"),
        *(Column(name, f"{name} ({images:,})", True, "max") for name, images in named),
    )
    by_method = zip(*[iter(row[4] for row in cells)] * len(groups), strict=True)  # a tuple for each source
    matrix = Table(
        "Accuracy after the last task on the test images of each source, in percent; in brackets: how many they are",
        columns,
        tuple((group.label, *own) for group, own in zip(groups, zip(*by_method, strict=True), strict=True)),
        competing,
    )
    return {"table": page_table(matrix), "note": interval_note(examined)}


def nearest_mean(groups: Sequence[Runs], ranks: Sequence[Ranked]) -> PageTable | None:
    """The other head, for methods that have one."""
    own = [group for group in groups if group.first.metrics.get("nearest_mean") is not None]
    if not own:
        return None
    anyway, records = len(ranks) == 1, _records(own)
    examined = comparable_or_none(records, "nearest_mean")
    if examined:
        return page_table(interval_table(examined, rank_anyway=anyway))
    return page_table(comparison(records, head="nearest_mean", rank_anyway=anyway))


def metric_names() -> list[tuple[str, str]]:
    """Every metric, also those of the files: (name, definition)."""
    return [
        (subscripted(TITLES[name], [TITLES[name]]) if name in TITLES else name, text)
        for name, text in METRICS.items()
    ]


def leaks(runs: Sequence[RunRecord]) -> dict[str, Any] | None:
    """How much of the test part is known from the training part: the results hold for images as new as these."""
    rates = {
        (RATES[name], f"{100 * rate:.1f} %")
        for run in runs
        for name, rate in run.leaks.items()
        if name in RATES and rate is not None
    }
    notes = list(dict.fromkeys(note for run in runs for note in run.notes))
    if not rates and not notes:
        return None
    order = list(RATES.values())
    table = text_table(
        "Share of the test images with something like them in the training part",
        ["In the training part there is", "Of the test images"],
        [list(row) for row in sorted(rates, key=lambda row: (order.index(row[0]), row[1]))],
    )
    return {"table": table if rates else None, "notes": notes}


def settings_and_environment(runs: Sequence[RunRecord]) -> list[dict[str, Any]]:
    """Nobody's folders: absolute paths are shown by their last name."""
    names = [run.name for run in runs]
    return [
        _facts("Settings", names, [flat(portable(run.settings)) for run in runs]),
        _facts("Environment", names, [flat(portable(run.environment)) for run in runs]),
    ]


def _facts(title: str, names: Sequence[str], facts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What all runs have in common once, then of each run what it has not in common with all the others: as a list and
    not a column for each key, as thirteen methods have some thirty keys of their own."""
    varied = differing(facts)
    keys = list(dict.fromkeys(key for each in facts for key in each))
    common = [[key, written(facts[0].get(key))] for key in keys if key not in varied]
    other = [
        [name, "; ".join(f"{key} = {written(each[key])}" for key in keys if key in varied and key in each)]
        for name, each in zip(names, facts, strict=True)
    ]
    of = "of this run" if len(facts) == 1 else "common to all runs"
    tables = [text_table(f"{title} {of}", ["Name", "Value"], common, numeric_from=2)] if common else []
    if varied:
        tables.append(text_table(f"{title} that differ", ["Run", title], other, numeric_from=2))
    return {"title": title, "tables": tables}
