"""Fingerprints of images: detail, a digest of the pixels, colour and size, in about a kilobyte for each image.

They are measured in one pass over a table and kept in the image cache until a file changes. Images that are the same
when they are small are compared in full, so that equal digests mean exact duplicates.
"""

import hashlib
import json
import os
import zipfile
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

import numpy as np

from endocil.data.decode import dimensions_of, file_of, read_file
from endocil.data.readers import read_in_chunks
from endocil.data.table import ImageTable, Reader, UnreadableImageError, WholeReader
from endocil.io.files import cache_folder, write_atomically

Progress = Callable[[int, int], None]  # (done, in all)

RULES = "fingerprints 2"  # raise it when the same image is measured differently
_ARRAYS = ("digests", "details", "colours", "sizes", "unreadable")
READ = 64  # images are read at this width and height
DETAIL = 32  # width and height of the detail
DARK = 20  # gray values up to this, of 255, are not part of the view
_REACH = 6  # surroundings: this many pixels of the detail to each side
_FLAT = 0.5  # gray levels; a smaller deviation is the noise of an empty image, which has no detail
_GRAY = np.array([299, 587, 114])  # thousandths of red, green and blue in a gray value (ITU-R BT.601)


@dataclass(frozen=True, eq=False)
class Fingerprints:
    """One row per image of the table; rows of unreadable images are empty."""

    ids: tuple[str, ...]
    digests: np.ndarray  # (N,) text: equal for exact duplicates; "" where unreadable
    details: np.ndarray  # (N, 32, 32) int8
    colours: np.ndarray  # (N, 5) mean red, green, blue, gray of the view; fraction of the image that is view
    sizes: np.ndarray  # (N, 2) width and height of the image; 0 where unknown
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
    path = cache_path(table, READ, RULES, folder)
    prints = _load(path, table)
    if prints is None:
        prints = _measure_all(table, progress, workers or os.cpu_count() or 1)
        _save(path, prints)
    return prints


def _measure_all(table: ImageTable, progress: Progress | None, workers: int) -> Fingerprints:
    n, done = len(table), 0
    digests = np.full(n, "", dtype="U32")
    details = np.zeros((n, DETAIL, DETAIL), np.int8)
    colours, sizes = np.zeros((n, 5), np.float32), np.zeros((n, 2), np.int32)
    unreadable: list[tuple[str, str]] = []
    for pixels, failed in read_in_chunks(table.reader, table.ids, READ, workers):
        rows = slice(done, done + len(pixels))
        gray = gray_values(pixels)
        details[rows] = detail(gray)
        colours[rows] = colour(pixels, gray)
        bad = {name for name, _ in failed}
        for row, image in zip(range(rows.start, rows.stop), pixels, strict=True):
            if table.ids[row] not in bad:
                sizes[row] = dimensions_of(table.reader, table.ids[row])
                digests[row] = digest(image, *sizes[row].tolist())
        unreadable += failed
        done = rows.stop
        if progress:
            progress(done, n)
    digests = _confirmed(table, digests, workers)
    return Fingerprints(table.ids, digests, details, colours, sizes, tuple(unreadable))


def gray_values(pixels: np.ndarray) -> np.ndarray:
    """(B, H, W, 3) uint8 -> (B, H, W) from 0 to 255."""
    return np.asarray((pixels.astype(np.int32) @ _GRAY) / 1000.0)


