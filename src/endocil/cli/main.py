"""The command line. Heavy imports happen inside the command that needs them, so that help answers at once."""

from collections.abc import Callable
from typing import Annotated

import typer

from endocil.cli import compare, data, ledger, models, reports, results, runs, show, start, sweep
from endocil.cli.console import fail
from endocil.errors import EndocilError


def _show_version(wanted: bool) -> None:
    if wanted:
        from endocil import __version__

        print(f"endocil {__version__}")
        raise typer.Exit


def program(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_show_version, is_eager=True)
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
        *(start.init, runs.check, runs.run, runs.resume, runs.watch, sweep.demo, sweep.sweep, sweep.tune),
        *(show.show, show.review, models.bundle, models.predict, models.export, models.serve),
        *(models.learn, compare.compare, models.memory, models.forget),
        *(runs.tensorboard, reports.publish),
        *(results.methods, results.score, results.table, results.versus, reports.figures, reports.report),
    )
    for command in commands:
        app.command()(command)
    app.command("import")(results.import_predictions)
    images = (data.where, data.check, data.audit, data.synth, data.sheet, data.cache)
    app.add_typer(_group("Data sets: where to get them, checks, audit, synthetic images, cache.", *images), name="data")
    kept = "Results kept in a repository as small JSON files."
    app.add_typer(_group(kept, ledger.add, ledger.table, ledger.insert, ledger.plot), name="ledger")
    return app


def _group(help_text: str, *commands: Callable[..., None]) -> typer.Typer:
    group = typer.Typer(help=help_text, no_args_is_help=True)
    for command in commands:
        group.command()(command)
    return group


def main() -> None:
    """Errors that the user can mend become one line and exit status 1."""
    try:
        _application()()
    except EndocilError as error:
        fail(str(error))
    except OSError as error:  # a full disk, a folder without permission
        fail(f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}")
