"""endocil run, resume and check."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from endocil.cli.common import Devices, Nodes, Output, Overrides, Run, Source, console, resumable, say
from endocil.cli.ledger import add
from endocil.io.launcher import leads

if TYPE_CHECKING:
    from endocil.settings.settings import Settings


def run(
    source: Source,
    changes: Overrides = None,
    output: Output = None,
    into: Annotated[
        Path | None,
        typer.Option("--ledger", help="Add the results to this ledger; do nothing if they are there."),
    ] = None,
    devices: Devices = 1,
    nodes: Nodes = 1,
) -> None:
    """Learn a sequence of tasks and write results into a run folder."""
    from endocil.runs.folder import new_folder
    from endocil.settings.settings import load_settings

    settings = load_settings(source, changes or ())
    there = in_ledger(settings, into) if into is not None else None
    if there is not None:
        say(f"already in the ledger: {there}")
        return
    folder = output or new_folder(settings, Path(source).stem)
    with resumable(folder):
        _run(settings, folder, devices, nodes)
    if leads():
        _print_results(folder)
        if into is not None:
            add([folder], into)


def in_ledger(settings: "Settings", into: Path) -> Path | None:
    """The ledger's file of a run with these settings, if there is one."""
    from endocil.learning.build import complete
    from endocil.reports.ledger import find_in_ledger
    from endocil.runs.records import completed

    whole = complete(settings)
    found = find_in_ledger(completed(whole), into, complete=completed)
    if found is not None:
        _refuse_other_images(found, whole)
    return found


def _refuse_other_images(entry: Path, settings: "Settings") -> None:
    from endocil.data.digest import scenario_digest
    from endocil.reports.ledger import refuse_other_images
    from endocil.runs.build import kept_table, scenario_of

    table = kept_table(settings)
    counts = dict(zip(table.classes, table.counts().tolist(), strict=True))
    where = settings.data.options.get("root", settings.data.name)
    refuse_other_images(
        entry, counts, lambda: scenario_digest(scenario_of(table, settings)), where=f"a run on {where}"
    )


def _run(
    settings: "Settings", folder: Path, devices: int = 1, nodes: int = 1, *, resuming: bool = False
) -> None:
    from endocil.io.terminal import Display, plain_progress
    from endocil.runs import run as experiment

    screen = console()
    name = f"{settings.method.name.rpartition(':')[2]} seed {settings.seed}"
    with Display(screen, name) as display:
        progress = plain_progress(screen, "reading the data")
        how = {"show": display, "progress": progress, "devices": devices, "nodes": nodes}
        if resuming:
            experiment.resume(folder, **how)  # type: ignore[arg-type]
        else:
            experiment.run(settings, folder, **how)  # type: ignore[arg-type]


def _print_results(folder: Path) -> None:
    from endocil.reports.run_page import write_run_page
    from endocil.reports.tables import comparison
    from endocil.runs.records import read_run

    write_run_page(folder)
    say(comparison([read_run(folder)]).text())
    say(f"page: {folder / 'report.html'}")


def resume(folder: Run, devices: Devices = 1, nodes: Nodes = 1) -> None:
    """Go on with a run that was stopped, exactly as if it had not been."""
    from endocil.runs.folder import RunFolder

    here = RunFolder(folder)
    settings = here.settings()
    if here.finished():
        say(f"{folder} is finished; nothing to do")
    with resumable(folder):
        _run(settings, folder, devices, nodes, resuming=True)
    if leads():
        _print_results(folder)


def check(source: Source, changes: Overrides = None) -> None:
    """Preflight alone: what a run would do, what it would cost, and what cannot work."""
    from endocil.io.terminal import plain_progress
    from endocil.runs.preflight import estimate, examined
    from endocil.settings.settings import load_settings

    settings = load_settings(source, changes or ())
    parts, found = examined(settings, plain_progress(console(), "reading the data"))
    lines = [*found.facts, *(f"note: {remark}" for remark in found.remarks)]
    if not found.problems:
        lines += estimate(parts)
    for line in lines:
        say(line)
    found.refuse_problems()
    say("ready to run")
