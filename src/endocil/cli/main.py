"""The command line. Heavy imports happen inside the command that needs them, so that help answers at once."""

import os
import sys
from collections.abc import Callable
from typing import Annotated

import typer

from endocil.cli import compare, data, ledger, models, reports, runs, serve, sweep, tables, watch
from endocil.cli.common import fail
from endocil.errors import EndocilError


def _show_version(wanted: bool) -> None:
    if wanted:
        from endocil import __version__

        print(f"endocil {__version__}")
        raise typer.Exit


def program(
    version: Annotated[
        bool,
        typer.Option("--version", help="Show the version and exit.", callback=_show_version, is_eager=True),
    ] = False,
) -> None:
    """Class-incremental learning for endoscopic images."""


def _application() -> typer.Typer:
    app = typer.Typer(
        name="endocil",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(program)
    commands: tuple[Callable[..., None], ...] = (
        *(sweep.demo, runs.run, runs.resume, sweep.sweep, sweep.tune, runs.check),
        *(models.bundle, models.predict, models.export, serve.serve),
        *(models.learn, compare.compare, models.memory, models.forget),
        *(watch.watch, watch.tensorboard, reports.publish),
        *(tables.methods, tables.score, tables.table, tables.versus, reports.figures, reports.report),
    )
    for command in commands:
        app.command()(command)
    images = (data.where, data.check, data.audit, data.synth, data.sheet, data.subset, data.cache)
    app.add_typer(_group("Images to learn from.", *images), name="data")
    kept = "Results kept for good, small enough for a repository."
    app.add_typer(_group(kept, ledger.add, ledger.table, ledger.insert, ledger.plot), name="ledger")
    return app


def _group(help_text: str, *commands: Callable[..., None]) -> typer.Typer:
    group = typer.Typer(help=help_text, no_args_is_help=True)
    for command in commands:
        group.command()(command)
    return group


def main() -> None:
    """Errors that the user can mend become one line and exit status 1."""
    sys.path.append(os.getcwd())  # so that 'my_module:Class' finds a file in the folder one works in
    try:
        _application()()
    except EndocilError as error:
        fail(str(error))
    except OSError as error:  # a full disk, a folder without permission
        fail(f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}")
