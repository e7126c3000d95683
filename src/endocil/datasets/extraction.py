"""One archive into one folder: the members that are wanted, within the limits, whatever the archive claims."""

import errno
import gzip
import os
import struct
import tarfile
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from endocil.datasets import members
from endocil.datasets.members import CHUNK, Limits, Metered, Report, UnsafeArchiveError
from endocil.errors import EndocilError
from endocil.files import free_bytes

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

    def _refused(self, reason: str, way_out: str = members.AGAIN) -> EndocilError:
        return EndocilError(f"the archive {self.archive} {reason}; {way_out}")

    def _unpack_zip(self, raw: IO[bytes], into: Path, depth: int, report: Report) -> None:
        with zipfile.ZipFile(raw) as file:
            files = [member for member in file.infolist() if not member.is_dir()]
            wanted = [m for m in files if self._wanted(m.filename, special=members.is_zip_link(m))]
            for member in wanted:
                members.check_zip_member(member, self.limits)
            # of an archive inside: its copy, and at least as much from it
            self._check_space(into, sum(m.file_size * (1 + members.is_archive(m.filename)) for m in wanted))
            total, done = sum(member.file_size for member in wanted) or 1, 0
            for member in wanted:
                with file.open(member) as source:
                    inside = members.part_of(report, done / total, member.file_size / total)
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
        parts = members.safe_parts(name)
        kind = members.ending(parts[-1])
        if any(members.is_hidden(part) for part in parts):
            kind = "hidden"
        elif special:
            kind = "link or device"
        elif members.is_archive(parts[-1]) or members.is_image(parts[-1]) or members.is_labels(parts[-1]):
            return True
        self.left_out[kind] += 1
        return False

    def _take(self, source: IO[bytes], name: str, into: Path, depth: int, report: Report) -> None:
        path = into.joinpath(*members.safe_parts(name))
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
        if not members.is_archive(path.name):
            self.files += 1
            return
        if depth + 1 > self.limits.depth:
            raise UnsafeArchiveError(f"holds archives more than {self.limits.depth} deep in each other")
        inner = path.rename(path.with_name(f".{path.name}"))  # it gives its name to the folder
        self.unpack(inner, path.with_name(members.stem(path.name)), depth + 1, report)
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
