"""Every folder below a folder, once: links to folders are followed, circles and second ways to a folder are not.

What really lies in a place comes before what links lead to, so that a link beside a folder never takes its images
away from it.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePath

from endocil.errors import EndocilError
from endocil.io.archives import is_hidden


@dataclass(frozen=True)
class Place:
    """One folder, by its path below the top folder; names are sorted, hidden folders left out."""

    path: str  # where it lies on the disk
    parts: tuple[str, ...]  # from the top folder on
    folders: tuple[str, ...]
    files: tuple[str, ...]
    known: bool = False  # a link to a folder that was there already: nothing in it counts again


def walk(top: Path) -> Iterator[Place]:
    seen: set[str] = set()
    home = os.path.realpath(top)
    waiting = [os.fspath(top)]
    while waiting:
        start = waiting.pop(0)
        for path, folders, files in os.walk(start, onerror=_cannot_list):
            parts = () if path == os.fspath(top) else PurePath(path).relative_to(top).parts
            real = os.path.realpath(path)
            if real in seen or (parts and _holds(real, home)):
                folders.clear()
                yield Place(path, parts, (), (), known=True)
                continue
            seen.add(real)
            names = sorted(name for name in folders if not is_hidden(name))
            links = [name for name in names if os.path.islink(os.path.join(path, name))]
            waiting += [os.path.join(path, name) for name in links]
            folders[:] = [name for name in names if name not in links]
            yield Place(path, parts, tuple(names), tuple(sorted(files)))


def _holds(folder: str, other: str) -> bool:
    """Is `other` this folder, or somewhere in it?"""
    return os.path.join(other, "").startswith(os.path.join(folder, ""))


def _cannot_list(error: OSError) -> None:
    raise EndocilError(f"cannot list the folder {error.filename}: {error.strerror}") from error
