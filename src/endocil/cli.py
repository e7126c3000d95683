"""The commands. Heavy imports happen inside the command that needs them, so that help answers at once."""

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from endocil.errors import EndocilError

if TYPE_CHECKING:
    from rich.console import Console

    from endocil.settings import Settings

app = typer.Typer(
    name="endocil",
    help="Class-incremental learning for endoscopic images.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
data = typer.Typer(help="Images to learn from.", no_args_is_help=True)
ledger = typer.Typer(help="Results kept for good, small enough for a repository.", no_args_is_help=True)
app.add_typer(data, name="data")
app.add_typer(ledger, name="ledger")

Source = Annotated[str, typer.Argument(metavar="NAME_OR_FILE", help="A preset (smoke, demo) or a TOML file.")]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change a setting, e.g. train.epochs=10."),
]
Output = Annotated[
    Path | None, typer.Option("-o", "--output", help="Folder of the run; must be new or empty.")
]
Run = Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run.")]
Ledger = Annotated[Path, typer.Option("--ledger", help="Folder of the ledger.")]


def main() -> None:
    """Errors that the user can mend become one line and exit status 1; Ctrl-C says that nothing is lost."""
    try:
        app()
    except EndocilError as error:
        _fail(str(error))
    except OSError as error:  # a full disk, a folder without permission
        _fail(f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}")


def _fail(message: str, status: int = 1) -> None:
    print(f"endocil: {' '.join(message.split())}", file=sys.stderr)
    raise SystemExit(status)


def _console() -> "Console":
    from rich.console import Console

    return Console()


@contextmanager
def _resumable(folder: Path) -> Iterator[None]:
    """Ctrl-C leaves a run that can go on, and says how."""
    try:
        yield
    except KeyboardInterrupt:
        if (folder / "settings.toml").exists():
            _fail(
                f"stopped; nothing up to the last checkpoint is lost. Go on with: endocil resume {folder}",
                130,
            )
        _fail("stopped before the run began; nothing was written", 130)


@app.command()
def run(
    source: Source,
    changes: Overrides = None,
    output: Output = None,
    into: Annotated[
        Path | None,
        typer.Option("--ledger", help="Add the results to this ledger; do nothing if they are there."),
    ] = None,
) -> None:
    """Learn a sequence of tasks and write results into a run folder."""
    from endocil.settings import load_settings

    settings = load_settings(source, changes or ())
    if into is not None and _in_ledger(settings, into):
        return
    folder = output or _new_folder(f"{Path(source).stem}-{_plain(settings.method.name)}-seed{settings.seed}")
    with _resumable(folder):
        _run(settings, folder)
    _print_results([folder])
    if into is not None:
        ledger_add([folder], into)


def _in_ledger(settings: "Settings", into: Path) -> bool:
    from endocil.assembly import complete
    from endocil.report import find_in_ledger
    from endocil.settings import load_settings

    def completed(values: "Mapping[str, Any] | Settings") -> dict[str, Any]:
        return complete(load_settings(values)).model_dump(mode="json", exclude_none=True)

    found = find_in_ledger(completed(settings), into, complete=completed)
    if found is not None:
        _console().print(f"already in the ledger: {found}", highlight=False, soft_wrap=True)
    return found is not None


def _run(settings: "Settings", folder: Path, *, resuming: bool = False) -> None:
    from endocil import experiment
    from endocil.display import Display, plain_progress

    console = _console()
    name = f"{_plain(settings.method.name)} seed {settings.seed}"
    with Display(console, name) as display:
        progress = plain_progress(console, "reading images")
        if resuming:
            experiment.resume(folder, show=display, progress=progress)
        else:
            experiment.run(settings, folder, show=display, progress=progress)


def _plain(name: str) -> str:
    """A method's name fit for a folder: 'my.module:Thing' becomes 'Thing'."""
    return name.rpartition(":")[2]


def _new_folder(name: str) -> Path:
    """runs/NAME, or the first runs/NAME-2, runs/NAME-3 ... that is not there yet."""
    names = [name, *(f"{name}-{i}" for i in range(2, 10_000))]
    return next(Path("runs", candidate) for candidate in names if not Path("runs", candidate).exists())


def _print_results(folders: list[Path], page: Path | None = None) -> None:
    from endocil.report import comparison, read_run

    console = _console()
    table = comparison([read_run(folder) for folder in folders])
    console.print(table.text(), highlight=False, markup=False, soft_wrap=True)
    console.print(f"page: {page or folders[0] / 'report.html'}", highlight=False, soft_wrap=True)


@app.command()
def resume(folder: Run) -> None:
    """Go on with a run that was stopped, exactly as if it had not been."""
    from endocil.run_folder import RunFolder

    here = RunFolder(folder)
    settings = here.settings()
    if here.finished():
        _console().print(f"{folder} is finished; nothing to do", highlight=False, soft_wrap=True)
    else:
        with _resumable(folder):
            _run(settings, folder, resuming=True)
    _print_results([folder])


