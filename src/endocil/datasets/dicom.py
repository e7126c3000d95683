"""DICOM files: a folder for each class, or a list as in `data/lists.py`; every frame of a file is an image.

Of a folder the files that end in .dcm or .dicom count, and those without an ending that begin as DICOM does. A
list may have a column `frame` (from 1 on) that names one frame of a file. Images of one file are a group, or
those with the same value of the element `group_by` (PatientID, StudyInstanceUID): a hash of the value is kept,
not the value; whoever has a list of all values could match them. The value of `source_tag` (Manufacturer) is kept
as it is.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from endocil.data.dicom import DicomReader, Window, count_frames, pydicom, read_header
from endocil.data.lists import Row, read_data_list
from endocil.data.table import ImageTable, UnreadableImageError
from endocil.datasets.csv import table_of, without_repeats
from endocil.datasets.folder import ClassFrom, find_files, with_classes
from endocil.errors import SettingsError
from endocil.io.files import refuse_special
from endocil.io.walk import is_hidden

SUFFIXES = (".dcm", ".dicom")


def load(
    *,
    root: str | None = None,
    file: str | None = None,
    class_from: ClassFrom = "first",
    group_by: str = "file",
    source_tag: str | None = None,
    window: Window = "file",
    double_labels: Literal["refuse", "keep"] = "refuse",
    absolute_paths: bool = False,
    path_column: str | None = None,
    label_column: str | None = None,
    group_column: str | None = None,
    source_column: str | None = None,
    split_column: str | None = None,
    task_column: str | None = None,
    frame_column: str | None = None,
) -> ImageTable:
    """The frames of all DICOM files below `root`, or of those that the list `file` names."""
    tags = _Tags(
        None if group_by == "file" else _checked_keyword("group_by", group_by),
        _checked_keyword("source_tag", source_tag),
    )
    if file is not None:
        columns = {
            "path": path_column,
            "label": label_column,
            "group": group_column,
            "source": source_column,
            "split": split_column,
            "task": task_column,
            "frame": frame_column,
        }
        listing, top, rows = read_data_list(file, root, columns, absolute_paths=absolute_paths)
        notes = list[str]()
    elif root is not None:
        classified = with_classes(find_files(root, "DICOM file", _is_dicom), class_from)
        top = listing = classified.top
        rows, notes = [Row(path, label) for path, label in classified.files], list(classified.notes)
    else:
        raise SettingsError(
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
    """The elements to read from the headers."""

    group: str | None
    source: str | None

    @property
    def names(self) -> list[str]:
        return [name for name in (self.group, self.source) if name]


def _checked_keyword(option: str, name: str | None) -> str | None:
    if name is not None and pydicom().datadict.tag_for_keyword(name) is None:
        raise SettingsError(
            f"data.{option} is '{name}', which is not a DICOM keyword; expected one such as PatientID or Manufacturer"
        )
    return name


def _is_dicom(path: Path) -> bool:
    if is_hidden(path.name):
        return False
    if path.suffix.lower() in SUFFIXES:
        return True
    if path.suffix or path.name == "DICOMDIR":  # the directory of a disc holds no image
        return False
    try:
        refuse_special(path)
        with open(path, "rb") as file:
            return file.read(132)[128:] == b"DICM"
    except OSError:
        return False


def _frames(top: Path, row: Row, tags: _Tags) -> Sequence[Row]:
    """A row for each frame of a file. An unreadable one stays one image, and is reported when it is decoded."""
    path = top / row.path
    try:
        header = read_header(path, tags.names)
        n = count_frames(path, header)
    except UnreadableImageError:
        return [row]
    source = row.source or (_text(header.get(tags.source)) if tags.source else "")
    whole = replace(row, source=source, group=row.group or _group(header, row.path, tags))
    if n == 1 and row.frame in (-1, 1):
        return [whole]  # a frame that does not exist is reported when it is read
    numbers = [row.frame] if row.frame >= 0 else range(1, n + 1)
    return [replace(whole, path=f"{row.path}#{number}", frame=number) for number in numbers]


def _group(header: object, path: str, tags: _Tags) -> str:
    if tags.group is None:
        return path
    value = _text(getattr(header, tags.group, None))
    return hashlib.sha256(f"{tags.group}\0{value}".encode()).hexdigest()[:16] if value else ""


def _text(value: object) -> str:
    return "" if value is None else str(value).strip()
