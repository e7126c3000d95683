"""A file that grows at its end, past the system's memory of files where the system lets it.

Pixels that were just decoded are not read again soon. Through the system's memory they cost a copy into pages
that have to be found first, and on a virtual machine fetched from its host: more than a tenth of the time of
decoding them. Linux writes straight from ours (O_DIRECT), in whole pages from page-aligned memory: what is not
aligned goes through a buffer. Elsewhere, and on file systems that cannot, the same writes go the ordinary way.
"""

import errno
import mmap
import os
from math import prod
from pathlib import Path

import numpy as np

PAGE = 4096  # bytes: a multiple of every disk's block
_BUFFER = 2**20
_DIRECT = getattr(os, "O_DIRECT", 0)


class GrowingFile:
    """Everything up to the last whole page is in the file after `append`, the rest after `close`."""

    def __init__(self, path: Path, end: int) -> None:
        """Write behind byte `end`; what stood there is gone."""
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o666)
        try:
            os.ftruncate(self._file, end)
            self._memory = np.frombuffer(mmap.mmap(-1, _BUFFER), np.uint8)  # page-aligned
            self._held = end % PAGE  # bytes of the buffer that are not in the file yet
            os.lseek(self._file, end - self._held, os.SEEK_SET)
            self._memory[: self._held] = np.frombuffer(os.read(self._file, self._held), np.uint8)
            os.lseek(self._file, end - self._held, os.SEEK_SET)
            self._set_direct(True)
        except BaseException:
            os.close(self._file)
            raise

    def append(self, data: np.ndarray) -> None:
        """uint8, one-dimensional."""
        if not self._held and data.ctypes.data % PAGE == 0:
            whole = len(data) // PAGE * PAGE
            self._write(data[:whole])
            data = data[whole:]
        while len(data):
            part = data[: _BUFFER - self._held]
            self._memory[self._held : self._held + len(part)] = part
            self._held += len(part)
            data = data[len(part) :]
            self._write_pages()

    def close(self) -> None:
        """Onto the disk, to the last byte."""
        if self._file < 0:
            return
        try:
            self._set_direct(False)  # the rest is no whole page
            self._write(self._memory[: self._held])
            os.fsync(self._file)
        finally:
            os.close(self._file)
            self._file = -1

    def _write_pages(self) -> None:
        whole = self._held // PAGE * PAGE
        self._write(self._memory[:whole])
        self._memory[: self._held - whole] = self._memory[whole : self._held].copy()
        self._held -= whole

    def _write(self, data: np.ndarray) -> None:
        done = 0
        while done < len(data):
            try:
                done += os.write(self._file, data[done:].data)
            except OSError as error:
                if error.errno != errno.EINVAL or not self._direct:
                    raise
                self._set_direct(False)  # a file system that takes the flag, but not the write
            if done % PAGE:  # a short write, as before a full disk
                self._set_direct(False)

    def _set_direct(self, wanted: bool) -> None:
        self._direct = wanted and bool(_DIRECT)
        if not _DIRECT:
            return
        import fcntl  # where there is O_DIRECT, there is fcntl

        flags = fcntl.fcntl(self._file, fcntl.F_GETFL)
        try:
            fcntl.fcntl(self._file, fcntl.F_SETFL, flags | _DIRECT if wanted else flags & ~_DIRECT)
        except OSError:
            self._direct = False


def aligned(shape: tuple[int, ...]) -> np.ndarray:
    """uint8 memory that begins with a page; its values are whatever was there."""
    n = prod(shape)
    memory = np.empty(n + PAGE, np.uint8)
    start = -memory.ctypes.data % PAGE
    return memory[start : start + n].reshape(shape)
