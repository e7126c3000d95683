"""Official splits: lists of images that the makers of a data set publish beside it."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from os.path import splitext
from pathlib import Path

from endocil.datasets.downloads import Download
from endocil.datasets.facts import PARTS
from endocil.datasets.public import Row
from endocil.errors import EndocilError
from endocil.files import expand, read_csv


@dataclass(frozen=True)
class SplitFormat:
    """How a data set writes its split."""

    files: str  # pattern of their names; a bracket in it is the part of all the images in the file
    image: str  # column of the file name
    label: str  # column of the class
    part: str = ""  # column of the part, where the file's name does not tell it

    def part_in(self, file: str) -> str:
        matched = re.fullmatch(self.files, file, re.IGNORECASE)
        told = matched[1] if matched and matched.groups() else ""
        return PARTS.get(told.lower(), told)


def with_official_parts(
    found: Download, rows: Sequence[Row], form: SplitFormat, splits: str | None
) -> tuple[list[Row], list[str]]:
    """The rows with their parts, and notes; parts come from `splits`, or else from lists beside the images."""
    files = _files_given(form, splits) if splits else _files_beside(found, form)
    if form.part and len(files) > 1:
        names = " and ".join(sorted(path.name for path in files))
        if splits:
            raise EndocilError(f"data.splits = '{splits}' holds {names}; give one of the files")
        return list(rows), [f"Official splits lie there ({names}); data.splits = FILE takes one of them."]
    if not files:
        return list(rows), []
    part_of = _read_parts(found, form, files)
    keys = [(row.label, splitext(row.name)[0]) for row in rows]
    known = set(keys)
    missing = sum(key not in known for key in part_of)
    told = [replace(row, part=part_of.get(key, "")) for row, key in zip(rows, keys, strict=True)]
    n_told = sum(row.part != "" for row in told)
    notes = [f"{n_told:,} of {len(rows):,} images are in the official split of {_names(files)}."]
    if missing:
        notes.append(f"{missing:,} images of the official split are not there.")
    return told, notes


def read_delimited(path: Path) -> list[dict[str, str]]:
    """A published list, with commas or semicolons."""
    return read_csv(path, ",;", any_bytes=False)


def _files_given(form: SplitFormat, splits: str) -> list[Path]:
    place = expand(splits, "data.splits")
    if place.is_file():
        files = [place] if form.part or form.part_in(place.name) else []
    else:
        files = sorted(path for path in place.rglob("*.csv") if _fits(form, path.name))
    if not files:
        raise EndocilError(
            f"data.splits = '{splits}' holds no official split; expected files named {form.files} "
            f"with the columns {form.image}, {form.label}"
        )
    return files


def _files_beside(found: Download, form: SplitFormat) -> list[Path]:
    """Other lists may have the same name: only those with the right columns count."""
    paths = [Path(file.path) for file in found.labels if _fits(form, file.name)]
    return [path for path in paths if not _missing_columns(form, read_delimited(path))]


def _fits(form: SplitFormat, name: str) -> bool:
    return re.fullmatch(form.files, name, re.IGNORECASE) is not None


def _missing_columns(form: SplitFormat, rows: Sequence[dict[str, str]]) -> set[str]:
    return {form.image, form.label, form.part} - {""} - (rows[0].keys() if rows else set())


def _read_parts(found: Download, form: SplitFormat, files: Sequence[Path]) -> dict[tuple[str, str], str]:
    """(class, file name without ending) -> part: names repeat between classes, and some lists leave endings out."""
    part_of: dict[tuple[str, str], str] = {}
    for path in files:
        rows = read_delimited(path)
        missing = _missing_columns(form, rows)
        if missing:
            raise EndocilError(
                f"{path} has no column {', '.join(sorted(missing))}; expected an official split"
            )
        for row in rows:
            label = found.facts.class_of(row[form.label])
            if label is None:
                raise EndocilError(f"{path}: '{row[form.label]}' is no class of {found.facts.title}")
            key = (label, splitext(row[form.image].replace("\\", "/").rpartition("/")[2])[0])
            part = row[form.part] if form.part else form.part_in(path.name)
            if part_of.setdefault(key, part) != part:
                raise EndocilError(f"{path}: {'/'.join(key)} is in part {part_of[key]} and in part {part}")
    return part_of


def _names(files: Sequence[Path]) -> str:
    return ", ".join(path.name for path in files)
