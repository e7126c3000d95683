"""endocil show: what a model is, has learned and holds."""

from pathlib import Path
from typing import Annotated

import typer

from endocil.cli.console import refuse_overwriting, say
from endocil.errors import SettingsError
from endocil.io.files import refuse_existing, write_atomically

Model = Annotated[Path, typer.Argument(metavar="MODEL", help="A model file, or the folder of a finished run.")]


def show(
    model: Model,
    card: Annotated[
        Path | None, typer.Option(help="Write the model card into this file: .md for Markdown, .html for a page.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the card if it exists.")] = False,
) -> None:
    """Show a model: classes, history, results, gate, calibration, images inside and terms."""
    from endocil.model.card import card_of
    from endocil.model.file import model_path, read_model_file

    shown = card_of(read_model_file(model))
    if card is None:
        say(shown.text())
        return
    formats = {".md": shown.markdown, ".html": shown.page}
    if card.suffix.lower() not in formats:
        raise SettingsError(f"{card}: a model card is Markdown or a page; expected a name that ends in .md or .html")
    refuse_overwriting(card, [model_path(model)])
    refuse_existing(card, force=force)
    write_atomically(card, formats[card.suffix.lower()]())
    say(f"{card}: the card of {shown.title}")
