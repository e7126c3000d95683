"""Runs to files: every figure that can be drawn, and for the others why not."""

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from endocil.figures.catalogue import KINDS, Kind
from endocil.figures.fitting import fit
from endocil.figures.material import Material, NotDrawnError
from endocil.figures.style import styled, write_figure


@dataclass(frozen=True)
class Drawn:
    """The files of one kind of figure, and what it lacked."""

    kind: Kind
    files: tuple[Path, ...]
    reason: str = ""


def draw_all(
    material: Material, folder: Path, names: Collection[str], formats: Sequence[str], dpi: int
) -> Iterator[Drawn]:
    """Each kind with one of these names, one after the other."""
    for kind in KINDS:
        if kind.name in names:
            yield _drawn(kind, material, folder, formats, dpi)


def _drawn(kind: Kind, material: Material, folder: Path, formats: Sequence[str], dpi: int) -> Drawn:
    files: dict[Path, None] = {}
    try:
        with styled():
            for suffix, figure in kind.draw(material):
                stem = _free(file_stem(kind.name, suffix), {file.stem for file in files})
                fit(figure, dpi)
                for form in formats:
                    path = folder / f"{stem}.{form}"
                    write_figure(figure, path, dpi)
                    files[path] = None
    except NotDrawnError as error:
        return Drawn(kind, tuple(files), str(error))
    return Drawn(kind, tuple(files))


def file_stem(name: str, suffix: str) -> str:
    """A name that every system takes: `confusion`, `endocil (loss=cross_entropy)` -> confusion-endocil-loss-..."""
    plain = re.sub(r"[^a-z0-9]+", "-", suffix.lower()).strip("-")
    return "-".join(filter(None, [name, plain]))[:120].rstrip("-")


def _free(stem: str, taken: Collection[str]) -> str:
    """Other labels may leave the same letters."""
    number, free = 2, stem
    while free in taken:
        free, number = f"{stem}-{number}", number + 1
    return free
