"""Image tables of public data sets, with their official splits and notes on what is missing, repeated or left out."""

import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from os.path import splitext
from pathlib import Path
from posixpath import basename

import numpy as np

from endocil.data.decode import FileReader
from endocil.data.lists import PARTS
from endocil.data.readers import Renamed
from endocil.data.table import ImageTable
from endocil.datasets.public.downloads import Download, Entry
from endocil.datasets.public.facts import DataSet
from endocil.errors import DataError
from endocil.io.files import expand, read_csv


@dataclass(frozen=True)
class Row:
    """One image of a table."""

    id: str
    label: str
    path: str
    part: str = ""
    group: str = ""
    frame: int = -1
    source: str = ""

    @classmethod
    def of(cls, entry: Entry) -> "Row":
        return cls(entry.id, entry.label, entry.path, entry.part)

    @property
    def name(self) -> str:
        return basename(self.id)


@dataclass(frozen=True)
class Shortfall:
    """Images of a class, and of a part where the data set has parts, against what was published."""

    label: str
    part: str
    expected: int
    found: int


def table_of(download: Download, rows: Iterable[Row], notes: Sequence[str] = ()) -> ImageTable:
    """The rows in the order of their ids, with notes."""
    rows = sorted(rows, key=lambda row: row.id)
    if not rows:
        raise _no_class(download)
    _refuse_repeated(download, rows)
    top = os.path.commonpath([os.path.dirname(row.path) for row in rows])
    classes = tuple(sorted({row.label for row in rows}))
    number = {label: i for i, label in enumerate(classes)}
    return ImageTable(
        ids=tuple(row.id for row in rows),
        labels=np.array([number[row.label] for row in rows], np.int64),
        classes=classes,
        reader=Renamed(FileReader(Path(top)), {row.id: os.path.relpath(row.path, top) for row in rows}),
        groups=tuple(row.group for row in rows),
        sources=tuple(row.source for row in rows),
        notes=(*download.notes, *_count_notes(download.facts, rows), *notes, *_left_out(download, rows)),
        parts=tuple(row.part for row in rows),
        frames=tuple(row.frame for row in rows),
    )


def shortfalls(facts: DataSet, counts: Counter[tuple[str, str]]) -> list[Shortfall]:
    """What differs from the published counts; `counts` counts (class, part)."""
    if "" in facts.counts:  # published as one part: how the user has split it does not matter
        whole: Counter[tuple[str, str]] = Counter()
        for (label, _), n in counts.items():
            whole[label, ""] += n
        counts = whole
    listed = [
        Shortfall(label, part, expected, counts[label, part])
        for part, published in facts.counts.items()
        for label, expected in published.items()
    ]
    return [entry for entry in listed if entry.expected != entry.found]


