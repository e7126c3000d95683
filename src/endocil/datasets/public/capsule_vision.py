"""Capsule Vision 2024 (Handa et al., 2024): {training,validation}/<class>/<source>/<file>.jpg, and a public test set.

The images of the test set are in one folder; a table published later labels them. The paper's numbers need all three
parts. The source of an image is its folder, or else stands in the .xlsx tables beside the images.
"""

import os
import re
import warnings
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

from endocil.data.lists import Row
from endocil.data.table import ImageTable
from endocil.datasets.public.downloads import Download, find_download, listed, repeated_names, table_of, with_video
from endocil.datasets.public.facts import PUBLIC
from endocil.errors import DataError
from endocil.io.archives import Progress
from endocil.io.files import expand, refuse_special
from endocil.io.terminal import one_line

FACTS = PUBLIC["capsule-vision"]
MAX_BYTES = 256 * 2**20  # of one part of an .xlsx file, unpacked: twenty times the largest table of the data set
MAX_CELLS = 20_000_000

_FOLDERS = {"train": "training", "validation": "validation"}
_FRAME = re.compile(r"([0-9a-f]{16})_(\d{1,9})\.\w+")  # of Kvasir-Capsule; other sources name no video


def load(
    *, root: str, test: str | None = None, test_labels: str | None = None, progress: Progress | None = None
) -> ImageTable:
    """The images at `root`; `test` is the test set where it is in another place, `test_labels` its table (.xlsx)."""
    download = find_download(FACTS, root, progress=progress)
    if test is not None:
        more = find_download(FACTS, test, "data.test", progress)
        download.unclassified += more.unclassified
        download.labels += more.labels
        download.others.update(more.others)
    rows, notes = _compare_with_tables(download, [_with_source(image) for image in download.images])
    test_rows, test_notes = _test_rows(download, test_labels)
    repeated = repeated_names(rows)
    if repeated:
        test_notes.append(
            f"{len(repeated):,} file names occur more than once ({listed(repeated, 2)}): an image is known by its path."
        )
    return table_of(download, [with_video(row, _FRAME) for row in (*rows, *test_rows)], (*notes, *test_notes))


def _with_source(image: Row) -> Row:
    """Its source is the folder in the class folder; its id begins with the folder of its part."""
    _, *folders, _ = image.id.split("/")
    source = folders[0].upper() if folders else ""
    return replace(image, id="/".join(filter(None, (_FOLDERS.get(image.part, image.part), image.id))), source=source)


def _test_rows(download: Download, test_labels: str | None) -> tuple[list[Row], list[str]]:
    """Images in no class folder whose names the table of test labels knows."""
    tables = [expand(test_labels, "data.test_labels")] if test_labels else _tables(download, "test_data.xlsx")
    if not tables:
        if not download.unclassified:
            return [], []
        return [], ["Without test_data.xlsx (data.test_labels) images of the test set have no class."]
    label_of = _test_labels(tables[0])
    images = {os.path.realpath(file.path): file for file in download.unclassified}  # root and test may overlap
    rows = [
        Row(file.path, label_of[file.name], part="test", id=f"test/{file.name}")
        for file in images.values()
        if file.name in label_of
    ]
    missing = len(label_of) - len(rows)
    return rows, [f"{missing:,} labelled images of the test set are not there."] if missing else []


def _test_labels(path: Path) -> dict[str, str]:
    label_of: dict[str, str] = {}
    for row in read_xlsx(path):
        if not {"image_path", "class_label"} <= row.keys():
            raise DataError(f"{path} has no columns image_path and class_label; expected Results/test_data.xlsx")
        name, label = _slashes(row["image_path"])[-1], FACTS.class_of(row["class_label"])
        if label is None:
            raise DataError(f"{path}: '{row['class_label']}' is not a class of {FACTS.title}")
        if label_of.setdefault(name, label) != label:
            raise DataError(f"{path} labels {name} as {label_of[name]} and as {label}")
    return label_of


