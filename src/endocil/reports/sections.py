"""The parts of the page that compare all experiments: results, their worth, classes, sources, the other head; and what
they rest on: images, settings, environment. Each function returns plain data for the template, None for no section."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from endocil.data.leaks import RATES
from endocil.html.markup import number
from endocil.html.page_tables import NUMERIC, Cell, PageTable, Row, heat_table, text_table
from endocil.io.files import portable
from endocil.io.text_tables import Column, Table, shown, within
from endocil.metrics.metrics import METRICS
from endocil.model.predictions import Head
from endocil.reports.averages import Runs, class_rates, metric_spread
from endocil.reports.comparisons import (
    ComparableRuns,
    comparable_or_none,
    interval_note,
    interval_table,
    source_table,
    versus_note,
    versus_table,
)
from endocil.reports.ranking import Ranking, findings, ranking
from endocil.reports.tables import METHOD, Budgets, comparison
from endocil.runs.experiments import differing, flatten, format_value
from endocil.runs.records import RunRecord

FURTHER = {"balanced_last": "Balanced accuracy", "af_printed": "AF as printed", "forgetting_max": "AF from the best"}
TURNED = 6  # more columns than these have upright headings


@dataclass(frozen=True)
class Ranked:
    """Experiments of one budget, which may be compared; `heading` names the budget where there are several."""

    heading: str
    groups: tuple[Runs, ...]
    ranking: Ranking | None


def ranked(
    groups: Sequence[Runs], compared: ComparableRuns | None, budgets: Budgets, *, rank_anyway: bool
) -> list[Ranked]:
    """All together where budgets are equal or the reader asks for it; otherwise those of each budget alone."""
    by_budget: dict[str, list[int]] = {}
    for i, key in enumerate(budgets.rankings()):
        if key is not None:
            by_budget.setdefault(key, []).append(i)
    if rank_anyway or len(by_budget) < 2:
        return [Ranked("", tuple(groups), ranking(compared, rank_anyway=rank_anyway))]
    ranks = []
    for members in by_budget.values():
        own = tuple(groups[i] for i in members)
        part = compared and replace(compared, groups=own, predictions=tuple(compared.predictions[i] for i in members))
        ranks.append(Ranked(budgets.describe(members[0]), own, ranking(part, rank_anyway=True)))
    return ranks


def results(
    groups: Sequence[Runs], compared: ComparableRuns | None, ranks: Sequence[Ranked], budgets: Budgets
) -> dict[str, Any]:
    """The table, then what it says in words."""
    together = len(ranks) == 1
    table = _results(groups, compared, "softmax", together)
    return {
        "table": page_table(table),
        "budgets": budgets.reason,
        "together": together,
        "sentences": [(rank.heading, findings(rank.groups, rank.ranking, rank_anyway=together)) for rank in ranks],
        "marked": bool(table.marked()),
        "note": interval_note(compared) if compared else "",
        "further": text_table(
            "Further measures of the same head in percent",
            ["Method", *FURTHER.values()],
            [[group.label, *(str(metric_spread(group, name) or number(None)) for name in FURTHER)] for group in groups],
        ),
        "meanings": [(title, METRICS[name].replace("`", "")) for name, title in FURTHER.items()],
    }


def _results(groups: Sequence[Runs], compared: ComparableRuns | None, head: Head, rank_anyway: bool) -> Table:
    """With intervals where the predictions are at hand."""
    if compared:
        return interval_table(compared, rank_anyway=rank_anyway)
    return comparison([run for group in groups for run in group.results], head, rank_anyway=rank_anyway)


def page_table(table: Table) -> PageTable:
    """A table of results for the template: the best values are bold, upper bounds stand apart below a line."""
    marked = table.marked()
    rows = []
    for i, row in enumerate(table.rows):
        cells = [
            Cell(shown(cell), NUMERIC if column.numeric and j else "", best=(i, j) in marked, below=within(cell))
            for j, (cell, column) in enumerate(zip(row, table.columns, strict=True))
        ]
        apart = bool(table.rankings) and table.rankings[i] is None
        rows.append(Row(tuple(cells), "apart" if apart else ""))
    head = tuple(Cell(column.title, NUMERIC if column.numeric else "") for column in table.columns)
    return PageTable(table.caption, head, tuple(rows))


def verdicts(ranks: Sequence[Ranked]) -> dict[str, Any] | None:
    """Every method against the best of its budget: accuracy after the last task, the other columns below it. No
    comparisons where nothing was tested, None where there is nothing to test."""
    if not any(sum(group.incremental for group in rank.groups) > 1 for rank in ranks):
        return None
    comparisons = []
    for rank in ranks:
        if tested := rank.ranking:
            # The verdict next to the method, where a phone shows it, and no column with Acc_last in every row.
            table = versus_table(tested.of("acc_last"), tested.best)
            order = ("method", "verdict", "value", "difference", "low", "high", "p", "p_holm", "seeds")
            places = [[column.key for column in table.columns].index(key) for key in order]
            last = Table(
                f"Accuracy after the last task against {tested.best.label}: points, on the same test images",
                tuple(table.columns[j] for j in places),
                tuple(tuple(row[j] for j in places) for row in table.rows),
            )
            others = [one for one in tested.differences if one.metric != "acc_last"]
            comparisons.append(
                {
                    "heading": rank.heading,
                    "best": tested.best.label,
                    "table": page_table(last),
                    "note": versus_note(tested.compared, tested.differences, tested.best),
                    "rest": page_table(versus_table(others, tested.best)),
                }
            )
    return {"comparisons": comparisons}


def recall_by_class(groups: Sequence[Runs]) -> PageTable | None:
    """Which class each experiment knows in the end; only worth a table when there is something to compare."""
    if len(groups) < 2:
        return None
    classes = sorted(groups[0].first.metrics["classes"])
    recalls = [dict(zip(group.first.metrics["classes"], class_rates(group)[-1][:, 0], strict=True)) for group in groups]
    values = [[own[name] for own in recalls] for name in classes]
    caption = "Percent of each class's test images recognised after the last task"
    labels = [group.label for group in groups]
    return heat_table(caption, "Class", classes, labels, values, upright=len(labels) > TURNED)


def sources(
    groups: Sequence[Runs], compared: ComparableRuns | None, rankings: tuple[str | None, ...]
) -> dict[str, Any] | None:
    """Accuracy on the images of each source alone: a row for each method, a column for each source."""
    if compared is None or len(groups) < 2 or not any(compared.test_set.sources):
        return None
    cells = source_table(compared).rows  # source by source, all methods of each
    named = list(dict.fromkeys((str(row[0]), row[1]) for row in cells))
    columns = (METHOD, *(Column(name, f"{name} ({images:,})", True, "max") for name, images in named))
    by_method = zip(*[iter(row[4] for row in cells)] * len(groups), strict=True)  # a tuple for each source
    matrix = Table(
        "Accuracy after the last task on the test images of each source, in percent; in brackets: how many they are",
        columns,
        tuple((group.label, *own) for group, own in zip(groups, zip(*by_method, strict=True), strict=True)),
        rankings,
    )
    return {"table": page_table(matrix), "note": interval_note(compared)}


def nearest_mean(groups: Sequence[Runs], ranks: Sequence[Ranked]) -> PageTable | None:
    """The other head, for methods that have one."""
    own = [group for group in groups if group.first.metrics.get("nearest_mean") is not None]
    if not own:
        return None
    compared = comparable_or_none([run for group in own for run in group.results], "nearest_mean")
    return page_table(_results(own, compared, "nearest_mean", len(ranks) == 1))


def leaks(runs: Sequence[RunRecord]) -> dict[str, Any] | None:
    """How much of the test part is known from the training part: the results hold for images as new as these."""
    rows = []
    for name, title in RATES.items():
        shares = {f"{100 * rate:.1f} %" for run in runs if (rate := run.leaks.get(name)) is not None}
        rows += [[title, share] for share in sorted(shares)]
    notes = list(dict.fromkeys(note for run in runs for note in run.notes))
    if not rows and not notes:
        return None
    caption = "Share of the test images with something like them in the training part"
    titles = ["In the training part there is", "Of the test images"]
    return {"table": text_table(caption, titles, rows) if rows else None, "notes": notes}


def settings_and_environment(runs: Sequence[RunRecord]) -> list[dict[str, Any]]:
    """Nobody's folders: absolute paths are shown by their last name."""
    names = [run.name for run in runs]
    return [
        _facts("Settings", names, [flatten(portable(run.settings)) for run in runs]),
        _facts("Environment", names, [flatten(portable(run.environment)) for run in runs]),
    ]


def _facts(title: str, names: Sequence[str], facts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What all runs have in common once, then of each run what it has not in common with all the others: as a list and
    not a column for each key, as thirteen methods have some thirty keys of their own."""
    varied = differing(facts)
    keys = list(dict.fromkeys(key for each in facts for key in each))
    common = [[key, format_value(facts[0].get(key))] for key in keys if key not in varied]
    other = [
        [name, "; ".join(f"{key} = {format_value(each[key])}" for key in keys if key in varied and key in each)]
        for name, each in zip(names, facts, strict=True)
    ]
    of = "of this run" if len(facts) == 1 else "common to all runs"
    tables = [text_table(f"{title} {of}", ["Name", "Value"], common, numeric_from=2)] if common else []
    if varied:
        tables.append(text_table(f"{title} that differ", ["Run", title], other, numeric_from=2))
    return {"title": title, "tables": tables}
