"""Folders and the files in them: every folder once, and the kinds of files by their names."""

import errno
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePath

from endocil.errors import DataError

IMAGE_SUFFIXES = frozenset({".bmp", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp"})
ARCHIVE_SUFFIXES = (".tar.gz", ".tgz", ".tar", ".zip")
LABEL_SUFFIXES = frozenset({".csv", ".json", ".xlsx"})
UNREADABLE = (errno.EACCES, errno.EPERM, errno.ENAMETOOLONG, errno.ELOOP)  # one folder, not the disk or the network


def is_hidden(name: str) -> bool:
    """Files that operating systems add on their own count as hidden."""
    return name.startswith(".") or name.lower() in ("__macosx", "thumbs.db", "desktop.ini")


def is_image(name: str) -> bool:
    return os.path.splitext(name)[1].lower() in IMAGE_SUFFIXES and not is_hidden(name)


def is_label_file(name: str) -> bool:
    return os.path.splitext(name)[1].lower() in LABEL_SUFFIXES and not is_hidden(name)


def is_archive(name: str) -> bool:
    return name.lower().endswith(ARCHIVE_SUFFIXES)


def archive_stem(name: str) -> str:
    """The name without .zip, .tar.gz and the like."""
    suffix = next((suffix for suffix in ARCHIVE_SUFFIXES if name.lower().endswith(suffix)), "")
    return name[: len(name) - len(suffix)]


def file_kind(name: str) -> str:
    """The kind of a file that is left out, for a note."""
    return "hidden" if is_hidden(name) else os.path.splitext(name)[1].lower() or "without ending"


@dataclass(frozen=True)
class Folder:
    """One folder; names are sorted, hidden folders left out."""

    path: str  # on the disk
    parts: tuple[str, ...]  # from the top folder on
    folders: tuple[str, ...]
    files: tuple[str, ...]
    known: bool = False  # a link to a folder that was visited already: its files do not count again
    unreadable: bool = False  # it cannot be listed: nobody knows what is in it


def walk(top: Path) -> Iterator[Folder]:
    """Every folder below a folder, once. Links to folders are followed; cycles and second links to a folder are not.

    Real folders come before links, so that a link to a folder never takes its images away from it. A folder that may
    not be listed, or whose path is too long, and a link without ending that leads nowhere are unreadable."""
    unlisted: list[str] = []

    def cannot_list(error: OSError) -> None:
        if error.errno not in UNREADABLE or error.filename in (None, os.fspath(top)):
            raise DataError(f"cannot list the folder {error.filename or top}: {error.strerror}") from error
        unlisted.append(error.filename)

    visited: set[str] = set()
    home = os.path.realpath(top)
    waiting = [os.fspath(top)]
    while waiting:
        start = waiting.pop(0)
        for path, folders, files in os.walk(start, onerror=cannot_list):
            parts = _parts(path, top)
            real = os.path.realpath(path)
            if real in visited or (parts and os.path.join(home, "").startswith(os.path.join(real, ""))):
                folders.clear()
                yield Folder(path, parts, (), (), known=True)
                continue
            visited.add(real)
            names = sorted(name for name in folders if not is_hidden(name))
            links = [name for name in names if os.path.islink(os.path.join(path, name))]
            waiting += [os.path.join(path, name) for name in links]
            folders[:] = [name for name in names if name not in links]
            lost = {name for name in files if _is_lost_folder(path, name)}
            unlisted += [os.path.join(path, name) for name in sorted(lost)]
            yield Folder(path, parts, tuple(sorted({*names, *lost})), tuple(sorted({*files} - lost)))
    for path in unlisted:
        yield Folder(path, _parts(path, top), (), (), unreadable=True)


def _parts(path: str, top: Path) -> tuple[str, ...]:
    return () if path == os.fspath(top) else PurePath(path).relative_to(top).parts


def _is_lost_folder(path: str, name: str) -> bool:
    """Whether a link that leads nowhere may have been one to a folder: files have endings."""
    place = os.path.join(path, name)
    return not (os.path.splitext(name)[1] or is_hidden(name)) and os.path.islink(place) and not os.path.exists(place)
