"""Image folders: the class of a file is the first folder on the way to it, or the last one."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from posixpath import commonpath, dirname
from typing import Literal

import numpy as np

from endocil.data.decode import FileReader
from endocil.data.table import ImageTable
from endocil.errors import EndocilError
from endocil.io import archives as members
from endocil.io.archives import is_image
from endocil.io.files import expand, read_csv
from endocil.io.walk import walk

ClassFrom = Literal["first", "leaf"]


@dataclass
class Found:
    """What lies below a folder; paths are relative to it, with forward slashes."""

    top: Path
    what: str  # is looked for, in the singular
    files: list[str] = field(default_factory=list)
    empty: list[str] = field(default_factory=list)  # folders with neither such files nor folders
    folders: list[str] = field(default_factory=list)  # those directly below
    again: list[str] = field(default_factory=list)  # links to folders that were there already
    others: Counter[str] = field(default_factory=Counter)  # endings of other files

    @property
    def places(self) -> list[str]:
        """The folders that hold such files; the top folder is none of them."""
        return sorted({dirname(path) for path in self.files} - {""})


@dataclass(frozen=True)
class Classed:
    """Files with their classes; ids do not depend on how high the top folder is."""

    top: Path
    below: str  # the folders from the found top to this one, as `a/b/`, or nothing
    files: tuple[tuple[str, str], ...]  # (path below top, class), sorted
    notes: tuple[str, ...]


def find(root: str, what: str, is_wanted: Callable[[Path], bool]) -> Found:
    """Walks through links to folders too."""
    found = Found(_existing_folder(root, what), what)
    for place in walk(found.top):
        here = "/".join(place.parts)
        if place.known:
            found.again.append(here)
            continue
        wanted = [name for name in place.files if is_wanted(Path(place.path, name))]
        found.files += [f"{here}/{name}" if here else name for name in wanted]
        found.others.update(members.ending(name) for name in set(place.files) - set(wanted))
        if not here:
            found.folders = list(place.folders)
        elif not wanted and not place.folders:
            found.empty.append(here)
    return found


def classed(found: Found, class_from: ClassFrom) -> Classed:
    """Files directly in the top folder have no class and are left out."""
    if class_from not in ("first", "leaf"):
        raise EndocilError(f"data.class_from is '{class_from}'; expected 'first' or 'leaf'")
    below = _leading_folders(found.places) if class_from == "leaf" else ""
    class_of = _by_leaf(found, below) if class_from == "leaf" else _by_first(found)
    files = sorted(
        (path.removeprefix(below), class_of[dirname(path)]) for path in found.files if dirname(path)
    )
    return Classed(found.top / below, below, tuple(files), _notes(found, len(files)))


def _existing_folder(root: str, what: str) -> Path:
    top = expand(root, "data.root")
    if not top.is_dir():
        kind = "is no folder" if top.exists() else "does not exist"
        raise EndocilError(
            f"data.root = '{root}' {kind}; give the folder of the {what}s by --set data.root=FOLDER"
        )
    return top


def _by_first(found: Found) -> dict[str, str]:
    """Folder that holds files -> its class."""
    class_of = {place: place.split("/")[0] for place in found.places}
    if not found.folders:
        raise EndocilError(
            f"data.root {found.top} has no folders; expected one folder of {found.what}s per class"
        )
    _refuse_empty(found, sorted(set(found.folders) - set(class_of.values()) - set(found.again)))
    return class_of


def _by_leaf(found: Found, below: str) -> dict[str, str]:
    class_of = {place: place.split("/")[-1] for place in found.places}
    if not class_of:
        raise EndocilError(
            f"data.root {found.top} has no folder with {found.what}s; "
            f"expected one folder of {found.what}s per class"
        )
    _refuse_empty(found, [place for place in found.empty if place.startswith(below)])
    first: dict[str, str] = {}
    for place, name in class_of.items():
        if name in first:
            raise EndocilError(
                f"the class '{name}' is there twice below {found.top}: {first[name]} and {place}; "
                f"rename one of the folders, or move the {found.what}s together"
            )
        first[name] = place
    return class_of


def _leading_folders(places: Sequence[str]) -> str:
    """The folders that all class folders lie in, as `a/b/`, or nothing."""
    parents = [dirname(place) for place in places]
    common = commonpath(parents) if parents else ""
    return f"{common}/" if common else ""


def _refuse_empty(found: Found, empty: list[str]) -> None:
    if empty:
        listed = ", ".join(empty[:5]) + (", ..." if len(empty) > 5 else "")
        raise EndocilError(
            f"no {found.what} in {len(empty)} class folder(s) of {found.top}: {listed}; "
            f"put {found.what}s there or remove the folder(s)"
        )


def _notes(found: Found, n_classed: int) -> tuple[str, ...]:
    notes = []
    if found.others:
        kinds = ", ".join(f"{n} {ending}" for ending, n in sorted(found.others.items()))
        notes.append(f"{found.others.total()} files that are no {found.what}s were left out: {kinds}.")
    if len(found.files) > n_classed:
        notes.append(f"{len(found.files) - n_classed} {found.what}s in no class folder were left out.")
    if found.again:
        notes.append(
            f"{len(found.again)} links to folders that are there already were left out, "
            f"first {sorted(found.again)[0]}."
        )
    return tuple(notes)


# Image folders: the name of a folder is the class of the images in it.


def load(*, root: str, class_from: ClassFrom = "first", groups: str | None = None) -> ImageTable:
    """All images below `root`; `groups` is a CSV file (path, group) of images that belong together."""
    images = classed(_find(root), class_from)
    ids = [image_id for image_id, _ in images.files]
    given = _read_groups(groups, ids, images.below) if groups else ("",) * len(ids)
    return _table(images.top, images.files, given, images.notes)


def load_any(*, root: str, class_from: ClassFrom | None = None, groups: str | None = None) -> ImageTable:
    """All images below `root` for a look at them: folders are not asked to be classes.

    Without `class_from`, a single folder in `root` is taken for a wrapping, and the folders that hold images are the
    classes; where no folder holds any, all images are of one class with the name of `root`."""
    found = _find(root)
    if class_from is not None or groups is not None or not found.files:
        return load(root=root, class_from=class_from or "first", groups=groups)
    if not found.places:
        name = found.top.resolve().name or "images"
        return _table(found.top, [(path, name) for path in sorted(found.files)])
    first = {place.split("/")[0] for place in found.places}
    leaves = [place.split("/")[-1] for place in found.places]
    wrapped = len(first) == 1 and len(set(leaves)) == len(leaves)
    found.empty, found.folders = [], sorted(first)  # a folder without images is no class that lacks them
    images = classed(found, "leaf" if wrapped else "first")
    return _table(images.top, images.files, notes=images.notes)


def _find(root: str) -> Found:
    return find(root, "image", lambda path: is_image(path.name))


def _table(
    top: Path, files: Sequence[tuple[str, str]], groups: Sequence[str] = (), notes: Sequence[str] = ()
) -> ImageTable:
    classes = tuple(sorted({name for _, name in files}))
    label = {name: number for number, name in enumerate(classes)}
    return ImageTable(
        ids=tuple(image_id for image_id, _ in files),
        labels=np.array([label[name] for _, name in files], np.int64),
        classes=classes,
        reader=FileReader(top),
        groups=tuple(groups) or ("",) * len(files),
        sources=("",) * len(files),
        notes=tuple(notes),
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
