"""The image cache: every image is decoded once, into one memory-mapped .npy file of uint8 pixels.

The file is named by a digest of the table and the size. While it is built, chunks of pixels are appended to one file
and described, with a checksum, by lines of a second one: a build that was killed continues after the last chunk whose
checksum is right, whatever a crash or a power cut left behind it.
"""

import io
import json
import os
import re
import shutil
import warnings
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from endocil.data.readers import read_in_chunks
from endocil.data.table import ImageTable
from endocil.errors import DataError, ResourceError
from endocil.io.files import (
    ENCODING,
    ENCODING_ERRORS,
    cache_folder,
    flush,
    free_bytes,
    replacing,
    temporary_beside,
    write_json,
)
from endocil.io.locks import lock

Progress = Callable[[int, int], None]  # (images done, images in all)
Shape = tuple[int, int, int, int]  # images, height, width, channels
Unreadable = tuple[tuple[str, str], ...]  # (id, reason)

_SAMPLES = 64  # rows whose checksum is compared when the cache is opened


@dataclass(frozen=True, eq=False)
class Images:
    """All images of a run: the table and its pixels, row for row."""

    table: ImageTable
    pixels: Tensor  # (M, size, size, 3) uint8, memory-mapped: writing to it ends the process
    rows: Tensor  # (N,) int64: the row of pixels for each row of the table
    skipped: Unreadable  # unreadable files that were left out

    @property
    def labels(self) -> Tensor:
        """(N,) int64 of the table."""
        return torch.from_numpy(self.table.labels.copy())

    def gather(self, index: Tensor) -> Tensor:
        """Copies of the pixels of these rows of the table."""
        return self.pixels.index_select(0, self.rows[index])  # (B, size, size, 3)

    def describe(self, row: int) -> tuple[str, str, str]:
        """Image id, group and source of a row of the table."""
        return self.table.ids[row], self.table.groups[row], self.table.sources[row]


def load_images(
    table: ImageTable,
    size: int,
    *,
    folder: Path | None = None,
    skip_unreadable: bool = False,
    progress: Progress | None = None,
    workers: int | None = None,
) -> Images:
    """The pixels of a table, decoded into `folder` (default: $ENDOCIL_CACHE) unless they are there."""
    if not len(table):
        raise DataError("there are no images to load: the image table is empty")
    stored = _CacheFiles((folder or cache_folder()) / table.digest(size), (len(table), size, size, 3))
    loaded = stored.open()
    if loaded is None:
        with stored.lock() as alone:
            loaded = stored.open() or stored.build(table, progress, workers or _n_processors(), alone)
    pixels, unreadable = loaded
    kept = _readable_rows(table, unreadable, skip_unreadable)
    return Images(table.take(kept), pixels, torch.from_numpy(kept), unreadable)


