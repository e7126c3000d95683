"""Archives of images (zip, tar, tar.gz): extracted once, into a folder of the cache, and never a file outside it.

Only images, label files and nested archives are extracted, each archive into a folder of its name. An archive is not
trusted: names, number of files, bytes, compression and depth are limited, whatever its headers claim.
"""

import errno
import gzip
import hashlib
import os
import re
import shutil
import stat
import struct
import tarfile
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from endocil.errors import DataError, EndocilError, ResourceError
from endocil.io.files import cache_folder, filling_folder, free_bytes, lock, parse_json, refuse_special, write_json
from endocil.io.terminal import one_line
from endocil.io.walk import archive_stem, file_kind, is_archive, is_hidden, is_image, is_label_file

RULES = "extraction rules 1"  # raise it when the same archive gives another folder
RECORD = ".endocil-archive.json"  # is in every extracted folder
CHUNK = 2**20

Progress = Callable[[int, int], None]  # (bytes of the archive done, bytes in all)

_AGAIN = "download it again, or extract it with another program and give the folder"
_UNTRUSTED = "no sound data set has such a name: do not extract it, and get the data set from its official page"
_DAMAGED = (
    *(zipfile.BadZipFile, tarfile.TarError, zlib.error, struct.error, EOFError),
    *(ValueError, LookupError, RuntimeError, ArithmeticError, MemoryError),  # from headers that make no sense
)


@dataclass(frozen=True)
class Limits:
    """What an archive may contain: far above every public data set, far below what fills a disk by surprise."""

    files: int = 500_000
    total: int = 200 * 2**30  # bytes written
    ratio: int = 200  # times the compressed size; a bomb reaches a thousand, images hardly two
    any_ratio: int = 2**24  # bytes: below this, the ratio does not matter
    depth: int = 3  # archives in archives

    def check(self, size: int, compressed: int, subject: str) -> None:
        if size > self.any_ratio and size > self.ratio * max(compressed, 1):
            raise _RefusedError(f"holds {subject} of {size:,} bytes in {compressed:,}, more than {self.ratio} times")
        self.check_total(size)

    def check_total(self, size: int) -> None:
        if size > self.total:
            raise _RefusedError(f"holds more than the {self.total:,} bytes that are accepted")


@dataclass(frozen=True)
class Extracted:
    """The result of an extraction."""

    folder: Path
    files: int
    left_out: Counter[str]  # kind of file -> number


def extract(
    archive: Path,
    folder: Path | None = None,
    *,
    progress: Progress | None = None,
    limits: Limits | None = None,
    also: Collection[str] = (),
) -> Extracted:
    """The folder with the images of an archive (by default in the cache): extracted now, or by an earlier call.

    `also`: names of further files that are extracted."""
    digest = _digest(archive, also)
    place = folder or cache_folder() / "archives" / f"{archive_stem(archive.name)[:60]}-{digest}"
    if earlier := _earlier(place, digest):
        return earlier
    with open(archive, "rb") as file:
        lock(file)  # the lock is on the archive itself; not every file system has locks
        if earlier := _earlier(place, digest):  # by another process, for which this one has waited
            return earlier
        if folder is None:
            shutil.rmtree(place, ignore_errors=True)  # files were deleted from the cache: extract again
        elif folder.is_dir() and any(folder.iterdir()):
            raise DataError(f"{folder} is not empty and does not hold {archive.name}; choose a new folder")
        size = archive.stat().st_size
        position = 0

        def report() -> None:
            nonlocal position
            position = max(position, file.tell())  # the files of a zip may stand in any order
            if progress is not None:
                progress(position, size)

        job = _Extraction(archive, limits or Limits(), report, frozenset(also))
        try:
            with filling_folder(place) as temporary:
                job.unpack(file, temporary, 0)
                write_json(temporary / RECORD, {"digest": digest, "files": job.files, "left_out": job.left_out})
        except EndocilError:
            if earlier := _earlier(place, digest):  # by another process, where the file system has no locks
                return earlier
            raise
        if progress is not None:
            progress(size, size)
        return Extracted(place, job.files, job.left_out)


