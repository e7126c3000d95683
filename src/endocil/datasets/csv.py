"""Image lists: a CSV or TSV file with path and label, and where known group, source, split, task and frame.

path;label;patient;split
polyps\\001.jpg;polyp;p07;train

`data/lists.py` reads the columns. A path that is listed twice with one label counts once. With two labels
it is refused, or kept as two images, `label:path`, with double_labels = "keep".
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from endocil.data.decode import FileReader
from endocil.data.lists import Row, read_data_list, table_of
from endocil.data.table import ImageTable, Reader
from endocil.errors import DataError


def load(
    *,
    file: str,
    root: str | None = None,
    double_labels: Literal["refuse", "keep"] = "refuse",
    absolute_paths: bool = False,
    skip_unlabelled: bool = False,
    path_column: str | None = None,
    label_column: str | None = None,
    group_column: str | None = None,
    source_column: str | None = None,
    split_column: str | None = None,
    task_column: str | None = None,
    frame_column: str | None = None,
) -> ImageTable:
    """The images of a list; its paths start at `root`, or else at the folder of the list."""
    columns = (path_column, label_column, group_column, source_column, split_column, task_column, frame_column)
    listing, top, rows = read_data_list(
        file, root, columns, absolute_paths=absolute_paths, skip_unlabelled=skip_unlabelled
    )
    return table_without_repeats(listing, rows, FileReader(top), double_labels)


def table_without_repeats(
    file: Path, rows: Sequence[Row], reader: Reader, double_labels: Literal["refuse", "keep"], notes: Sequence[str] = ()
) -> ImageTable:
    """Each (path, label) once, in the order of the paths; rows that contradict each other are refused."""
    first: dict[tuple[str, str], Row] = {}
    for row in rows:
        other = first.setdefault((row.path, row.label), row)
        if other != row:
            raise DataError(
                f"{file} lists {row.path} twice as '{row.label}' with different values; "
                f"remove one of the lines from the list"
            )
    kept = sorted(first.values(), key=lambda row: (row.path, row.label))
    notes = list(notes)
    if len(rows) > len(kept):
        notes.append(f"{len(rows) - len(kept)} lines that repeat an image with the same label were left out.")
    double = [path for path, n in Counter(row.path for row in kept).items() if n > 1]
    if double and double_labels == "refuse":
        names = " and ".join(f"'{row.label}'" for row in kept if row.path == double[0])
        raise DataError(
            f"{file} gives {len(double)} images two labels, first {double[0]}: {names}; "
            f"correct the list, or keep them as an image of each class by --set data.double_labels=keep"
        )
    if double:
        notes.append(f"Images with more than one label, which are an image of each of the classes: {len(double)}.")
        several = set(double)
        kept = [replace(row, id=f"{row.label}:{row.path}") if row.path in several else row for row in kept]
    return table_of(kept, reader, notes)
