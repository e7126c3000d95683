"""The image cache: every image is decoded once, into one memory-mapped .npy file of uint8 pixels.

The file is named by a digest of the table and the size. While it is built, chunks of pixels are appended to one file
and described, with a checksum, by lines of a second one: a build that was killed continues after the last chunk whose
checksum is right, whatever a crash or a power cut left behind it. The checksums are kept, and all pixels are compared
with them whenever the cache is opened: one flipped bit would change results silently.
"""

import hashlib
import io
import json
import os
import re
import shutil
import warnings
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import accumulate
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
    explaining_failure,
    flush,
    flush_folder,
    free_bytes,
    lock,
    make_private_folder,
    parse_json,
    private,
    temporary_beside,
    write_atomically,
    write_json,
)

Progress = Callable[[int, int], None]  # (images done, images in all)
Shape = tuple[int, int, int, int]  # images, height, width, channels
Unreadable = tuple[tuple[str, str], ...]  # (id, reason)

Chunks = Sequence[tuple[int, int]]  # (images, checksum of their pixels), in the order of the file


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

    def pixel_digest(self) -> str:
        """Of all pixels in the order of the table, wherever they are stored (BLAKE2b)."""
        total = hashlib.blake2b(digest_size=16)
        for rows in torch.split(self.rows, 64):
            total.update(self.pixels.index_select(0, rows).numpy().data)
        return total.hexdigest()

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
            loaded = stored.open() or stored.build(table, progress, workers, alone)
    pixels, unreadable = loaded
    bad = {name for name, _ in unreadable}
    kept = np.array([row for row, name in enumerate(table.ids) if name not in bad], np.int64)
    if bad and not (skip_unreadable and len(kept)):
        listed = "; ".join(f"{name}: {reason}" for name, reason in unreadable[:5])
        more = "; ..." if len(unreadable) > 5 else ""
        way_out = "data.skip_unreadable = true leaves them out and records them" if len(kept) else "none is left"
        raise DataError(f"{len(bad)} of {len(table)} images cannot be read ({listed}{more}); {way_out}")
    return Images(table.take(kept), pixels, torch.from_numpy(kept), unreadable)


