"""Image lists: the one reader of CSV and TSV files that name images, used by run, learn, predict and compare.

A row of a list is also what every loader of a data set makes for an image: `table_of` joins rows to a table.

A column is recognised by its name, whatever its case, spaces, underscores and hyphens: `file-name` and `File Name` are
the path. Fields are separated by commas, semicolons or tabs. Paths may have backslashes. They start at the folder of
the images and stay below it, unless the caller allows paths to other places.
"""

import os
import posixpath
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PureWindowsPath

import numpy as np

from endocil.data.readers import Renamed
from endocil.data.table import ImageTable, Reader
from endocil.errors import DataError, SettingsError
from endocil.io.files import expand, read_fields

LIST_SUFFIXES = (".csv", ".tsv", ".txt")
PARTS = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("val", "valid", "validate", "validation"), "validation"),
    **dict.fromkeys(("test", "testing"), "test"),
}
ROLES = {  # the first name of each role is preferred to its others
    "path": ("path", "file", "filename", "image", "imagepath", "filepath", "imagefile"),
    "label": ("label", "class", "classname", "finding", "category", "diagnosis"),
    "group": ("group", "patient", "patientid", "video", "videoid", "case", "study"),
    "source": ("source", "device", "centre", "center", "site"),
    "split": ("split", "part", "fold", "subset", "partition"),
    "task": ("task", "arrival"),
    "frame": ("frame", "framenumber"),
}
_MAX_DIGITS = 9  # of a task, a frame or a fold

Columns = Mapping[str, str | None]  # role -> name of its column, where the role's known names do not fit


@dataclass(frozen=True)
class Row:
    """One image; a missing value is "" or -1."""

    path: str  # as the reader knows it
    label: str = ""
    group: str = ""
    source: str = ""
    part: str = ""
    arrival: int = -1
    frame: int = -1
    id: str = ""  # in the table, where it is not the path


def table_of(rows: Sequence[Row], reader: Reader, notes: Sequence[str] = ()) -> ImageTable:
    """A table of these images in this order; classes are numbered in alphabetical order."""
    classes = tuple(sorted({row.label for row in rows}))
    number = {name: label for label, name in enumerate(classes)}
    paths = {row.id: row.path for row in rows if row.id}
    return ImageTable(
        ids=tuple(row.id or row.path for row in rows),
        labels=np.array([number[row.label] for row in rows], np.int64),
        classes=classes,
        reader=Renamed(reader, paths) if paths else reader,
        groups=tuple(row.group for row in rows),
        sources=tuple(row.source for row in rows),
        notes=tuple(notes),
        parts=tuple(row.part for row in rows),
        frames=tuple(row.frame for row in rows),
        arrivals=tuple(row.arrival for row in rows),
    )


def read_list(
    file: Path,
    columns: Columns | None = None,
    *,
    roles: Sequence[str] = tuple(ROLES),
    required: Sequence[str] = ("path", "label"),
    outside: bool = False,
    skip_unlabelled: bool = False,
) -> list[Row]:
    """All rows in the order of the file; columns of other roles than these are ignored.

    `outside`: paths may be absolute or lead out of the folder by `..`. `skip_unlabelled`: rows without a label are
    left out."""
    lines = read_fields(file, ",;\t", any_bytes=True)  # names of files need not be UTF-8
    header = [name.strip() for name in lines[0][1]] if lines else []
    numbers = {role: _column_number(file, header, role, columns, role in required) for role in roles}
    rows = []
    for number, fields in lines[1:]:
        try:
            if len(fields) != len(header):
                raise DataError(f"{len(fields)} fields; expected {len(header)} as in line {lines[0][0]}")
            texts = {role: fields[n].strip() for role, n in numbers.items() if n is not None}
            if skip_unlabelled and texts.get("label") == "":
                continue
            rows.append(_row(texts, outside, "label" in required))
        except DataError as error:
            raise DataError(f"{file}, line {number}: {error}") from None
    if not rows and len(lines) > 1:
        raise DataError(f"no line of {file} has a label yet; write the class of each image to be learned into it")
    if not rows:
        raise DataError(f"{file} lists no images; expected one line per image below the column names")
    arrival: dict[str, int] = {}
    for row in rows:
        first = arrival.setdefault(row.label, row.arrival)
        if (first < 0) != (row.arrival < 0):
            raise DataError(
                f"{file} gives a task to some images of the class '{row.label}' alone; give one to all, or to none"
            )
    return rows


