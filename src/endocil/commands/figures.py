"""endocil figures: what runs have measured, drawn."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from endocil.commands.common import say
from endocil.errors import EndocilError

if TYPE_CHECKING:
    from endocil.figures.drawing import Drawn
    from endocil.figures.material import Gallery
    from endocil.report import RunRecord

PICTURES = 8  # of each class in the gallery


class PictureFormat(StrEnum):
    png = "png"
    pdf = "pdf"


def figures(
    runs: Annotated[
        list[Path] | None, typer.Argument(metavar="RUN...", help="Folders of finished runs.")
    ] = None,
    output: Annotated[Path, typer.Option("-o", "--output", help="Folder of the files.")] = Path("figures"),
    only: Annotated[
        list[str] | None, typer.Option("--only", metavar="NAME", help="This figure alone; may be repeated.")
    ] = None,
    show_list: Annotated[bool, typer.Option("--list", help="List the figures and what they need.")] = False,
    form: Annotated[
        list[PictureFormat] | None, typer.Option("--format", help="png or pdf; both if not given.")
    ] = None,
    dpi: Annotated[int, typer.Option("--dpi", min=20, max=1200, help="Pixels per inch.")] = 200,
    gallery: Annotated[
        bool, typer.Option("--gallery/--no-gallery", help="Show exemplars, which are images of patients.")
    ] = True,
) -> None:
    """Draw the paper's figures and others from runs, as PNG and PDF."""
    from endocil.figures.catalogue import KINDS, NAMES
    from endocil.figures.drawing import draw_all
    from endocil.figures.material import Material
    from endocil.recorded import read_runs

    if show_list:
        rows = [("figure", "paper", "shows", "needs")]
        _put_table([*rows, *((kind.name, kind.paper, kind.shows, kind.needs) for kind in KINDS)])
        return
    if unknown := set(only or ()) - set(NAMES):
        raise EndocilError(f"no figure {', '.join(sorted(unknown))}; known: {', '.join(NAMES)}")
    material = Material(read_runs(runs or ()), _gallery if gallery else None, say)
    formats = list(dict.fromkeys(one.value for one in form or PictureFormat))
    drawn = list(draw_all(material, output, only or NAMES, formats, dpi))
    _put_table([("figure", "paper", f"files in {output}"), *(row for one in drawn for row in _rows(one))])
    if not any(one.files for one in drawn):
        raise EndocilError("no figure could be drawn; the table says what each needs")


def _gallery(run: "RunRecord") -> "Gallery":
    from endocil.run_folder import RunFolder

    assert run.folder is not None
    found = RunFolder(run.folder).gallery(PICTURES)
    return {
        name: [one.pixels for one in chosen] for classes in found.values() for name, chosen in classes.items()
    }


def _rows(drawn: "Drawn") -> list[tuple[str, str, str]]:
    """A row for each picture, the formats side by side, and one for what is missing."""
    stems: dict[str, list[str]] = {}
    for file in drawn.files:
        stems.setdefault(file.stem, []).append(file.suffix)
    told = [f"{stem}{'/'.join(suffixes)}" for stem, suffixes in stems.items()]
    told += [f"not drawn: {drawn.reason}"] if drawn.reason else []
    names = [(drawn.kind.name, drawn.kind.paper), *[("", "")] * (len(told) - 1)]
    return [(*name, line) for name, line in zip(names, told, strict=True)]


def _put_table(rows: list[tuple[str, ...]]) -> None:
    """Columns as wide as they need; the last one is not filled up."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]) - 1)]
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
        say("  ".join([*cells, row[-1]]).rstrip())
