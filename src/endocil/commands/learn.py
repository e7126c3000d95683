"""endocil learn: new classes into a bundle, without the old training data."""

from pathlib import Path
from typing import Annotated

import typer

from endocil.commands.common import Overrides, console, fail, say
from endocil.commands.predict import Model


def learn(
    model: Model,
    new: Annotated[
        Path,
        typer.Argument(metavar="NEW", help="A folder with a folder for each class, or a CSV list of images."),
    ],
    output: Annotated[Path, typer.Option("-o", "--output", help="The new bundle; must not be there yet.")],
    changes: Overrides = None,
    validation: Annotated[
        float | None,
        typer.Option("--validation", help="Share of the new images held out; by default as in the run."),
    ] = None,
    held_out: Annotated[
        int, typer.Option("--held-out", min=0, help="Held-out images of each class, at most.")
    ] = 20,
    licence: Annotated[str, typer.Option("--licence", help="Under which the new pictures may be kept.")] = "",
    consent: Annotated[str, typer.Option("--consent", help="What the patients have agreed to.")] = "",
    groups: Annotated[
        str | None,
        typer.Option(
            "--groups",
            help="What belongs together: given, near-duplicates, a CSV file, or a pattern on the path.",
        ),
    ] = None,
    accelerator: Annotated[
        str | None,
        typer.Option("--accelerator", help="Where to learn: cpu, gpu, ...; by default as the run."),
    ] = None,
    work: Annotated[
        Path | None, typer.Option("--work", help="Where a stopped step is kept; by default OUTPUT.learning.")
    ] = None,
    trust: Annotated[
        bool, typer.Option("--trust", help="Let the bundle run code of other packages that it names.")
    ] = False,
) -> None:
    """Learn new classes, and more images of known ones, into a new bundle. Stopped, the same command goes on."""
    from endocil.bundle.learning import learn as learn_into
    from endocil.bundle.learning import work_folder_of
    from endocil.bundle.manifest import terms_of
    from endocil.display import Display, plain_progress

    chosen = [*(changes or ()), *([f"run.accelerator={accelerator}"] if accelerator else [])]
    screen = console()
    try:
        with Display(screen, output.stem) as display:
            learned = learn_into(
                model,
                new,
                output,
                changes=chosen,
                validation=validation,
                terms=terms_of(licence, consent),
                groups=groups,
                held_out=held_out,
                work=work,
                trust=trust,
                show=display,
                tell=say,
                progress=plain_progress(screen, "reading the data"),
            )
    except KeyboardInterrupt:
        kept = work or work_folder_of(output)
        fail(f"stopped; {kept} holds all up to the last checkpoint. Go on with the same command", 130)
    content = learned.content
    said = content.manifest.calibration
    calibrated = f"calibrated on {said.images:,} held-out images" if said else "not calibrated"
    say(
        f"{output}: {len(content.classes)} classes, {len(content.exemplars):,} exemplars, "
        f"{len(content.held_out):,} held-out images, {output.stat().st_size / 1e6:.1f} MB; {calibrated}"
    )
    for note in learned.notes:
        say(f"note: {note}")
    say("note: not tested yet; compare it with the bundle before by 'endocil compare'")
    say(f"sha256 {learned.digest}")