def read_data_list(
    file: str, root: str | None, columns: Sequence[str | None], *, absolute_paths: bool, skip_unlabelled: bool = False
) -> tuple[Path, Path, list[Row]]:
    """By the settings of [data]: the list, the folder at which its paths start, and its rows, whose files all exist.

    `columns`: the names of the columns that were chosen, in the order of ROLES."""
    path = expand(file, "data.file")
    if not path.is_file():
        problem = "it is not a file" if path.exists() else "No such file"
        raise DataError(f"data.file: cannot read {path}: {problem}; give the list by --set data.file=FILE")
    rows = read_list(
        path, dict(zip(ROLES, columns, strict=True)), outside=absolute_paths, skip_unlabelled=skip_unlabelled
    )
    top = expand(root, "data.root") if root else path.parent
    listed = list(dict.fromkeys(row.path for row in rows))
    missing = [name for name in listed if not os.path.isfile(top / name)]
    if missing:
        shown = ", ".join(missing[:5]) + (", ..." if len(missing) > 5 else "")
        raise DataError(
            f"{len(missing)} of {len(listed)} files that {path} lists are not in {top}: {shown}; "
            f"give the folder at which the paths start by --set data.root=FOLDER, or remove them from the list"
        )
    return path, top, rows


def read_groups(file: Path, setting: str, ids: Sequence[str], folder: str = "") -> tuple[str, ...]:
    """The group of each image, from a list of paths and groups; its paths may start with `folder`, as `a/b/`."""
    group_of: dict[str, str] = {}
    for row in read_list(file, roles=("path", "group"), required=("path", "group"), outside=True):
        path = row.path.removeprefix(folder)
        if group_of.setdefault(path, row.group) != row.group:
            raise DataError(
                f"{setting} {file} puts {path} into two groups: {group_of[path]}, {row.group}; keep one of the lines"
            )
    missing = [image_id for image_id in ids if image_id not in group_of]
    if missing:
        raise DataError(
            f"{setting} {file} has no line for {len(missing):,} of {len(ids):,} images, first {missing[0]}; "
            f"give every image a line with its path and its group"
        )
    return tuple(group_of[image_id] for image_id in ids)


def _column_number(file: Path, header: Sequence[str], role: str, columns: Columns | None, required: bool) -> int | None:
    """The column of a role; none where the list does not have it."""
    chosen = (columns or {}).get(role)
    if chosen is not None:
        if header.count(chosen) != 1:
            problem = "which is more than one column" if chosen in header else "which is not a column"
            raise SettingsError(
                f"data.{role}_column is '{chosen}', {problem} of {file}; its columns are {', '.join(header)}"
            )
        return header.index(chosen)
    aliases = ROLES[role]
    plain = [re.sub(r"[\s_-]", "", name).casefold() for name in header]
    numbers = [n for n, name in enumerate(plain) if name == aliases[0]]
    numbers = numbers or [n for n, name in enumerate(plain) if name in aliases]
    way_out = f"--set data.{role}_column=NAME" if columns is not None else "renaming it in the list"
    if len(numbers) > 1:
        names = ", ".join(header[n] for n in numbers)
        raise DataError(f"{file} has {len(numbers)} columns that may be the {role}: {names}; choose one by {way_out}")
    if not numbers and required:
        raise DataError(
            f"{file} has the columns {', '.join(header) or 'none'}; none is known as the {role} "
            f"({', '.join(aliases)}); choose one by {way_out}"
        )
    return numbers[0] if numbers else None


def _row(texts: Mapping[str, str], outside: bool, labelled: bool) -> Row:
    if labelled and texts.get("label") == "":
        raise DataError("the label is empty; every image needs one")
    for role in ("label", "source"):  # a path or a group (named after a path) may be any bytes
        if re.search("[\ud800-\udfff]", texts.get(role, "")):
            raise DataError("is not UTF-8 text; save the file as UTF-8")
    path = posixpath.normpath(texts["path"].replace("\\", "/")) if texts["path"] else ""
    if path in ("", "."):
        raise DataError("the path is empty")
    if not outside and (path.startswith("/") or PureWindowsPath(path).drive):
        raise DataError(
            f"{texts['path']!r} is an absolute path; give it relative to data.root, or set data.absolute_paths = true"
        )
    if not outside and (path == ".." or path.startswith("../")):
        raise DataError(f"{texts['path']!r} leaves the folder of the images; choose a data.root above it")
    split = texts.get("split", "")
    if split.isdecimal():
        part = str(_whole_number("fold", split))
    elif split and split.casefold() not in PARTS:
        raise DataError(f"the split is {split[:40]!r}; expected train, validation, test or the number of a fold")
    else:
        part = PARTS.get(split.casefold(), "")
    return Row(
        path=path,
        label=texts.get("label", ""),
        group=texts.get("group", ""),
        source=texts.get("source", ""),
        part=part,
        arrival=_whole_number("task", texts.get("task", "")),
        frame=_whole_number("frame", texts.get("frame", "")),
    )


def _whole_number(role: str, text: str) -> int:
    if text and (not text.isdecimal() or len(text) > _MAX_DIGITS):
        shown = text if len(text) <= 40 else f"{text[:40]}..."
        raise DataError(
            f"the {role} is '{shown}'; expected a whole number from 0 on with at most {_MAX_DIGITS} digits, or nothing"
        )
    return int(text) if text else -1