def cached_arrays(
    table: ImageTable,
    names: Sequence[str],
    compute: Callable[[], Mapping[str, np.ndarray]],
    *,
    rules: str,
    size: int = 0,
    folder: Path | None = None,
) -> dict[str, np.ndarray]:
    """The arrays that `compute` makes of a table, kept in `folder` (default: $ENDOCIL_CACHE) until a file changes.

    `rules` names the computation and its version."""
    key = hashlib.sha256(f"{rules}\0{table.digest(size)}".encode()).hexdigest()
    path = (folder or cache_folder()) / f"{key}.npz"
    try:
        with np.load(path, allow_pickle=False) as stored:  # it has a checksum of each array
            return {name: stored[name] for name in names}
    except Exception:  # not there, or damaged: numpy and zipfile raise errors of many kinds
        arrays = dict(compute())
    file = io.BytesIO()
    np.savez(file, allow_pickle=False, **arrays)
    write_atomically(path, file.getvalue())
    return arrays


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
            pixels = self._mapped()
            facts = parse_json(self.facts.read_text(ENCODING, ENCODING_ERRORS))
            chunks = [(int(images), int(checksum)) for images, checksum in facts["chunks"]]
            unreadable = tuple((name, reason) for name, reason in facts["unreadable"])
            whole = sum(images for images, _ in chunks) == len(pixels) and all(images > 0 for images, _ in chunks)
            whole = whole and facts["names"] == _checksum_of(unreadable)
            if not whole or not _are_sound(self.pixels, pixels.offset, prod(self.shape[1:]), chunks):
                return None
            with suppress(OSError):  # of a build that was killed when all was written
                unfinished_files(self.pixels)[1].unlink(missing_ok=True)
            return _as_tensor(pixels), unreadable
        except (OSError, ValueError, KeyError, TypeError, ArithmeticError, EOFError):  # JSON knows Infinity
            return None

    def _mapped(self) -> np.memmap:
        """The pixels of the file. Its header is compared, not parsed: a damaged one raises errors of many kinds."""
        header = _header(self.shape)
        with open(self.pixels, "rb") as file:
            if file.read(len(header)) != header:
                raise ValueError("another header")
        return np.memmap(self.pixels, np.uint8, "r", len(header), self.shape)

    @contextmanager
    def lock(self) -> Iterator[bool]:
        """One process builds at a time, where the file system has locks (then True); elsewhere the last one wins."""
        try:
            make_private_folder(self.path.parent)  # of patients' images
            file = open(self.path.with_suffix(".lock"), "ab", opener=private)  # noqa: SIM115
        except OSError as error:
            raise ResourceError(
                f"the image cache {self.path.parent} cannot be written: {error.strerror or error}; "
                f"set ENDOCIL_CACHE to another folder"
            ) from error
        with file:
            yield lock(file) == "held"

    def build(
        self, table: ImageTable, progress: Progress | None, workers: int | None, alone: bool
    ) -> tuple[Tensor, Unreadable]:
        """Read what is missing; only with the lock can a process continue what another one has left."""
        n_bytes = prod(self.shape)
        unfinished = UnfinishedBuild(self.pixels, self.shape, resumable=alone)
        needed, free = n_bytes - unfinished.done * unfinished.image_bytes, free_bytes(self.path.parent)
        if free < needed:
            raise ResourceError(
                f"the decoded images need {needed:,} bytes, but {free:,} are free in {self.path.parent}; "
                f"free some space, set ENDOCIL_CACHE to another folder, or lower data.size"
            )
        if workers is None:  # a cluster often gives a process fewer processors than the machine has
            workers = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        with explaining_failure(self.pixels, n_bytes), unfinished.appending():
            missing = table.ids[unfinished.done :]
            for pixels, failed in read_in_chunks(table.reader, missing, self.shape[1], workers):
                unfinished.append(pixels, failed)
                if progress:
                    progress(unfinished.done, len(table))
            unfinished.move_to(self.pixels)
        stored = self._mapped()
        unreadable = unfinished.unreadable
        names = _checksum_of(unreadable)
        write_json(self.facts, {"chunks": unfinished.chunks, "unreadable": unreadable, "names": names})
        unfinished.remove()
        return _as_tensor(stored), tuple(unreadable)


def unfinished_files(target: Path) -> tuple[Path, Path]:
    """Pixels so far, and a line for each chunk of them."""
    beside = target.with_name(f".{target.name.removeprefix('.')}")
    return beside.with_name(f"{beside.name}.part"), beside.with_name(f"{beside.name}.jsonl")


class UnfinishedBuild:
    """The two files of a build, and how far it has come."""

    def __init__(self, target: Path, shape: Shape, *, resumable: bool) -> None:
        """Without `resumable` the files have unique names and are removed when the build ends, well or not."""
        beside = target if resumable else temporary_beside(target)
        self.pixels, self.lines = unfinished_files(beside)
        self.resumable = resumable
        self.header = _header(shape)
        self.image_bytes = prod(shape[1:])
        self.done = 0  # images
        self.unreadable: list[tuple[str, str]] = []
        self.chunks: list[tuple[int, int]] = []
        self._sound_lines = 0  # bytes
        with (
            suppress(OSError, ValueError, KeyError, TypeError, ArithmeticError),  # then the rest is read again
            open(self.pixels, "rb") as pixels,
            open(self.lines, "rb") as lines,
        ):
            if pixels.read(len(self.header)) != self.header:
                return
            for line in lines:
                record = parse_json(line.decode(ENCODING, ENCODING_ERRORS))
                if not 0 < record["images"] <= shape[0] - self.done or not line.endswith(b"\n"):
                    return
                chunk = pixels.read(record["images"] * self.image_bytes)
                complete = len(chunk) == record["images"] * self.image_bytes
                if not complete or zlib.crc32(chunk) != record["checksum"]:
                    return
                if record["names"] != _checksum_of(record["unreadable"]):
                    return
                self.chunks.append((record["images"], record["checksum"]))
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
        values = np.ascontiguousarray(pixels).reshape(-1).data
        self._pixels.write(values)
        self._pixels.flush()
        self.chunks.append((len(pixels), zlib.crc32(values)))
        record: dict[str, object] = {"images": len(pixels), "checksum": self.chunks[-1][1]}
        record |= {"unreadable": unreadable, "names": _checksum_of(unreadable)}
        self._lines.write((json.dumps(record) + "\n").encode(ENCODING, ENCODING_ERRORS))
        self._lines.flush()
        self.done += len(pixels)
        self.unreadable += unreadable

    def move_to(self, path: Path) -> None:
        """The complete pixels: onto the disk, and under another name."""
        flush(self._pixels)
        self._pixels.close()  # not every system renames an open file
        os.replace(self.pixels, path)
        flush_folder(path.parent)

    def remove(self) -> None:
        for path in (self.pixels, self.lines):
            with suppress(OSError):
                path.unlink(missing_ok=True)


