"""endocil data synth, sheet, subset and cache."""

from pathlib import Path
from typing import Annotated

import typer

from endocil.commands.common import console, say
from endocil.errors import EndocilError


def synth(
    folder: Annotated[Path, typer.Argument(help="Where to write the images; must be new or empty.")],
    images: Annotated[int, typer.Option(help="How many images.")] = 2000,
    size: Annotated[int, typer.Option(help="Width and height in pixels.", min=16)] = 128,
    seed: Annotated[int, typer.Option(help="Another seed, other images.")] = 0,
    imbalance: Annotated[float, typer.Option(help="Largest class over smallest.")] = 10.0,
) -> None:
    """Write synthetic endoscopy as a folder of PNG files, one sub-folder per class."""
    from endocil.datasets.synthetic import write_folder
    from endocil.display import plain_progress

    write_folder(
        folder,
        seed=seed,
        size=size,
        images=images,
        imbalance=imbalance,
        progress=plain_progress(console(), "images"),
    )
    say(f"{images:,} images in {folder}")


def subset(
    listing: Annotated[Path, typer.Argument(metavar="LIST", help="experiments/hyper-kvasir-part.csv")],
    root: Annotated[Path, typer.Argument(help="The official Hyper-Kvasir labelled images.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="Where to write the subset; must be new.")],
) -> None:
    """Rebuild the listed subset from an official download, so that its numbers can be repeated."""
    from endocil.datasets.subset import rebuild
    from endocil.display import plain_progress

    report = rebuild(listing, root, output, progress=plain_progress(console(), "images"))
    say(str(report))
    if report.missing or report.differ:
        raise EndocilError(f"the subset in {output} is not complete: numbers on it cannot be compared")


def cache(
    clear: Annotated[
        bool, typer.Option("--clear", help="Remove all of it; not while a run reads its images.")
    ] = False,
) -> None:
    """Tell where decoded images and extracted archives are kept and how large they are; or remove them."""
    from collections import Counter

    from endocil.datasets.cached import clear as remove
    from endocil.datasets.cached import contents
    from endocil.images.cache import default_folder

    folder = default_folder()
    say(f"{folder} (set ENDOCIL_CACHE for another one)")
    kept = contents(folder)
    number, size = Counter(one.kind for one in kept), Counter[str]()
    for one in kept:
        size[one.kind] += one.size
        if one.path.is_dir():
            say(f"  {one.path.name}: {one.size:,} bytes")
    for kind, n in sorted(number.items()):
        say(f"{kind}: {n:,}, {size[kind]:,} bytes")
    if clear:
        say(f"{remove(folder):,} bytes freed; what is needed again is made again")
    else:
        say(f"in all {size.total():,} bytes")


def sheet(
    file: Annotated[Path, typer.Argument(help="The picture to write, .jpg or .png.")],
    size: Annotated[int, typer.Option(help="Width and height of an image in pixels.", min=16)] = 80,
    per_class: Annotated[int, typer.Option(help="Images of each class.", min=1)] = 9,
    seed: Annotated[int, typer.Option(help="Another seed, other images.")] = 0,
) -> None:
    """Draw a contact sheet of synthetic endoscopy: a row for each class, from all devices."""
    from io import BytesIO

    from endocil.datasets.synthetic import contact_sheet
    from endocil.files import write_atomically

    kinds = {".jpg": "JPEG", ".jpeg": "JPEG", ".png": "PNG"}
    if file.suffix.lower() not in kinds:
        raise EndocilError(f"{file} is no picture's name; expected one that ends in .jpg or .png")
    drawn = BytesIO()
    contact_sheet(seed, size, per_class).save(drawn, kinds[file.suffix.lower()], quality=85)
    write_atomically(file, drawn.getvalue())
    say(f"{file}: {len(drawn.getvalue()):,} bytes")
