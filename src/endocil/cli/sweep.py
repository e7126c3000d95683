"""endocil sweep, tune and demo."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from endocil.cli import console
from endocil.cli.console import Overrides, fail
from endocil.errors import EndocilError, SettingsError
from endocil.io.files import write_atomically
from endocil.io.process import exit_status

if TYPE_CHECKING:
    from collections.abc import Sequence

    from endocil.io.text_tables import Table
    from endocil.runs.records import RunRecord
    from endocil.runs.sweep.executors import Outcome
    from endocil.runs.sweep.plan import PlannedRun
    from endocil.runs.sweep.runner import Execution, SweepFolder
    from endocil.runs.sweep.tune import Candidate

say = partial(console.say, always=True)

DEMO_METHODS = ("finetune", "icarl", "endocil", "joint")
DEMO_PRETRAINED = ("simplecil", "ranpac", "analytic")

SweepFileArgument = Annotated[Path, typer.Argument(metavar="FILE", help="A sweep file (docs/run.md).")]
Folder = Annotated[
    Path | None, typer.Option("-o", "--output", help="Folder of the sweep: new, or one to continue; default runs/NAME.")
]
Workers = Annotated[
    int | None, typer.Option(min=1, help="Runs at a time. Default: cores / threads of a run, or 1 on a GPU.")
]
Retries = Annotated[int, typer.Option(min=0, help="How often a failed run is tried again.")]
NoShare = Annotated[bool, typer.Option("--no-share", help="Train the first task separately in every run.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="List the runs and their state; run nothing.")]
OnRay = Annotated[
    str | None,
    typer.Option(metavar="auto|ADDRESS", help="Run on Ray: HOST:PORT, or auto to join or start it on this machine."),
]
Gpus = Annotated[
    float, typer.Option("--gpus-per-run", min=0.0, help="GPUs per run, with --ray; 0.5 means two runs per GPU.")
]
Cpus = Annotated[
    float, typer.Option("--cpus-per-run", min=0.0, help="CPUs reserved per run, with --ray; set run.threads too.")
]


def sweep(
    file: SweepFileArgument,
    changes: Overrides = None,
    output: Folder = None,
    workers: Workers = None,
    retries: Retries = 1,
    ledger: Annotated[Path | None, typer.Option(help="Add finished runs to this ledger; skip what is there.")] = None,
    no_share: NoShare = False,
    dry_run: DryRun = False,
    ray: OnRay = None,
    gpus: Gpus = 0.0,
    cpus: Cpus = 1.0,
) -> None:
    """Run every combination in a sweep file; finished runs are skipped, stopped ones continue."""
    from endocil.reports.tables import comparison
    from endocil.runs.sweep.plan import plan, read_sweep
    from endocil.runs.sweep.runner import Execution, SweepFolder

    execution = Execution(workers, retries, not no_share, ray, cpus, gpus)
    sweep_file = read_sweep(file)
    if sweep_file.search:
        raise SettingsError(f"{file} has a [search] table, which 'endocil tune' takes; a sweep has [vary] alone")
    folder = SweepFolder(output or Path("runs", file.stem))
    runs = plan(sweep_file, file.parent, changes or ())
    entries = _ledger_entries(runs, ledger)
    if dry_run:
        _list(folder, runs, entries)
        return
    failed = _run_all(folder, [one for one in runs if one.digest not in entries], execution, ledger)
    records = folder.records(runs)
    for name, finished in records.items():
        page = folder.path / ("report.html" if len(records) == 1 else f"report-{name}.html")
        say(f"\n{name}\n{comparison(finished).text()}")
        say(write_report(finished, page, f"endocil sweep {folder.path.resolve().name}: {name}", name))
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
    """Search for the best settings on the validation images; writes best.toml for 'endocil run'."""
    from endocil.runs.records import read_run
    from endocil.runs.sweep.plan import plan, read_sweep
    from endocil.runs.sweep.runner import Execution, SweepFolder
    from endocil.runs.sweep.tune import check_runs_to_tune, points, rank_candidates, split_metric

    execution = Execution(workers, retries, not no_share, ray, cpus, gpus)
    sweep_file = read_sweep(file)
    split_metric(sweep_file.metric)  # refuses an unknown one
    overrides = [*(changes or ()), "run.evaluate=validation"]
    runs = plan(sweep_file, file.parent, overrides, points(sweep_file))
    check_runs_to_tune(runs, sweep_file.metric)
    folder = SweepFolder(output or Path("runs", file.stem))
    if dry_run:
        _list(folder, runs, {})
        return
    failed = _run_all(folder, runs, execution, None)
    records = {one.digest: read_run(folder.run(one).path) for one in runs if folder.run(one).finished()}
    candidates = rank_candidates(runs, records, sweep_file.metric)
    table = ranking_table(candidates, sweep_file.metric)
    say(f"\n{table.text()}")
    write_atomically(folder.path / "tuning.csv", table.csv())
    best = folder.path / "best.toml"
    ranked = bool(candidates) and candidates[0].mean is not None
    if ranked:
        write_atomically(best, candidates[0].settings().to_toml())
    else:
        best.unlink(missing_ok=True)  # that of an earlier metric
    _end(failed)
    if not ranked:
        raise SettingsError(
            f"metric '{sweep_file.metric}' has no value in any of the runs, so none is best; choose another metric"
        )
    say(f"best settings: {best}")


def demo(
    changes: Overrides = None,
    seeds: Annotated[str, typer.Option(metavar="N,N,...", help="Every method is trained with each of them.")] = "0,1,2",
    output: Annotated[
        Path, typer.Option("-o", "--output", help="Folder of the sweep: new, or one to continue.")
    ] = Path("runs/demo"),
    workers: Workers = None,
    pretrained: Annotated[
        bool,
        typer.Option(
            "--pretrained",
            help="Also SimpleCIL, RanPAC and Analytic, on a frozen EfficientNet-Lite0 with ImageNet weights, which the "
            "extra 'pretrained' of the package brings (docs/backbones.md).",
        ),
    ] = False,
) -> None:
    """Compare Finetune, iCaRL, EndoCIL and JointTrain on synthetic endoscopy: three seeds, minutes on two cores."""
    from endocil.cli.reports import exemplars_of
    from endocil.reports.comparisons import compared_over_seeds
    from endocil.reports.page import write_page
    from endocil.reports.tables import comparison
    from endocil.runs.sweep.plan import Block, SweepFile, plan
    from endocil.runs.sweep.runner import Execution, SweepFolder

    parts = seeds.split(",")
    if not all(part.strip().isdecimal() for part in parts):
        raise SettingsError(f"--seeds is '{seeds}'; expected whole numbers of 0 or more, such as 3,4,5")
    numbers = [int(part) for part in parts]
    frozen = Block(settings="demo-pretrained", vary={"seed": numbers, "method": list(DEMO_PRETRAINED)})
    vary = {"seed": numbers, "method": list(DEMO_METHODS)}
    folder = SweepFolder(output)
    file = SweepFile(settings="demo", vary=vary, also=(frozen,) if pretrained else ())
    runs = plan(file, Path(), changes or ())
    failed = _run_all(folder, runs, Execution(workers), None)
    finished = [record for records in folder.records(runs).values() for record in records]
    if finished:
        page = folder.path / "report.html"
        write_page(finished, page, title="endocil demo: synthetic endoscopy", gallery=exemplars_of(finished))
        table = comparison(finished)
        star = "A star marks the best mean of the methods that learn task by task.\n" if table.marked() else ""
        say(f"\n{table.text()}\n{star}{compared_over_seeds(finished)}\npage: {page}")
    _end(failed)


def _ledger_entries(runs: "list[PlannedRun]", ledger: Path | None) -> dict[str, Path]:
    """The entries of runs that the ledger has, by digest.

    A ledger knows a folder by its last name: of two data sets with the same one it can keep one."""
    from endocil.cli.runs import in_ledger
    from endocil.reports.ledger import ledger_name
    from endocil.runs.records import completed

    if ledger is None:
        return {}
    by_name: dict[str, PlannedRun] = {}
    for one in runs:
        other = by_name.setdefault(ledger_name(completed(one.settings)), one)
        if other is not one:
            roots = " and ".join(str(each.settings.data.options.get("root")) for each in (other, one))
            raise SettingsError(
                f"{other.name} and {one.name} would be one entry of {ledger} (data.root: {roots}); rename a data "
                "folder, or keep their results without --ledger"
            )
    entries = {one.digest: in_ledger(one.settings, ledger) for one in runs}
    return {digest: entry for digest, entry in entries.items() if entry is not None}


def _list(folder: "SweepFolder", runs: "list[PlannedRun]", entries: dict[str, Path]) -> None:
    for one in runs:
        say(f"{one.name}: {'in the ledger' if one.digest in entries else folder.state(one)}")
    say(f"{len(runs)} runs")


def _run_all(
    folder: "SweepFolder", runs: "list[PlannedRun]", execution: "Execution", ledger: Path | None
) -> "list[Outcome]":
    """The runs that failed; Ctrl-C stops all runs and shows how to continue."""
    from endocil.cli.ledger import add
    from endocil.reports.page import write_run_page
    from endocil.runs.records import read_run
    from endocil.runs.sweep.runner import run_all

    def complete(run: Path) -> None:
        if not (run / "report.html").exists():  # killed when its results were written
            write_run_page(read_run(run), run)
        if ledger is not None:
            add([run], ledger)

    try:
        return run_all(folder, runs, execution, console.console(always=True), complete)
    except KeyboardInterrupt:
        fail("stopped; nothing up to the runs' last checkpoints is lost. Continue with the same command", exit_status())


def write_report(records: "Sequence[RunRecord]", page: Path, title: str, name: str) -> str:
    """Where the page is, or why there is none: the classes or the split may vary."""
    from endocil.reports.page import write_page

    try:
        write_page(records, page, title=title)
    except EndocilError as error:
        return f"no page for {name}: {error}"
    return f"page: {page}"


def ranking_table(candidates: "Sequence[Candidate]", metric: str) -> "Table":
    """The candidates of a search, best first; one without a value has no rank."""
    from endocil.io.text_tables import Cell, Column, Table, spread
    from endocil.metrics.metrics import METRICS
    from endocil.runs.experiments import flatten, format_value
    from endocil.runs.sweep.tune import LOWER_IS_BETTER, split_metric

    _, name = split_metric(metric)
    keys = list(dict.fromkeys(key for one in candidates for key, _ in one.runs[0].varied if key != "seed"))
    columns = (
        Column("rank", "Rank", True),
        *(Column(key, key) for key in keys),
        Column("seeds", "Seeds", True),
        Column(metric, f"{metric} (validation)", True, "min" if name in LOWER_IS_BETTER else "max"),
    )
    rows = []
    for rank, one in enumerate(candidates, 1):
        settings = flatten(one.runs[0].settings.model_dump(mode="json", exclude_none=True))
        values: list[Cell] = [format_value(settings.get(key)) for key in keys]
        result = spread(one.values) if one.mean is not None else None
        rows.append((None if result is None else rank, *values, len(one.values), result))
    return Table(f"Validation results: {METRICS[name]}", columns, tuple(rows))


def _end(failed: "list[Outcome]") -> None:
    for one in failed:
        say(f"failed: {one.job.name}: {one.error}; log: {one.job.log}")
    if failed:
        fail(f"{len(failed)} {'run' if len(failed) == 1 else 'runs'} failed; the same command tries them again")
