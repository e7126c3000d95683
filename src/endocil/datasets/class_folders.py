"""Files below a folder, with their classes: the first folder on the way to a file, or the last one."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from posixpath import commonpath, dirname
from typing import Literal

from endocil.datasets import members
from endocil.datasets.walking import walk
from endocil.errors import EndocilError
from endocil.files import expand

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
