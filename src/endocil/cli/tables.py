"""endocil table and versus: runs side by side, with what their differences are worth."""

import re
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from endocil.cli.common import console, say
from endocil.errors import EndocilError

if TYPE_CHECKING:
    from endocil.reports.comparisons import Examined
    from endocil.reports.tables import Table
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


def table(
    runs: Runs,
    head: OfHead = Head.softmax,
    per: Annotated[
        Per, typer.Option("--per", help="A row for each method, or for each source and method.")
    ] = Per.method,
    intervals: Annotated[
        bool, typer.Option("--intervals/--no-intervals", help="With the 95 % intervals over test images.")
    ] = True,
    resamples: Resamples = 2000,
    form: As = Format.text,
    output: To = None,
) -> None:
    """Results of runs: mean and spread over seeds of each metric, with 95 % intervals over test images."""
    from endocil.reports.comparisons import interval_note, interval_table, source_table
    from endocil.reports.tables import comparison
    from endocil.runs.records import read_runs

    examined = _examined(read_runs(runs), head)  # refuses runs on different images, with intervals or without
    if per is Per.source:
        _put(source_table(examined, resamples), interval_note(examined, resamples), form, output)
    elif intervals:
        _put(interval_table(examined, resamples), interval_note(examined, resamples), form, output)
    else:
        shown = comparison([run for group in examined.groups for run in group.results], head.value)
        _put(shown, "± is the sample standard deviation over the seeds.", form, output)


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
    output: To = None,
) -> None:
    """Paired differences on the same test images: interval, p, p adjusted for many comparisons, a verdict."""
    from endocil.metrics.metrics import TABLE_METRICS
    from endocil.reports.comparisons import named, versus_note, versus_table
    from endocil.reports.comparisons import versus as compare
    from endocil.runs.records import read_runs

    metrics = metric or ["acc_last", "acc_avg"]
    if unknown := set(metrics) - set(TABLE_METRICS):
        raise EndocilError(f"no metric {', '.join(sorted(unknown))}; known: {', '.join(TABLE_METRICS)}")
    records = read_runs(runs)
    examined = _examined(records, head)
    other = named(examined, against, records[0].name)
    found = compare(examined, other, metrics, resamples)
    if not found:
        raise EndocilError(
            f"nothing to compare with {other.label} in {', '.join(metrics)}; give runs of another method"
        )
    _put(versus_table(found, other), versus_note(examined, found, other, resamples), form, output)


def _examined(records: "list[RunRecord]", head: Head) -> "Examined":
    from endocil.model.predictions import HEADS
    from endocil.reports.comparisons import examine

    return examine(records, next(one for one in HEADS if one == head.value))


def _put(table: "Table", note: str, form: Format, output: Path | None) -> None:
    """Numbers for people come with what they are; CSV is for programs and is numbers alone."""
    from endocil.io.files import write_atomically
    from endocil.reports.latex import latex

    text = {
        Format.text: lambda: f"{table.caption}\n\n{table.text()}\n{_wrapped(_starred(table) + note)}\n",
        Format.markdown: lambda: f"{table.caption}.\n\n{table.markdown()}\n{note}\n",
        Format.latex: lambda: latex(table, note=note),
        Format.csv: table.csv,
    }[form]()
    if output is None:
        print(text, end="")
        return
    write_atomically(output, text)
    say(f"wrote {output}")


def _starred(table: "Table") -> str:
    return "A star marks the best. " if table.marked() else ""


def _wrapped(text: str) -> str:
    import textwrap

    return textwrap.fill(text, 100)


# endocil methods and score.


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
    found = [
        file for one in files for file in ([*one.glob("predictions/task-*.csv")] if one.is_dir() else [one])
    ]
    if not all(re.fullmatch(r"task-\d+", file.stem) for file in found):
        return found
    return sorted(found, key=lambda file: int(file.stem.removeprefix("task-")))


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
