"""Image lists: a CSV or TSV file with path and label, and where known group, source, split, task and frame.

path;label;patient;split
polyps\\001.jpg;polyp;p07;train

`data/lists.py` reads the columns. A path that is listed twice with one label counts once. With two labels
it is refused, or kept as two images, `label:path`, with double_labels = "keep".
"""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Literal

import numpy as np

from endocil.data.decode import FileReader
from endocil.data.lists import Row, read_data_list
from endocil.data.readers import Renamed
from endocil.data.table import ImageTable, Reader
from endocil.errors import DataError


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
    listing, top, rows = read_data_list(file, root, columns, absolute_paths=absolute_paths)
    kept, notes = without_repeats(listing, rows, double_labels)
    return table_of(kept, FileReader(top), notes)


def without_repeats(
    file: Path, rows: Sequence[Row], double_labels: Literal["refuse", "keep"]
) -> tuple[list[Row], list[str]]:
    """Each (path, label) once, in the order of the paths; rows that contradict each other are refused."""
    first: dict[tuple[str, str], Row] = {}
    for row in rows:
        other = first.setdefault((row.path, row.label), row)
        if other != row:
            raise DataError(
                f"{file} lists {row.path} twice as '{row.label}' with different values; "
                f"take one of the lines off the list"
            )
    kept = sorted(first.values(), key=lambda row: (row.path, row.label))
    notes = []
    if len(rows) > len(kept):
        notes.append(f"{len(rows) - len(kept)} lines that repeat an image with the same label were left out.")
    double = sorted(_double(kept))
    if double and double_labels == "refuse":
        names = " and ".join(f"'{row.label}'" for row in kept if row.path == double[0])
        raise DataError(
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
