"""endocil memory and forget: the pictures inside a bundle, and a patient's taken out."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from endocil.commands.common import say
from endocil.commands.predict import Model

if TYPE_CHECKING:
    from endocil.bundle.content import Content


def memory(
    model: Model,
    sheet: Annotated[
        Path | None, typer.Option("--sheet", help="Draw the pictures: a .png or .jpg, or a folder.")
    ] = None,
    listing: Annotated[
        Path | None, typer.Option("--csv", help="Write every picture and where it comes from into this file.")
    ] = None,
    every: Annotated[bool, typer.Option("--list", help="Show every picture on the screen.")] = False,
) -> None:
    """Tell which pictures a bundle holds, by class, with where they come from and how large they are."""
    from endocil.bundle.content import read_content
    from endocil.bundle.sheets import listed, write_list, write_sheet

    content = read_content(model)
    _tell(content, model)
    for row in listed(content) if every else ():
        say("  ".join(str(cell) for cell in row if cell != ""))
    if listing is not None:
        write_list(listing, content)
        say(f"{listing}: {len(listed(content)):,} pictures")
    for file in write_sheet(sheet, content) if sheet is not None else ():
        say(f"{file}: {file.stat().st_size:,} bytes")


def _tell(content: "Content", model: Path) -> None:
    from endocil.bundle.sheets import counts

    exemplars, held_out = content.exemplars.origins, content.held_out.origins
    inside = (content.exemplars.pixels.numel() + content.held_out.pixels.numel()) / 1e6
    say(
        f"{model}: {len(exemplars):,} exemplars and {len(held_out):,} held-out images of {len(content.classes)} "
        f"classes; the file has {model.stat().st_size / 1e6:.1f} MB, the pictures decoded {inside:.1f} MB"
    )
    for learned in content.manifest.classes:
        mine = [origin for origin in exemplars if origin.class_name == learned.name]
        held = [origin for origin in held_out if origin.class_name == learned.name]
        say(
            f"  {learned.name} (task {learned.task}): {len(mine)} exemplars of {learned.images:,} images, "
            f"{len(held)} held out; groups: {counts([*mine, *held], 'group', 4) or 'none'}"
        )
    both = (*exemplars, *held_out)
    for field in ("group", "source", "licence", "consent") if both else ():
        say(f"by {field}: {counts(both, field)}")
    said = content.manifest.terms
    if said.licence or said.consent:
        say(
            f"terms of the bundle: licence {said.licence or 'not told'}; consent {said.consent or 'not told'}"
        )


def forget(
    model: Model,
    output: Annotated[Path, typer.Option("-o", "--output", help="The new bundle; must not be there yet.")],
    group: Annotated[
        list[str] | None, typer.Option("--group", help="A patient or video; may be given again.")
    ] = None,
    image: Annotated[
        list[str] | None, typer.Option("--image", help="An image's id; may be given again.")
    ] = None,
    source: Annotated[
        list[str] | None, typer.Option("--source", help="A device or centre; may be given again.")
    ] = None,
    allow_empty: Annotated[
        bool, typer.Option("--allow-empty", help="Also where a class is left without exemplars.")
    ] = False,
    trust: Annotated[
        bool, typer.Option("--trust", help="Let the bundle run code of other packages that it names.")
    ] = False,
) -> None:
    """Take pictures out of a bundle into a new one, and say what still saw them."""
    from endocil.bundle.content import read_content, write_content
    from endocil.bundle.forgetting import forget as without
    from endocil.bundle.learning import refuse_existing

    refuse_existing(output)
    asked = {"groups": group or (), "images": image or (), "sources": source or ()}
    found = without(read_content(model), **asked, allow_empty=allow_empty, trust=trust)
    digest = write_content(output, found.content)
    say(f"{output}: without {found.exemplars:,} exemplars and {found.held_out:,} held-out images")
    for line in found.lines:
        say(line)
    say(f"the bundle before still holds them: {model}")
    say(f"sha256 {digest}")
