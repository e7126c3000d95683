"""One pass over the images of a table: what each looks like, in about a kilobyte. Kept in the image cache."""

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from endocil.audit import measure, store
from endocil.audit.exact import confirmed
from endocil.images.decode import dimensions_of
from endocil.images.reading import read_in_chunks
from endocil.images.table import ImageTable

Progress = Callable[[int, int], None]  # (done, in all)

RULES = "fingerprints 2"  # raise it when the same picture is measured differently
_ARRAYS = ("digests", "details", "colours", "sizes", "unreadable")


@dataclass(frozen=True, eq=False)
class Fingerprints:
    """One row per image of the table; rows of unreadable images are empty."""

    ids: tuple[str, ...]
    digests: np.ndarray  # (N,) text: equal for exact duplicates, see exact.py; "" where unreadable
    details: np.ndarray  # (N, 32, 32) int8
    colours: np.ndarray  # (N, 5) mean red, green, blue, gray of the view; share of the picture that is view
    sizes: np.ndarray  # (N, 2) width and height of the picture; 0 where the reader does not tell
    unreadable: tuple[tuple[str, str], ...]  # (id, reason)

    @property
    def readable(self) -> np.ndarray:
        return np.asarray(self.digests != "")  # (N,)

    def take(self, rows: np.ndarray) -> "Fingerprints":
        """Of these rows, in this order."""
        ids = tuple(self.ids[row] for row in rows)
        left = set(ids)
        return Fingerprints(
            ids,
            self.digests[rows],
            self.details[rows],
            self.colours[rows],
            self.sizes[rows],
            tuple((name, reason) for name, reason in self.unreadable if name in left),
        )


def fingerprints(
    table: ImageTable,
    *,
    folder: Path | None = None,
    progress: Progress | None = None,
    workers: int | None = None,
) -> Fingerprints:
    """Measured once, then read from `folder` (default: the image cache) until a file changes."""
    path = store.place(table, measure.READ, RULES, folder)
    found = _read(path, table)
    if found is None:
        found = _measure_all(table, progress, workers or os.cpu_count() or 1)
        _write(path, found)
    return found


def _measure_all(table: ImageTable, progress: Progress | None, workers: int) -> Fingerprints:
    n, done = len(table), 0
    digests = np.full(n, "", dtype="U32")
    details = np.zeros((n, measure.DETAIL, measure.DETAIL), np.int8)
    colours, sizes = np.zeros((n, 5), np.float32), np.zeros((n, 2), np.int32)
    unreadable: list[tuple[str, str]] = []
    for pixels, failed in read_in_chunks(table.reader, table.ids, measure.READ, workers):
        rows = slice(done, done + len(pixels))
        gray = measure.gray_values(pixels)
        details[rows] = measure.detail(gray)
        colours[rows] = measure.colour(pixels, gray)
        bad = {name for name, _ in failed}
        for row, picture in zip(range(rows.start, rows.stop), pixels, strict=True):
            if table.ids[row] not in bad:
                sizes[row] = dimensions_of(table.reader, table.ids[row])
                digests[row] = measure.digest(picture, *sizes[row].tolist())
        unreadable += failed
        done = rows.stop
        if progress:
            progress(done, n)
    digests = confirmed(table, digests, workers)
    return Fingerprints(table.ids, digests, details, colours, sizes, tuple(unreadable))


def _write(path: Path, found: Fingerprints) -> None:
    listed = json.dumps(found.unreadable).encode()  # ASCII: also for names that are no valid UTF-8
    arrays = {name: getattr(found, name) for name in _ARRAYS if name != "unreadable"}
    store.save(path, {**arrays, "unreadable": np.frombuffer(listed, np.uint8)})


def _read(path: Path, table: ImageTable) -> Fingerprints | None:
    kept = store.load(path, _ARRAYS)
    if kept is None or len(kept["digests"]) != len(table):
        return None
    listed = json.loads(kept.pop("unreadable").tobytes())
    return Fingerprints(ids=table.ids, unreadable=tuple((name, reason) for name, reason in listed), **kept)
