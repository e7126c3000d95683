"""endocil show, bundle, memory, forget and review: what a model holds, and the images that should be labelled."""

from pathlib import Path
from typing import Annotated

import typer

from endocil.cli.console import (
    Consent,
    Licence,
    ModelPath,
    RunPath,
    Trust,
    console,
    describe_model,
    refuse_overwriting,
    say,
)
from endocil.errors import SettingsError
from endocil.io.files import refuse_existing, write_atomically
from endocil.io.terminal import plain_progress


def show(
    model: ModelPath,
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


def bundle(
    folder: RunPath,
    output: Annotated[Path, typer.Option("-o", "--output", help="The model file, such as model.endocil.")],
    held_out: Annotated[
        int | None, typer.Option(min=0, help="Keep at most this many held-out images per class.")
    ] = None,
    without_exemplars: Annotated[
        bool, typer.Option("--without-exemplars", help="Leave out all images: the model predicts but cannot learn.")
    ] = False,
    licence: Licence = "",
    consent: Consent = "",
    ood_rate: Annotated[float, typer.Option(help="Share of images of known classes that may be flagged.")] = 0.05,
    name: Annotated[str, typer.Option(help="Name of the model; by default that of the run.")] = "",
    trust: Trust = False,
) -> None:
    """Pack a finished run's model for others, with results and terms of use, and with or without images."""
    from endocil.model.kept_images import pack
    from endocil.model.manifest import LONGEST_NAME, terms_of
    from endocil.model.model import Model
    from endocil.reports.comparisons import results_of
    from endocil.runs.records import read_run

    if not 0 < ood_rate < 1:
        raise SettingsError(f"--ood-rate is {ood_rate}; expected a share between 0 and 1, such as 0.05")
    if len(name) > LONGEST_NAME:
        raise SettingsError(f"--name has {len(name):,} characters; expected at most {LONGEST_NAME:,}")
    refuse_existing(output)
    record = read_run(folder)  # refuses an unfinished run, and a folder that is none
    model = Model.load(folder, trust=trust)
    pack(
        model,
        name=name,
        metrics=results_of(record),
        terms=terms_of(licence, consent),
        held_out=held_out,
        with_exemplars=not without_exemplars,
        ood_rate=ood_rate,
    )
    model.save(output)
    describe_model(model, output)


def memory(
    model: ModelPath,
    sheet: Annotated[Path | None, typer.Option(help="Draw the images: a .png or .jpg, or a folder.")] = None,
    listing: Annotated[
        Path | None, typer.Option("--csv", help="Write every image and where it comes from into this file.")
    ] = None,
    every: Annotated[bool, typer.Option("--list", help="Show every image on the screen.")] = False,
) -> None:
    """List the images that a model holds, by class, with their provenance."""
    from endocil.model.file import model_path, read_model_file
    from endocil.model.kept_images import counts, listed, write_list, write_sheet

    content = read_model_file(model)
    exemplars, held_out = content.exemplars.provenance, content.held_out.provenance
    decoded = (content.exemplars.pixels.numel() + content.held_out.pixels.numel()) / 1e6
    say(
        f"{model}: {len(exemplars):,} exemplars and {len(held_out):,} held-out images of {len(content.classes)} "
        f"classes; the file has {model_path(model).stat().st_size / 1e6:.1f} MB, the images decoded {decoded:.1f} MB"
    )
    for learned in content.manifest.classes:
        own = [one for one in exemplars if one.class_name == learned.name]
        held = [one for one in held_out if one.class_name == learned.name]
        say(
            f"  {learned.name} (task {learned.task + 1}): {len(own)} exemplars of {learned.images:,} images, "
            f"{len(held)} held out; groups: {counts([*own, *held], 'group', 4) or 'none'}"
        )
    images = (*exemplars, *held_out)
    for field in ("group", "source", "licence", "consent") if images else ():
        say(f"by {field}: {counts(images, field)}")
    terms = content.manifest.terms
    if terms.licence or terms.consent:
        say(f"terms of the model: licence {terms.licence or 'not stated'}; consent {terms.consent or 'not stated'}")
    for row in listed(content) if every else ():
        say("  ".join(str(cell) for cell in row if cell != ""))
    if listing is not None:
        write_list(listing, content)
        say(f"{listing}: {len(listed(content)):,} images")
    for file in write_sheet(sheet, content) if sheet is not None else ():
        say(f"{file}: {file.stat().st_size:,} bytes")


def forget(
    model: ModelPath,
    output: Annotated[Path, typer.Option("-o", "--output", help="The new model file; must not exist.")],
    group: Annotated[list[str] | None, typer.Option(help="A patient or video; may be repeated.")] = None,
    image: Annotated[list[str] | None, typer.Option(help="An image's id; may be repeated.")] = None,
    source: Annotated[list[str] | None, typer.Option(help="A device or centre; may be repeated.")] = None,
    images: Annotated[
        Path | None,
        typer.Option(
            help="Learned images, as a folder with a folder for each class or a CSV list: those asked for (or all) "
            "are subtracted from a model of SimpleCIL, RanPAC, Analytic or MultiStage(-FSA)."
        ),
    ] = None,
    allow_empty: Annotated[
        bool, typer.Option("--allow-empty", help="Allow a class to be left without exemplars or learned images.")
    ] = False,
    trust: Trust = False,
) -> None:
    """Remove images, such as those of a patient, from a model, and say what still depends on them."""
    from endocil.model.file import read_model_file, write_model_file
    from endocil.model.kept_images import forget as without
    from endocil.model.model import Model
    from endocil.release.learn import read_new_images

    refuse_existing(output)
    content, learned = read_model_file(model), None
    if images is not None:
        known = Model.from_file(content, trust=trust)
        learned = read_new_images(images, known, validation=0.0, groups="given").images
    chosen = {"groups": group or (), "images": image or (), "sources": source or ()}
    result = without(content, **chosen, learned=learned, allow_empty=allow_empty, trust=trust)
    digest = write_model_file(output, result.content)
    subtracted = f", and {result.subtracted:,} learned images subtracted" if result.subtracted else ""
    say(f"wrote {output}; removed {result.exemplars:,} exemplars and {result.held_out:,} held-out images{subtracted}")
    for line in result.lines:
        say(line)
    say(f"the old file still holds them: {model}")
    say(f"sha256 {digest}")


def review(
    images: Annotated[Path, typer.Argument(metavar="IMAGES", help="A folder of images, or a CSV file of paths.")],
    model: Annotated[Path, typer.Option(metavar="MODEL", help="A model file, or the folder of a finished run.")],
    output: Annotated[
        Path, typer.Option("-o", "--output", help="The page; the list has the same name and ends in .csv.")
    ] = Path("review.html"),
    below: Annotated[
        float, typer.Option(help="Images whose most probable class has a smaller probability are uncertain.")
    ] = 0.7,
    most: Annotated[int, typer.Option(min=1, help="At most this many images, the least familiar first.")] = 200,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the page and the list if they exist.")] = False,
    batch: Annotated[int, typer.Option(min=1, help="Batch size.")] = 64,
    trust: Trust = False,
) -> None:
    """Put images that are out of distribution, or that a model is uncertain about, on a page and into a CSV list
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
        say(f"cannot be read and left out: {len(predictions.unreadable):,}")
    if items:
        outside = "" if relative else " --set data.absolute_paths=true"
        say(
            f"fill in the column label of {listing}, there or on the page; then: "
            f"endocil learn {model} {listing} -o NEW{outside}"
        )