def _checksum_of(unreadable: Sequence[Sequence[str]]) -> int:
    """Of the names that are left out: by a damaged one, a black image would be learned and a sound one left out."""
    return zlib.crc32(json.dumps(unreadable).encode())


def _header(shape: Shape) -> bytes:
    """Of an .npy file of uint8 pixels."""
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "|u1", "fortran_order": False, "shape": shape})
    return header.getvalue()


def _open_behind(path: Path, end: int) -> io.BufferedWriter:
    """For appending at byte `end`; the bytes behind it are removed."""
    file = open(path, "ab", opener=private)  # noqa: SIM115
    file.truncate(end)
    return file


def _as_tensor(pixels: np.ndarray) -> Tensor:
    with warnings.catch_warnings():
        # read-only on purpose: a writable private map of a large file is refused on machines with less memory
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(pixels)


def _are_sound(path: Path, offset: int, image_bytes: int, chunks: Chunks) -> bool:
    """Whether every byte of the file is as it was decoded; by several threads, which zlib lets run side by side.

    Read from the file, not through its map, which would ask the disk page by page."""
    starts = [offset + image_bytes * images for images in accumulate((n for n, _ in chunks), initial=0)]
    workers = min(4, os.cpu_count() or 1)

    def of_worker(worker: int) -> bool:
        with open(path, "rb", buffering=0) as file:
            for number in range(len(chunks) * worker // workers, len(chunks) * (worker + 1) // workers):
                file.seek(starts[number])
                if zlib.crc32(file.read(chunks[number][0] * image_bytes)) != chunks[number][1]:
                    return False
        return True

    with ThreadPoolExecutor(workers) as pool:
        return all(pool.map(of_worker, range(workers)))


_DIGEST, _UNIQUE = r"[0-9a-f]{64}", r"[0-9a-f]{32}"
_FILES = {
    "decoded images": rf"{_DIGEST}\.(npy|json|lock)",
    "fingerprints (audit)": rf"{_DIGEST}\.npz",
    "unfinished or left by a killed process": rf"\.({_DIGEST}\.npy|.+\.{_UNIQUE}\.tmp)(\.part|\.jsonl)?",
}
FEATURES = "features"  # the folder of learning/features.py
_FEATURE_FOLDERS = {"features of frozen backbones": _DIGEST}
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
    entries = []
    for place, kinds in ((folder, _FILES), (folder / FEATURES, _FEATURE_FOLDERS), (folder / "archives", _ARCHIVES)):
        for path in sorted(place.iterdir()) if place.is_dir() else ():
            kind = next((kind for kind, form in kinds.items() if re.fullmatch(form, path.name)), None)
            if kind is None or path.is_symlink() or path.is_dir() == (kinds is _FILES):  # no link is ours
                continue
            files = [path] if path.is_file() else [file for file in path.rglob("*") if not file.is_dir()]
            entries.append(CacheEntry(kind, path, sum(file.lstat().st_size for file in files)))
    return entries


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
    for name in ("archives", FEATURES):
        with suppress(OSError):
            (folder / name).rmdir()  # stays where something else is in it
    return freed
