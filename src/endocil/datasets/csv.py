"""Images listed in a text file: path and label, and where known group, source, split, task and frame.

path;label;patient;split
polyps\\001.jpg;polyp;p07;train

The columns are those of `listing.py`. A path that is listed twice with one label counts once. With two labels
it is refused, or kept as two images, `label:path`, with double_labels = "keep".
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Literal

import numpy as np
from PIL import Image

from endocil.data.decode import FileReader, dimensions_of, file_of
from endocil.data.frame import WholeReader
from endocil.data.lists import Row, listed
from endocil.data.table import ImageTable, Reader
from endocil.errors import EndocilError


def load(
    *,
    file: str,
    root: str | None = None,
    double_labels: Literal["refuse", "keep"] = "refuse",
    absolute_paths: bool = False,
    path_column: str | None = None,
    label_column: str | None = None,
    group_column: str | None = None,
    source_column: str | None = None,
    split_column: str | None = None,
    task_column: str | None = None,
    frame_column: str | None = None,
) -> ImageTable:
    """The images of a list; its paths start at `root`, or else at the folder of the list."""
    columns = {
        "path": path_column,
        "label": label_column,
        "group": group_column,
        "source": source_column,
        "split": split_column,
        "task": task_column,
        "frame": frame_column,
    }
    listing, top, rows = listed(file, root, columns, absolute_paths=absolute_paths)
    kept, notes = without_repeats(listing, rows, double_labels)
    return table_of(kept, FileReader(top), notes)


@dataclass(frozen=True)
class Renamed:
    """A reader whose images have other names here: an id that is not listed is the name itself."""

    reader: Reader
    names: dict[str, str]

    @property
    def in_processes(self) -> bool:
        return bool(getattr(self.reader, "in_processes", False))

    def read(self, image_id: str, size: int) -> np.ndarray:
        return self.reader.read(self.names.get(image_id, image_id), size)

    def whole(self, image_id: str) -> Image.Image:
        if not isinstance(self.reader, WholeReader):
            raise EndocilError(f"{type(self.reader).__name__} gives no image in its own size")
        return self.reader.whole(self.names.get(image_id, image_id))

    def fingerprint(self, ids: Sequence[str]) -> str:
        return self.reader.fingerprint([self.names.get(image_id, image_id) for image_id in ids])

    def dimensions(self, image_id: str) -> tuple[int, int]:
        return dimensions_of(self.reader, self.names.get(image_id, image_id))

    def path(self, image_id: str) -> Path | None:
        return file_of(self.reader, self.names.get(image_id, image_id))


def without_repeats(
    file: Path, rows: Sequence[Row], double_labels: Literal["refuse", "keep"]
) -> tuple[list[Row], list[str]]:
    """Each (path, label) once, in the order of the paths; rows that contradict each other are refused."""
    first: dict[tuple[str, str], Row] = {}
    for row in rows:
        other = first.setdefault((row.path, row.label), row)
        if other != row:
            raise EndocilError(
                f"{file} lists {row.path} twice as '{row.label}' and says different things about it; "
                f"take one of the lines off the list"
            )
    kept = sorted(first.values(), key=lambda row: (row.path, row.label))
    notes = []
    if len(rows) > len(kept):
        notes.append(f"{len(rows) - len(kept)} lines that repeat an image with the same label were left out.")
    double = sorted(_double(kept))
    if double and double_labels == "refuse":
        names = " and ".join(f"'{row.label}'" for row in kept if row.path == double[0])
        raise EndocilError(
            f"{file} gives {len(double)} images two labels, first {double[0]}: {names}; "
            f"correct the list, or keep them as an image of each class by --set data.double_labels=keep"
        )
    if double:
        notes.append(
            f"{len(double)} images have more than one label and are an image of each of the classes."
        )
    return kept, notes


def table_of(rows: Sequence[Row], reader: Reader, notes: Sequence[str]) -> ImageTable:
    """One image per row; an image with two labels is there under each, as `label:path`."""
    double = _double(rows)
    ids = [f"{row.label}:{row.path}" if row.path in double else row.path for row in rows]
    names = {image_id: row.path for image_id, row in zip(ids, rows, strict=True) if row.path in double}
    classes = tuple(sorted({row.label for row in rows}))
    label = {name: number for number, name in enumerate(classes)}
    return ImageTable(
        ids=tuple(ids),
        labels=np.array([label[row.label] for row in rows], np.int64),
        classes=classes,
        reader=Renamed(reader, names) if names else reader,
        groups=tuple(row.group for row in rows),
        sources=tuple(row.source for row in rows),
        notes=tuple(notes),
        parts=tuple(row.part for row in rows),
        frames=tuple(row.frame for row in rows),
        arrivals=tuple(row.arrival for row in rows),
    )


def _double(rows: Sequence[Row]) -> set[str]:
    """Paths with more than one label; the rows are in the order of their paths."""
    return {row.path for row, following in pairwise(rows) if row.path == following.path}
