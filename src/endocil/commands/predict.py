"""endocil predict: images to classes, by a bundle."""

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from endocil.bundle.plain import printable
from endocil.commands.common import console, say
from endocil.errors import EndocilError

if TYPE_CHECKING:
    from endocil.bundle.predicting import Predicted
    from endocil.methods import Method

Model = Annotated[Path, typer.Argument(metavar="BUNDLE", help="A file that 'endocil bundle' has written.")]


def predict(
    model: Model,
    images: Annotated[
        list[Path], typer.Argument(metavar="IMAGES...", help="Images, a folder, or a CSV file of paths.")
    ],
    output: Annotated[Path, typer.Option("-o", "--output", help="The CSV file of the predictions.")],
    top: Annotated[int, typer.Option("--top", min=1, help="Classes named for each image.")] = 3,
    reasons: Annotated[int, typer.Option("--reasons", min=0, help="Nearest exemplars of each image.")] = 3,
    gradcam: Annotated[
        Path | None, typer.Option("--gradcam", help="A new folder for pictures of where the evidence lies.")
    ] = None,
    trust: Annotated[
        bool, typer.Option("--trust", help="Let the bundle run code of other packages that it names.")
    ] = False,
    batch: Annotated[int, typer.Option("--batch", min=1, help="Images at a time.")] = 64,
) -> None:
    """Classify images with a bundle: probabilities, a flag for the unlike, and the nearest exemplars."""
    from endocil.bundle.model import Bundle
    from endocil.bundle.table import write_predicted
    from endocil.display import plain_progress

    bundle = Bundle.load(model, trust=trust)
    inputs = bundle.inputs(images[0] if len(images) == 1 else images)
    _refuse_inputs(output, [model, *images, *inputs.files])
    for note in bundle.notes:
        say(f"note: {note}")
    ask = partial(
        bundle.predict,
        inputs,
        top=top,
        reasons=reasons,
        batch=batch,
        progress=plain_progress(console(), "predicting"),
    )
    found, drawn = (ask(), tuple[str, ...]()) if gradcam is None else _drawn(ask, bundle.method, gradcam)
    write_predicted(output, found, bundle.content.exemplars, drawn)
    _tell(found, output)


def _drawn(
    ask: Callable[..., "Predicted"], method: "Method", folder: Path
) -> tuple["Predicted", tuple[str, ...]]:
    """Grad-CAM in the same pass; the folder is whole or not there."""
    from torch import Tensor

    from endocil.bundle.attention import draw
    from endocil.files import filling_folder

    if folder.is_file() or (folder.is_dir() and any(folder.iterdir())):
        raise EndocilError(
            f"{folder} is a file, or a folder that is not empty; choose another with --gradcam"
        )
    drawn: list[str] = []
    with filling_folder(folder) as temporary:

        def watch(names: tuple[str, ...], pixels: Tensor, classes: Tensor) -> None:
            files = [_file_name(len(drawn) + i, name) for i, name in enumerate(names)]
            draw(temporary, files, method, pixels, classes)
            drawn.extend(files)

        found = ask(watch=watch)
    return found, tuple(drawn)


def _file_name(number: int, name: str) -> str:
    """A number, so that names of other folders cannot meet, and as much of the name as any system takes."""
    stem = Path(name.replace("\\", "/")).stem
    plain = "".join(c if c.isascii() and (c.isalnum() or c in "-_.") else "_" for c in stem)
    return f"{number:06d}-{plain[:60]}.png"


def _refuse_inputs(output: Path, inputs: list[Path]) -> None:
    """What is read is never written over."""
    if output.is_dir():
        raise EndocilError(f"{output} is a folder; expected the name of a CSV file")
    if output.exists() and any(path.exists() and os.path.samefile(output, path) for path in inputs):
        raise EndocilError(f"{output} is read by this command; choose another file with -o")


def _tell(found: "Predicted", output: Path) -> None:
    flagged = "" if found.unlike is None else f", {int(found.unlike.sum()):,} of them unlike anything learned"
    say(f"{output}: {len(found):,} images{flagged}")
    if found.unreadable:
        name, reason = found.unreadable[0]
        say(
            f"{len(found.unreadable):,} images cannot be read and are listed there, first {printable(name)}: {reason}"
        )