def detail(gray: np.ndarray) -> np.ndarray:
    """(B, 64, 64) gray values -> (B, 32, 32) int8; all 0 where an image has no detail."""
    n = len(gray)
    small = gray.reshape(n, DETAIL, READ // DETAIL, DETAIL, READ // DETAIL).mean((2, 4))  # (B, 32, 32)
    seen = small > DARK
    around = _sums_around(small * seen) / np.maximum(_sums_around(seen), 1)
    rest = _smoothed(np.where(seen, small - around, 0.0))
    deviation = np.sqrt((rest**2).mean((1, 2), keepdims=True))  # (B, 1, 1)
    scaled = np.where(deviation > _FLAT, rest / np.maximum(3 * deviation, _FLAT), 0.0)
    return np.asarray(np.rint(127 * scaled.clip(-1, 1)).astype(np.int8))


def _smoothed(values: np.ndarray) -> np.ndarray:
    """Each pixel with its neighbours, by 1, 2, 1: a shift by half a pixel and noise change little then."""
    wide = np.pad(values, ((0, 0), (1, 1), (1, 1)))
    rows = (wide[:, :-2] + 2 * wide[:, 1:-1] + wide[:, 2:]) / 4
    return np.asarray((rows[:, :, :-2] + 2 * rows[:, :, 1:-1] + rows[:, :, 2:]) / 4)


def _sums_around(values: np.ndarray) -> np.ndarray:
    """Sums over the square of _REACH pixels to each side, as far as the image goes."""
    side = 2 * _REACH + 1
    padded = np.pad(values.astype(np.float64), ((0, 0), (_REACH + 1, _REACH), (_REACH + 1, _REACH)))
    total = padded.cumsum(1).cumsum(2)
    return np.asarray(
        total[:, side:, side:] - total[:, :-side, side:] - total[:, side:, :-side] + total[:, :-side, :-side]
    )


def colour(pixels: np.ndarray, gray: np.ndarray) -> np.ndarray:
    """(B, 5): mean red, green, blue and gray of the view, and the fraction of the image that is view."""
    seen = gray > DARK  # (B, H, W)
    n_seen = seen.sum((1, 2))  # (B,)
    sums = np.einsum("bhwc,bhw->bc", pixels, seen, dtype=np.float64)
    brightness = (gray * seen).sum((1, 2))
    means = np.column_stack([sums, brightness]) / np.maximum(n_seen, 1)[:, None]
    return np.column_stack([means, seen.mean((1, 2))])


def digest(pixels: np.ndarray, width: int, height: int) -> str:
    """Of an image read small, and of its full size: images of different sizes are not the same."""
    text = hashlib.blake2b(f"{width} x {height}\n".encode(), digest_size=16)
    text.update(np.ascontiguousarray(pixels).tobytes())
    return text.hexdigest()


def _confirmed(table: ImageTable, digests: np.ndarray, workers: int) -> np.ndarray:
    """The digests of small images, made different where the whole images differ."""
    times = Counter(digests.tolist())
    rows = [row for row, digest in enumerate(digests.tolist()) if digest and times[digest] > 1]
    result = digests.copy()
    with ThreadPoolExecutor(workers) as pool:
        wholes = pool.map(lambda row: _whole_digest(table.reader, table.ids[row]), rows)
        for row, whole in zip(rows, wholes, strict=True):
            if whole:
                result[row] = hashlib.blake2b(f"{digests[row]} {whole}".encode(), digest_size=16).hexdigest()
    return result


def _whole_digest(reader: Reader, image_id: str) -> str:
    """Of all pixels, or else of the file; nothing where there is neither."""
    path = file_of(reader, image_id)
    try:
        if isinstance(reader, WholeReader):
            image = reader.whole(image_id)
            text = hashlib.blake2b(f"{image.size}\n".encode(), digest_size=16)
            text.update(image.tobytes())
            return text.hexdigest()
        return hashlib.blake2b(read_file(path), digest_size=16).hexdigest() if path else ""
    except UnreadableImageError:  # damaged, or removed since: not the same as any other
        return f"unreadable {image_id!r}"


def _save(path: Path, prints: Fingerprints) -> None:
    listed = json.dumps(prints.unreadable).encode()  # ASCII: also for names that are no valid UTF-8
    arrays = {name: getattr(prints, name) for name in _ARRAYS if name != "unreadable"}
    save_arrays(path, {**arrays, "unreadable": np.frombuffer(listed, np.uint8)})


def _load(path: Path, table: ImageTable) -> Fingerprints | None:
    kept = load_arrays(path, _ARRAYS)
    if kept is None or len(kept["digests"]) != len(table):
        return None
    listed = json.loads(kept.pop("unreadable").tobytes())
    return Fingerprints(ids=table.ids, unreadable=tuple((name, reason) for name, reason in listed), **kept)


def cache_path(table: ImageTable, size: int, rules: str, folder: Path | None) -> Path:
    """The file for the results of these rules on this table, with its files as they are now."""
    key = hashlib.sha256(f"{rules}\0{table.digest(size)}".encode()).hexdigest()
    return (folder or cache_folder()) / f"{key}.npz"


def save_arrays(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    file = BytesIO()
    np.savez(file, allow_pickle=False, **dict(arrays))
    write_atomically(path, file.getvalue())


def load_arrays(path: Path, names: tuple[str, ...]) -> dict[str, np.ndarray] | None:
    """None where there is no such file or it is damaged; it has a checksum of each array."""
    try:
        with np.load(path, allow_pickle=False) as arrays:
            return {name: arrays[name] for name in names}
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        return None
