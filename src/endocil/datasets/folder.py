"""Image folders: the name of a folder is the class of the images in it.

class_from = "first": root/polyp/day-1/001.jpg is a "polyp", whatever lies between
class_from = "leaf":  root/lower-gi-tract/landmarks/cecum/001.jpg is a "cecum", at any depth
"""

import os
import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from posixpath import commonpath, dirname
from typing import Literal

import numpy as np

from endocil.errors import EndocilError
from endocil.files import read_csv
from endocil.images.decode import IMAGE_SUFFIXES, FileReader
from endocil.images.table import ImageTable


def load(
    *, root: str, class_from: Literal["first", "leaf"] = "first", groups: str | None = None
) -> ImageTable:
    """All images below `root`; `groups` is a CSV file (path, group) of images that belong together."""
    if class_from not in ("first", "leaf"):
        raise EndocilError(f"data.class_from is '{class_from}'; expected 'first' or 'leaf'")
    top = _existing_folder(root)
    found = _find(top)
    below = _leading_folders(found) if class_from == "leaf" else ""  # ids do not depend on how high root is
    class_of = _classes_by_leaf(top, found, below) if class_from == "leaf" else _classes_by_first(top, found)
    ids = sorted(path.removeprefix(below) for path in found.images if dirname(path) in class_of)
    names = [class_of[dirname(below + image_id)] for image_id in ids]
    classes = tuple(sorted(set(names)))
    label = {name: number for number, name in enumerate(classes)}
    return ImageTable(
        ids=tuple(ids),
        labels=np.array([label[name] for name in names], np.int64),
        classes=classes,
        reader=FileReader(top / below),
        groups=_read_groups(groups, ids, below) if groups else ("",) * len(ids),
        sources=("",) * len(ids),
        notes=_notes(found, len(ids)),
    )


def expand(text: str, setting: str) -> Path:
    """A path with ~ and $VARIABLES filled in; a variable that is not set is named."""
    path = Path(os.path.expandvars(text)).expanduser()
    left = re.search(r"\$\{?(\w+)", str(path))
    if left and not path.exists():
        raise EndocilError(
            f"{setting} = '{text}': the environment variable {left[1]} is not set; "
            f"set it, or give the path by --set {setting}=PATH"
        )
    return path


@dataclass
class _Found:
    """What lies below a folder; paths are relative to it, with forward slashes."""

    images: list[str] = field(default_factory=list)
    empty: list[str] = field(default_factory=list)  # folders with neither images nor folders
    folders: list[str] = field(default_factory=list)  # those directly below
    others: Counter[str] = field(default_factory=Counter)  # endings of files that are no images


def _existing_folder(root: str) -> Path:
    top = expand(root, "data.root")
    if not top.is_dir():
        kind = "is no folder" if top.exists() else "does not exist"
        raise EndocilError(
            f"data.root = '{root}' {kind}; give the folder of the images by --set data.root=FOLDER"
        )
    return top


def _find(top: Path) -> _Found:
    """Walks through links to folders too, unless they lead back up."""
    found = _Found()
    for place, folders, files in os.walk(top, followlinks=True, onerror=_cannot_list):
        folders[:] = sorted(name for name in folders if not (_hidden(name) or _leads_up(place, name)))
        here = "" if Path(place) == top else Path(place).relative_to(top).as_posix() + "/"
        images = [name for name in files if _is_image(name)]
        found.images += [here + name for name in images]
        found.others.update(_ending(name) for name in files if not _is_image(name))
        if not here:
            found.folders = list(folders)
        elif not images and not folders:
            found.empty.append(here.removesuffix("/"))
    return found


def _classes_by_first(top: Path, found: _Found) -> dict[str, str]:
    """Folder that holds images -> its class; images directly in the top folder have none."""
    class_of = {place: place.split("/")[0] for place in _places(found)}
    if not found.folders:
        raise EndocilError(f"data.root {top} has no folders; expected one folder of images per class")
    _refuse_empty(top, sorted(set(found.folders) - set(class_of.values())))
    return class_of


def _classes_by_leaf(top: Path, found: _Found, below: str) -> dict[str, str]:
    class_of = {place: place.split("/")[-1] for place in _places(found)}
    if not class_of:
        raise EndocilError(
            f"data.root {top} has no folder with images; expected one folder of images per class"
        )
    _refuse_empty(top, [place for place in found.empty if place.startswith(below)])
    first: dict[str, str] = {}
    for place, name in class_of.items():
        if name in first:
            raise EndocilError(
                f"the class '{name}' is there twice below {top}: {first[name]} and {place}; "
                f"rename one of the folders, or move the images together"
            )
        first[name] = place
    return class_of


def _places(found: _Found) -> list[str]:
    return sorted({dirname(path) for path in found.images} - {""})


def _leading_folders(found: _Found) -> str:
    """The folders that all class folders lie in, as `a/b/`, or nothing."""
    parents = [dirname(place) for place in _places(found)]
    common = commonpath(parents) if parents else ""
    return f"{common}/" if common else ""


def _refuse_empty(top: Path, empty: list[str]) -> None:
    if empty:
        listed = ", ".join(empty[:5]) + (", ..." if len(empty) > 5 else "")
        raise EndocilError(
            f"no image in {len(empty)} class folder(s) of {top}: {listed}; "
            f"put images there or remove the folder(s)"
        )


def _read_groups(groups: str, ids: list[str], below: str) -> tuple[str, ...]:
    """One group per image; the file's paths start at root or at the folder that holds the class folders."""
    path = expand(groups, "data.groups")
    group_of: dict[str, str] = {}
    for row in read_csv(path):
        if not {"path", "group"} <= row.keys():
            raise EndocilError(f"data.groups {path} has the columns {', '.join(row)}; expected path, group")
        name = row["path"].replace("\\", "/").removeprefix("./").removeprefix(below)
        if group_of.setdefault(name, row["group"]) != row["group"]:
            raise EndocilError(
                f"data.groups {path} puts {name} into two groups: {group_of[name]}, {row['group']}"
            )
    missing = [image_id for image_id in ids if image_id not in group_of]
    if missing:
        raise EndocilError(
            f"data.groups {path} has no line for {len(missing)} of {len(ids)} images, first {missing[0]}; "
            f"give every image a line with its path below data.root"
        )
    return tuple(group_of[image_id] for image_id in ids)


def _notes(found: _Found, n_images: int) -> tuple[str, ...]:
    notes = []
    if found.others:
        kinds = ", ".join(f"{n} {ending}" for ending, n in sorted(found.others.items()))
        notes.append(f"{found.others.total()} files that are no images were left out: {kinds}.")
    if len(found.images) > n_images:
        notes.append(f"{len(found.images) - n_images} images in no class folder were left out.")
    return tuple(notes)


def _leads_up(place: str, name: str) -> bool:
    target = os.path.join(os.path.realpath(os.path.join(place, name)), "")
    return os.path.join(os.path.realpath(place), "").startswith(target)


def _hidden(name: str) -> bool:
    return name.startswith(".") or name == "__MACOSX"  # what a Mac adds to an archive


def _is_image(name: str) -> bool:
    return os.path.splitext(name)[1].lower() in IMAGE_SUFFIXES and not _hidden(name)


def _ending(name: str) -> str:
    return "hidden" if _hidden(name) else os.path.splitext(name)[1].lower() or "without ending"


def _cannot_list(error: OSError) -> None:
    raise EndocilError(f"cannot list the folder {error.filename}: {error.strerror}") from error
