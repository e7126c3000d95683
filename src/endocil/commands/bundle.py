"""endocil bundle: a finished run into one file that predicts, answers for itself, and learns on."""

from pathlib import Path
from typing import Annotated

import typer

from endocil.commands.common import Run, console, say
from endocil.errors import EndocilError


def bundle(
    folder: Run,
    output: Annotated[Path, typer.Option("-o", "--output", help="The bundle's file, model.endocil.")],
    held_out: Annotated[
        int, typer.Option("--held-out", min=0, help="Held-out images of each class, at most.")
    ] = 20,
    without_exemplars: Annotated[
        bool, typer.Option("--without-exemplars", help="No pictures inside: it predicts but cannot learn.")
    ] = False,
    licence: Annotated[str, typer.Option("--licence", help="Under which the pictures may be used.")] = "",
    consent: Annotated[str, typer.Option("--consent", help="What the patients have agreed to.")] = "",
    unlike_rate: Annotated[
        float, typer.Option("--unlike-rate", help="Share of images of known classes that may be flagged.")
    ] = 0.05,
    name: Annotated[str, typer.Option("--name", help="Of the model; by default the run's.")] = "",
) -> None:
    """Make one file of a finished run: weights, classes, calibration, exemplars, results, history."""
    from endocil.bundle.content import write_content
    from endocil.bundle.making import make_bundle
    from endocil.bundle.manifest import LONGEST_NAME
    from endocil.display import plain_progress

    if not 0 < unlike_rate < 1:
        raise EndocilError(f"--unlike-rate is {unlike_rate}; expected a share between 0 and 1, such as 0.05")
    if len(name) > LONGEST_NAME:
        raise EndocilError(f"--name has {len(name):,} characters; expected at most {LONGEST_NAME:,}")
    if output.exists():
        raise EndocilError(f"{output} is there already; a bundle is never written over, choose another name")
    made = make_bundle(
        folder,
        name=name,
        held_out=held_out,
        with_exemplars=not without_exemplars,
        licence=licence,
        consent=consent,
        unlike_rate=unlike_rate,
        progress=plain_progress(console(), "reading the data"),
    )
    digest = write_content(output, made.content)
    content = made.content
    say(
        f"{output}: {len(content.classes)} classes, {len(content.exemplars):,} exemplars, "
        f"{len(content.held_out):,} held-out images, {output.stat().st_size / 1e6:.1f} MB"
    )
    fitted = content.manifest.calibration
    if fitted is not None:
        say(
            f"calibrated on {fitted.images:,} held-out images: expected calibration error {fitted.error_before:.3f} "
            f"before, {fitted.error:.3f} after (cross-fitted, {fitted.folds} folds)"
        )
    for note in made.notes:
        say(f"note: {note}")
    say(f"sha256 {digest}")
