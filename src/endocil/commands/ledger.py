"""endocil ledger add, table, insert and paper."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from endocil.commands.common import Ledger, say
from endocil.errors import EndocilError

if TYPE_CHECKING:
    from endocil.report import Table


def add(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Folders of finished runs.")],
    folder: Ledger = Path("docs/results"),
) -> None:
    """Put finished runs' small results into the ledger: settings, metrics, versions; no images."""
    from endocil.report import AlreadyInLedgerError, add_to_ledger

    for one in runs:
        try:
            said = f"added {add_to_ledger(one, folder, content=_content_of_run(one))}"
        except AlreadyInLedgerError as there:  # not a failure: the results are kept
            said = str(there)
        say(said)


def _content_of_run(run: Path) -> str | None:
    """A digest of the images that a run has learned, where they are here and still those of its split."""
    from endocil.assembly import kept_table, scenario_of
    from endocil.audit.content import content, rows_of
    from endocil.files import read_csv
    from endocil.run_folder import RunFolder

    try:
        settings = RunFolder(run).settings()
        scenario = scenario_of(kept_table(settings), settings)
        learned = [(row["image"], row["class"], row["part"]) for row in read_csv(run / "split.csv")]
        return content(scenario) if learned == rows_of(scenario) else None
    except (EndocilError, OSError):  # a run of another machine, whose data is not here
        return None


def table(
    folder: Ledger = Path("docs/results"),
    which: Annotated[
        str,
        typer.Option("--which", help="runs, methods (as they come), costs (with both heads) or ablation."),
    ] = "runs",
) -> None:
    """Print a table of the ledger as Markdown, mean and spread over seeds."""
    known = tables(folder)
    if which not in known:
        raise EndocilError(f"no table '{which}'; known: {', '.join(known)}")
    print(known[which].markdown())


def insert(
    files: Annotated[list[Path], typer.Argument(help="Markdown files with <!-- ledger:NAME --> markers.")],
    folder: Ledger = Path("docs/results"),
    check: Annotated[
        bool, typer.Option("--check", help="Change nothing; fail when a file is out of date.")
    ] = False,
) -> None:
    """Write the ledger's tables (runs, methods, costs, ablation) between the markers of README and docs."""
    from endocil.report import insert_tables

    known = tables(folder)
    stale = [str(file) for file in files if insert_tables(file, known, check=check)]
    if check and stale:
        raise EndocilError(f"out of date: {', '.join(stale)}; run 'endocil ledger insert' on them")


def paper(
    folder: Ledger = Path("docs/results"),
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Write into this file.")] = None,
) -> None:
    """The paper's numbers and claims beside the ledger: what was run at which scale, and what it says."""
    from functools import partial

    from endocil.files import write_atomically
    from endocil.recorded import completed
    from endocil.report import places, read_ledger, reproduction

    entries = read_ledger(folder, complete=completed)
    components = partial(_as_it_comes, components=True)
    text = reproduction(places(entries, _as_it_comes, components, _presets()))
    if output is None:
        print(text, end="")
        return
    write_atomically(output, text)
    say(f"wrote {output}")


def tables(folder: Path) -> dict[str, "Table"]:
    """The ledger's tables by name."""
    from endocil.recorded import completed
    from endocil.report import ablation_table, costs_table, ledger_table, read_ledger

    entries = read_ledger(folder, complete=completed)
    as_they_come = [entry for entry in entries if _as_it_comes(entry.settings)]
    return {
        "runs": ledger_table(entries),
        "methods": ledger_table(as_they_come),
        "costs": costs_table(as_they_come),
        "ablation": ablation_table(entries),
    }


def _presets() -> dict[str, dict[str, Any]]:
    """The paper's settings, complete, by the name of the data set, which is that of the preset."""
    from endocil.recorded import completed
    from endocil.report.paper import paper
    from endocil.settings import load_settings

    return {data: completed(load_settings(data)) for data in paper()["data"]}


def _as_it_comes(settings: Mapping[str, Any], components: bool = False) -> bool:
    """A method with its own components: under [method] but the name and what is evaluated, in [memory] the size.

    With `components` those of an ablation may be others than its own."""
    from endocil.methods import method_class
    from endocil.recorded import completed
    from endocil.report.ledger import COMPONENTS

    exchanged = {key.partition(".")[2] for key in COMPONENTS} if components else set()
    kept = {"per_class", "total", *exchanged}
    name = settings["method"]["name"]
    try:
        kept |= {"name", *method_class(name).shows}
    except EndocilError:  # a method from outside that is not installed here
        return False
    own = {
        section: {key: value for key, value in settings[section].items() if key in kept}
        for section in ("method", "memory")
    }
    return completed({**settings, **own}) == dict(settings)
