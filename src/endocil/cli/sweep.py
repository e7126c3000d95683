"""endocil sweep, tune and demo."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from endocil.cli.common import Overrides, fail
from endocil.errors import EndocilError

if TYPE_CHECKING:
    from rich.console import Console

    from endocil.runs.sweep.plan import Planned
    from endocil.runs.sweep.sweep import How, SweepFolder
    from endocil.runs.sweep.worker import Outcome

DEMO_METHODS = ("finetune", "icarl", "endocil", "joint")

SweepFileArgument = Annotated[Path, typer.Argument(metavar="FILE", help="A sweep file (docs/run.md).")]
Folder = Annotated[
    Path | None,
    typer.Option("-o", "--output", help="Folder of the sweep, new or to go on with; runs/NAME if not given."),
]
Workers = Annotated[
    int | None,
    typer.Option(
        "--workers", min=1, help="Runs at a time. Default: cores / threads of a run, or 1 on a GPU."
    ),
]
Retries = Annotated[int, typer.Option("--retries", min=0, help="How often a failed run is tried again.")]
NoShare = Annotated[bool, typer.Option("--no-share", help="Train the first task in every run anew.")]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="List the runs and what is done of them; run nothing.")
]
OnRay = Annotated[
    str | None,
    typer.Option("--ray", metavar="auto|ADDRESS", help="On Ray: auto joins or starts it on this machine."),
]
Gpus = Annotated[float, typer.Option("--gpus-per-run", min=0.0, help="With --ray; 0.5: two runs on a GPU.")]
Cpus = Annotated[
    float, typer.Option("--cpus-per-run", min=0.0, help="With --ray; sets no threads: set run.threads.")
]


def sweep(
    file: SweepFileArgument,
    changes: Overrides = None,
    output: Folder = None,
    workers: Workers = None,
    retries: Retries = 1,
    into: Annotated[
        Path | None, typer.Option("--ledger", help="Add finished runs to this ledger; skip what is there.")
    ] = None,
    no_share: NoShare = False,
    dry_run: DryRun = False,
    ray: OnRay = None,
    gpus: Gpus = 0.0,
    cpus: Cpus = 1.0,
) -> None:
    """Run every combination of a sweep file; finished runs are skipped, unfinished ones go on."""
    from endocil.runs.sweep.executors import Room
    from endocil.runs.sweep.plan import plan, read_sweep
    from endocil.runs.sweep.sweep import How, SweepFolder

    how = How(workers, retries, not no_share, ray, Room(cpus, gpus))
    asked = read_sweep(file)
    if asked.search:
        raise EndocilError(
            f"{file} has a [search] table, which 'endocil tune' takes; a sweep has [vary] alone"
        )
    folder, runs = SweepFolder(output or Path("runs", file.stem)), plan(asked, file.parent, changes or ())
    kept = _kept(runs, into)
    if dry_run:
        _list(folder, runs, kept)
        return
    failed = _run_all(folder, [one for one in runs if one.digest not in kept], how, into)
    _show_results(folder, runs)
    _end(failed)


def tune(
    file: SweepFileArgument,
    changes: Overrides = None,
    output: Folder = None,
    workers: Workers = None,
    retries: Retries = 1,
    no_share: NoShare = False,
    dry_run: DryRun = False,
    ray: OnRay = None,
    gpus: Gpus = 0.0,
    cpus: Cpus = 1.0,
) -> None:
    """Search settings by the validation part alone; writes best.toml, which 'endocil run' takes."""
    from endocil.runs.sweep import tune as tuning
    from endocil.runs.sweep.executors import Room
    from endocil.runs.sweep.plan import plan, read_sweep
    from endocil.runs.sweep.sweep import How, SweepFolder

    how = How(workers, retries, not no_share, ray, Room(cpus, gpus))
    asked = read_sweep(file)
    tuning.head_and_metric(asked.metric)
    validating = [*(changes or ()), "run.evaluate=validation"]
    runs = plan(asked, file.parent, validating, tuning.points(asked))
    tuning.refuse_without_validation(runs)
    tuning.refuse_without_value(runs, asked.metric)
    folder = SweepFolder(output or Path("runs", file.stem))
    if dry_run:
        _list(folder, runs, {})
        return
    failed = _run_all(folder, runs, how, None)
    best = _best(folder, runs, asked.metric)
    _end(failed)
    if best is None:
        raise EndocilError(
            f"metric '{asked.metric}' has no value in any of the runs, so none is best; choose another metric"
        )
    say(f"best settings: {best}")


def demo(
    changes: Overrides = None,
    seeds: Annotated[
        str, typer.Option("--seeds", metavar="N,N,...", help="Every method is trained with each of them.")
    ] = "0,1,2",
    output: Folder = None,
    workers: Workers = None,
) -> None:
    """Compare finetune, icarl, endocil and joint on synthetic endoscopy, three seeds each: minutes on two cores."""
    from endocil.runs.sweep.plan import SweepFile, plan
    from endocil.runs.sweep.sweep import How, SweepFolder

    asked = SweepFile(settings="demo", vary={"seed": _seeds(seeds), "method": list(DEMO_METHODS)})
    folder, runs = SweepFolder(output or Path("runs", "demo")), plan(asked, Path(), changes or ())
    failed = _run_all(folder, runs, How(workers), None)
    _show_demo(folder, runs)
    _end(failed)


def _seeds(told: str) -> list[int]:
    found = [int(one) for one in told.split(",") if one.strip().isdecimal()]
    if len(found) < len(told.split(",")):
        raise EndocilError(f"--seeds is '{told}'; expected whole numbers of 0 or more, such as 3,4,5")
    return found


def console() -> "Console":
    """A sweep is one process and speaks, even where a launcher's variables make it look like one of many."""
    from rich.console import Console

    return Console()


