"""endocil data audit."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from endocil.commands.common import Overrides, console, say

if TYPE_CHECKING:
    import numpy as np

    from endocil.audit.fingerprints import Fingerprints
    from endocil.audit.summary import Record
    from endocil.images.table import ImageTable
    from endocil.settings import Settings


def audit(
    source: Annotated[
        str, typer.Argument(metavar="SETTINGS", help="A preset, a TOML file, or a folder of images.")
    ],
    changes: Overrides = None,
    output: Annotated[
        Path, typer.Option("-o", "--output", help="The page to write; a JSON file is written beside it.")
    ] = Path("audit.html"),
    groups: Annotated[
        Path | None,
        typer.Option(
            "--groups",
            help='Write the groups of near duplicates (path, group), for scenario.groups = "FILE.csv".',
        ),
    ] = None,
    pictures: Annotated[
        bool, typer.Option("--pictures/--no-pictures", help="Show pictures; they are images of patients.")
    ] = True,
    strict: Annotated[
        bool, typer.Option("--strict", help="Exit with status 2 when test images are known in train.")
    ] = False,
) -> None:
    """Look for unreadable files, duplicates, and what leaks from train to test."""
    from endocil.audit.summary import leaks_exist

    settings = _settings(source, changes)
    split = not Path(source).is_dir()
    table, record = _audited(Path(source).resolve().stem, settings, split)
    _write(record, table, output, pictures)
    if groups is not None:
        _write_groups(settings, groups)
    if strict and leaks_exist(record):
        raise typer.Exit(2)


def _settings(source: str, changes: list[str] | None) -> "Settings":
    """Of a run, or of a folder of images; only the first have tasks and a split."""
    from endocil.assembly import complete
    from endocil.settings import load_settings

    if Path(source).is_dir():
        name = "endocil.datasets.folder:load_any"  # it need not be sorted into classes
        return load_settings({"data": {"name": name, "root": source}}, changes or ())
    return complete(load_settings(source, changes or ()))


def _audited(title: str, settings: "Settings", split: bool) -> "tuple[ImageTable, Record]":
    """The readable images of the kept classes, and what is found among them."""
    from dataclasses import replace

    from endocil.assembly import kept_table, scenario_of
    from endocil.audit.fingerprints import fingerprints
    from endocil.audit.near import near_duplicates_of
    from endocil.audit.summary import summary
    from endocil.display import plain_progress

    screen = console()
    whole = kept_table(settings, plain_progress(screen, "finding images"))
    found = fingerprints(whole, progress=plain_progress(screen, "looking at images"))
    rows = _usable(whole, found, settings.scenario.minimum)
    table, prints = whole.take(rows), found.take(rows)
    table = table.keep_classes([whole.classes[label] for label in sorted(set(table.labels.tolist()))])
    near = near_duplicates_of(table, prints, progress=plain_progress(screen, "comparing images, blocks"))
    if len(table.classes) == 1:
        table = replace(table, notes=(*table.notes, _one_class(table, split)))
    scenario = scenario_of(table, settings) if split else None
    return table, summary(title, table, prints, near, scenario, found.unreadable)


def _one_class(table: "ImageTable", split: bool) -> str:
    way_out = "" if split else "; --set data.class_from=leaf takes the folders that hold images for classes"
    return f"All images are of one class, {table.classes[0]}{way_out}."


def _usable(table: "ImageTable", prints: "Fingerprints", minimum: int) -> "np.ndarray":
    """Readable rows of classes that are large enough without the others, as a run would take them."""
    import numpy as np

    from endocil.errors import EndocilError

    counts = np.bincount(table.labels[prints.readable], minlength=len(table.classes))
    rows = np.flatnonzero(prints.readable & (counts >= max(1, minimum))[table.labels])
    if not len(rows):
        name, reason = prints.unreadable[0]
        raise EndocilError(f"none of {len(table):,} images can be read; {name}: {reason}")
    return rows


def _write(record: "Record", table: "ImageTable", output: Path, pictures: bool) -> None:
    from endocil.audit.markup import pictures_of
    from endocil.audit.page import page
    from endocil.audit.summary import lines
    from endocil.files import write_atomically, write_json

    write_atomically(output, page(record, pictures_of(table) if pictures else None))
    write_json(output.with_suffix(".json"), record)
    for line in (*lines(record), *record["notes"]):
        say(line)
    say(f"page: {output}")


def _write_groups(settings: "Settings", path: Path) -> None:
    """All images of the data get a line, those of classes left out too: other settings may keep them."""
    from endocil.audit.near import near_duplicate_groups
    from endocil.datasets import load_table
    from endocil.display import plain_progress
    from endocil.files import write_csv

    progress = plain_progress(console(), "looking at all images")
    table = load_table(settings.data.name, settings.data.options, progress)
    names = near_duplicate_groups(table, progress=progress)
    write_csv(path, ("path", "group"), zip(table.ids, names, strict=True))
    say(f"groups: {path}")
