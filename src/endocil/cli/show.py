"""endocil show and review: a model looked at, and the images that it should be told about."""

from pathlib import Path
from typing import Annotated

import typer

from endocil.cli.console import Trust, console, refuse_overwriting, say
from endocil.errors import SettingsError
from endocil.io.files import refuse_existing, write_atomically
from endocil.io.terminal import plain_progress

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


def review(
    images: Annotated[Path, typer.Argument(metavar="IMAGES", help="A folder of images, or a CSV file of paths.")],
    model: Annotated[Path, typer.Option(metavar="MODEL", help="A model file, or the folder of a finished run.")],
    output: Annotated[
        Path, typer.Option("-o", "--output", help="The page; the list has the same name and ends in .csv.")
    ] = Path("review.html"),
    below: Annotated[
        float, typer.Option(help="Images whose most probable class has a smaller probability are uncertain.")
    ] = 0.7,
    most: Annotated[int, typer.Option(min=1, help="At most this many images, the most unlike first.")] = 200,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the page and the list if they exist.")] = False,
    batch: Annotated[int, typer.Option(min=1, help="Batch size.")] = 64,
    trust: Trust = False,
) -> None:
    """Put images that are unlike what a model has learned, or that it is uncertain about, on a page and into a CSV list
    for a physician to complete; endocil learn takes the list as it is."""
    from endocil.model.model import Model
    from endocil.review.review import UNLIKE, write_review

    listing = output.with_suffix(".csv")
    if output.suffix.lower() != ".html":
        raise SettingsError(f"{output}: the page of a review needs a name that ends in .html")
    loaded = Model.load(model, trust=trust)
    inputs = loaded.inputs(images)
    for file in (output, listing):
        refuse_overwriting(file, [model, images, *inputs.files])
        refuse_existing(file, force=force)
    for note in loaded.notes:
        say(f"note: {note}")
    predictions = loaded.predict(inputs, batch=batch, progress=plain_progress(console(), "predicting"))
    items, relative = write_review(loaded, inputs, predictions, output, listing, below=below, most=most)
    unlike = sum(item.why == UNLIKE for item in items)
    say(
        f"{output}: {len(items):,} of {len(predictions):,} images, {unlike:,} {UNLIKE} and "
        f"{len(items) - unlike:,} uncertain"
    )
    if predictions.unreadable:
        say(f"{len(predictions.unreadable):,} images cannot be read and are left out")
    if items:
        outside = "" if relative else " --set data.absolute_paths=true"
        say(
            f"fill in the column label of {listing}, there or on the page; then: "
            f"endocil learn {model} {listing} -o NEW{outside}"
        )
