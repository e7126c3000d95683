"""Folders and the files in them: every folder once, and the kinds of files by their names."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePath

from endocil.errors import DataError

IMAGE_SUFFIXES = frozenset({".bmp", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp"})
ARCHIVE_SUFFIXES = (".tar.gz", ".tgz", ".tar", ".zip")
LABEL_SUFFIXES = frozenset({".csv", ".json", ".xlsx"})


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


def walk(top: Path) -> Iterator[Folder]:
    """Every folder below a folder, once. Links to folders are followed; cycles and second links to a folder are not.

    Real folders come before links, so that a link to a folder never takes its images away from it."""

    def cannot_list(error: OSError) -> None:
        raise DataError(f"cannot list the folder {error.filename}: {error.strerror}") from error

    visited: set[str] = set()
    home = os.path.realpath(top)
    waiting = [os.fspath(top)]
    while waiting:
        start = waiting.pop(0)
        for path, folders, files in os.walk(start, onerror=cannot_list):
            parts = () if path == os.fspath(top) else PurePath(path).relative_to(top).parts
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
            yield Folder(path, parts, tuple(names), tuple(sorted(files)))
