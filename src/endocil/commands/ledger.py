"""endocil ledger add, table and insert."""

from pathlib import Path
from typing import Annotated

import typer

from endocil.commands.common import Ledger, say
from endocil.errors import EndocilError


def add(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Folders of finished runs.")],
    folder: Ledger = Path("docs/results"),
) -> None:
    """Put finished runs' small results into the ledger: settings, metrics, versions; no images."""
    from endocil.report import AlreadyInLedgerError, add_to_ledger

    for one in runs:
        try:
            said = f"added {add_to_ledger(one, folder)}"
        except AlreadyInLedgerError as there:  # not a failure: the results are kept
            said = str(there)
        say(said)


def table(
    folder: Ledger = Path("docs/results"),
    ablation: Annotated[bool, typer.Option("--ablation", help="With and without each component.")] = False,
) -> None:
    """Print the ledger's runs as Markdown, mean and spread over seeds."""
    from endocil.report import ablation_table, ledger_table

    print((ablation_table if ablation else ledger_table)(folder).markdown())


def insert(
    files: Annotated[list[Path], typer.Argument(help="Markdown files with <!-- ledger:NAME --> markers.")],
    folder: Ledger = Path("docs/results"),
    check: Annotated[
        bool, typer.Option("--check", help="Change nothing; fail when a file is out of date.")
    ] = False,
) -> None:
    """Write the ledger's tables (runs, ablation) between the markers of README and docs."""
    from endocil.report import ablation_table, insert_tables, ledger_table

    tables = {"runs": ledger_table(folder), "ablation": ablation_table(folder)}
    stale = [str(file) for file in files if insert_tables(file, tables, check=check)]
    if check and stale:
        raise EndocilError(f"out of date: {', '.join(stale)}; run 'endocil ledger insert' on them")
