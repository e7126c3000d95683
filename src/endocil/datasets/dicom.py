"""DICOM files: a folder for each class, or a list as in `listing.py`; every frame of a file is an image.

Of a folder the files that end in .dcm or .dicom count, and those without an ending that begin as DICOM does. A
list may have a column `frame` (from 1 on) that names one frame of a file. Images of one file are a group, or
those with the same value of the element `group_by` (PatientID, StudyInstanceUID): a hash of the value is kept,
not the value; whoever has a list of all values could match them. What `source_tag` names (Manufacturer) is kept
as it is.
"""

import hashlib
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from endocil.datasets.listing import Row, read_listing, refuse_missing
from endocil.datasets.table_file import table_of, without_repeats
from endocil.errors import EndocilError
from endocil.files import expand
from endocil.images.dicom import DicomReader, count_frames, pydicom, read_header
from endocil.images.shades import Window
from endocil.images.table import ImageTable, UnreadableImageError

SUFFIXES = (".dcm", ".dicom")


def load(
    *,
    root: str | None = None,
    file: str | None = None,
    class_from: Literal["first", "leaf"] = "first",
    group_by: str = "file",
    source_tag: str | None = None,
    window: Window = "file",
    double_labels: Literal["refuse", "keep"] = "refuse",
    absolute_paths: bool = False,
) -> ImageTable:
    """The frames of all DICOM files below `root`, or of those that the list `file` names."""
    tags = _Tags(
        None if group_by == "file" else _known("group_by", group_by), _known("source_tag", source_tag)
    )
    if file is not None:
        listing = expand(file, "data.file")
        listed = read_listing(listing, {}, absolute_paths=absolute_paths)
        top = expand(root, "data.root") if root else listing.parent
        refuse_missing(listing, top, (row.path for row in listed))
        rows, notes = list(listed), list[str]()
    elif root is not None:
        top = listing = expand(root, "data.root")
        rows, notes = _found(top, class_from)
    else:
        raise EndocilError(
            "data.root and data.file are not set; give the folder of the DICOM files or a list"
        )
    frames = [frame for row in rows for frame in _frames(top, row, tags)]
    kept, repeated = without_repeats(listing, frames, double_labels)
    unknown = sum(not row.group for row in kept)
    if tags.group and unknown:
        notes.append(f"{unknown} images do not have {group_by} and belong to no group.")
    return table_of(kept, DicomReader(top, window), [*notes, *repeated])


@dataclass(frozen=True)
class _Tags:
    """The elements that were asked for."""

    group: str | None
    source: str | None

    @property
    def names(self) -> list[str]:
        return [name for name in (self.group, self.source) if name]


def _known(option: str, name: str | None) -> str | None:
    if name is not None and pydicom().datadict.tag_for_keyword(name) is None:
        raise EndocilError(
            f"data.{option} is '{name}', which is no DICOM keyword; expected one such as PatientID or Manufacturer"
        )
    return name


def _found(top: Path, class_from: Literal["first", "leaf"]) -> tuple[list[Row], list[str]]:
    """The DICOM files below a folder with their classes, and what was left out. Links to folders are not followed."""
    if not top.is_dir():
        raise EndocilError(
            f"data.root = '{top}' is no folder; give the folder of the DICOM files by --set data.root=FOLDER"
        )
    rows, others, homeless = list[Row](), Counter[str](), 0
    for path in _files(top):
        parts = path.split("/")
        if not _looks_like_dicom(top / path):
            others[os.path.splitext(path)[1].lower() or "without ending"] += 1
        elif len(parts) == 1:
            homeless += 1
        else:
            rows.append(Row(path, parts[0] if class_from == "first" else parts[-2]))
    if not rows:
        raise EndocilError(f"no DICOM file in a folder below {top}; expected one folder of files per class")
    notes = []
    if others:
        kinds = ", ".join(f"{n} {ending}" for ending, n in sorted(others.items()))
        notes.append(f"{others.total()} files that are not DICOM were left out: {kinds}.")
    if homeless:
        notes.append(f"{homeless} DICOM files in no class folder were left out.")
    return rows, notes


def _files(top: Path) -> Iterator[str]:
    for place, folders, files in os.walk(top):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(files):
            if not name.startswith("."):
                yield (Path(place) / name).relative_to(top).as_posix()


def _looks_like_dicom(path: Path) -> bool:
    if path.suffix.lower() in SUFFIXES:
        return True
    if path.suffix or path.name == "DICOMDIR":  # the directory of a disc holds no image
        return False
    try:
        with open(path, "rb") as file:
            return file.read(132)[128:] == b"DICM"
    except OSError:
        return False


def _frames(top: Path, row: Row, tags: _Tags) -> Sequence[Row]:
    """A row for each frame of a file. One that cannot be read stays one image, and is listed when it is decoded."""
    path = top / row.path
    try:
        header = read_header(path, tags.names)
        n = count_frames(path, header)
    except UnreadableImageError:
        return [row]
    source = row.source or (_text(header.get(tags.source)) if tags.source else "")
    whole = replace(row, source=source, group=row.group or _group(header, row.path, tags))
    if n == 1:
        return [whole]
    chosen = [row.frame] if row.frame >= 0 else range(1, n + 1)
    return [replace(whole, path=f"{row.path}#{number}", frame=number) for number in chosen]


def _group(header: object, path: str, tags: _Tags) -> str:
    if tags.group is None:
        return path
    value = _text(getattr(header, tags.group, None))
    return hashlib.sha256(f"{tags.group}\0{value}".encode()).hexdigest()[:16] if value else ""


def _text(value: object) -> str:
    return "" if value is None else str(value).strip()
