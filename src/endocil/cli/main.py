"""The command line. Heavy imports happen inside the command that needs them, so that help answers at once."""

import atexit
import gc
from collections.abc import Callable
from typing import Annotated

import typer

from endocil.cli import compare, data, ledger, methods, model_content, models, reports, results, runs, sweep
from endocil.cli.console import fail
from endocil.errors import EndocilError
from endocil.io.process import interruptible


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
    panels: dict[str, tuple[Callable[..., None], ...]] = {
        "Data and training": (
            *(runs.init, runs.check, runs.run, runs.resume, runs.watch, runs.tensorboard),
            *(sweep.demo, sweep.sweep, sweep.tune),
        ),
        "Use a model": (
            *(model_content.show, models.predict, model_content.review, model_content.bundle),
            *(models.export, models.serve),
        ),
        "Change a model": (models.learn, compare.compare, model_content.memory, model_content.forget),
        "Compare results": (
            *(results.table, results.versus, reports.report, reports.figures, reports.publish),
            results.score,
        ),
        "Methods": (methods.methods, methods.new_method, methods.check_method),
    }
    for panel, commands in panels.items():
        for command in commands:
            app.command(rich_help_panel=panel)(command)
    app.command("import", rich_help_panel="Compare results")(results.import_predictions)
    images = (data.where, data.check, data.audit, data.synth, data.sheet, data.cache)
    sets = _group("Data sets: where to get them, checks, audit, synthetic images, cache.", *images)
    app.add_typer(sets, name="data", rich_help_panel="Data and training")
    entries = (ledger.add, ledger.table, ledger.insert, ledger.plot)
    kept = _group("Results kept in a repository as small JSON files.", *entries)
    app.add_typer(kept, name="ledger", rich_help_panel="Compare results")
    return app


def _group(help_text: str, *commands: Callable[..., None]) -> typer.Typer:
    group = typer.Typer(help=help_text, no_args_is_help=True)
    for command in commands:
        group.command()(command)
    return group


def main() -> None:
    """Errors that the user can fix become one line and exit status 1; SIGTERM and SIGUSR1 end it as Ctrl-C does."""
    atexit.register(gc.freeze)  # a last search of all that torch has loaded for garbage takes half a second
    try:
        with interruptible():
            _application()()
    except EndocilError as error:
        fail(str(error))
    except OSError as error:  # a full disk, a folder without permission
        fail(f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}")
