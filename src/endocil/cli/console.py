"""What several commands share: arguments, the console, and how an error ends a command."""

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NoReturn

import typer

from endocil.errors import SettingsError
from endocil.io.process import exit_status, is_rank_zero
from endocil.io.terminal import printable, without_tricks

if TYPE_CHECKING:
    from rich.console import Console

    from endocil.model.model import Model

Source = Annotated[
    str, typer.Argument(metavar="NAME_OR_FILE", help="A preset (smoke, demo, hyper-kvasir, ...) or a TOML file.")
]
Overrides = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a setting, e.g. train.epochs=10.")
]
Output = Annotated[Path | None, typer.Option("-o", "--output", help="Folder of the run; must be new or empty.")]
Devices = Annotated[int, typer.Option(min=1, help="Processes on this machine, one per device.")]
Nodes = Annotated[int, typer.Option(min=1, help="Number of machines; each has --devices devices (docs/run.md).")]
Trust = Annotated[
    bool, typer.Option("--trust", help="Allow the run or model to import code of other packages that it names.")
]
RunPath = Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run.")]
Runs = Annotated[list[Path], typer.Argument(metavar="RUN", help="Folders of finished runs, or of sweeps.")]
Head = Annotated[Literal["softmax", "nearest_mean"], typer.Option(help="softmax or nearest_mean.")]
Against = Annotated[
    str | None,
    typer.Option(
        metavar="LABEL_OR_RUN", help="The method to compare with, or a run of it; by default that of the first run."
    ),
]
ModelPath = Annotated[Path, typer.Argument(metavar="MODEL", help="A model file, or the folder of a finished run.")]
Force = Annotated[bool, typer.Option("--force", help="Overwrite the file if it exists.")]
Licence = Annotated[str, typer.Option(help="Licence under which the images may be kept and used.")]
Consent = Annotated[str, typer.Option(help="What the patients have agreed to.")]
Ledger = Annotated[Path, typer.Option("--ledger", help="Folder of the ledger.")]


def with_baseline(runs: Sequence[Path], against: str | None) -> list[Path]:
    """The runs, and that of --against where it is a run's folder and not among them."""
    from endocil.reports.comparisons import is_run_folder
    from endocil.runs.records import run_folders

    folders = run_folders(runs)
    known = {run.resolve() for run in folders}
    added = against and is_run_folder(against) and Path(against).resolve() not in known
    return [*folders, *([Path(against)] if against and added else [])]


def fail(message: str, status: int = 1) -> NoReturn:
    """One line on standard error, and a non-zero exit."""
    prefix = "endocil" if is_rank_zero() else f"endocil, process {os.getpid()}"
    print(f"{prefix}: {printable(' '.join(message.split()))}", file=sys.stderr)
    raise SystemExit(status)


def console(*, always: bool = False) -> "Console":
    """Of several processes that learn together, one prints. `always`: a sweep is one process, and prints even where a
    launcher's variables make it look like one of many."""
    from rich.console import Console

    return Console(quiet=not (always or is_rank_zero()))


def say(text: str, *, always: bool = False) -> None:
    """Print text unchanged: no colours, no wrapping that would break a path, no control characters."""
    console(always=always).print(without_tricks(text), highlight=False, markup=False, soft_wrap=True)


@contextmanager
def resumable(folder: Path) -> Iterator[None]:
    """Ctrl-C, SIGTERM and SIGUSR1 leave a run that can be resumed, and show how."""
    try:
        yield
    except KeyboardInterrupt:
        if not is_rank_zero():
            raise SystemExit(0) from None  # the process that prints ends the run
        if (folder / "settings.toml").exists():
            from endocil.settings.settings import resume_command

            fail(f"stopped; what was learned so far is kept. Continue with: {resume_command(folder)}", exit_status())
        fail("stopped before the run began; the same command starts it again", exit_status())


def refuse_overwriting(output: Path, inputs: Iterable[Path]) -> None:
    """A command never overwrites a file that it reads."""
    if output.is_dir():
        raise SettingsError(f"{output} is a folder; expected the name of a file")
    if output.exists() and any(path.exists() and os.path.samefile(output, path) for path in inputs):
        raise SettingsError(f"{output} is read by this command; choose another file")


def describe_model(model: "Model", output: Path) -> None:
    """What a new model file holds, and what it cannot do."""
    say(
        f"{output}: {len(model.classes)} classes, {len(model.exemplars):,} exemplars, "
        f"{len(model.held_out):,} held-out images, {output.stat().st_size / 1e6:.1f} MB"
    )
    fitted = model.manifest.calibration
    if fitted is not None and fitted.improved:
        say(
            f"calibrated on {fitted.images:,} held-out images: expected calibration error {fitted.error_before:.3f} "
            f"before, {fitted.error:.3f} after (cross-fitted, {fitted.folds} folds)"
        )
    for note in model.limits():
        say(f"note: {note}")
    say(f"sha256 {model.digest}")
