"""Exact duplicates: pictures that look the same when they are small are compared in full.

Only those few are decoded a second time, in their own size, as 8-bit RGB. A reader that gives no picture in its own
size is compared by the bytes of its files; where there are no files either (synthetic images), by the small
pictures. A JPEG and a lossless copy of it may differ when they are small, and then are near duplicates alone.
"""

import hashlib
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from endocil.images.decode import file_of, read_file
from endocil.images.frame import WholeReader
from endocil.images.table import ImageTable, Reader, UnreadableImageError


def confirmed(table: ImageTable, digests: np.ndarray, workers: int) -> np.ndarray:
    """The digests of small pictures, told apart where the whole pictures differ."""
    times = Counter(digests.tolist())
    rows = [row for row, digest in enumerate(digests.tolist()) if digest and times[digest] > 1]
    found = digests.copy()
    with ThreadPoolExecutor(workers) as pool:
        wholes = pool.map(lambda row: _whole_digest(table.reader, table.ids[row]), rows)
        for row, whole in zip(rows, wholes, strict=True):
            if whole:
                found[row] = hashlib.blake2b(f"{digests[row]} {whole}".encode(), digest_size=16).hexdigest()
    return found


def _whole_digest(reader: Reader, image_id: str) -> str:
    """Of all pixels, or else of the file; nothing where there is neither."""
    path = file_of(reader, image_id)
    try:
        if isinstance(reader, WholeReader):
            picture = reader.whole(image_id)
            text = hashlib.blake2b(f"{picture.size}\n".encode(), digest_size=16)
            text.update(picture.tobytes())
            return text.hexdigest()
        return hashlib.blake2b(read_file(path), digest_size=16).hexdigest() if path else ""
    except UnreadableImageError:  # whole it is damaged, or it is gone since: the same as no other
        return f"unreadable {image_id!r}"