def repeated_names(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """File name -> its images, where several have it."""
    by_name: defaultdict[str, list[Row]] = defaultdict(list)
    for row in rows:
        by_name[row.name].append(row)
    return {name: same for name, same in by_name.items() if len(same) > 1}


def listed(names: Iterable[str], most: int = 5) -> str:
    """A few names for a sentence."""
    every = list(names)
    return ", ".join(every[:most]) + (", ..." if len(every) > most else "")


def _refuse_repeated(download: Download, rows: Sequence[Row]) -> None:
    for before, row in pairwise(rows):
        if before.id == row.id:
            raise DataError(
                f"{row.id} is there twice below {download.root}: {before.path} and {row.path}; "
                f"remove one, or give the folder of one data set by data.root"
            )


def _no_class(download: Download) -> DataError:
    facts = download.facts
    archives = (
        f"; there are archives: {listed(file.path for file in download.archives)}"
        if download.archives
        else ""
    )
    return DataError(
        f"no class folder of {facts.title} at {download.root}; expected folders such as "
        f"{listed(list(facts.classes)[:3])} at any depth{archives}; give the folder or the archive by data.root "
        f"('endocil data where {facts.name}' shows where to get it)"
    )


def _count_notes(facts: DataSet, rows: Sequence[Row]) -> list[str]:
    differ = shortfalls(facts, Counter((row.label, row.part) for row in rows))
    notes = []
    for part, counts in facts.counts.items():
        here = [entry for entry in differ if entry.part == part]
        of_part = f" of its {part} part" if part else ""
        if len(here) == len(counts) and not any(entry.found for entry in here):
            notes.append(f"None of the {sum(counts.values()):,} images{of_part} is there.")
            continue
        less = [f"{e.label} {e.found} of {e.expected}" for e in here if e.found < e.expected]
        more = [f"{e.label} {e.found} for {e.expected}" for e in here if e.found > e.expected]
        if less:
            notes.append(f"{len(less)} classes{of_part} have fewer images than published: {listed(less)}.")
        if more:
            notes.append(f"{len(more)} classes{of_part} have more images than published: {listed(more)}.")
    return notes


def _left_out(download: Download, rows: Sequence[Row]) -> list[str]:
    notes = []
    if download.others:
        kinds = ", ".join(f"{n} {kind}" for kind, n in sorted(download.others.items()))
        notes.append(f"{download.others.total()} files that are no images were left out: {kinds}.")
    taken = {row.path for row in rows}
    unclassified = [file for file in download.unclassified if file.path not in taken]
    if unclassified:
        folders = sorted({"/".join(file.parts[:-1]) or "." for file in unclassified})
        notes.append(f"{len(unclassified):,} images in no class folder were left out: {listed(folders)}.")
    return notes


@dataclass(frozen=True)
class SplitFormat:
    """The format of the official split of a data set."""

    files: str  # pattern of their names; a bracket in it is the part of all images of the file
    image: str  # column of the file name
    label: str  # column of the class
    part: str = ""  # column of the part, where it is not in the file name

    def part_in(self, file: str) -> str:
        matched = re.fullmatch(self.files, file, re.IGNORECASE)
        name = matched[1] if matched and matched.groups() else ""
        return PARTS.get(name.lower(), name)


def with_official_parts(
    download: Download, rows: Sequence[Row], form: SplitFormat, splits: str | None
) -> tuple[list[Row], list[str]]:
    """The rows with their parts, and notes; the parts come from `splits`, or else from lists beside the images."""
    files = _chosen_files(form, splits) if splits else _files_beside(download, form)
    if form.part and len(files) > 1:
        names = " and ".join(sorted(path.name for path in files))
        if splits:
            raise DataError(f"data.splits = '{splits}' holds {names}; give one of the files")
        return list(rows), [f"There are official splits ({names}); choose one by data.splits = FILE."]
    if not files:
        return list(rows), []
    part_of = _read_parts(download, form, files)
    keys = [(row.label, splitext(row.name)[0]) for row in rows]
    known = set(keys)
    missing = sum(key not in known for key in part_of)
    with_parts = [replace(row, part=part_of.get(key, "")) for row, key in zip(rows, keys, strict=True)]
    n_parts = sum(row.part != "" for row in with_parts)
    notes = [
        f"{n_parts:,} of {len(rows):,} images are in the official split of {', '.join(path.name for path in files)}."
    ]
    if missing:
        notes.append(f"{missing:,} images of the official split are not there.")
    return with_parts, notes


def _chosen_files(form: SplitFormat, splits: str) -> list[Path]:
    place = expand(splits, "data.splits")
    if place.is_file():
        files = [place] if form.part or form.part_in(place.name) else []
    else:
        files = sorted(path for path in place.rglob("*.csv") if _fits(form, path.name))
    if not files:
        raise DataError(
            f"data.splits = '{splits}' holds no official split; expected files named {form.files} "
            f"with the columns {form.image}, {form.label}"
        )
    return files


def _files_beside(download: Download, form: SplitFormat) -> list[Path]:
    """Other lists may have the same name: only those with the right columns count."""
    paths = [Path(file.path) for file in download.labels if _fits(form, file.name)]
    return [path for path in paths if not _missing_columns(form, read_csv(path, ",;", any_bytes=False))]


def _fits(form: SplitFormat, name: str) -> bool:
    return re.fullmatch(form.files, name, re.IGNORECASE) is not None


def _missing_columns(form: SplitFormat, rows: Sequence[dict[str, str]]) -> set[str]:
    return {form.image, form.label, form.part} - {""} - (rows[0].keys() if rows else set())


def _read_parts(download: Download, form: SplitFormat, files: Sequence[Path]) -> dict[tuple[str, str], str]:
    """(class, file name without ending) -> part: names repeat between classes, and some lists leave endings out."""
    part_of: dict[tuple[str, str], str] = {}
    for path in files:
        rows = read_csv(path, ",;", any_bytes=False)
        missing = _missing_columns(form, rows)
        if missing:
            raise DataError(f"{path} has no column {', '.join(sorted(missing))}; expected an official split")
        for row in rows:
            label = download.facts.class_of(row[form.label])
            if label is None:
                raise DataError(f"{path}: '{row[form.label]}' is not a class of {download.facts.title}")
            key = (label, splitext(row[form.image].replace("\\", "/").rpartition("/")[2])[0])
            part = row[form.part] if form.part else form.part_in(path.name)
            if part_of.setdefault(key, part) != part:
                raise DataError(f"{path}: {'/'.join(key)} is in part {part_of[key]} and in part {part}")
    return part_of
