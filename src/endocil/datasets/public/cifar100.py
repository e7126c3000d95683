"""CIFAR-100 (Krizhevsky, 2009), the binary version: train.bin and test.bin, found in a folder or the official archive.

A record is the superclass, the class, and 32 x 32 red, green and blue values, a byte each. The Python version is made
of pickles, which run code: it is not read. There are no files of single images; the id of one is its part and place.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from endocil.data.decode import BILINEAR
from endocil.data.lists import Row, table_of
from endocil.data.table import ImageTable, UnreadableImageError
from endocil.datasets.public.facts import PUBLIC
from endocil.errors import DataError
from endocil.io.archives import Progress, extract
from endocil.io.files import expand, refuse_special
from endocil.io.walk import walk

FACTS = PUBLIC["cifar100"]
CLASSES = tuple(FACTS.classes)  # by their number in the files
SIZE = 32
RECORD = 2 + 3 * SIZE * SIZE  # bytes
MOST = 10_000_000  # records of a file: far above the 50,000 of the data set
RULES = "CIFAR-100 rules 1"  # raise it when the same record gives other pixels


def load(*, root: str, progress: Progress | None = None) -> ImageTable:
    """The images at `root`: the archive, or a folder with train.bin and test.bin at any depth."""
    place = expand(root, "data.root")
    if place.is_file():
        place = extract(place, progress=progress, also=FACTS.files).folder
    if not place.is_dir():
        raise DataError(f"data.root = '{root}' is not there; expected {FACTS.archives[0].name}, or its folder")
    files = {name.removesuffix(".bin"): _find(place, name) for name in FACTS.files}
    reader = RecordReader(files)
    rows = []
    for part in files:
        labels = reader.records(part)[:, 1]
        if len(labels) and labels.max() >= len(CLASSES):
            raise DataError(
                f"{files[part]}: record {int(labels.argmax())} is of class {labels.max()}; expected 0 to "
                f"{len(CLASSES) - 1}: it is no file of CIFAR-100, binary version"
            )
        rows += [Row(f"{part}/{i:05d}", CLASSES[label], part=part) for i, label in enumerate(labels.tolist())]
    return table_of(rows, reader)


def _find(folder: Path, name: str) -> Path:
    found = [Path(one.path, name) for one in walk(folder) if name in one.files]
    if len(found) == 1:
        return found[0]
    pickled = any("meta" in one.files and "train" in one.files for one in walk(folder))
    hint = "; the Python version holds pickles and is not read, get cifar-100-binary.tar.gz" if pickled else ""
    many = f"holds {len(found)} files" if found else "holds no file"
    raise DataError(f"{folder} {many} {name}; expected the one of {FACTS.archives[0].name}{hint}")


@dataclass(frozen=True)
class RecordReader:
    """The records of the files; the id train/00012 is the thirteenth of train.bin."""

    files: dict[str, Path]

    def records(self, part: str) -> np.ndarray:
        """(n, 3074) uint8, on the disk."""
        return self._maps[part]

    @cached_property
    def _maps(self) -> dict[str, np.ndarray]:
        return {part: _records(path) for part, path in self.files.items()}

    def whole(self, image_id: str) -> Image.Image:
        part, _, number = image_id.partition("/")
        if part not in self.files or not number.isdecimal() or int(number) >= len(self.records(part)):
            raise UnreadableImageError("CIFAR-100 has no such image; expected one like train/00012")
        planes = self.records(part)[int(number), 2:].reshape(3, SIZE, SIZE)
        return Image.fromarray(np.ascontiguousarray(planes.transpose(1, 2, 0)))

    def read(self, image_id: str, size: int) -> np.ndarray:
        return np.asarray(self.whole(image_id).resize((size, size), BILINEAR))

    def dimensions(self, image_id: str) -> tuple[int, int]:
        return SIZE, SIZE

    def fingerprint(self, ids: Sequence[str]) -> str:
        """Rules, files with their sizes and times, and the ids."""
        status = [(path.resolve(), path.stat().st_size, path.stat().st_mtime_ns) for path in self.files.values()]
        key = "\0".join((RULES, *map(str, status), *ids))
        return hashlib.sha256(key.encode(errors="surrogateescape")).hexdigest()


def _records(path: Path) -> np.ndarray:
    try:
        refuse_special(path)
        size = path.stat().st_size
        if not size or size % RECORD or size > MOST * RECORD:
            raise DataError(f"{path} has {size:,} bytes; expected records of {RECORD:,} bytes: it is damaged")
        mapped: np.memmap[Any, np.dtype[np.uint8]] = np.memmap(path, np.uint8, mode="r")
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from error
    return mapped.reshape(-1, RECORD)
