"""endocil table and versus: runs side by side, with what their differences are worth."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from endocil.commands.common import say
from endocil.errors import EndocilError

if TYPE_CHECKING:
    from endocil.report import RunRecord, Table
    from endocil.report.comparing import Examined


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
    from endocil.recorded import read_runs
    from endocil.report import comparison
    from endocil.report.comparing import interval_note, interval_table, source_table

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
    from endocil.metrics import TABLE_METRICS
    from endocil.recorded import read_runs
    from endocil.report.comparing import versus as compare
    from endocil.report.versus_table import named, versus_note, versus_table

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
    from endocil.predictions import HEADS
    from endocil.report.comparing import examine

    return examine(records, next(one for one in HEADS if one == head.value))


def _put(table: "Table", note: str, form: Format, output: Path | None) -> None:
    """Numbers for people come with what they are; CSV is for programs and is numbers alone."""
    from endocil.files import write_atomically
    from endocil.report.latex import latex

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