def _compare_with_tables(download: Download, rows: list[Row]) -> tuple[list[Row], list[str]]:
    """Sources for images without a source folder, and notes on where the tables and the folders differ."""
    tables = dict(_table_rows(download))
    if not tables:
        return rows, []
    without_source = {"/".join((*path[:2], path[-1])): path for path in tables}
    paths = [without_source.get(row.id) if not row.source else tuple(row.id.split("/")) for row in rows]
    labels = [tables.get(path, ("", "")) if path else ("", "") for path in paths]
    rows = [replace(row, source=row.source or source) for row, (_, source) in zip(rows, labels, strict=True)]
    notes = []
    missing = len(tables) - sum(label != "" for label, _ in labels)
    if missing:
        notes.append(f"{missing:,} images of the tables beside the images are not there.")
    other = [row.id for row, (label, _) in zip(rows, labels, strict=True) if label not in ("", row.label)]
    if other:
        notes.append(f"{len(other):,} images have another class in the table than by their folder: {listed(other)}.")
    return rows, notes


def _table_rows(download: Download) -> Iterator[tuple[tuple[str, ...], tuple[str, str]]]:
    """Path from training or validation on, spelled as ids are -> (class, source)."""
    for table in _tables(download, "training_data.xlsx", "validation_data.xlsx"):
        for row in read_xlsx(table):
            path = _slashes(row.get("image_path", ""))
            label = next((name for name in FACTS.classes if row.get(name) in ("1", "1.0")), "")
            folder = FACTS.class_of(path[1]) if len(path) > 2 else None
            if folder is not None:
                yield (path[0].lower(), folder, *path[2:]), (label, row.get("Dataset", "").upper())


def read_xlsx(path: Path) -> list[dict[str, str]]:
    """The rows below the first one of the first sheet, as text by column name; cells that are missing are empty."""
    import openpyxl  # its import takes a while, and few need it

    try:
        refuse_special(path)
        with zipfile.ZipFile(path) as file:  # of XML: document types, which may define entities, are refused
            for part in file.infolist():
                if part.file_size > MAX_BYTES:
                    raise ValueError(f"{part.filename} is larger than {MAX_BYTES:,} bytes")
                if b"<!DOCTYPE" in file.read(part):
                    raise ValueError("it declares a document type, which no table does")
        with warnings.catch_warnings(action="ignore"):  # on styles and extensions, which do not matter here
            book = openpyxl.load_workbook(path, read_only=True, data_only=True, keep_links=False)
            with closing(book):
                sheet = book.worksheets[0]
                sheet.reset_dimensions()  # the file may claim any size
                rows = list(_texts(sheet.iter_rows(values_only=True)))
    except Exception as error:  # damaged files make openpyxl raise almost anything
        if isinstance(error, OSError) and error.errno is not None:
            raise DataError(f"cannot read {path}: {error.strerror or error}") from error
        reason = one_line(error)
        raise DataError(f"{path} cannot be read as an .xlsx table: {reason}; save it again") from error
    if not rows:
        raise DataError(f"{path}: the first sheet is empty; expected a row of column names")
    header = rows[0]
    return [{name: text for name, text in zip_longest(header, row, fillvalue="") if name} for row in rows[1:]]


def _texts(rows: Iterable[Sequence[Any]]) -> Iterator[list[str]]:
    """Rows with any value, as text."""
    n_cells = 0
    for row in rows:
        n_cells += max(1, len(row))
        if n_cells > MAX_CELLS:
            raise ValueError(f"it has more than {MAX_CELLS:,} cells")
        if any(value is not None for value in row):
            yield ["" if value is None else str(int(value) if value is True else value) for value in row]


def _tables(download: Download, *names: str) -> list[Path]:
    return [Path(file.path) for file in download.labels if file.name.lower() in names]


def _slashes(path: str) -> tuple[str, ...]:
    """The tables were written on Windows."""
    return tuple(part for part in path.replace("\\", "/").split("/") if part)