@dataclass(frozen=True)
class _CacheFiles:
    """The files of one table at one size."""

    path: Path  # without suffix
    shape: Shape

    @property
    def pixels(self) -> Path:
        return self.path.with_suffix(".npy")

    @property
    def facts(self) -> Path:
        return self.path.with_suffix(".json")

    def open(self) -> tuple[Tensor, Unreadable] | None:
        """None where nothing is stored, or what is stored is damaged."""
        try:
            pixels = np.load(self.pixels, mmap_mode="r", allow_pickle=False)
            facts = json.loads(self.facts.read_text(ENCODING, ENCODING_ERRORS))
            fits = pixels.shape == self.shape and pixels.dtype == np.uint8
            if not fits or facts["checksum"] != _pixel_checksum(self.pixels, pixels):
                return None
            return _as_tensor(pixels), tuple((name, reason) for name, reason in facts["unreadable"])
        except (OSError, ValueError, KeyError, TypeError, EOFError):
            return None

    @contextmanager
    def lock(self) -> Iterator[bool]:
        """One process builds at a time, where the file system has locks (then True); elsewhere the last one wins."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            file = open(self.path.with_suffix(".lock"), "ab")  # noqa: SIM115
        except OSError as error:
            raise ResourceError(
                f"the image cache {self.path.parent} cannot be written: {error.strerror or error}; "
                f"set ENDOCIL_CACHE to another folder"
            ) from error
        with file:
            yield lock(file) == "held"

    def build(
        self, table: ImageTable, progress: Progress | None, workers: int, alone: bool
    ) -> tuple[Tensor, Unreadable]:
        """Read what is missing; only with the lock can a process continue what another one has left."""
        n_bytes = prod(self.shape)
        unfinished = UnfinishedBuild(self.pixels, self.shape, resumable=alone)
        _check_space(self.path.parent, n_bytes - unfinished.done * unfinished.image_bytes)
        with replacing(self.pixels, n_bytes) as temporary, unfinished.appending():
            missing = table.ids[unfinished.done :]
            for pixels, failed in read_in_chunks(table.reader, missing, self.shape[1], workers):
                unfinished.append(pixels, failed)
                if progress:
                    progress(unfinished.done, len(table))
            unfinished.move_to(temporary)
        stored = np.load(self.pixels, mmap_mode="r", allow_pickle=False)
        write_json(
            self.facts,
            {"checksum": _pixel_checksum(self.pixels, stored), "unreadable": unfinished.unreadable},
        )
        unfinished.remove()
        return _as_tensor(stored), tuple(unfinished.unreadable)


class UnfinishedBuild:
    """The two files of a build, and how far it has come."""

    def __init__(self, target: Path, shape: Shape, *, resumable: bool) -> None:
        """Without `resumable` the files have unique names and are removed when the build ends, well or not."""
        beside = target.with_name(f".{target.name}") if resumable else temporary_beside(target)
        self.pixels, self.lines = (beside.with_name(f"{beside.name}.{kind}") for kind in ("part", "jsonl"))
        self.resumable = resumable
        self.header = _npy_header(shape)
        self.image_bytes = prod(shape[1:])
        self.done = 0  # images
        self.unreadable: list[tuple[str, str]] = []
        self._sound_lines = 0  # bytes
        with suppress(OSError, ValueError, KeyError, TypeError):  # then the rest is read again
            self._count_sound_chunks()

    def _count_sound_chunks(self) -> None:
        with open(self.pixels, "rb") as pixels, open(self.lines, "rb") as lines:
            if pixels.read(len(self.header)) != self.header:
                return
            for line in lines:
                record = json.loads(line.decode(ENCODING, ENCODING_ERRORS))
                chunk = pixels.read(record["images"] * self.image_bytes)
                complete = line.endswith(b"\n") and len(chunk) == record["images"] * self.image_bytes
                if not complete or _checksum(np.frombuffer(chunk, np.uint8)) != record["checksum"]:
                    return
                self.unreadable += [(name, reason) for name, reason in record["unreadable"]]
                self.done += record["images"]
                self._sound_lines += len(line)

    @contextmanager
    def appending(self) -> Iterator["UnfinishedBuild"]:
        """Both files open behind the last sound chunk."""
        end = len(self.header) + self.done * self.image_bytes if self.done else 0
        try:
            with (
                _open_behind(self.pixels, end) as self._pixels,
                _open_behind(self.lines, self._sound_lines) as self._lines,
            ):
                if not end:
                    self._pixels.write(self.header)
                yield self
        finally:
            if not self.resumable:
                self.remove()

    def append(self, pixels: np.ndarray, unreadable: list[tuple[str, str]]) -> None:
        """First the pixels, then the line with their checksum.

        Not through a memory map: there a full disk would end the process."""
        self._pixels.write(np.ascontiguousarray(pixels).data)
        self._pixels.flush()
        record = {"images": len(pixels), "checksum": _checksum(pixels), "unreadable": unreadable}
        self._lines.write((json.dumps(record) + "\n").encode(ENCODING, ENCODING_ERRORS))
        self._lines.flush()
        self.done += len(pixels)
        self.unreadable += unreadable

    def move_to(self, path: Path) -> None:
        """The complete pixels: onto the disk, and under another name."""
        flush(self._pixels)
        self._pixels.close()  # not every system renames an open file
        os.replace(self.pixels, path)

    def remove(self) -> None:
        for path in (self.pixels, self.lines):
            with suppress(OSError):
                path.unlink(missing_ok=True)


def _open_behind(path: Path, end: int) -> io.BufferedWriter:
    """For appending at byte `end`; the bytes behind it are removed."""
    if end:
        os.truncate(path, end)
    return open(path, "ab" if end else "wb")


def _checksum(pixels: np.ndarray) -> int:
    """Of 16 bytes in 1024: some from all over each page of memory, and it is pages that a power cut loses."""
    values = pixels.reshape(-1)
    most = len(values) // 1024 * 1024
    sample = np.ascontiguousarray(values[:most].reshape(-1, 1024)[:, :16])
    return zlib.crc32(values[most:].data, zlib.crc32(sample.data))


def _npy_header(shape: Shape) -> bytes:
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "|u1", "fortran_order": False, "shape": shape})
    return header.getvalue()


def _readable_rows(table: ImageTable, unreadable: Unreadable, skip: bool) -> np.ndarray:
    bad = {name for name, _ in unreadable}
    kept = np.array([row for row, name in enumerate(table.ids) if name not in bad], np.int64)
    if not bad or (skip and len(kept)):
        return kept
    listed = "; ".join(f"{name}: {reason}" for name, reason in unreadable[:5])
    more = "; ..." if len(unreadable) > 5 else ""
    way_out = "data.skip_unreadable = true leaves them out and records them" if len(kept) else "none is left"
    raise DataError(f"{len(bad)} of {len(table)} images cannot be read ({listed}{more}); {way_out}")


def _as_tensor(pixels: np.ndarray) -> Tensor:
    with warnings.catch_warnings():
        # read-only on purpose: a writable private map of a large file is refused on machines with less memory
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(pixels)


def _pixel_checksum(path: Path, pixels: np.memmap) -> int:
    """Of rows spread evenly: cheap at any size, and it detects a file that was cut, zeroed or overwritten.

    Read from the file, not through its map, which would ask the disk page by page."""
    each, checksum = prod(pixels.shape[1:]), 0
    with open(path, "rb", buffering=0) as file:
        for row in np.linspace(0, len(pixels) - 1, min(_SAMPLES, len(pixels))).astype(np.int64):
            file.seek(pixels.offset + int(row) * each)
            checksum = zlib.crc32(file.read(each), checksum)
    return checksum


def _check_space(folder: Path, needed: int) -> None:
    free = free_bytes(folder)
    if free < needed:
        raise ResourceError(
            f"the decoded images need {needed:,} bytes, but {free:,} are free in {folder}; "
            f"free some space, set ENDOCIL_CACHE to another folder, or lower data.size"
        )


def _n_processors() -> int:
    """Those this process may use: a cluster often gives fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


