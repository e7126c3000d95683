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

from endocil.data.table import ImageTable
from endocil.datasets.public.downloads import Download, Entry, find_download
from endocil.datasets.public.facts import Archive, DataSet, parse_counts
from endocil.datasets.public.kvasir_capsule import with_video
from endocil.datasets.public.tables import Row, listed, repeated_names, table_of
from endocil.errors import DataError
from endocil.io.archives import Progress
from endocil.io.files import expand, refuse_special

FACTS = DataSet(
    name="capsule-vision",
    title="Capsule Vision 2024",
    variable="CAPSULE_VISION",
    pages=(
        "https://doi.org/10.6084/m9.figshare.26403469.v1 (training and validation)",
        "https://doi.org/10.6084/m9.figshare.27200664.v1 (test)",
        "https://github.com/misahub2023/Capsule-Vision-2024-Challenge (Results/test_data.xlsx: the test labels)",
    ),
    archives=(
        Archive(
            "figshare file 48018562",
            "Dataset/{training,validation}/<class>/<source>/<file>.jpg and two .xlsx tables",
            "https://figshare.com/ndownloader/files/48018562",
        ),
        Archive(
            "figshare file 49717386",
            "Testing set/Images/<file>.jpg, without labels",
            "https://figshare.com/ndownloader/files/49717386",
        ),
    ),
    place=(
        "Extract both archives into one folder and put test_data.xlsx there; root is that folder. Or give the "
        "archives and the table by data.root, data.test and data.test_labels."
    ),
    licence="not resolved: its repository states none; read it on the two figshare pages",
    citation=(
        "Handa et al., Capsule Vision 2024 Challenge: Multi-Class Abnormality Classification for Video Capsule "
        "Endoscopy, arXiv 2408.04940 (2024)"
    ),
    splits=(
        "training and validation folders and the public test set; the part from Kvasir-Capsule is split by frame, and "
        "all its 41 videos are both in training and in validation"
    ),
    counts={
        "train": parse_counts(
            "Angioectasia 1154; Bleeding 834; Erosion 2694; Erythema 691; Foreign Body 792; Lymphangiectasia 796; "
            "Normal 28663; Polyp 1162; Ulcer 663; Worms 158"
        ),
        "validation": parse_counts(
            "Angioectasia 497; Bleeding 359; Erosion 1155; Erythema 297; Foreign Body 340; Lymphangiectasia 343; "
            "Normal 12287; Polyp 500; Ulcer 286; Worms 68"
        ),
        "test": parse_counts(
            "Angioectasia 37; Bleeding 334; Erosion 49; Erythema 17; Foreign Body 48; Lymphangiectasia 155; "
            "Normal 3526; Polyp 11; Ulcer 181; Worms 27"
        ),
    },
    aliases={},
    presets=("capsule-vision", "capsule-vision-with-normal"),
    remarks=(
        "Groups (videos) are known for the images from Kvasir-Capsule alone: 38,592 of the 53,739 of training and "
        "validation. Those images are also in Kvasir-Capsule: never train on one and test on the other.",
    ),
)

MAX_BYTES = (
    256 * 2**20
)  # of one part of an .xlsx file, unpacked: twenty times the largest table of the data set
MAX_CELLS = 20_000_000

_FOLDERS = {"train": "training", "validation": "validation"}
_FRAME = re.compile(r"([0-9a-f]{16})_(\d{1,9})\.\w+")  # of Kvasir-Capsule; other sources name no video


def load(
    *,
    root: str,
    test: str | None = None,
    test_labels: str | None = None,
    progress: Progress | None = None,
) -> ImageTable:
    """The images at `root`; `test` is the test set where it is in another place, `test_labels` its table (.xlsx)."""
    download = find_download(FACTS, root, progress=progress)
    if test is not None:
        _add_test_set(download, test, progress)
    rows = [_row(entry) for entry in download.entries]
    rows, notes = _compare_with_tables(download, rows)
    test_rows, more = _test_rows(download, test_labels)
    repeated = repeated_names(rows)
    if repeated:
        more.append(
            f"{len(repeated):,} file names occur more than once ({listed(repeated, 2)}): an image is known by its path."
        )
    return table_of(download, [with_video(row, _FRAME) for row in (*rows, *test_rows)], (*notes, *more))


def _row(entry: Entry) -> Row:
    top = (_FOLDERS[entry.part],) if entry.part in _FOLDERS else (entry.part,) if entry.part else ()
    source = entry.below[0] if len(entry.below) > 1 else ""
    return Row("/".join((*top, entry.id)), entry.label, entry.path, entry.part, source=source.upper())


def _add_test_set(download: Download, test: str, progress: Progress | None) -> None:
    more = find_download(FACTS, test, "data.test", progress)
    download.unclassified += more.unclassified
    download.labels += more.labels
    download.others.update(more.others)


def _test_rows(download: Download, test_labels: str | None) -> tuple[list[Row], list[str]]:
    """Images in no class folder whose names the table of test labels knows."""
    tables = [expand(test_labels, "data.test_labels")] if test_labels else _tables(download, "test_data.xlsx")
    if not tables:
        if not download.unclassified:
            return [], []
        return [], ["Without test_data.xlsx (data.test_labels) images of the test set have no class."]
    label_of = _test_labels(tables[0])
    images = {
        os.path.realpath(file.path): file for file in download.unclassified
    }  # root and test may overlap
    rows = [
        Row(f"test/{file.name}", label_of[file.name], file.path, "test")
        for file in images.values()
        if file.name in label_of
    ]
    missing = len(label_of) - len(rows)
    return rows, [f"{missing:,} labelled images of the test set are not there."] if missing else []


def _test_labels(path: Path) -> dict[str, str]:
    label_of: dict[str, str] = {}
    for row in read_xlsx(path):
        if not {"image_path", "class_label"} <= row.keys():
            raise DataError(
                f"{path} has no columns image_path and class_label; expected Results/test_data.xlsx"
            )
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
        notes.append(
            f"{len(other):,} images have another class in the table than by their folder: {listed(other)}."
        )
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
        _check_parts(path)
        with warnings.catch_warnings(action="ignore"):  # on styles and extensions, which do not matter here
            book = openpyxl.load_workbook(path, read_only=True, data_only=True, keep_links=False)
            with closing(book):
                sheet = book.worksheets[0]
                sheet.reset_dimensions()  # the file may claim any size
                rows = list(_texts(sheet.iter_rows(values_only=True)))
    except Exception as error:  # damaged files make openpyxl raise almost anything
        if isinstance(error, OSError) and error.errno is not None:
            raise DataError(f"cannot read {path}: {error.strerror or error}") from error
        reason = " ".join(str(error).split()) or type(error).__name__
        raise DataError(f"{path} cannot be read as an .xlsx table: {reason}; save it again") from error
    if not rows:
        raise DataError(f"{path}: the first sheet is empty; expected a row of column names")
    header = rows[0]
    return [{name: text for name, text in zip_longest(header, row, fillvalue="") if name} for row in rows[1:]]


def _check_parts(path: Path) -> None:
    """An .xlsx file is a zip of XML: large parts and document types, which may define entities, are refused."""
    with zipfile.ZipFile(path) as file:
        for part in file.infolist():
            if part.file_size > MAX_BYTES:
                raise ValueError(f"{part.filename} is larger than {MAX_BYTES:,} bytes")
            if b"<!DOCTYPE" in file.read(part):
                raise ValueError("it declares a document type, which no table does")


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
