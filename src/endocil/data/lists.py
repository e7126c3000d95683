"""A list of images in a text file: which column says what, and rows that can be trusted.

Columns are found by their names, without regard to case, spaces and underscores; fields are separated by
commas, semicolons or tabs. Paths may have backslashes. They start at `root` and stay below it; links that lie
there are followed. An absolute path counts only where the caller allows it.
"""

import os
import posixpath
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path, PureWindowsPath

from endocil.errors import EndocilError
from endocil.io.files import expand, read_fields

PARTS = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("val", "valid", "validate", "validation"), "validation"),
    **dict.fromkeys(("test", "testing"), "test"),
}
ROLES = {  # the first name of each role wins over its others
    "path": ("path", "file", "filename", "image", "imagepath", "filepath", "imagefile"),
    "label": ("label", "class", "classname", "finding", "category", "diagnosis"),
    "group": ("group", "patient", "patientid", "video", "videoid", "case", "study"),
    "source": ("source", "device", "centre", "center", "site"),
    "split": ("split", "part", "fold", "subset", "partition"),
    "task": ("task", "arrival"),
    "frame": ("frame", "framenumber"),
}
_NEEDED = ("path", "label")
_DIGITS = 9  # of a task, a frame or a fold: none has a billion


@dataclass(frozen=True)
class Row:
    """One image as the list has it; what it does not say is "" or -1."""

    path: str
    label: str
    group: str = ""
    source: str = ""
    part: str = ""
    arrival: int = -1
    frame: int = -1


def listed(
    file: str, root: str | None, columns: Mapping[str, str | None], *, absolute_paths: bool
) -> tuple[Path, Path, list[Row]]:
    """The list, the folder that its paths start from, and its rows, whose files are all there."""
    listing = expand(file, "data.file")
    rows = read_listing(listing, columns, absolute_paths=absolute_paths)
    top = expand(root, "data.root") if root else listing.parent
    refuse_missing(listing, top, (row.path for row in rows))
    return listing, top, rows


def read_listing(file: Path, columns: Mapping[str, str | None], *, absolute_paths: bool) -> list[Row]:
    """All rows in the file's order; `columns` names the column of a role where its name alone does not tell."""
    try:
        found = read_fields(file, ",;\t", any_bytes=False)
    except EndocilError as error:
        raise EndocilError(f"data.file: {error}") from error
    header, lines = [name.strip() for name in found[0][1]] if found else [], found[1:]
    place = _places(file, header, columns)
    rows = []
    for number, line in lines:
        if len(line) != len(header):
            raise EndocilError(
                f"{file}, line {number}: {len(line)} fields; expected {len(header)} as in line {found[0][0]}"
            )
        said = {role: line[column].strip() for role, column in place.items()}
        try:
            rows.append(_row(said, absolute_paths))
        except EndocilError as error:
            raise EndocilError(f"{file}, line {number}: {error}") from None
    if not rows:
        raise EndocilError(f"{file} lists no images; expected a line for each below the names of the columns")
    _refuse_late_images(file, rows)
    return rows


def refuse_missing(file: Path, root: Path, paths: Iterable[str]) -> None:
    """One error for all the listed files that are not there."""
    wanted = list(dict.fromkeys(paths))
    missing = [path for path in wanted if not os.path.isfile(root / path)]
    if missing:
        listed = ", ".join(missing[:5]) + (", ..." if len(missing) > 5 else "")
        raise EndocilError(
            f"{len(missing)} of {len(wanted)} files that {file} lists are not in {root}: {listed}; "
            f"give the folder at which the paths start by --set data.root=FOLDER, or take them off the list"
        )


def _places(file: Path, header: list[str], columns: Mapping[str, str | None]) -> dict[str, int]:
    """Role -> number of its column."""
    place = {}
    for role, aliases in ROLES.items():
        column = _column(file, header, role, aliases, columns.get(role))
        if column is not None:
            place[role] = column
        elif role in _NEEDED:
            raise EndocilError(
                f"{file} has the columns {', '.join(header) or 'none'}; none is known as the {role} "
                f"({', '.join(aliases)}); name it by --set data.{role}_column=NAME"
            )
    return place


def _column(
    file: Path, header: list[str], role: str, aliases: tuple[str, ...], named: str | None
) -> int | None:
    if named is not None:
        if header.count(named) != 1:
            times = "twice" if named in header else "not"
            raise EndocilError(
                f"data.{role}_column is '{named}', which is {times} a column of {file}: {', '.join(header)}"
            )
        return header.index(named)
    plain = [re.sub(r"[\s_-]", "", name).casefold() for name in header]
    exact = [number for number, name in enumerate(plain) if name == aliases[0]]
    found = exact or [number for number, name in enumerate(plain) if name in aliases]
    if len(found) > 1:
        raise EndocilError(
            f"{file} has {len(found)} columns that may be the {role}: "
            f"{', '.join(header[number] for number in found)}; choose by --set data.{role}_column=NAME"
        )
    return found[0] if found else None


def _row(said: Mapping[str, str], absolute_paths: bool) -> Row:
    if not said["label"]:
        raise EndocilError("the label is empty; every image needs one")
    return Row(
        path=_checked_path(said["path"], absolute_paths),
        label=said["label"],
        group=said.get("group", ""),
        source=said.get("source", ""),
        part=_part(said.get("split", "")),
        arrival=_number("task", said.get("task", "")),
        frame=_number("frame", said.get("frame", "")),
    )


def _checked_path(text: str, absolute_paths: bool) -> str:
    path = posixpath.normpath(text.replace("\\", "/")) if text else ""
    if path in ("", "."):
        raise EndocilError("the path is empty")
    if path.startswith("/") or PureWindowsPath(path).drive:
        if not absolute_paths:
            raise EndocilError(
                f"'{text}' is an absolute path; list it from data.root on, or set data.absolute_paths = true"
            )
    elif path == ".." or path.startswith("../"):
        raise EndocilError(f"'{text}' leaves the folder of the images; give a data.root above it")
    return path


def _part(text: str) -> str:
    if text == "" or text.isdecimal():
        return str(_number("fold", text)) if text else ""
    if text.casefold() not in PARTS:
        raise EndocilError(
            f"the split is '{text[:40]}'; expected train, validation, test or the number of a fold"
        )
    return PARTS[text.casefold()]


def _number(role: str, text: str) -> int:
    if text and (not text.isdecimal() or len(text) > _DIGITS):
        shown = text if len(text) <= 40 else f"{text[:40]}..."
        raise EndocilError(
            f"the {role} is '{shown}'; expected a whole number from 0 on with at most {_DIGITS} digits, or nothing"
        )
    return int(text) if text else -1


def _refuse_late_images(file: Path, rows: list[Row]) -> None:
    """A class arrives once: all its images in one task."""
    arrival: dict[str, int] = {}
    for row in rows:
        first = arrival.setdefault(row.label, row.arrival)
        if first != row.arrival:
            both = " and ".join("none" if task < 0 else str(task) for task in sorted((first, row.arrival)))
            raise EndocilError(
                f"{file} has the class '{row.label}' in two tasks, {both}; a class arrives in one"
            )
