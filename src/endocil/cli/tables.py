"""endocil table, versus, methods and score: results of runs in tables."""

import re
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from endocil.cli.common import console, say
from endocil.errors import SettingsError

if TYPE_CHECKING:
    from endocil.io.tables import Table
    from endocil.reports.comparisons import ComparableRuns
    from endocil.runs.records import RunRecord


class Format(StrEnum):
    text = "text"
    markdown = "markdown"
    latex = "latex"
    csv = "csv"


class Head(StrEnum):
    softmax = "softmax"
    nearest_mean = "nearest_mean"


class Per(StrEnum):
    method = "method"
    source = "source"


Runs = Annotated[list[Path], typer.Argument(metavar="RUN...", help="Folders of finished runs.")]
OfHead = Annotated[Head, typer.Option("--head", help="softmax or nearest_mean.")]
As = Annotated[Format, typer.Option("--format", help="text, markdown, latex (booktabs) or csv.")]
To = Annotated[Path | None, typer.Option("-o", "--output", help="Write into this file.")]
Resamples = Annotated[int, typer.Option("--resamples", min=1000, help="Resamples of the test images.")]
Caption = Annotated[str | None, typer.Option("--caption", help="In place of the table's own caption.")]
Label = Annotated[str | None, typer.Option("--label", help="LaTeX label; tab:results if not given.")]
Names = Annotated[
    list[str] | None,
    typer.Option("--name", metavar="LABEL=NAME", help="Show a method under another name; may be repeated."),
]


def table(
    runs: Runs,
    head: OfHead = Head.softmax,
    per: Annotated[
        Per, typer.Option("--per", help="A row for each method, or for each source and method.")
    ] = Per.method,
    intervals: Annotated[
        bool, typer.Option("--intervals/--no-intervals", help="With the 95 % intervals over test images.")
    ] = True,
    rank_anyway: Annotated[
        bool,
        typer.Option(
            "--rank-anyway", help="Mark the best even where budgets differ (epochs, exemplars, ...)."
        ),
    ] = False,
    resamples: Resamples = 2000,
    form: As = Format.text,
    caption: Caption = None,
    label: Label = None,
    names: Names = None,
    output: To = None,
) -> None:
    """Results of runs: mean and spread over seeds of each metric, with 95 % intervals over test images."""
    from endocil.reports.comparisons import interval_note, interval_table, source_table
    from endocil.reports.tables import comparison
    from endocil.runs.records import read_runs

    compared = _comparable(
        read_runs(runs), head
    )  # refuses runs on different images, with intervals or without
    note = interval_note(compared, resamples)
    if per is Per.source:
        shown = source_table(compared, resamples, rank_anyway=rank_anyway)
    elif intervals:
        shown = interval_table(compared, resamples, rank_anyway=rank_anyway)
    else:
        shown = comparison(compared.runs, head.value, rank_anyway=rank_anyway)
        note = "± is the sample standard deviation over the seeds."
    _put(shown, note, form, output, caption, label, names)


def versus(
    runs: Runs,
    against: Annotated[
        str | None,
        typer.Option("--against", metavar="LABEL", help="Compare with this; else with the first run's."),
    ] = None,
    metric: Annotated[
        list[str] | None,
        typer.Option("--metric", help="One or more of the table's metrics; acc_last and acc_avg."),
    ] = None,
    head: OfHead = Head.softmax,
    resamples: Resamples = 10_000,
    form: As = Format.text,
    caption: Caption = None,
    label: Label = None,
    names: Names = None,
    output: To = None,
) -> None:
    """Paired differences on the same test images: interval, p, p adjusted for many comparisons, a verdict."""
    from endocil.metrics.metrics import TABLE_METRICS
    from endocil.reports.comparisons import named, versus_note, versus_table
    from endocil.reports.comparisons import versus as compare
    from endocil.runs.records import read_runs

    metrics = metric or ["acc_last", "acc_avg"]
    if unknown := set(metrics) - set(TABLE_METRICS):
        raise SettingsError(f"no metric {', '.join(sorted(unknown))}; known: {', '.join(TABLE_METRICS)}")
    records = read_runs(runs)
    compared = _comparable(records, head)
    baseline = named(compared, against, records[0].name)
    differences = compare(compared, baseline, metrics, resamples)
    if not differences:
        raise SettingsError(
            f"nothing to compare with {baseline.label} in {', '.join(metrics)}; give runs of another method"
        )
    note = versus_note(compared, differences, baseline, resamples)
    _put(versus_table(differences, baseline), note, form, output, caption, label, names)


