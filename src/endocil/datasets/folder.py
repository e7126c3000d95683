"""Image folders: the class of an image is the first folder on the way to it, or the last one."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from posixpath import commonpath, dirname
from typing import Literal

from endocil.data.decode import FileReader
from endocil.data.lists import Row, read_groups, table_of
from endocil.data.table import ImageTable
from endocil.errors import DataError, SettingsError
from endocil.io.files import expand
from endocil.io.walk import file_kind, is_image, walk

ClassFrom = Literal["first", "leaf"]


def load(*, root: str, class_from: ClassFrom = "first", groups: str | None = None) -> ImageTable:
    """All images below `root`; `groups` is a list (path, group) of images that belong together."""
    images = with_classes(_find_images(root), class_from)
    rows = images.rows
    if groups is not None:
        ids = [row.path for row in rows]
        group_of = read_groups(expand(groups, "data.groups"), "data.groups", ids, images.below)
        rows = [replace(row, group=group) for row, group in zip(rows, group_of, strict=True)]
    return table_of(rows, FileReader(images.top), images.notes)


def load_as(root: str, class_name: str) -> ImageTable:
    """All images below `root`, at any depth, as images of one class."""
    tree = _find_images(root)
    if not tree.files:
        raise DataError(f"the folder {root} holds no image; give one with image files, such as .jpg or .png")
    rows = [Row(path, class_name) for path in sorted(tree.files)]
    return table_of(rows, FileReader(tree.top), _notes(tree, len(rows)))


def load_any(*, root: str, class_from: ClassFrom | None = None, groups: str | None = None) -> ImageTable:
    """All images below `root` for an audit: the folders need not be classes.

    Without `class_from`, a single folder in `root` is taken for a wrapper, and the folders that hold images are the
    classes; where no folder holds any, all images are of one class with the name of `root`."""
    tree = _find_images(root)
    if class_from is not None or groups is not None or not tree.files:
        return load(root=root, class_from=class_from or "first", groups=groups)
    if not tree.places:
        name = tree.top.resolve().name or "images"
        return table_of([Row(path, name) for path in sorted(tree.files)], FileReader(tree.top))
    images = with_classes(tree, _class_rule(tree))
    return table_of(images.rows, FileReader(images.top), images.notes)


def find_classes(root: str) -> tuple[ImageTable, ClassFrom]:
    """All images below `root` with their classes, and the rule that finds these: folders in a single folder are found
    by their own names."""
    tree = _find_images(root)
    if not tree.places:
        problem = "holds images, but no folders" if tree.files else "holds no image"
        raise DataError(f"the folder {root} {problem}; expected one folder of images for each class")
    rule = _class_rule(tree)
    images = with_classes(tree, rule)
    return table_of(images.rows, FileReader(images.top), images.notes), rule


@dataclass
class FileTree:
    """The files of a kind below a folder; paths are relative to it, with forward slashes."""

    top: Path
    kind: str  # in the singular, for messages
    files: list[str] = field(default_factory=list)  # also each folder that cannot be listed, as `a/b/`
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
    rows: list[Row]  # sorted by path, which begins below `top`
    notes: tuple[str, ...]


def find_files(root: str, kind: str, is_of_kind: Callable[[Path], bool]) -> FileTree:
    """At any depth, also behind links to folders."""
    top = expand(root, "data.root")
    if not top.is_dir():
        problem = "is not a folder" if top.exists() else "does not exist"
        raise DataError(f"data.root = '{root}' {problem}; give the folder of the {kind}s by --set data.root=FOLDER")
    tree = FileTree(top, kind)
    for place in walk(tree.top):
        here = "/".join(place.parts)
        if place.known:
            tree.repeated.append(here)
            continue
        if place.unreadable:  # stands for the files in it, and is reported when it is read
            tree.files.append(f"{here}/")
            continue
        names = [name for name in place.files if is_of_kind(Path(place.path, name))]
        tree.files += [f"{here}/{name}" if here else name for name in names]
        tree.others.update(file_kind(name) for name in set(place.files) - set(names))
        if not here:
            tree.folders = list(place.folders)
        elif not names and not place.folders:
            tree.empty.append(here)
    return tree


def with_classes(tree: FileTree, class_from: ClassFrom) -> ClassifiedFiles:
    """Files directly in the top folder have no class and are left out."""
    if class_from not in ("first", "leaf"):
        raise SettingsError(f"data.class_from is '{class_from}'; expected 'first' or 'leaf'")
    below = ""
    if class_from == "leaf" and tree.places:  # without the folders that all class folders are in
        common = commonpath([dirname(place) for place in tree.places])
        below = f"{common}/" if common else ""
    class_of = {place: place.split("/")[-1 if class_from == "leaf" else 0] for place in tree.places}
    if not (class_of if class_from == "leaf" else tree.folders):
        problem = f"no folder with {tree.kind}s" if class_from == "leaf" else "no folders"
        raise DataError(f"data.root {tree.top} has {problem}; expected one folder of {tree.kind}s per class")
    if class_from == "leaf":
        empty = [place for place in tree.empty if place.startswith(below)]
        first: dict[str, str] = {}
        for place, name in class_of.items():  # two folders of one name may be two classes
            if first.setdefault(name, place) != place:
                raise DataError(
                    f"the class '{name}' occurs twice below {tree.top}: {first[name]} and {place}; "
                    f"rename one of the folders, or move the {tree.kind}s together"
                )
    else:
        empty = sorted(set(tree.folders) - set(class_of.values()) - set(tree.repeated))
    if empty:
        listed = ", ".join(empty[:5]) + (", ..." if len(empty) > 5 else "")
        raise DataError(
            f"no {tree.kind} in {len(empty)} class folder(s) of {tree.top}: {listed}; "
            f"put {tree.kind}s there or remove the folder(s)"
        )
    paths = sorted(path for path in tree.files if dirname(path))
    rows = [Row(path.removeprefix(below), class_of[dirname(path)]) for path in paths]
    return ClassifiedFiles(tree.top / below, below, rows, _notes(tree, len(rows)))


def _class_rule(tree: FileTree) -> ClassFrom:
    """Folders without images are taken for nothing here, not for empty classes."""
    first = {place.split("/")[0] for place in tree.places}
    leaves = [place.split("/")[-1] for place in tree.places]
    tree.empty, tree.folders = [], sorted(first)
    return "leaf" if len(first) == 1 and len(set(leaves)) == len(leaves) else "first"


def _notes(tree: FileTree, n_classified: int) -> tuple[str, ...]:
    notes = []
    if tree.others:
        kinds = ", ".join(f"{n} {kind}" for kind, n in sorted(tree.others.items()))
        notes.append(f"{tree.others.total()} files that are no {tree.kind}s were left out: {kinds}.")
    if len(tree.files) > n_classified:
        notes.append(f"{len(tree.files) - n_classified} {tree.kind}s in no class folder were left out.")
    if tree.repeated:
        notes.append(
            f"{len(tree.repeated)} links to folders that are there already were left out, "
            f"first {sorted(tree.repeated)[0]}."
        )
    return tuple(notes)


def _find_images(root: str) -> FileTree:
    return find_files(root, "image", lambda path: is_image(path.name))
