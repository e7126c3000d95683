"""Pixels on their way into the cache: chunks appended to one file, each vouched for by a line in a second one.

A build that was killed goes on behind the last chunk whose checksum is right, whatever a crash or a power cut
left behind it.
"""

import io
import json
import os
import zlib
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from endocil.files import ENCODING, ENCODING_ERRORS, flush, temporary_beside

Shape = tuple[int, int, int, int]  # images, height, width, channels
FLUSH_EVERY = 32 * 2**20  # bytes: the disk works while images are decoded, and not all at the end


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
        self._unflushed = 0  # bytes
        self._flushing: Future[None] = Future()  # the disk's last work: none yet
        self._flushing.set_result(None)
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
                _opened(self.pixels, end) as self._pixels,
                _opened(self.lines, self._sound_lines) as self._lines,
                ThreadPoolExecutor(1) as self._disk,  # ends first: it needs the open file
            ):
                if not end:
                    self._pixels.write(self.header)
                yield self
        finally:
            if not self.resumable:
                self.remove()

    def append(self, pixels: np.ndarray, unreadable: list[tuple[str, str]]) -> None:
        """First the pixels, then the line that vouches for them."""
        self._pixels.write(pixels.data)  # not through a memory map: there a full disk would end the process
        self._pixels.flush()
        said = {"images": len(pixels), "checksum": _checksum(pixels), "unreadable": unreadable}
        self._lines.write((json.dumps(said) + "\n").encode(ENCODING, ENCODING_ERRORS))
        self._lines.flush()
        self.done += len(pixels)
        self.unreadable += unreadable
        self._unflushed += pixels.nbytes
        if self._unflushed >= FLUSH_EVERY and self._flushing.done():
            self._unflushed = 0
            self._flushing = self._disk.submit(os.fsync, self._pixels.fileno())

    def move_to(self, path: Path) -> None:
        """All images are there: onto the disk, and under another name."""
        self._flushing.result()  # a full disk may show itself only there
        flush(self._pixels)
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
    """Of every 61st byte: several of each page of memory, and it is pages that a power cut loses."""
    return zlib.crc32(np.ascontiguousarray(pixels.reshape(-1)[::61]).data)


def _header(shape: Shape) -> bytes:
    """That of a .npy file."""
    header = io.BytesIO()
    facts: dict[str, Any] = {"descr": "|u1", "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(header, facts)
    return header.getvalue()
