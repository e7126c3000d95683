"""Hyper-Kvasir, GastroVision and Kvasir-Capsule: the labelled images in a folder for each class, and official splits.

- Hyper-Kvasir (Borgli et al., 2020): labeled-images/<organ>/<category>/<class>/<file>.jpg
- GastroVision (Jha et al., 2023): Gastrovision/<class>/<file>.jpg, also as {train,val,test}/<class>/<file>.jpg
- Kvasir-Capsule (Smedsrud et al., 2021): <class>/<video>_<frame>.jpg
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from os.path import splitext
from pathlib import Path
from posixpath import basename

from endocil.data.lists import PARTS, Row
from endocil.data.table import ImageTable
from endocil.datasets.public.downloads import Download, find_download, listed, repeated_names, table_of, with_video
from endocil.datasets.public.facts import PUBLIC, DataSet
from endocil.errors import DataError
from endocil.io.archives import Progress
from endocil.io.files import expand, read_csv


@dataclass(frozen=True)
class SplitFormat:
    """The format of the official split of a data set."""

    files: str  # pattern of their names; a bracket in it is the part of all images of the file
    image: str  # column of the file name
    label: str  # column of the class
    part: str = ""  # column of the part, where it is not in the file name

    def fits(self, file: str) -> re.Match[str] | None:
        return re.fullmatch(self.files, file, re.IGNORECASE)

    def part_in(self, file: str) -> str:
        matched = self.fits(file)
        name = matched[1] if matched and matched.groups() else ""
        return PARTS.get(name.lower(), name)

    def missing_columns(self, rows: Sequence[dict[str, str]]) -> set[str]:
        return {self.image, self.label, self.part} - {""} - (rows[0].keys() if rows else set())


def hyper_kvasir(*, root: str, splits: str | None = None, progress: Progress | None = None) -> ImageTable:
    """The images at `root`, a folder or the archive; `splits` is one of the official k-fold lists."""
    form = SplitFormat(r"\d_fold_split\.csv", "file-name", "class-name", "split-index")
    return _load("hyper-kvasir", form, root, splits, progress)


def gastrovision(*, root: str, splits: str | None = None, progress: Progress | None = None) -> ImageTable:
    """The images at `root`, a folder or the archive; `splits` is the folder of train, validate and test.csv."""
    form = SplitFormat(r"(train|validate|test)\.csv", "Filename", "Class")
    note = "{n} file names occur in several classes ({names}): an image is known by class and name."
    return _load("gastrovision", form, root, splits, progress, repeated_note=note)


def kvasir_capsule(*, root: str, splits: str | None = None, progress: Progress | None = None) -> ImageTable:
    """The images at `root`, a folder or an archive; `splits` is the folder of the two official lists."""
    form = SplitFormat(r"split_(\d)\.csv", "filename", "label")
    note = "{n} frames are in two classes, and kept in both: {names}."
    frame = re.compile(r"(.+)_(\d{1,9})\.\w+")
    return _load("kvasir-capsule", form, root, splits, progress, repeated_note=note, video=frame)


def _load(
    name: str,
    form: SplitFormat,
    root: str,
    splits: str | None,
    progress: Progress | None,
    *,
    repeated_note: str = "",
    video: re.Pattern[str] | None = None,
) -> ImageTable:
    """`repeated_note`: a sentence on file names that several images have, with {n} and {names}. `video`: the pattern of
    file names that tell video and frame."""
    download = find_download(PUBLIC[name], root, progress=progress)
    rows, notes = _with_official_parts(download, form, splits)
    names = repeated_names(rows)
    if names and repeated_note:
        notes.append(repeated_note.format(n=len(names), names=listed(names)))
    return table_of(download, [with_video(row, video) for row in rows] if video else rows, notes)


def _with_official_parts(download: Download, form: SplitFormat, splits: str | None) -> tuple[Sequence[Row], list[str]]:
    """The images with their parts, and notes; the parts come from `splits`, or else from lists beside the images."""
    rows = download.images
    if splits:
        files = _chosen_files(form, splits)
    else:  # other lists may have the same name: only those with the right columns count
        beside = [Path(file.path) for file in download.labels if form.fits(file.name)]
        files = [path for path in beside if not form.missing_columns(read_csv(path, ",;", any_bytes=False))]
    if form.part and len(files) > 1:
        names = " and ".join(sorted(path.name for path in files))
        if splits:
            raise DataError(f"data.splits = '{splits}' holds {names}; give one of the files")
        return rows, [f"There are official splits ({names}); choose one by data.splits = FILE."]
    if not files:
        return rows, []
    part_of = _read_parts(download.facts, form, files)
    keys = [(row.label, splitext(basename(row.id))[0]) for row in rows]
    known = set(keys)
    missing = sum(key not in known for key in part_of)
    with_parts = [replace(row, part=part_of.get(key, "")) for row, key in zip(rows, keys, strict=True)]
    n_parts = sum(row.part != "" for row in with_parts)
    names = ", ".join(path.name for path in files)
    notes = [f"{n_parts:,} of {len(rows):,} images are in the official split of {names}."]
    if missing:
        notes.append(f"{missing:,} images of the official split are not there.")
    return with_parts, notes


def _chosen_files(form: SplitFormat, splits: str) -> list[Path]:
    place = expand(splits, "data.splits")
    if place.is_file():
        files = [place] if form.part or form.part_in(place.name) else []
    else:
        files = sorted(path for path in place.rglob("*.csv") if form.fits(path.name))
    if not files:
        raise DataError(
            f"data.splits = '{splits}' holds no official split; expected files named {form.files} "
            f"with the columns {form.image}, {form.label}"
        )
    return files


def _read_parts(facts: DataSet, form: SplitFormat, files: Sequence[Path]) -> dict[tuple[str, str], str]:
    """(class, file name without ending) -> part: names repeat between classes, and some lists leave endings out."""
    part_of: dict[tuple[str, str], str] = {}
    for path in files:
        rows = read_csv(path, ",;", any_bytes=False)
        missing = form.missing_columns(rows)
        if missing:
            raise DataError(f"{path} has no column {', '.join(sorted(missing))}; expected an official split")
        for row in rows:
            label = facts.class_of(row[form.label])
            if label is None:
                raise DataError(f"{path}: '{row[form.label]}' is not a class of {facts.title}")
            key = (label, splitext(row[form.image].replace("\\", "/").rpartition("/")[2])[0])
            part = row[form.part] if form.part else form.part_in(path.name)
            if part_of.setdefault(key, part) != part:
                raise DataError(f"{path}: {'/'.join(key)} is in part {part_of[key]} and in part {part}")
    return part_of
