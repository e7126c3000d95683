"""DICOM files: a folder for each class, or a list as in `data/lists.py`; every frame of a file is an image.

Of a folder the files that end in .dcm or .dicom count, and those without an ending that begin as DICOM does. A
list may have a column `frame` (from 1 on) that names one frame of a file. Images of one file are a group, or
those with the same value of the element `group_by` (PatientID, StudyInstanceUID): a hash of the value is kept,
not the value; anyone with a list of all values could match them. The value of `source_tag` (Manufacturer) is kept
as it is.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from endocil.data.dicom import SUFFIXES, DicomReader, Window, count_frames, pydicom, read_header
from endocil.data.lists import Row, read_data_list
from endocil.data.table import ImageTable, UnreadableImageError
from endocil.datasets.csv import table_without_repeats
from endocil.datasets.folder import ClassFrom, find_files, with_classes
from endocil.errors import SettingsError
from endocil.io.files import refuse_special
from endocil.io.walk import is_hidden


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
    skip_unlabelled: bool = False,
    path_column: str | None = None,
    label_column: str | None = None,
    group_column: str | None = None,
    source_column: str | None = None,
    split_column: str | None = None,
    task_column: str | None = None,
    frame_column: str | None = None,
) -> ImageTable:
    """The frames of all DICOM files below `root`, or of those that the list `file` names."""
    group_tag = None if group_by == "file" else group_by
    for option, tag in (("group_by", group_tag), ("source_tag", source_tag)):
        if tag is not None and pydicom().datadict.tag_for_keyword(tag) is None:
            raise SettingsError(
                f"data.{option} is '{tag}', which is not a DICOM keyword; "
                f"expected one such as PatientID or Manufacturer"
            )
    rows: Sequence[Row]
    notes: tuple[str, ...] = ()
    if file is not None:
        columns = (path_column, label_column, group_column, source_column, split_column, task_column, frame_column)
        listing, top, rows = read_data_list(
            file, root, columns, absolute_paths=absolute_paths, skip_unlabelled=skip_unlabelled
        )
    elif root is not None:
        classified = with_classes(find_files(root, "DICOM file", _is_dicom), class_from)
        top = listing = classified.top
        rows, notes = classified.rows, classified.notes
    else:
        raise SettingsError("data.root and data.file are not set; give the folder of the DICOM files or a list")
    frames = [frame for row in rows for frame in _frames(top, row, group_tag, source_tag)]
    table = table_without_repeats(listing, frames, DicomReader(top, window), double_labels, notes)
    ungrouped = table.groups.count("")
    if group_tag and ungrouped:
        note = f"Images without {group_by}, which belong to no group: {ungrouped}."
        table = replace(table, notes=(*table.notes, note))
    return table


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


def _frames(top: Path, row: Row, group_tag: str | None, source_tag: str | None) -> list[Row]:
    """A row for each frame of a file. An unreadable one stays one image, and is reported when it is decoded."""
    path = top / row.path
    try:
        header = read_header(path, [tag for tag in (group_tag, source_tag) if tag])
        n = count_frames(path, header)
    except UnreadableImageError:
        return [row]
    group, source = row.group, row.source
    if not group and group_tag is None:
        group = row.path
    elif not group and (value := _text(header, group_tag)):
        group = hashlib.sha256(f"{group_tag}\0{value}".encode()).hexdigest()[:16]
    whole = replace(row, group=group, source=source or _text(header, source_tag))
    if n == 1 and row.frame in (-1, 1):
        return [whole]  # a frame that does not exist is reported when it is read
    numbers = [row.frame] if row.frame >= 0 else range(1, n + 1)
    return [replace(whole, path=f"{row.path}#{number}", frame=number) for number in numbers]


def _text(header: Any, tag: str | None) -> str:
    value = header.get(tag) if tag else None
    return "" if value is None else str(value).strip()
