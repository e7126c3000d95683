"""Pixels on their way into the cache: chunks appended to one file, each vouched for by a line in a second one.

A build that was killed goes on behind the last chunk whose checksum is right, whatever a crash or a power cut
left behind it.
"""

import io
import json
import os
import zlib
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from math import prod
from pathlib import Path

import numpy as np

from endocil.files import ENCODING, ENCODING_ERRORS, temporary_beside
from endocil.images.direct import PAGE, GrowingFile

Shape = tuple[int, int, int, int]  # images, height, width, channels


class Unfinished:
    """The two files of a build, and how far it has come."""

    def __init__(self, target: Path, shape: Shape, *, resumable: bool) -> None:
        """Without `resumable` the files have names of their own and go when the build ends, well or not."""
        beside = target.with_name(f".{target.name}") if resumable else temporary_beside(target)
        self.pixels, self.lines = (beside.with_name(f"{beside.name}.{kind}") for kind in ("part", "jsonl"))
        self.resumable = resumable
        self.header = _header(shape)
        self.bytes_each = prod(shape[1:])  # of an image
        self.done = 0  # images
        self.unreadable: list[tuple[str, str]] = []
        self._sound_lines = 0  # bytes
        with suppress(OSError, ValueError, KeyError, TypeError):  # then the rest is read again
            self._find()

    def _find(self) -> None:
        """Count the chunks that are there as they were written."""
        with open(self.pixels, "rb") as pixels, open(self.lines, "rb") as lines:
            if pixels.read(len(self.header)) != self.header:
                return
            for line in lines:
                said = json.loads(line.decode(ENCODING, ENCODING_ERRORS))
                chunk = pixels.read(said["images"] * self.bytes_each)
                whole = line.endswith(b"\n") and len(chunk) == said["images"] * self.bytes_each
                if not whole or _checksum(np.frombuffer(chunk, np.uint8)) != said["checksum"]:
                    return
                self.unreadable += [(name, reason) for name, reason in said["unreadable"]]
                self.done += said["images"]
                self._sound_lines += len(line)

    @contextmanager
    def appending(self) -> Iterator["Unfinished"]:
        """Open both files behind the last sound chunk."""
        end = len(self.header) + self.done * self.bytes_each if self.done else 0
        try:
            with (
                closing(GrowingFile(self.pixels, end)) as self._pixels,
                _opened(self.lines, self._sound_lines) as self._lines,
            ):
                if not end:
                    self._pixels.append(np.frombuffer(self.header, np.uint8))
                yield self
        finally:
            if not self.resumable:
                self.remove()

    def append(self, pixels: np.ndarray, unreadable: list[tuple[str, str]]) -> None:
        """First the pixels, then the line that vouches for them.

        Not through a memory map: there a full disk would end the process."""
        self._pixels.append(pixels.reshape(-1))
        said = {"images": len(pixels), "checksum": _checksum(pixels), "unreadable": unreadable}
        self._lines.write((json.dumps(said) + "\n").encode(ENCODING, ENCODING_ERRORS))
        self._lines.flush()
        self.done += len(pixels)
        self.unreadable += unreadable

    def move_to(self, path: Path) -> None:
        """All images are there: onto the disk, and under another name."""
        self._pixels.close()  # not every system renames an open file
        os.replace(self.pixels, path)

    def remove(self) -> None:
        for path in (self.pixels, self.lines):
            with suppress(OSError):
                path.unlink(missing_ok=True)


def _opened(path: Path, end: int) -> io.BufferedWriter:
    """For writing behind byte `end`; what stood there is gone."""
    if end:
        os.truncate(path, end)
    return open(path, "ab" if end else "wb")


def _checksum(pixels: np.ndarray) -> int:
    """Of 16 bytes in 1024: some from all over each page of memory, and it is pages that a power cut loses."""
    values = pixels.reshape(-1)
    most = len(values) // 1024 * 1024
    sample = np.ascontiguousarray(values[:most].reshape(-1, 1024)[:, :16])
    return zlib.crc32(values[most:].data, zlib.crc32(sample.data))


def _header(shape: Shape) -> bytes:
    """That of a .npy file, filled up with spaces to a whole page, so that pages of pixels are pages of the file."""
    facts = repr({"descr": "|u1", "fortran_order": False, "shape": shape}).encode()
    start = b"\x93NUMPY\x01\x00" + (PAGE - 10).to_bytes(2, "little")
    return start + facts.ljust(PAGE - 11) + b"\n"
