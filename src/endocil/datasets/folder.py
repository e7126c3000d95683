"""Image folders: the class of an image is the first folder on the way to it, or the last one."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from posixpath import commonpath, dirname
from typing import Literal

import numpy as np

from endocil.data.decode import FileReader
from endocil.data.lists import read_groups
from endocil.data.table import ImageTable
from endocil.errors import DataError, SettingsError
from endocil.io.files import expand
from endocil.io.walk import file_kind, is_image, walk

ClassFrom = Literal["first", "leaf"]


def load(*, root: str, class_from: ClassFrom = "first", groups: str | None = None) -> ImageTable:
    """All images below `root`; `groups` is a list (path, group) of images that belong together."""
    images = with_classes(_find_images(root), class_from)
    ids = [image_id for image_id, _ in images.files]
    group_of: Sequence[str] = ()
    if groups is not None:
        group_of = read_groups(expand(groups, "data.groups"), "data.groups", ids, images.below)
    return _table(images.top, images.files, group_of, images.notes)


def load_any(*, root: str, class_from: ClassFrom | None = None, groups: str | None = None) -> ImageTable:
    """All images below `root` for an audit: the folders need not be classes.

    Without `class_from`, a single folder in `root` is taken for a wrapper, and the folders that hold images are the
    classes; where no folder holds any, all images are of one class with the name of `root`."""
    found = _find_images(root)
    if class_from is not None or groups is not None or not found.files:
        return load(root=root, class_from=class_from or "first", groups=groups)
    if not found.places:
        name = found.top.resolve().name or "images"
        return _table(found.top, [(path, name) for path in sorted(found.files)])
    first = {place.split("/")[0] for place in found.places}
    leaves = [place.split("/")[-1] for place in found.places]
    wrapped = len(first) == 1 and len(set(leaves)) == len(leaves)
    found.empty, found.folders = [], sorted(first)  # here a folder without images is not an empty class
    images = with_classes(found, "leaf" if wrapped else "first")
    return _table(images.top, images.files, notes=images.notes)


@dataclass
class FoundFiles:
    """The files of a kind below a folder; paths are relative to it, with forward slashes."""

    top: Path
    kind: str  # in the singular, for messages
    files: list[str] = field(default_factory=list)
    empty: list[str] = field(default_factory=list)  # folders with neither such files nor folders
    folders: list[str] = field(default_factory=list)  # those directly below
    repeated: list[str] = field(default_factory=list)  # links to folders that were visited already
    others: Counter[str] = field(default_factory=Counter)  # kinds of other files

    @property
    def places(self) -> list[str]:
        """The folders that hold such files, without the top folder."""
        return sorted({dirname(path) for path in self.files} - {""})


@dataclass(frozen=True)
class ClassifiedFiles:
    """Files with their classes; the paths do not depend on how high the top folder is."""

    top: Path
    below: str  # the folders from the given folder to `top`, as `a/b/`, or ""
    files: tuple[tuple[str, str], ...]  # (path below top, class), sorted
    notes: tuple[str, ...]


def find_files(root: str, kind: str, is_of_kind: Callable[[Path], bool]) -> FoundFiles:
    """At any depth, also behind links to folders."""
    top = expand(root, "data.root")
    if not top.is_dir():
        problem = "is not a folder" if top.exists() else "does not exist"
        raise DataError(
            f"data.root = '{root}' {problem}; give the folder of the {kind}s by --set data.root=FOLDER"
        )
    found = FoundFiles(top, kind)
    for place in walk(found.top):
        here = "/".join(place.parts)
        if place.known:
            found.repeated.append(here)
            continue
        names = [name for name in place.files if is_of_kind(Path(place.path, name))]
        found.files += [f"{here}/{name}" if here else name for name in names]
        found.others.update(file_kind(name) for name in set(place.files) - set(names))
        if not here:
            found.folders = list(place.folders)
        elif not names and not place.folders:
            found.empty.append(here)
    return found


def with_classes(found: FoundFiles, class_from: ClassFrom) -> ClassifiedFiles:
    """Files directly in the top folder have no class and are left out."""
    if class_from not in ("first", "leaf"):
        raise SettingsError(f"data.class_from is '{class_from}'; expected 'first' or 'leaf'")
    below = ""
    if class_from == "leaf" and found.places:  # without the folders that all class folders are in
        common = commonpath([dirname(place) for place in found.places])
        below = f"{common}/" if common else ""
    class_of = _classes_by_leaf(found, below) if class_from == "leaf" else _classes_by_first(found)
    files = sorted(
        (path.removeprefix(below), class_of[dirname(path)]) for path in found.files if dirname(path)
    )
    return ClassifiedFiles(found.top / below, below, tuple(files), _notes(found, len(files)))


def _classes_by_first(found: FoundFiles) -> dict[str, str]:
    """Folder that holds files -> its class."""
    class_of = {place: place.split("/")[0] for place in found.places}
    if not found.folders:
        raise DataError(
            f"data.root {found.top} has no folders; expected one folder of {found.kind}s per class"
        )
    _refuse_empty(found, sorted(set(found.folders) - set(class_of.values()) - set(found.repeated)))
    return class_of


def _classes_by_leaf(found: FoundFiles, below: str) -> dict[str, str]:
    class_of = {place: place.split("/")[-1] for place in found.places}
    if not class_of:
        raise DataError(
            f"data.root {found.top} has no folder with {found.kind}s; "
            f"expected one folder of {found.kind}s per class"
        )
    _refuse_empty(found, [place for place in found.empty if place.startswith(below)])
    first: dict[str, str] = {}
    for place, name in class_of.items():
        if name in first:
            raise DataError(
                f"the class '{name}' is there twice below {found.top}: {first[name]} and {place}; "
                f"rename one of the folders, or move the {found.kind}s together"
            )
        first[name] = place
    return class_of


def _refuse_empty(found: FoundFiles, empty: list[str]) -> None:
    if empty:
        listed = ", ".join(empty[:5]) + (", ..." if len(empty) > 5 else "")
        raise DataError(
            f"no {found.kind} in {len(empty)} class folder(s) of {found.top}: {listed}; "
            f"put {found.kind}s there or remove the folder(s)"
        )


def _notes(found: FoundFiles, n_classified: int) -> tuple[str, ...]:
    notes = []
    if found.others:
        kinds = ", ".join(f"{n} {kind}" for kind, n in sorted(found.others.items()))
        notes.append(f"{found.others.total()} files that are no {found.kind}s were left out: {kinds}.")
    if len(found.files) > n_classified:
        notes.append(f"{len(found.files) - n_classified} {found.kind}s in no class folder were left out.")
    if found.repeated:
        notes.append(
            f"{len(found.repeated)} links to folders that are there already were left out, "
            f"first {sorted(found.repeated)[0]}."
        )
    return tuple(notes)


def _find_images(root: str) -> FoundFiles:
    return find_files(root, "image", lambda path: is_image(path.name))


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