def _digest(archive: Path, also: Collection[str] = ()) -> str:
    """Changes with the archive's path, size and time, and with what is extracted."""
    try:
        refuse_special(archive)
        status = archive.stat()
        with open(archive, "rb"):
            pass
    except OSError as error:
        raise DataError(f"cannot read the archive {archive}: {error.strerror or error}") from error
    key = "\0".join((RULES, str(archive.resolve()), str(status.st_size), str(status.st_mtime_ns), *sorted(also)))
    return hashlib.sha256(key.encode(errors="surrogateescape")).hexdigest()[:16]


def _earlier(place: Path, digest: str) -> Extracted | None:
    """An earlier extraction, if all its files are still there."""
    try:
        facts = parse_json((place / RECORD).read_text("utf-8"))
        n_files = sum(len(files) for _, _, files in os.walk(place)) - 1
        if facts["digest"] != digest or facts["files"] != n_files:
            return None
        return Extracted(place, n_files, Counter(facts["left_out"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


class _RefusedError(DataError):
    """The reason, without the archive's name, and what the user can do."""

    def __init__(self, reason: str, way_out: str = _AGAIN) -> None:
        super().__init__(reason)
        self.way_out = way_out


@dataclass
class _Extraction:
    """One archive with all that is inside it: the limits hold for the whole."""

    archive: Path
    limits: Limits
    report: Callable[[], None]  # is called after each file
    also: frozenset[str] = frozenset()  # names of further files that are taken
    files: int = 0  # written
    n_seen: int = 0  # files in the archives, written or not
    written: int = 0  # bytes
    left_out: Counter[str] = field(default_factory=Counter)

    def unpack(self, file: IO[bytes], into: Path, depth: int) -> None:
        try:
            start = file.read(512)
            file.seek(0)
            if start.startswith((b"PK\x03\x04", b"PK\x05\x06")):
                self._unpack_zip(file, into, depth)
            elif start.startswith(b"\x1f\x8b") or start[257:262] == b"ustar":
                self._unpack_tar(file, start.startswith(b"\x1f\x8b"), into, depth)
            else:
                raise _RefusedError(
                    "is not a zip, tar or tar.gz archive, contains a file that claims to be one, or is damaged"
                )
        except _RefusedError as error:
            raise DataError(f"the archive {self.archive} {error}; {error.way_out}") from error
        except EndocilError:  # from an archive inside, which is reported already
            raise
        except OSError as error:
            if error.errno not in (None, errno.EINVAL):
                raise  # the disk's fault, not the archive's
            raise DataError(f"the archive {self.archive} is damaged ({error}); {_AGAIN}") from error
        except _DAMAGED as error:
            reason = one_line(error)
            raise DataError(f"the archive {self.archive} is damaged ({reason}); {_AGAIN}") from error

    def _unpack_zip(self, file: IO[bytes], into: Path, depth: int) -> None:
        with zipfile.ZipFile(file) as archive:
            chosen = []
            for entry in archive.infolist():
                special = stat.S_IFMT(entry.external_attr >> 16) not in (0, stat.S_IFREG)
                if entry.is_dir() or not self._is_taken(entry.filename, special):
                    continue
                chosen.append(entry)
                if entry.flag_bits & 1:
                    raise _RefusedError("is encrypted")
                if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                    raise _RefusedError(f"is compressed by method {entry.compress_type}, which is not supported")
                self.limits.check(entry.file_size, entry.compress_size, "a file")
            # an archive inside needs space for its copy, and at least as much for its files
            self._check_space(into, sum(e.file_size * (1 + is_archive(e.filename)) for e in chosen))
            for entry in chosen:
                with archive.open(entry) as source:
                    self._write(source, entry.filename, into, depth)

    def _unpack_tar(self, file: IO[bytes], zipped: bool, into: Path, depth: int) -> None:
        self._check_space(into, os.fstat(file.fileno()).st_size)  # how much a tar.gz holds shows only while it is read
        stream = _MeteredStream(gzip.GzipFile(fileobj=file) if zipped else file, file, self.limits)  # type: ignore[arg-type]
        # as a stream: tarfile then never seeks back, whatever the headers claim
        with tarfile.open(fileobj=stream, mode="r|", bufsize=CHUNK // 2) as archive:  # type: ignore[call-overload]
            while (entry := archive.next()) is not None:
                archive.members.clear()  # tarfile would keep them all
                special = not entry.isreg() or entry.issparse()
                if not entry.isdir() and self._is_taken(entry.name, special):
                    entry = tarfile.data_filter(entry, os.fspath(into))
                    self._write(archive.extractfile(entry), entry.name, into, depth)
            if not stream.ended_at(archive.offset):
                raise tarfile.ReadError("unexpected end of data")
            while stream.read(CHUNK):  # so that the checksum at the end of a tar.gz is compared
                pass

    def _is_taken(self, name: str, special: bool) -> bool:
        """Counts a file; an unsafe name is refused, also that of a file that would be left out."""
        self.n_seen += 1
        if self.n_seen > self.limits.files:
            raise _RefusedError(f"holds more than the {self.limits.files:,} files that are accepted")
        parts = _safe_parts(name)
        kind = file_kind(parts[-1])
        if any(is_hidden(part) for part in parts):
            kind = "hidden"
        elif special:
            kind = "link or device"
        elif is_archive(parts[-1]) or is_image(parts[-1]) or is_label_file(parts[-1]) or parts[-1] in self.also:
            return True
        self.left_out[kind] += 1
        return False

    def _write(self, source: IO[bytes], name: str, into: Path, depth: int) -> None:
        """One file; an archive is extracted in turn, into a folder of its name."""
        path = into.joinpath(*_safe_parts(name))
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with open(path, "xb") as target:
                while chunk := source.read(CHUNK):
                    self.written += len(chunk)
                    self.limits.check_total(self.written)
                    target.write(chunk)
        except (FileExistsError, NotADirectoryError):
            self.left_out["repeated name"] += 1
            return
        except OSError as error:
            if error.errno == errno.ENAMETOOLONG:
                raise _RefusedError(
                    f"holds a name of {len(name):,} letters, {name[:60]!r}..., which is too long for this disk",
                    "extract it with a program that shortens names, and give the folder",
                ) from error
            raise
        if not is_archive(path.name):
            self.files += 1
            self.report()
            return
        if depth + 1 > self.limits.depth:
            raise _RefusedError(f"holds archives nested more than {self.limits.depth} deep")
        inner = path.rename(path.with_name(f".{path.name}"))  # the folder gets its name
        with open(inner, "rb") as file:
            self.unpack(file, path.with_name(archive_stem(path.name)), depth + 1)
        inner.unlink()

    def _check_space(self, folder: Path, needed: int) -> None:
        free = free_bytes(folder)
        if free < needed:
            raise ResourceError(
                f"the archive {self.archive} needs {needed:,} bytes, but {free:,} are free in {folder.parent}; "
                f"free some space, or set ENDOCIL_CACHE to another folder"
            )


def _safe_parts(name: str) -> tuple[str, ...]:
    """The folders and the file of a name in an archive; one that leads out of the target is refused.

    Backslashes separate folders in archives from Windows, and would lead out of the target there."""
    flat = name.replace("\\", "/")
    parts = tuple(part for part in flat.split("/") if part not in ("", "."))
    if flat.startswith("/") or ".." in parts or re.match(r"[A-Za-z]:", flat) or not parts:
        raise _RefusedError(f"holds the name {name[:200]!r}, which leads out of the folder", _UNTRUSTED)
    if any(ord(letter) < 32 for letter in flat):
        raise _RefusedError(f"holds the name {name[:200]!r}, which no file can have", _UNTRUSTED)
    return parts


class _MeteredStream:
    """A stream for tarfile that stops when far more comes out than went in, and keeps the last bytes read."""

    def __init__(self, stream: IO[bytes], compressed: IO[bytes], limits: Limits) -> None:
        self.stream, self.compressed, self.limits = stream, compressed, limits
        self.position = 0
        self.recent = b""

    def read(self, size: int) -> bytes:
        data = self.stream.read(size)
        self.position += len(data)
        self.limits.check(self.position, self.compressed.tell(), "a stream")
        self.recent = self.recent[-CHUNK:] + data
        return data

    def ended_at(self, offset: int) -> bool:
        """Is the block of zeros that ends a tar at this offset? tarfile takes garbage for the end, too."""
        start = offset - (self.position - len(self.recent))
        return start >= 0 and self.recent[start : start + 512] == bytes(512)
