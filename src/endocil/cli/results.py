"""endocil table, versus, import and score: results of runs in tables."""

import json
import re
import textwrap
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from endocil.cli.console import Against, Force, Head, Runs, say, with_baseline
from endocil.errors import SettingsError
from endocil.io.files import refuse_existing, write_atomically
from endocil.io.terminal import without_tricks
from endocil.io.text_tables import markdown_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from endocil.io.text_tables import Table
    from endocil.reports.comparisons import ComparableRuns


Format = Literal["text", "markdown", "latex", "csv"]
As = Annotated[Format, typer.Option("--format", help="text, markdown, latex (booktabs) or csv.")]
To = Annotated[Path | None, typer.Option("-o", "--output", help="Write into this file.")]
Resamples = Annotated[int, typer.Option(min=1000, help="Resamples of the test images.")]
Caption = Annotated[str | None, typer.Option(help="Replaces the table's own caption.")]
Label = Annotated[str | None, typer.Option(help="LaTeX label; tab:results if not given.")]
Names = Annotated[
    list[str] | None,
    typer.Option("--name", metavar="LABEL=NAME", help="Show a method under another name; may be repeated."),
]


def table(
    runs: Runs,
    head: Head = "softmax",
    per: Annotated[
        Literal["method", "source"], typer.Option(help="A row for each method, or for each source and method.")
    ] = "method",
    metric: Annotated[
        list[str] | None,
        typer.Option(help="Show this metric (acc_last, ..., top5_last, task_aware_last, bwt, fwt); may be repeated."),
    ] = None,
    intervals: Annotated[bool, typer.Option(help="Show 95 % intervals over test images.")] = True,
    rank_anyway: Annotated[
        bool, typer.Option("--rank-anyway", help="Mark the best even where budgets differ (epochs, exemplars, ...).")
    ] = False,
    resamples: Resamples = 2000,
    form: As = "text",
    caption: Caption = None,
    label: Label = None,
    names: Names = None,
    output: To = None,
    force: Force = False,
) -> None:
    """Results of runs: mean and spread over seeds of each metric, with 95 % intervals over test images."""
    from endocil.metrics.metrics import TABLE_METRICS
    from endocil.reports.comparisons import comparable_runs, interval_note, interval_table, source_table
    from endocil.runs.records import read_runs

    metrics = _known_metrics(metric or TABLE_METRICS)
    if metric and per == "source":
        raise SettingsError("--per source shows the accuracy after the last task alone; leave out --metric")
    compared = comparable_runs(read_runs(runs), head)  # refuses runs on different images, with intervals or without
    note = interval_note(compared, resamples)
    if per == "source":
        shown = source_table(compared, resamples, rank_anyway=rank_anyway)
    else:
        shown = interval_table(compared, resamples if intervals else None, metrics=metrics, rank_anyway=rank_anyway)
        if not intervals:
            note = "± is the sample standard deviation over the seeds."
    if lacking := _without_scores(compared, metrics):
        note += f" {lacking}"
    _put(shown, note, form, output, caption, label, names, force=force)


def versus(
    runs: Runs,
    against: Against = None,
    metric: Annotated[
        list[str] | None, typer.Option(help="A metric of the table; may be repeated. Default: acc_last and acc_avg.")
    ] = None,
    head: Head = "softmax",
    resamples: Resamples = 10_000,
    form: As = "text",
    caption: Caption = None,
    label: Label = None,
    names: Names = None,
    output: To = None,
    force: Force = False,
) -> None:
    """Paired differences on the same test images: interval, p value (Holm-corrected) and verdict."""
    from endocil.reports.comparisons import comparable_runs, find_experiment, versus_note, versus_table
    from endocil.reports.comparisons import versus as compare
    from endocil.runs.records import read_runs

    metrics = _known_metrics(metric or ("acc_last", "acc_avg"))
    records = read_runs(with_baseline(runs, against))
    compared = comparable_runs(records, head)
    baseline = find_experiment(compared, against, records[0].name)
    differences = compare(compared, baseline, metrics, resamples)
    if not differences:
        if len(compared.groups) == 1:
            raise SettingsError(f"only runs of {baseline.label} were given; add runs of another method")
        raise SettingsError(
            f"nothing to compare with {baseline.label} in {', '.join(metrics)}; give another --metric or --against"
        )
    note = versus_note(compared, differences, baseline, resamples)
    _put(versus_table(differences, baseline), note, form, output, caption, label, names, force=force)


def _known_metrics(metrics: "Sequence[str]") -> list[str]:
    from endocil.metrics.metrics import FURTHER_METRICS, TABLE_METRICS

    known = (*TABLE_METRICS, *FURTHER_METRICS)
    if unknown := set(metrics) - set(known):
        raise SettingsError(f"no metric {', '.join(sorted(unknown))}; known: {', '.join(known)}")
    return list(dict.fromkeys(metrics))


def _without_scores(compared: "ComparableRuns", metrics: "Sequence[str]") -> str:
    """A sentence on experiments that have predicted classes alone, where the metrics need scores."""
    from endocil.metrics.metrics import NEED_SCORES

    shown = sorted(NEED_SCORES.intersection(metrics))
    lacking = [
        group.label
        for group, own in zip(compared.groups, compared.predictions, strict=True)
        if any(one.top5 is None for one in own)
    ]
    return (
        f"{', '.join(lacking)}: predicted classes without scores, so no {', '.join(shown)}."
        if shown and lacking
        else ""
    )