_DIGEST, _UNIQUE = r"[0-9a-f]{64}", r"[0-9a-f]{32}"
_KINDS = {
    "decoded images": rf"{_DIGEST}\.(npy|json|lock)",
    "measured images (audit)": rf"{_DIGEST}\.npz",
    "unfinished or left by a killed process": rf"\.({_DIGEST}\.npy|.+\.{_UNIQUE}\.tmp)(\.part|\.jsonl)?",
}
_ARCHIVES = {
    "extracted archives": r".*-[0-9a-f]{16}",
    "unfinished or left by a killed process": rf"\..*\.{_UNIQUE}\.tmp",
}


@dataclass(frozen=True)
class CacheEntry:
    """A file of the cache, or a folder with all that is in it."""

    kind: str
    path: Path
    size: int  # bytes


def contents(folder: Path) -> list[CacheEntry]:
    """What this package has written there, by the names it gives; other files are not listed."""
    files = [path for path in _entries(folder) if path.is_file()]
    folders = [path for path in _entries(folder / "archives") if path.is_dir()]
    return [*_known(files, _KINDS), *_known(folders, _ARCHIVES)]


def clear(folder: Path) -> int:
    """Removes what `contents` lists; returns the number of bytes freed."""
    freed = 0
    for entry in contents(folder):
        if entry.path.is_dir():
            shutil.rmtree(entry.path, ignore_errors=True)
        else:
            with suppress(OSError):
                entry.path.unlink()
        freed += 0 if entry.path.exists() else entry.size
    with suppress(OSError):
        (folder / "archives").rmdir()  # stays where something else is in it
    return freed


def _entries(folder: Path) -> list[Path]:
    """Without links: this package makes none."""
    return sorted(path for path in folder.iterdir() if not path.is_symlink()) if folder.is_dir() else []


def _known(paths: list[Path], kinds: dict[str, str]) -> Iterator[CacheEntry]:
    for path in paths:
        kind = next((kind for kind, form in kinds.items() if re.fullmatch(form, path.name)), None)
        if kind is not None:
            yield CacheEntry(kind, path, _size(path))


def _size(path: Path) -> int:
    if not path.is_dir():
        return path.stat().st_size
    return sum(
        os.lstat(os.path.join(place, name)).st_size for place, _, names in os.walk(path) for name in names
    )
