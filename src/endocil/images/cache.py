"""Every image is decoded once, into one memory-mapped file of uint8 pixels, keyed by the table and the size.

Beside `<digest>.npy` stands `<digest>.json` with the images that could not be read and a checksum; the pixels
count only where both fit together. A build writes under other names and renames, so that a crash leaves
nothing that could be taken for pixels; the next build goes on where it ended. A second process that wants the
same pixels waits for the first and takes its result.
"""

import json
import os
import warnings
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from endocil.errors import EndocilError
from endocil.files import ENCODING, ENCODING_ERRORS, free_bytes, replacing, write_json
from endocil.images.reading import read_in_chunks
from endocil.images.table import ImageTable
from endocil.images.unfinished import Unfinished
from endocil.locking import lock

Progress = Callable[[int, int], None]  # (images done, images in all)
Unreadable = tuple[tuple[str, str], ...]  # (id, reason)

_SAMPLES = 64  # rows whose checksum is compared when the cache is opened


@dataclass(frozen=True, eq=False)
class Images:
    """All images of a run: the table and its pixels, row for row."""

    table: ImageTable
    pixels: Tensor  # (M, size, size, 3) uint8, memory-mapped: writing to it ends the process
    rows: Tensor  # (N,) int64: the row of pixels for each row of the table
    skipped: Unreadable  # unreadable files that were left out

    def gather(self, index: Tensor) -> Tensor:
        """Copies of the pixels of these rows of the table."""
        return self.pixels.index_select(0, self.rows[index])  # (B, size, size, 3)


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
        raise EndocilError("there are no images to load: the image table is empty")
    stored = _Stored((folder or default_folder()) / table.digest(size), (len(table), size, size, 3))
    found = stored.open()
    if found is None:
        with stored.lock() as alone:
            found = stored.open() or stored.build(table, progress, workers or _n_processors(), alone)
    pixels, unreadable = found
    kept = _readable_rows(table, unreadable, skip_unreadable)
    return Images(table.take(kept), pixels, torch.from_numpy(kept), unreadable)


def default_folder() -> Path:
    """Where decoded images are kept unless told otherwise."""
    return Path(os.environ.get("ENDOCIL_CACHE") or "~/.cache/endocil").expanduser()


@dataclass(frozen=True)
class _Stored:
    """The files of one table at one size."""

    path: Path  # without suffix
    shape: tuple[int, int, int, int]

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
            if not fits or facts["checksum"] != _checksum(self.pixels, pixels):
                return None
            return _as_tensor(pixels), tuple((name, reason) for name, reason in facts["unreadable"])
        except (OSError, ValueError, KeyError, TypeError, EOFError):
            return None

    @contextmanager
    def lock(self) -> Iterator[bool]:
        """One process builds at a time where the file system can lock (then True); elsewhere the last one counts."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            file = open(self.path.with_suffix(".lock"), "ab")  # noqa: SIM115
        except OSError as error:
            raise EndocilError(
                f"the image cache {self.path.parent} cannot be written: {error.strerror or error}; "
                f"set ENDOCIL_CACHE to another folder"
            ) from error
        with file:
            yield lock(file) == "held"

    def build(
        self, table: ImageTable, progress: Progress | None, workers: int, alone: bool
    ) -> tuple[Tensor, Unreadable]:
        """Read what is not there yet; only a process that is alone can go on with what another has left."""
        wanted = prod(self.shape)
        unfinished = Unfinished(self.pixels, self.shape, resumable=alone)
        _check_space(self.path.parent, wanted - unfinished.done * unfinished.bytes_each)
        with replacing(self.pixels, wanted) as temporary, unfinished.appending():
            missing = table.ids[unfinished.done :]
            for pixels, failed in read_in_chunks(table.reader, missing, self.shape[1], workers):
                unfinished.append(pixels, failed)
                if progress:
                    progress(unfinished.done, len(table))
            unfinished.move_to(temporary)
        stored = np.load(self.pixels, mmap_mode="r", allow_pickle=False)
        write_json(
            self.facts, {"checksum": _checksum(self.pixels, stored), "unreadable": unfinished.unreadable}
        )
        unfinished.remove()
        return _as_tensor(stored), tuple(unfinished.unreadable)


def _readable_rows(table: ImageTable, unreadable: Unreadable, skip: bool) -> np.ndarray:
    bad = {name for name, _ in unreadable}
    kept = np.array([row for row, name in enumerate(table.ids) if name not in bad], np.int64)
    if not bad or (skip and len(kept)):
        return kept
    listed = "; ".join(f"{name}: {reason}" for name, reason in unreadable[:5])
    more = "; ..." if len(unreadable) > 5 else ""
    way_out = "data.skip_unreadable = true leaves them out and records them" if len(kept) else "none is left"
    raise EndocilError(f"{len(bad)} of {len(table)} images cannot be read ({listed}{more}); {way_out}")


def _as_tensor(pixels: np.ndarray) -> Tensor:
    with warnings.catch_warnings():
        # read-only on purpose: a writable private map of a large file is refused on machines with less memory
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(pixels)


def _checksum(path: Path, pixels: np.memmap) -> int:
    """Of rows spread evenly: cheap at any size, and it sees a file that was cut, zeroed or overwritten.

    Read from the file, not through its map: a disk is asked for a row at once and not page by page."""
    each, checksum = prod(pixels.shape[1:]), 0
    with open(path, "rb", buffering=0) as file:
        for row in np.linspace(0, len(pixels) - 1, min(_SAMPLES, len(pixels))).astype(np.int64):
            file.seek(pixels.offset + int(row) * each)
            checksum = zlib.crc32(file.read(each), checksum)
    return checksum


def _check_space(folder: Path, wanted: int) -> None:
    free = free_bytes(folder)
    if free < wanted:
        raise EndocilError(
            f"the decoded images need {wanted:,} bytes, but {free:,} are free in {folder}; "
            f"free some space, set ENDOCIL_CACHE to another folder, or lower data.size"
        )


def _n_processors() -> int:
    """Those this process may use: a cluster often gives fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
