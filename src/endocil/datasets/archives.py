"""Archives of images are extracted once, into a folder of the cache, and never a file outside it.

A zip, a tar, a tar.gz, and archives inside them. Only images and files of labels are taken. Names that lead out
of the folder end the extraction; links and devices are left out; numbers and sizes are limited, because a small
archive can claim to be larger than any disk. The folder appears when it is complete, and is used again.
"""

import hashlib
import json
import os
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from endocil.datasets import members
from endocil.datasets.extraction import Extraction
from endocil.datasets.members import Limits, Report
from endocil.errors import EndocilError
from endocil.files import filling_folder, temporaries_beside, write_json
from endocil.images.cache import default_folder
from endocil.locking import lock
from endocil.opening import refuse_special

if sys.platform != "win32":
    pass

Progress = Callable[[int, int], None]  # (bytes of the archive done, bytes in all)

RULES = "extraction rules 1"  # raise it when the same archive gives another folder
RECORD = ".endocil-archive.json"  # stands in an extracted folder


@dataclass(frozen=True)
class Extracted:
    """What came out of an archive."""

    folder: Path
    files: int
    left_out: Counter[str]  # kind of file -> how many


def extract(
    archive: Path,
    folder: Path | None = None,
    *,
    progress: Progress | None = None,
    limits: Limits | None = None,
) -> Extracted:
    """The folder with the images of an archive (by default in the cache): extracted now, or by an earlier call."""
    digest = _digest(archive)
    place = folder or default_folder() / "archives" / f"{members.stem(archive.name)[:60]}-{digest}"
    done = _recorded(place, digest)
    if done is not None:
        return done
    with _alone(archive) as alone:
        done = _recorded(place, digest)  # by another process, for which this one has waited
        if done is not None:
            return done
        if alone:
            _remove_left(place)
        if folder is None:
            shutil.rmtree(place, ignore_errors=True)  # files were deleted from the cache: extract again
        elif folder.is_dir() and any(folder.iterdir()):
            raise EndocilError(f"{folder} is not empty and does not hold {archive.name}; choose a new folder")
        return _extract_now(archive, place, digest, progress, limits or Limits())


def _extract_now(
    archive: Path, place: Path, digest: str, progress: Progress | None, limits: Limits
) -> Extracted:
    job = Extraction(archive, limits)
    try:
        with filling_folder(place) as temporary:
            job.unpack(archive, temporary, 0, _report(progress, archive.stat().st_size))
            facts = {"digest": digest, "files": job.files, "left_out": job.left_out}
            write_json(temporary / RECORD, facts)
    except EndocilError:
        done = _recorded(place, digest)  # by another process, where the file system has no locks
        if done is None:
            raise
        return done
    return Extracted(place, job.files, job.left_out)


@contextmanager
def _alone(archive: Path) -> Iterator[bool]:
    """One process at a time extracts an archive: the lock is on the archive itself, and ends with the process.

    False where the system or the file system has no locks."""
    with open(archive, "rb") as file:
        yield lock(file) == "held"


def _remove_left(place: Path) -> None:
    """What killed extractions of this archive have left beside the place; none is at work now."""
    for left in temporaries_beside(place):
        shutil.rmtree(left, ignore_errors=True)


def _digest(archive: Path) -> str:
    """Changes with the archive's place, size and time."""
    try:
        refuse_special(archive)
        status = archive.stat()
        with open(archive, "rb"):
            pass
    except OSError as error:
        raise EndocilError(f"cannot read the archive {archive}: {error.strerror or error}") from error
    key = f"{RULES}\0{archive.resolve()}\0{status.st_size}\0{status.st_mtime_ns}"
    return hashlib.sha256(key.encode(errors="surrogateescape")).hexdigest()[:16]


def _report(progress: Progress | None, size: int) -> Report:
    return lambda share: progress(int(share * size), size) if progress else None


def _recorded(place: Path, digest: str) -> Extracted | None:
    """An earlier extraction, if all its files are still there."""
    try:
        facts = json.loads((place / RECORD).read_text("utf-8"))
        there = sum(len(files) for _, _, files in os.walk(place)) - 1
        if facts["digest"] != digest or facts["files"] != there:
            return None
        return Extracted(place, there, Counter(facts["left_out"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None
