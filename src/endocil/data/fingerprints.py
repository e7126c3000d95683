"""Fingerprints of images: detail, a digest of the pixels, colour and size, in about a kilobyte for each image.

They are measured in one pass over a table and kept in the image cache until a file changes. Images that are the same
when they are small are compared in full, so that equal digests mean exact duplicates.
"""

import hashlib
import json
import os
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from endocil.data.cache import Progress, cached_arrays
from endocil.data.decode import dimensions_of, file_of, read_file
from endocil.data.readers import read_in_chunks
from endocil.data.table import ImageTable, Reader, UnreadableImageError, WholeReader

RULES = "fingerprints 2"  # raise it when the same image is measured differently
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
        arrays = {name: getattr(self, name)[rows] for name in ("digests", "details", "colours", "sizes")}
        known = set(ids)
        unreadable = tuple((name, reason) for name, reason in self.unreadable if name in known)
        return replace(self, ids=ids, unreadable=unreadable, **arrays)


def fingerprints(
    table: ImageTable, *, folder: Path | None = None, progress: Progress | None = None, workers: int | None = None
) -> Fingerprints:
    """Measured once, then read from `folder` (default: the image cache) until a file changes."""
    names = ("digests", "details", "colours", "sizes", "unreadable")
    n_workers = workers or os.cpu_count() or 1
    arrays = cached_arrays(
        table, names, lambda: _measure_all(table, progress, n_workers), rules=RULES, size=READ, folder=folder
    )
    unreadable = json.loads(arrays.pop("unreadable").tobytes())
    return Fingerprints(ids=table.ids, unreadable=tuple((name, reason) for name, reason in unreadable), **arrays)


def _measure_all(table: ImageTable, progress: Progress | None, workers: int) -> dict[str, np.ndarray]:
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
    listed = json.dumps(unreadable).encode()  # ASCII: also for names that are no valid UTF-8
    return {
        "digests": _confirmed(table, digests, workers),
        "details": details,
        "colours": colours,
        "sizes": sizes,
        "unreadable": np.frombuffer(listed, np.uint8),
    }


def gray_values(pixels: np.ndarray) -> np.ndarray:
    """(B, H, W, 3) uint8 -> (B, H, W) from 0 to 255."""
    return np.asarray((pixels.astype(np.int32) @ _GRAY) / 1000.0)


def detail(gray: np.ndarray) -> np.ndarray:
    """(B, 64, 64) gray values -> (B, 32, 32) int8; all 0 where an image has no detail."""
    n = len(gray)
    small = gray.reshape(n, DETAIL, READ // DETAIL, DETAIL, READ // DETAIL).mean((2, 4))  # (B, 32, 32)
    seen = small > DARK
    around = _sums_around(small * seen) / np.maximum(_sums_around(seen), 1)
    wide = np.pad(np.where(seen, small - around, 0.0), ((0, 0), (1, 1), (1, 1)))
    # each pixel with its neighbours, by 1, 2, 1: a shift by half a pixel and noise change little then
    rows = (wide[:, :-2] + 2 * wide[:, 1:-1] + wide[:, 2:]) / 4
    rest = (rows[:, :, :-2] + 2 * rows[:, :, 1:-1] + rows[:, :, 2:]) / 4
    deviation = np.sqrt((rest**2).mean((1, 2), keepdims=True))  # (B, 1, 1)
    scaled = np.where(deviation > _FLAT, rest / np.maximum(3 * deviation, _FLAT), 0.0)
    return np.asarray(np.rint(127 * scaled.clip(-1, 1)).astype(np.int8))


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