def say(text: str) -> None:
    console().print(text, highlight=False, markup=False, soft_wrap=True)


def _kept(runs: "list[Planned]", into: Path | None) -> dict[str, Path]:
    """Which runs the ledger has, by digest."""
    from endocil.cli.runs import in_ledger

    if into is None:
        return {}
    _refuse_alike(runs, into)
    found = {one.digest: in_ledger(one.settings, into) for one in runs}
    return {digest: entry for digest, entry in found.items() if entry is not None}


def _refuse_alike(runs: "list[Planned]", into: Path) -> None:
    """A ledger knows a folder by its last name: of two data sets alike in that it can keep one."""
    from endocil.reports.ledger import ledger_name
    from endocil.runs.records import completed

    planned: dict[str, Planned] = {}
    for one in runs:
        other = planned.setdefault(ledger_name(completed(one.settings)), one)
        if other is not one:
            roots = " and ".join(str(each.settings.data.options.get("root")) for each in (other, one))
            raise EndocilError(
                f"{other.name} and {one.name} would be one entry of {into} (data.root: {roots}); rename a data folder, "
                "or keep their results without --ledger"
            )


def _list(folder: "SweepFolder", runs: "list[Planned]", kept: dict[str, Path]) -> None:
    for one in runs:
        say(f"{one.name}: {'in the ledger' if one.digest in kept else folder.state(one)}")
    say(f"{len(runs)} runs")


def _run_all(folder: "SweepFolder", runs: "list[Planned]", how: "How", into: Path | None) -> "list[Outcome]":
    """What failed; Ctrl-C stops the runs and says how to go on."""
    from endocil.cli.ledger import add
    from endocil.runs.sweep.sweep import run_all

    def keep(run: Path) -> None:
        if into is not None:
            add([run], into)

    try:
        return run_all(folder, runs, how, console(), keep)
    except KeyboardInterrupt:
        fail("stopped; nothing up to the runs' last checkpoints is lost. Go on with the same command", 130)


def _show_results(folder: "SweepFolder", runs: "list[Planned]") -> None:
    from endocil.reports.tables import comparison

    records = folder.records(runs)
    for source, finished in records.items():
        say(f"\n{source}\n{comparison(finished).text()}")
        say(folder.write_page(source, finished, alone=len(records) == 1))


def _show_demo(folder: "SweepFolder", runs: "list[Planned]") -> None:
    """The table, what the seeds tell apart, and the page with exemplars."""
    from endocil.cli.reports import exemplars_of
    from endocil.reports.comparisons import told_by_seeds
    from endocil.reports.page import write_page
    from endocil.reports.tables import comparison

    if not (finished := [record for several in folder.records(runs).values() for record in several]):
        return
    page = folder.path / "report.html"
    write_page(finished, page, title="endocil demo: synthetic endoscopy", gallery=exemplars_of(finished))
    say(f"\n{comparison(finished).text()}\n{told_by_seeds(finished)}\npage: {page}")


def _best(folder: "SweepFolder", runs: "list[Planned]", metric: str) -> Path | None:
    """Shows the ranking, and writes the best settings where a candidate has a value."""
    from endocil.io.files import write_atomically
    from endocil.runs.records import read_run
    from endocil.runs.sweep import tune as tuning

    done = {one.digest: read_run(folder.run(one).path) for one in runs if folder.run(one).finished()}
    candidates = tuning.ranked(runs, done, metric)
    table = tuning.table(candidates, metric)
    say(f"\n{table.text()}")
    write_atomically(folder.path / "tuning.csv", table.csv())
    best = folder.path / "best.toml"
    if not candidates or candidates[0].mean is None:
        best.unlink(missing_ok=True)  # that of an earlier metric
        return None
    write_atomically(best, candidates[0].settings().to_toml())
    return best


def _end(failed: "list[Outcome]") -> None:
    for one in failed:
        say(f"failed: {one.job.name}: {one.error}; log: {one.job.log}")
    if failed:
        fail(f"{len(failed)} runs failed; the same command tries them again")