def _comparable(records: "list[RunRecord]", head: Head) -> "ComparableRuns":
    from endocil.model.predictions import HEADS
    from endocil.reports.comparisons import comparable_runs

    return comparable_runs(records, next(one for one in HEADS if one == head.value))


def _put(
    table: "Table",
    note: str,
    form: Format,
    output: Path | None,
    caption: str | None,
    label: str | None,
    names: list[str] | None,
) -> None:
    """Numbers for people come with what they are; CSV is for programs and is numbers alone."""
    import textwrap

    from endocil.io.files import write_atomically
    from endocil.reports.latex import latex

    if label is not None and form is not Format.latex:
        raise SettingsError("--label is for --format latex")
    table = _renamed(table, names or [])
    title = table.caption if caption is None else caption
    star = "A star marks the best. " if table.marked() else ""
    text = {
        Format.text: lambda: f"{title}\n\n{table.text()}\n{textwrap.fill(star + note, 100)}\n",
        Format.markdown: lambda: f"{title.removesuffix('.')}.\n\n{table.markdown()}\n{note}\n",
        Format.latex: lambda: latex(table, caption=caption, label=label or "tab:results", note=note),
        Format.csv: table.csv,
    }[form]()
    if output is None:
        print(text, end="")
        return
    write_atomically(output, text)
    say(f"wrote {output}")


def _renamed(table: "Table", names: list[str]) -> "Table":
    """`names`: "EndoCIL (select=mean)=ours", for cells of the column of methods; the last = separates."""
    from dataclasses import replace

    column = next((j for j, column in enumerate(table.columns) if column.key == "method"), None)
    titles = {label: name for label, _, name in (one.rpartition("=") for one in names)}
    known = {str(row[column]) for row in table.rows} if column is not None else set()
    if unknown := titles.keys() - known:
        raise SettingsError(
            f"--name: no method {', '.join(map(repr, sorted(unknown)))} in the table; there are "
            f"{', '.join(map(repr, sorted(known)))}; write LABEL=NAME"
        )
    rows = tuple(
        tuple(titles.get(str(cell), cell) if j == column else cell for j, cell in enumerate(row))
        for row in table.rows
    )
    return replace(table, rows=rows)


def methods() -> None:
    """List the methods with their options and defaults."""
    from rich.table import Table

    from endocil.methods import METHODS, method_options

    table = Table("method", "what it does", "exemplars by", "options under [method]")
    for name, method in sorted(METHODS.items()):
        options = "\n".join(f"{key} = {value}" for key, value in sorted(method_options(name).items()))
        summary = (method.__doc__ or "").split("\n\n")[0]
        table.add_row(name, summary, method.selects if method.replay else "keeps none", options)
    console().print(table)


def _in_order(files: list[Path]) -> list[Path]:
    """task-0, task-1, ... by number (a shell puts 10 before 2), others as given; a run's folder means its files."""
    tables = [
        file for one in files for file in ([*one.glob("predictions/task-*.csv")] if one.is_dir() else [one])
    ]
    if not all(re.fullmatch(r"task-\d+", file.stem) for file in tables):
        return tables
    return sorted(tables, key=lambda file: int(file.stem.removeprefix("task-")))


def score(
    files: Annotated[
        list[Path], typer.Argument(help="A run's folder, or predictions CSV files, one per task, in order.")
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print all metrics as JSON.")] = False,
) -> None:
    """Compute the metrics of predictions, of this or any other toolbox."""
    import json

    from endocil.metrics.metrics import METRICS, TABLE_METRICS, summarise
    from endocil.model.predictions import read_run_predictions

    summary = summarise(read_run_predictions(_in_order(files)))
    if as_json:
        print(json.dumps(summary, indent=2))
        return
    for head in ("softmax", "nearest_mean"):
        if summary[head] is None:
            continue
        print(f"{head} head")
        for name in TABLE_METRICS:
            value = summary[head][name]
            print(f"  {name:10} {'-' if value is None else f'{value:6.2f}'}   {METRICS[name]}")
