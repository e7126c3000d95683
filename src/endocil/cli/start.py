"""endocil init: from a folder of images to settings."""

from pathlib import Path
from typing import Annotated

import typer

from endocil.cli.console import console, say
from endocil.errors import SettingsError
from endocil.io.files import refuse_existing, write_atomically
from endocil.io.terminal import plain_progress


def init(
    images: Annotated[Path, typer.Argument(metavar="IMAGES", help="A folder with a folder of images for each class.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="The settings file to write.")] = Path("mine.toml"),
    minutes: Annotated[float, typer.Option(help="Time that learning may take on this machine.")] = 10.0,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the settings file if it exists.")] = False,
) -> None:
    """Look at a folder of images and write settings for it, with a comment on each choice."""
    from endocil.runs.init import choose, described, look_at, settings_text

    if not minutes > 0:
        raise SettingsError(f"--minutes is {minutes:g}; expected more than 0")
    if output.suffix != ".toml":
        raise SettingsError(f"{output}: settings need a name that ends in .toml")
    refuse_existing(output, force=force)
    look = look_at(images, plain_progress(console(), "looking at the images"))
    choice = choose(look, minutes=minutes)
    write_atomically(output, settings_text(images, look, choice))
    for line in described(look, choice):
        say(line)
    say(f"wrote {output}; read it, then:")
    for command in (f"check {output}", f"run {output} -o runs/{output.stem}", f"show runs/{output.stem}"):
        say(f"  endocil {command}")
