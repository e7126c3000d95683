"""endocil ledger add, table, insert and plot."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from endocil.cli.console import Force, Ledger, Runs, say
from endocil.errors import EndocilError, FileFormatError, SettingsError
from endocil.io.files import refuse_existing


def add(runs: Runs, folder: Ledger = Path("docs/results")) -> None:
    """Add the small results of finished runs to the ledger: settings, metrics, versions; no images."""
    from endocil.data.scenario import image_rows, scenario_digest
    from endocil.reports.ledger import AlreadyInLedgerError, add_to_ledger
    from endocil.runs.folder import RunFolder
    from endocil.runs.parts import kept_table, scenario_of
    from endocil.runs.records import read_split, run_folders

    for run in run_folders(runs):
        try:
            settings = RunFolder(run).settings
            scenario = scenario_of(kept_table(settings), settings)
            learned = [(row["image"], row["class"], row["part"]) for row in read_split(run / "split.csv")]
            same = learned == image_rows(scenario)
            content = scenario_digest(scenario) if same else None  # of the images that the run has learned
        except (EndocilError, OSError):  # a run of another machine, whose data is not here
            content = None
        try:
            say(f"added {add_to_ledger(run, folder, content=content)}")
        except AlreadyInLedgerError as existing:  # not a failure: the results are kept
            say(str(existing))


def table(
    folder: Ledger = Path("docs/results"),
    which: Annotated[
        str,
        typer.Option(
            "--which",
            help="runs, methods (default options), costs (with both heads), ablation, paper (data sets side by side), "
            "ranks (over data sets), variants (of methods, beside their defaults), alignment (factors of weight "
            "alignment), leaks (from train to test), summary or overview.",
        ),
    ] = "runs",
) -> None:
    """Print a table of the ledger as Markdown, mean and spread over seeds."""
    from endocil.reports.ledger_texts import ledger_texts

    known = ledger_texts(folder)
    if which not in known:
        raise SettingsError(f"no table '{which}'; known: {', '.join(known)}")
    print(known[which])


def insert(
    files: Annotated[list[Path], typer.Argument(metavar="FILE", help="Markdown files with markers of ledger tables.")],
    folder: Ledger = Path("docs/results"),
    check: Annotated[bool, typer.Option("--check", help="Change nothing; fail if a file is out of date.")] = False,
) -> None:
    """Write the ledger's tables and sentences between the markers of Markdown files."""
    from endocil.reports.ledger import insert_texts
    from endocil.reports.ledger_texts import ledger_texts

    known = ledger_texts(folder)
    stale = [str(file) for file in files if insert_texts(file, known, check=check)]
    if check and stale:
        raise FileFormatError(f"out of date: {', '.join(stale)}; run 'endocil ledger insert' on them")


def plot(
    output: Annotated[Path, typer.Option("-o", "--output", help="An .svg, .png or .pdf file.")],
    folder: Ledger = Path("docs/results"),
    which: Annotated[
        Literal["accuracies", "ranks"],
        typer.Option("--which", help="Acc_last of each method, or mean ranks over data sets."),
    ] = "accuracies",
    force: Force = False,
) -> None:
    """Draw Acc_last of each method with the spread over seeds, a panel for each data set; or mean ranks over the data
    sets with Nemenyi's critical difference."""
    from endocil.reports.figures.ledger_plot import write_ledger_plot, write_rank_plot
    from endocil.reports.ledger import read_ledger, uses_method_defaults
    from endocil.reports.ranks_over_data import ranks_over_data
    from endocil.reports.side_by_side import comparisons
    from endocil.runs.records import completed

    refuse_existing(output, force=force)
    entries = read_ledger(folder, complete=completed)
    defaults = [entry for entry in entries if uses_method_defaults(entry.settings)]
    if which == "ranks":
        found = comparisons(defaults)
        write_rank_plot(ranks_over_data(found[0] if found else None), output)
    else:
        write_ledger_plot(defaults, output)
    say(f"wrote {output}")
