"""What lies in the cache, by the names that this package gives: decoded images, measured images, extracted archives."""

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_DIGEST, _OWN = r"[0-9a-f]{64}", r"[0-9a-f]{32}"
_KINDS = {
    "decoded images": rf"{_DIGEST}\.(npy|json|lock)",
    "measured images (audit)": rf"{_DIGEST}\.npz",
    "unfinished or left by a killed process": rf"\.({_DIGEST}\.npy|.+\.{_OWN}\.tmp)(\.part|\.jsonl)?",
}
_ARCHIVES = {
    "extracted archives": r".*-[0-9a-f]{16}",
    "unfinished or left by a killed process": rf"\..*\.{_OWN}\.tmp",
}


@dataclass(frozen=True)
class Kept:
    """A file, or a folder with all that is in it."""

    kind: str
    path: Path
    size: int  # bytes


def contents(folder: Path) -> list[Kept]:
    """What this package has written there; anything else is not listed."""
    files = [path for path in _entries(folder) if path.is_file()]
    places = [path for path in _entries(folder / "archives") if path.is_dir()]
    return [*_known(files, _KINDS), *_known(places, _ARCHIVES)]


def clear(folder: Path) -> int:
    """Removes what `contents` lists; the bytes that were freed."""
    freed = 0
    for kept in contents(folder):
        if kept.path.is_dir():
            shutil.rmtree(kept.path, ignore_errors=True)
        else:
            with suppress(OSError):
                kept.path.unlink()
        freed += 0 if kept.path.exists() else kept.size
    with suppress(OSError):
        (folder / "archives").rmdir()  # stays where something else is in it
    return freed


def _entries(folder: Path) -> list[Path]:
    """Links are none of ours."""
    return sorted(path for path in folder.iterdir() if not path.is_symlink()) if folder.is_dir() else []


def _known(paths: list[Path], kinds: dict[str, str]) -> Iterator[Kept]:
    for path in paths:
        kind = next((kind for kind, form in kinds.items() if re.fullmatch(form, path.name)), None)
        if kind is not None:
            yield Kept(kind, path, _size(path))


def _size(path: Path) -> int:
    if not path.is_dir():
        return path.stat().st_size
    return sum(
        os.lstat(os.path.join(place, name)).st_size for place, _, names in os.walk(path) for name in names
    )
