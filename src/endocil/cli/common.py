"""For several commands: common arguments, the console, and how an error ends a command."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from endocil.io.launcher import leads
from endocil.io.terminal import printable

if TYPE_CHECKING:
    from rich.console import Console

Source = Annotated[
    str,
    typer.Argument(metavar="NAME_OR_FILE", help="A preset (smoke, demo, hyper-kvasir, ...) or a TOML file."),
]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change a setting, e.g. train.epochs=10."),
]
Output = Annotated[
    Path | None, typer.Option("-o", "--output", help="Folder of the run; must be new or empty.")
]
Devices = Annotated[
    int, typer.Option("--devices", min=1, help="Processes on this machine, one for each device.")
]
Nodes = Annotated[
    int, typer.Option("--nodes", min=1, help="Machines, each with as many devices (see docs/run.md).")
]
Run = Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run.")]
Ledger = Annotated[Path, typer.Option("--ledger", help="Folder of the ledger.")]


def fail(message: str, status: int = 1) -> NoReturn:
    """One line on standard error, and a non-zero exit."""
    prefix = "endocil" if leads() else f"endocil, process {os.getpid()}"
    print(f"{prefix}: {printable(' '.join(message.split()))}", file=sys.stderr)
    raise SystemExit(status)


def console() -> "Console":
    """Of several processes that learn together, one prints."""
    from rich.console import Console

    return Console(quiet=not leads())


def say(text: str) -> None:
    """Print text unchanged: no colours, no wrapping that would break a path, no control characters."""
    text = "\n".join(map(printable, text.split("\n")))
    console().print(text, highlight=False, markup=False, soft_wrap=True)


@contextmanager
def resumable(folder: Path) -> Iterator[None]:
    """Ctrl-C leaves a run that can be resumed, and shows how."""
    try:
        yield
    except KeyboardInterrupt:
        if not leads():
            raise SystemExit(0) from None  # the process that prints ends the run
        if (folder / "settings.toml").exists():
            fail(
                f"stopped; nothing up to the last checkpoint is lost. Go on with: endocil resume {folder}",
                130,
            )
        fail("stopped before the run began; nothing was written", 130)
