"""endocil ledger add, table, insert and plot."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from endocil.cli.common import Ledger, say
from endocil.errors import EndocilError, SettingsError

if TYPE_CHECKING:
    from endocil.io.tables import Table


def add(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Folders of finished runs.")],
    folder: Ledger = Path("docs/results"),
) -> None:
    """Put finished runs' small results into the ledger: settings, metrics, versions; no images."""
    from endocil.reports.ledger import AlreadyInLedgerError, add_to_ledger

    for one in runs:
        try:
            say(f"added {add_to_ledger(one, folder, content=_content_of_run(one))}")
        except AlreadyInLedgerError as existing:  # not a failure: the results are kept
            say(str(existing))


def _content_of_run(run: Path) -> str | None:
    """A digest of the images that a run has learned, where they are here and still those of its split."""
    from endocil.data.digest import image_rows, scenario_digest
    from endocil.io.files import read_csv
    from endocil.runs.build import kept_table, scenario_of
    from endocil.runs.folder import RunFolder

    try:
        settings = RunFolder(run).settings()
        scenario = scenario_of(kept_table(settings), settings)
        learned = [(row["image"], row["class"], row["part"]) for row in read_csv(run / "split.csv")]
        return scenario_digest(scenario) if learned == image_rows(scenario) else None
    except (EndocilError, OSError):  # a run of another machine, whose data is not here
        return None


def table(
    folder: Ledger = Path("docs/results"),
    which: Annotated[
        str,
        typer.Option("--which", help="runs, methods (default options), costs (with both heads) or ablation."),
    ] = "runs",
) -> None:
    """Print a table of the ledger as Markdown, mean and spread over seeds."""
    known = tables(folder)
    if which not in known:
        raise SettingsError(f"no table '{which}'; known: {', '.join(known)}")
    print(known[which].markdown())


def insert(
    files: Annotated[list[Path], typer.Argument(help="Markdown files with markers of ledger tables.")],
    folder: Ledger = Path("docs/results"),
    check: Annotated[
        bool, typer.Option("--check", help="Change nothing; fail when a file is out of date.")
    ] = False,
) -> None:
    """Write the ledger's tables (runs, methods, costs, ablation) between the markers of Markdown files."""
    from endocil.reports.ledger import insert_tables

    known = tables(folder)
    stale = [str(file) for file in files if insert_tables(file, known, check=check)]
    if check and stale:
        raise EndocilError(f"out of date: {', '.join(stale)}; run 'endocil ledger insert' on them")


def plot(
    output: Annotated[Path, typer.Option("-o", "--output", help="An .svg, .png or .pdf file.")],
    folder: Ledger = Path("docs/results"),
) -> None:
    """Draw Acc_last of each method with the spread over seeds, a panel for each data set."""
    from endocil.reports.figures.ledger import write_ledger_plot
    from endocil.reports.ledger import read_ledger, uses_method_defaults
    from endocil.runs.records import completed

    entries = read_ledger(folder, complete=completed)
    write_ledger_plot([entry for entry in entries if uses_method_defaults(entry.settings)], output)
    say(f"wrote {output}")


def tables(folder: Path) -> dict[str, "Table"]:
    """The ledger's tables by name."""
    from endocil.reports.ledger import read_ledger, uses_method_defaults
    from endocil.reports.ledger_tables import ablation_table, costs_table, ledger_table
    from endocil.runs.records import completed

    entries = read_ledger(folder, complete=completed)
    defaults = [entry for entry in entries if uses_method_defaults(entry.settings)]
    return {
        "runs": ledger_table(entries),
        "methods": ledger_table(defaults),
        "costs": costs_table(defaults),
        "ablation": ablation_table(entries),
    }