@app.command()
def demo(
    changes: Overrides = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Folder for the runs and the page.")
    ] = None,
) -> None:
    """Compare finetune, icarl, endocil and joint on synthetic endoscopy: minutes on two cores."""
    from endocil.report import read_run, write_page
    from endocil.settings import load_settings

    folder = output or _new_folder("demo")
    settings = {
        method: load_settings("demo", [*(changes or ()), f"method.name={method}"])
        for method in ("finetune", "icarl", "endocil", "joint")
    }
    for method, chosen in settings.items():
        with _resumable(folder / method):
            _run(chosen, folder / method)
    folders = [folder / method for method in settings]
    page = folder / "report.html"
    write_page([read_run(one) for one in folders], page, title="endocil demo: synthetic endoscopy")
    _print_results(folders, page)


@app.command()
def check(source: Source, changes: Overrides = None) -> None:
    """Preflight alone: what a run would do, what it would cost, and what cannot work."""
    from endocil.assembly import assemble
    from endocil.display import plain_progress
    from endocil.preflight import estimate, preflight
    from endocil.settings import load_settings

    console = _console()
    parts = assemble(load_settings(source, changes or ()), plain_progress(console, "reading images"))
    found = preflight(parts)
    lines = [*found.facts, *(f"note: {remark}" for remark in found.remarks)]
    if not found.problems:
        lines += estimate(parts)
    for line in lines:
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    found.refuse_problems()
    console.print("ready to run")


@app.command()
def methods() -> None:
    """List the methods with their options and defaults."""
    from rich.table import Table

    from endocil.methods import METHODS, method_options

    table = Table("method", "what it does", "exemplars by", "options under [method]")
    for name, method in sorted(METHODS.items()):
        options = "\n".join(f"{key} = {value}" for key, value in sorted(method_options(name).items()))
        summary = (method.__doc__ or "").split("\n\n")[0]
        table.add_row(name, summary, method.selects if method.replay else "keeps none", options)
    _console().print(table)


@app.command()
def score(
    files: Annotated[list[Path], typer.Argument(help="Predictions CSV files, one per task, in order.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print all metrics as JSON.")] = False,
) -> None:
    """Compute the metrics of predictions, of this or any other toolbox."""
    import json

    from endocil.metrics import METRICS, TABLE_METRICS, summarise
    from endocil.predictions import read_run_predictions

    summary = summarise(read_run_predictions(files))
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


@data.command("synth")
def data_synth(
    folder: Annotated[Path, typer.Argument(help="Where to write the images; must be new or empty.")],
    images: Annotated[int, typer.Option(help="How many images.")] = 2000,
    size: Annotated[int, typer.Option(help="Width and height in pixels.")] = 128,
    seed: Annotated[int, typer.Option(help="Another seed, other images.")] = 0,
    imbalance: Annotated[float, typer.Option(help="Largest class over smallest.")] = 10.0,
) -> None:
    """Write synthetic endoscopy as a folder of PNG files, one sub-folder per class."""
    from endocil.datasets.synthetic import write_folder
    from endocil.display import plain_progress

    console = _console()
    write_folder(
        folder,
        seed=seed,
        size=size,
        images=images,
        imbalance=imbalance,
        progress=plain_progress(console, "images"),
    )
    console.print(f"{images:,} images in {folder}", highlight=False, soft_wrap=True)


@data.command("subset")
def data_subset(
    listing: Annotated[Path, typer.Argument(metavar="LIST", help="experiments/hyper-kvasir-part.csv")],
    root: Annotated[Path, typer.Argument(help="The official Hyper-Kvasir labelled images.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="Where to write the subset; must be new.")],
) -> None:
    """Rebuild the listed subset from an official download, so that its numbers can be repeated."""
    from endocil.datasets.subset import rebuild
    from endocil.display import plain_progress

    console = _console()
    report = rebuild(listing, root, output, progress=plain_progress(console, "images"))
    console.print(str(report), highlight=False, markup=False, soft_wrap=True)


@ledger.command("add")
def ledger_add(
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
        _console().print(said, highlight=False, soft_wrap=True)


@ledger.command("table")
def ledger_table(
    folder: Ledger = Path("docs/results"),
    ablation: Annotated[bool, typer.Option("--ablation", help="With and without each component.")] = False,
) -> None:
    """Print the ledger's runs as Markdown, mean and spread over seeds."""
    from endocil.report import ablation_table
    from endocil.report import ledger_table as all_runs

    print((ablation_table if ablation else all_runs)(folder).markdown())


@ledger.command("insert")
def ledger_insert(
    files: Annotated[list[Path], typer.Argument(help="Markdown files with <!-- ledger:NAME --> markers.")],
    folder: Ledger = Path("docs/results"),
    check: Annotated[
        bool, typer.Option("--check", help="Change nothing; fail when a file is out of date.")
    ] = False,
) -> None:
    """Write the ledger's tables (runs, ablation) between the markers of README and docs."""
    from endocil.report import ablation_table, insert_tables
    from endocil.report import ledger_table as all_runs

    tables = {"runs": all_runs(folder), "ablation": ablation_table(folder)}
    stale = [str(file) for file in files if insert_tables(file, tables, check=check)]
    if check and stale:
        raise EndocilError(f"out of date: {', '.join(stale)}; run 'endocil ledger insert' on them")


if __name__ == "__main__":
    main()