def _put(
    table: "Table",
    note: str,
    form: Format,
    output: Path | None,
    caption: str | None,
    label: str | None,
    names: list[str] | None,
    *,
    force: bool,
) -> None:
    """Print or write the table. Formats for people come with a caption and a note; CSV, for programs, without.

    `names`: "EndoCIL (select=mean)=ours", for cells of the column of methods; the last = separates."""
    from endocil.reports.latex import latex

    if output is not None:
        refuse_existing(output, force=force)
    if label is not None and form != "latex":
        raise SettingsError("--label is for --format latex")
    column = next((j for j, column in enumerate(table.columns) if column.key == "method"), None)
    titles = {method: name for method, _, name in (one.rpartition("=") for one in names or ())}
    known = {str(row[column]) for row in table.rows} if column is not None else set()
    if unknown := titles.keys() - known:
        raise SettingsError(
            f"--name: no method {', '.join(map(repr, sorted(unknown)))} in the table; there are "
            f"{', '.join(map(repr, sorted(known)))}; write LABEL=NAME"
        )
    rows = tuple(
        tuple(titles.get(str(cell), cell) if j == column else cell for j, cell in enumerate(row)) for row in table.rows
    )
    table = replace(table, rows=rows)
    title = table.caption if caption is None else caption
    star = "A star marks the best. " if table.marked() else ""
    text = {
        "text": lambda: f"{title}\n\n{table.text()}\n{textwrap.fill(star + note, 100)}\n",
        "markdown": lambda: f"{markdown_text(title.removesuffix('.'))}.\n\n{table.markdown()}\n{markdown_text(note)}\n",
        "latex": lambda: latex(table, caption=caption, label=label or "tab:results", note=note),
        "csv": table.csv,
    }[form]()
    if output is None:
        print(without_tricks(text), end="")
        return
    write_atomically(output, text, public=True)
    say(f"wrote {output}")


def import_predictions(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="PREDICTIONS", help="CSV or .npz: one file per task, in order, or one with a column task."
        ),
    ],
    output: Annotated[Path, typer.Option("-o", "--output", help="Folder of the run; must be new or empty.")],
    method: Annotated[str | None, typer.Option(help="The method's name; or a column method.")] = None,
    toolbox: Annotated[str | None, typer.Option(help="Whose code it was, such as PyCIL.")] = None,
    data: Annotated[str | None, typer.Option(help="Name of the data set.")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed of the run; 0 if not given.")] = None,
    like: Annotated[
        Path | None, typer.Option(metavar="RUN", help="A run on the same test images: data, split, groups, sources.")
    ] = None,
    classes: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Names of the classes, one per line, where labels are numbers.")
    ] = None,
    epochs: Annotated[int | None, typer.Option(min=1, help="Epochs per task, where known.")] = None,
    size: Annotated[int | None, typer.Option(min=1, help="Width of the images in pixels, where known.")] = None,
    width: Annotated[
        int | None, typer.Option(min=1, help="Channels of the network's first stage, where known.")
    ] = None,
    exemplars: Annotated[int | None, typer.Option(min=0, help="Exemplars per class; 0: the method keeps none.")] = None,
    exemplars_in_all: Annotated[int | None, typer.Option(min=1, help="Exemplars of all classes together.")] = None,
) -> None:
    """Import predictions of another toolbox as a run, for table, versus, report, figures and publish."""
    from endocil.io.files import read_fields
    from endocil.runs.import_predictions import Origin
    from endocil.runs.import_predictions import import_predictions as write

    if exemplars is not None and exemplars_in_all is not None:
        raise SettingsError("--exemplars and --exemplars-in-all are both given; keep one of them")
    known = {
        "data": {"size": size},
        "network": {"width": width},
        "memory": {"per_class": exemplars, "total": exemplars_in_all},
        "train": {"epochs": epochs},
    }
    budget = {
        section: {key: value for key, value in values.items() if value is not None} for section, values in known.items()
    }
    names = [",".join(fields).strip() for _, fields in read_fields(classes, ",", any_bytes=False)] if classes else []
    origin = Origin(method=method, toolbox=toolbox, data=data, seed=seed, budget=budget)
    metrics = write(files, output, origin, class_names=names, like=like)
    tasks = "+".join(map(str, metrics["task_sizes"]))
    say(
        f"{output}: {len(metrics['classes'])} classes in tasks of {tasks}, {metrics['test_images'][-1]:,} test images, "
        f"Acc_last {metrics['softmax']['acc_last']:.2f}"
    )
    items = {"--epochs": epochs, "--size": size, "--width": width}
    missing = [option for option, value in items.items() if value is None]
    missing += ["--exemplars"] if exemplars is exemplars_in_all is None else []
    if missing:
        say(f"not known, so that it is not ranked with others unless --rank-anyway: {', '.join(missing)}")


def score(
    files: Annotated[
        list[Path],
        typer.Argument(metavar="RUN_OR_FILE", help="A run's folder, or predictions CSV files, one per task, in order."),
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print all metrics as JSON.")] = False,
) -> None:
    """Compute the metrics of predictions made by endocil or another toolbox."""
    from endocil.metrics.metrics import METRICS, TABLE_METRICS, summarise
    from endocil.model.prediction_files import read_run_predictions

    tables = [file for one in files for file in (one.glob("predictions/task-*.csv") if one.is_dir() else [one])]
    if all(re.fullmatch(r"task-\d+", file.stem) for file in tables):  # by number: a shell puts task-10 before task-2
        tables.sort(key=lambda file: int(file.stem.removeprefix("task-")))
    summary = summarise(read_run_predictions(tables, of_run=all(one.is_dir() for one in files)))
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
