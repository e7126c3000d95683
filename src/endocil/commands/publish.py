"""endocil publish: from runs to tables, figures and the page, in one folder; and into the ledger and README."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import typer

from endocil.commands.common import say
from endocil.errors import EndocilError

if TYPE_CHECKING:
    from endocil.report import RunRecord


def publish(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Folders of finished runs.")],
    output: Annotated[
        Path, typer.Option("-o", "--output", help="New folder, or one that was published before.")
    ],
    against: Annotated[
        str | None,
        typer.Option("--against", metavar="LABEL", help="Compare with this; else with the first run's."),
    ] = None,
    figures: Annotated[bool, typer.Option("--figures/--no-figures", help="Draw the figures, too.")] = True,
    ledger: Annotated[
        Path | None, typer.Option("--ledger", metavar="FOLDER", help="Add the runs to this ledger.")
    ] = None,
    insert: Annotated[
        list[Path] | None,
        typer.Option("--insert", metavar="FILE", help="Write the ledger's tables into this file, too."),
    ] = None,
) -> None:
    """Tables, figures, page and an index of finished runs into one folder, whole or not at all."""
    from endocil.commands import ledger as kept
    from endocil.publishing import publish as write
    from endocil.recorded import read_runs

    if figures:
        import endocil.figures  # noqa: F401 - without matplotlib it ends here, before the work
    if insert and ledger is None:
        raise EndocilError("--insert writes the tables of a ledger; name it with --ledger")
    records = read_runs(runs)
    if ledger is not None:
        _refuse_late(records, ledger, insert or [])
    pieces = write(records, output, against=against, figures=figures, tell=say)
    if ledger is not None:
        kept.add(runs, ledger)
    if insert and ledger is not None:
        kept.insert(insert, ledger)
        say(f"wrote the ledger's tables into {', '.join(map(str, insert))}")
    absent = [f"not made: {piece.what}: {piece.missing}" for piece in pieces if piece.missing]
    for line in (*absent, f"wrote {output / 'index.md'} and what it lists"):
        say(line)


def _refuse_late(records: "list[RunRecord]", ledger: Path, files: list[Path]) -> None:
    """What the ledger or a file would refuse in the end is refused before anything is written."""
    from endocil.commands.ledger import tables
    from endocil.report import insert_tables
    from endocil.report.grouping import evaluated_part

    for run in records:
        if (part := evaluated_part(run.settings)) != "test":
            raise EndocilError(
                f"{run.folder} was evaluated on its {part} part, for tuning; the ledger takes results on the test "
                f"part alone"
            )
    with TemporaryDirectory() as empty:  # a ledger that is not there yet has the same tables
        known = tables(ledger if ledger.exists() else Path(empty))
    for file in files:
        insert_tables(file, known, check=True)
