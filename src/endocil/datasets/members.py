"""Members of an archive: which are taken, which names are safe, and how much may come out."""

import os
import re
import stat
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from typing import IO

from endocil.errors import EndocilError
from endocil.images.decode import IMAGE_SUFFIXES

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
