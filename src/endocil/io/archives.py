"""Members of an archive: which are taken, which names are safe, and how much may come out."""

import errno
import gzip
import hashlib
import json
import os
import re
import shutil
import stat
import struct
import sys
import tarfile
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from endocil.errors import EndocilError
from endocil.io.files import (
    cache_folder,
    filling_folder,
    free_bytes,
    refuse_special,
    temporaries_beside,
    write_json,
)
from endocil.io.locks import lock

IMAGE_SUFFIXES = frozenset({".bmp", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp"})
ARCHIVE_SUFFIXES = (".tar.gz", ".tgz", ".tar", ".zip")
LABEL_SUFFIXES = frozenset({".csv", ".json", ".xlsx"})
CHUNK = 2**20


AGAIN = "download it again, or extract it with another program and give the folder"
UNTRUSTED = "no sound data set has such a name: do not extract it, and get the data set from its own page"


class UnsafeArchiveError(EndocilError):
    """The reason, without the archive's name, and what the user can do."""

    def __init__(self, reason: str, way_out: str = AGAIN) -> None:
        super().__init__(reason)
        self.way_out = way_out


@dataclass(frozen=True)
class Limits:
    """What an archive may hold: far above every public data set, far below what fills a disk by surprise."""

    members: int = 500_000
    total: int = 200 * 2**30  # bytes written
    ratio: int = 200  # times the compressed size; a bomb reaches a thousand, images hardly two
    any_ratio: int = 2**24  # bytes: below this, the ratio does not matter
    depth: int = 3  # archives in archives

    def check(self, size: int, compressed: int, what: str) -> None:
        if size > self.any_ratio and size > self.ratio * max(compressed, 1):
            raise UnsafeArchiveError(
                f"holds {what} of {size:,} bytes in {compressed:,}, more than {self.ratio} times"
            )
        if size > self.total:
            raise UnsafeArchiveError(f"holds more than the {self.total:,} bytes that are accepted")


class Metered:
    """A stream for tarfile that stops when far more comes out than went in, and remembers its last pieces."""

    def __init__(self, stream: IO[bytes], raw: IO[bytes], limits: Limits) -> None:
        self.stream, self.raw, self.limits = stream, raw, limits
        self.position = 0
        self.recent = b""

    def read(self, size: int) -> bytes:
        data = self.stream.read(size)
        self.position += len(data)
        self.limits.check(self.position, self.raw.tell(), "a stream")
        self.recent = self.recent[-CHUNK:] + data
        return data

    def ended_at(self, offset: int) -> bool:
        """Does the block of zeros that ends a tar stand there? tarfile takes garbage for the end, too."""
        start = offset - (self.position - len(self.recent))
        return start >= 0 and self.recent[start : start + 512] == bytes(512)


def is_archive(name: str) -> bool:
    return name.lower().endswith(ARCHIVE_SUFFIXES)


def stem(name: str) -> str:
    """The name without .zip, .tar.gz and the like."""
    ending = next((ending for ending in ARCHIVE_SUFFIXES if name.lower().endswith(ending)), "")
    return name[: len(name) - len(ending)]


def is_hidden(name: str) -> bool:
    """What systems add of their own accord."""
    return name.startswith(".") or name.lower() in ("__macosx", "thumbs.db", "desktop.ini")


def is_image(name: str) -> bool:
    return os.path.splitext(name)[1].lower() in IMAGE_SUFFIXES and not is_hidden(name)


def is_labels(name: str) -> bool:
    return os.path.splitext(name)[1].lower() in LABEL_SUFFIXES and not is_hidden(name)


def ending(name: str) -> str:
    """The kind of a file that is left out, for a note."""
    return "hidden" if is_hidden(name) else os.path.splitext(name)[1].lower() or "without ending"


def safe_parts(name: str) -> tuple[str, ...]:
    """The folders and the file of a member's name; one that leads out of the target is refused.

    Backslashes separate folders in archives from Windows, and would lead out of the target there."""
    flat = name.replace("\\", "/")
    parts = tuple(part for part in flat.split("/") if part not in ("", "."))
    if flat.startswith("/") or ".." in parts or re.match(r"[A-Za-z]:", flat) or not parts:
        raise UnsafeArchiveError(f"holds the name {name[:200]!r}, which leads out of the folder", UNTRUSTED)
    if any(ord(letter) < 32 for letter in flat):
        raise UnsafeArchiveError(f"holds the name {name[:200]!r}, which no file can have", UNTRUSTED)
    return parts


def check_zip_member(member: zipfile.ZipInfo, limits: Limits) -> None:
    """Before anything is written: what zipfile cannot read, and what would swell."""
    if member.flag_bits & 1:
        raise UnsafeArchiveError("is encrypted")
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise UnsafeArchiveError(f"is compressed by method {member.compress_type}, which is not supported")
    limits.check(member.file_size, member.compress_size, "a file")


def is_zip_link(member: zipfile.ZipInfo) -> bool:
    kind = stat.S_IFMT(member.external_attr >> 16)
    return kind not in (0, stat.S_IFREG)


Report = Callable[[float], None]  # the share that is done


def part_of(report: Report, start: float, length: float) -> Report:
    """Progress inside one member, as progress of the whole."""
    return lambda share: report(start + share * length)


# One archive into one folder: the members that are wanted, within the limits, whatever the archive claims.

_DAMAGED = (
    *(zipfile.BadZipFile, tarfile.TarError, zlib.error, struct.error, EOFError),
    *(ValueError, LookupError, RuntimeError, ArithmeticError, MemoryError),  # from headers that make no sense
)


@dataclass
class Extraction:
    """One archive with all that lies inside it: the limits hold for the whole."""

    archive: Path
    limits: Limits
    files: int = 0
    n_members: int = 0
    written: int = 0
    left_out: Counter[str] = field(default_factory=Counter)

    def unpack(self, path: Path, into: Path, depth: int, report: Report) -> None:
        with self._one_line(), open(path, "rb") as raw:
            start = raw.read(512)
            raw.seek(0)
            if start.startswith((b"PK\x03\x04", b"PK\x05\x06")):
                self._unpack_zip(raw, into, depth, report)
            elif start.startswith(b"\x1f\x8b") or start[257:262] == b"ustar":
                self._unpack_tar(raw, start.startswith(b"\x1f\x8b"), into, depth, report)
            else:
                raise UnsafeArchiveError(
                    "is no zip, tar or tar.gz archive, holds one that is none, or is damaged"
                )

    @contextmanager
    def _one_line(self) -> Iterator[None]:
        try:
            yield
        except UnsafeArchiveError as error:
            raise self._refused(str(error), error.way_out) from error
        except EndocilError:  # of an archive inside, which is said already
            raise
        except OSError as error:
            if error.errno not in (None, errno.EINVAL):
                raise  # the disk's fault, not the archive's
            raise self._refused(f"is damaged ({error})") from error
        except _DAMAGED as error:
            raise self._refused(
                f"is damaged ({' '.join(str(error).split()) or type(error).__name__})"
            ) from error

    def _refused(self, reason: str, way_out: str = AGAIN) -> EndocilError:
        return EndocilError(f"the archive {self.archive} {reason}; {way_out}")

    def _unpack_zip(self, raw: IO[bytes], into: Path, depth: int, report: Report) -> None:
        with zipfile.ZipFile(raw) as file:
            files = [member for member in file.infolist() if not member.is_dir()]
            wanted = [m for m in files if self._wanted(m.filename, special=is_zip_link(m))]
            for member in wanted:
                check_zip_member(member, self.limits)
            # of an archive inside: its copy, and at least as much from it
            self._check_space(into, sum(m.file_size * (1 + is_archive(m.filename)) for m in wanted))
            total, done = sum(member.file_size for member in wanted) or 1, 0
            for member in wanted:
                with file.open(member) as source:
                    inside = part_of(report, done / total, member.file_size / total)
                    self._take(source, member.filename, into, depth, inside)
                done += member.file_size
                report(done / total)

    def _unpack_tar(self, raw: IO[bytes], zipped: bool, into: Path, depth: int, report: Report) -> None:
        size = os.fstat(raw.fileno()).st_size
        self._check_space(into, size)  # what a tar.gz holds shows only on the way
        stream = Metered(gzip.GzipFile(fileobj=raw) if zipped else raw, raw, self.limits)  # type: ignore[arg-type]
        # as a stream: tarfile then never goes back, whatever the headers say
        with tarfile.open(fileobj=stream, mode="r|", bufsize=CHUNK // 2) as file:  # type: ignore[call-overload]
            while (member := file.next()) is not None:
                file.members.clear()  # it would keep them all
                special = not member.isreg() or member.issparse()
                if not member.isdir() and self._wanted(member.name, special=special):
                    self._take(file.extractfile(member), member.name, into, depth, lambda share: None)
                report(raw.tell() / size)
            if not stream.ended_at(file.offset):
                raise tarfile.ReadError("unexpected end of data")
            while stream.read(CHUNK):  # so that the checksum at the end of a tar.gz is compared
                pass

    def _wanted(self, name: str, *, special: bool) -> bool:
        """Counts a member; refuses a name that leads out, also of a file that would not be taken."""
        self.n_members += 1
        if self.n_members > self.limits.members:
            raise UnsafeArchiveError(f"holds more than the {self.limits.members:,} files that are accepted")
        parts = safe_parts(name)
        kind = ending(parts[-1])
        if any(is_hidden(part) for part in parts):
            kind = "hidden"
        elif special:
            kind = "link or device"
        elif is_archive(parts[-1]) or is_image(parts[-1]) or is_labels(parts[-1]):
            return True
        self.left_out[kind] += 1
        return False

    def _take(self, source: IO[bytes], name: str, into: Path, depth: int, report: Report) -> None:
        path = into.joinpath(*safe_parts(name))
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._write(source, path)
        except (FileExistsError, NotADirectoryError):
            self.left_out["repeated name"] += 1
            return
        except OSError as error:
            if error.errno == errno.ENAMETOOLONG:
                raise UnsafeArchiveError(
                    f"holds a name of {len(name):,} letters, {name[:60]!r}..., which is too long for this disk",
                    "extract it with a program that shortens names, and give the folder",
                ) from error
            raise
        if not is_archive(path.name):
            self.files += 1
            return
        if depth + 1 > self.limits.depth:
            raise UnsafeArchiveError(f"holds archives more than {self.limits.depth} deep in each other")
        inner = path.rename(path.with_name(f".{path.name}"))  # it gives its name to the folder
        self.unpack(inner, path.with_name(stem(path.name)), depth + 1, report)
        inner.unlink()

    def _write(self, source: IO[bytes], path: Path) -> None:
        with open(path, "xb") as file:
            while chunk := source.read(CHUNK):
                self.written += len(chunk)
                if self.written > self.limits.total:
                    raise UnsafeArchiveError(
                        f"holds more than the {self.limits.total:,} bytes that are accepted"
                    )
                file.write(chunk)

    def _check_space(self, folder: Path, wanted: int) -> None:
        """Before anything is written."""
        free = free_bytes(folder)
        if free < wanted:
            raise EndocilError(
                f"the archive {self.archive} needs {wanted:,} bytes, but {free:,} are free in {folder.parent}; "
                f"free some space, or set ENDOCIL_CACHE to another folder"
            )


# Archives of images are extracted once, into a folder of the cache, and never a file outside it.

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
    place = folder or cache_folder() / "archives" / f"{stem(archive.name)[:60]}-{digest}"
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
