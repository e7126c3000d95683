"""Predictions of another toolbox as the folder of a run: tables, tests, pages and figures then take them like any run.

What is not given is not known: no default of ours is filled in, and runs of unknown budgets are not ranked.
docs/referee.md has the format. No pickle is read, and what does not fit is refused in one line.
"""

import hashlib
import importlib.metadata
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w
from numpy.lib import format as npy
from numpy.typing import NDArray

from endocil.errors import DataError, FileFormatError, SettingsError
from endocil.io.files import (
    LARGEST,
    filling_folder,
    read_whole,
    refuse_special,
    write_atomically,
    write_csv,
    write_json,
)
from endocil.io.terminal import one_line
from endocil.metrics.metrics import class_tasks, summarise
from endocil.model.prediction_files import (
    DISTANCE,
    SCORE,
    PredictionTable,
    predictions_in_order,
    read_table,
    write_predictions,
)
from endocil.model.predictions import Predictions
from endocil.runs.folder import IMPORTED, SPLIT_HEADER, RunFolder
from endocil.runs.records import read_run, read_split

NAMES = ("method", "toolbox", "data", "seed")  # columns that may say what options say, the same in every row
TEXTS = ("image", "label", "predicted", "source", "group", *NAMES)
MATRICES = {"score": SCORE, "distance": DISTANCE}
MOST_CLASSES, MOST_TASKS = 2_000, 1_000  # confusion matrices are kept after each task


@dataclass(frozen=True, kw_only=True)
class Origin:
    """Whose predictions these are; None is not known."""

    method: str | None = None
    toolbox: str | None = None
    data: str | None = None
    seed: int | None = None
    budget: Mapping[str, Mapping[str, int]] = field(default_factory=dict)  # section -> key -> value, as in settings

    def settings(self) -> dict[str, Any]:
        if self.method is None:
            raise SettingsError("whose predictions are these? Give the method's name with --method, or a column method")
        named = {
            "seed": self.seed or 0,
            "method": {"name": self.method},
            "imported": {"toolbox": self.toolbox or "imported"},
        }
        sections: dict[str, dict[str, Any]] = {
            section: dict(self.budget.get(section, {})) for section in ("data", "network", "memory", "train")
        }
        sections["data"] = {"name": self.data or "unknown", **sections["data"]}
        return {**named, **sections}


def import_predictions(
    files: Sequence[Path], folder: Path, origin: Origin, *, class_names: Sequence[str] = (), like: Path | None = None
) -> Mapping[str, Any]:
    """Write the folder, whole or not at all, and return the metrics.

    `class_names`: of labels that are numbers. `like`: a run on the same test images, whose data, split, groups and
    sources hold for these predictions too."""
    RunFolder(folder).refuse_used()
    tables = [table for file in files for table in _by_task(_read(file, class_names))]
    if len(tables) > MOST_TASKS:
        raise DataError(f"{len(tables):,} tasks; at most {MOST_TASKS:,} are accepted")
    origin, groups = _named(origin, tables), _groups(tables[-1])
    predictions = predictions_in_order([_without(table, (*NAMES, "group")) for table in tables], of_run=True)
    last = predictions[-1]
    if len(last.classes) > MOST_CLASSES:
        raise DataError(f"{len(last.classes):,} classes; at most {MOST_CLASSES:,} are accepted")
    _refuse_other_images(predictions)
    settings = origin.settings()
    if like is not None:
        predictions, groups = _like(like, predictions, settings)
    tasks = class_tasks(predictions).tolist()
    metrics = summarise(predictions)
    with filling_folder(folder) as new:
        here = RunFolder(new)
        for task, one in enumerate(predictions):
            write_predictions(here.predictions(task), one)
        last = predictions[-1]
        rows = zip(last.images, last.labels.tolist(), groups, last.sources, strict=True)
        split = [
            (image, last.classes[label], tasks[label], "test", group, source) for image, label, group, source in rows
        ]
        write_csv(new / "split.csv", SPLIT_HEADER, split)
        write_json(new / "data.json", {"notes": _notes(tables[-1], origin)})
        digests = {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files}
        write_json(new / IMPORTED, {"files": digests, "by": f"endocil {importlib.metadata.version('endocil')}"})
        write_json(
            new / "environment.json", {"toolbox": settings["imported"]["toolbox"]}
        )  # of the run: all else unknown
        write_atomically(here.events, "")
        write_atomically(new / "settings.toml", tomli_w.dumps(settings))
        write_json(new / "metrics.json", metrics)
    return metrics


def _read(file: Path, class_names: Sequence[str]) -> PredictionTable:
    try:
        if file.suffix.lower() == ".npz":
            return _of_arrays(file, read_npz(file), class_names)
        read_whole(file)  # refuses what never ends or would fill the memory
    except OSError as error:
        raise FileFormatError(f"cannot read {file}: {error.strerror or error}") from error
    table = read_table(file)
    return _with_names(table, class_names) if class_names else table


def _of_arrays(file: Path, arrays: Mapping[str, NDArray[Any]], class_names: Sequence[str]) -> PredictionTable:
    """The columns of an .npz file; a matrix becomes a column for each class."""
    known = (*TEXTS, *MATRICES, "task", "classes")
    if unknown := arrays.keys() - set(known):
        raise FileFormatError(f"{file} holds {', '.join(sorted(unknown))}; expected arrays named {', '.join(known)}")
    if "label" not in arrays:
        raise FileFormatError(f"{file} holds no array label, the true class of each test image")
    n, names = len(np.atleast_1d(arrays["label"])), list(class_names)
    if "classes" in arrays:
        names = [str(name) for name in np.atleast_1d(arrays["classes"]).tolist()]
    cells, numbers = dict[str, tuple[str, ...]](), dict[str, NDArray[np.float32]]()
    for name, values in arrays.items():
        if name == "classes":
            continue
        if name in MATRICES:
            width = len(names) or (values.shape[1] if values.ndim == 2 else 0)
            if values.shape != (n, width) or values.dtype.kind not in "iuf":
                expected = f"numbers of shape {(n, width)}, images by classes"
                raise FileFormatError(f"{file}, {name}: expected {expected}; got {values.dtype} of {values.shape}")
            with np.errstate(over="ignore"):  # infinity is refused with its place
                columns = values.astype(np.float32).T
            numbers |= {f"{MATRICES[name]}{names[j] if names else j}": column for j, column in enumerate(columns)}
            continue
        if name in NAMES and values.ndim == 0:
            values = np.broadcast_to(values, (n,))
        if values.shape != (n,) or values.dtype.kind not in "iuU":
            got = f"{values.dtype} of {values.shape}"
            raise FileFormatError(f"{file}, {name}: expected {n} whole numbers or texts, one for each label; got {got}")
        cells[name] = tuple(map(str, values.tolist()))
    table = PredictionTable(file, cells, range(1, n + 1), numbers)
    return _with_names(table, names, columns=False) if names and arrays["label"].dtype.kind in "iu" else table


def _with_names(table: PredictionTable, names: Sequence[str], *, columns: bool = True) -> PredictionTable:
    """Labels, predictions and (in CSV files) score columns that are numbers of classes, by the names of the classes."""

    def name_of(text: str, where: str) -> str:
        if not text.isdecimal() or int(text) >= len(names):
            raise DataError(f"{table.path}, {where}: {text!r} is no number of the {len(names)} classes, from 0 on")
        return names[int(text)]

    cells = {}
    for column, values in table.cells.items():
        prefix = next((prefix for prefix in MATRICES.values() if column.startswith(prefix)), "")
        title = f"{prefix}{name_of(column.removeprefix(prefix), 'line 1')}" if columns and prefix else column
        named = column in ("label", "predicted")
        cells[title] = tuple(name_of(value, f"column {column}") for value in values) if named else values
    return replace(table, cells=cells)


def _by_task(table: PredictionTable) -> list[PredictionTable]:
    """A table for each value of the column task. There, a class that was not yet learned has empty scores (or NaN)."""
    if "task" not in table.cells:
        return [table]
    if bad := next((text for text in table.cells["task"] if not text.isdecimal() or len(text) > 6), None):
        raise DataError(f"{table.path}, column task: expected whole numbers from 0 on; got {bad!r}")
    numbers = np.array(list(map(int, table.cells["task"])))
    parts = []
    for task in sorted(set(numbers.tolist())):
        part = table.take(np.flatnonzero(numbers == task).tolist())
        empty = [name for name, column in part.cells.items() if name.startswith((SCORE, DISTANCE)) and not any(column)]
        empty += [name for name, column in part.numbers.items() if np.isnan(column).all()]
        parts.append(_without(part, ("task", *empty)))
    return parts


def _without(table: PredictionTable, columns: Sequence[str]) -> PredictionTable:
    kept = ({name: one for name, one in part.items() if name not in columns} for part in (table.cells, table.numbers))
    return replace(table, **dict(zip(("cells", "numbers"), kept, strict=True)))  # type: ignore[arg-type]


def _named(origin: Origin, tables: Sequence[PredictionTable]) -> Origin:
    """What options leave out may stand in columns, the same in all rows."""
    found: dict[str, Any] = {}
    for name in NAMES:
        values = {value for table in tables for value in table.cells.get(name, ())}
        if len(values) > 1:
            raise DataError(
                f"column {name} has {len(values)} values; import each {name} by itself, into a folder of its own"
            )
        given = getattr(origin, name)
        if values and given is not None and {str(given)} != values:
            raise SettingsError(
                f"--{name} is '{given}', but the column {name} says '{values.pop()}'; leave out one of them"
            )
        if values:
            found[name] = values.pop()
    if "seed" in found:
        if not found["seed"].isdecimal() or len(found["seed"]) > 18:
            raise DataError(f"column seed: expected a whole number from 0 on; got {found['seed']!r}")
        found["seed"] = int(found["seed"])
    return replace(origin, **found)


def _groups(table: PredictionTable) -> tuple[str, ...]:
    return table.cells.get("group") or ("",) * len(table.cells["label"])


def _refuse_other_images(predictions: Sequence[Predictions]) -> None:
    """After each task the test images are those of the last task whose classes are known: else numbers of different
    images would stand side by side."""
    last = {image: predictions[-1].classes[label] for image, label in _pairs(predictions[-1])}
    for task, one in enumerate(predictions):
        own = {image: one.classes[label] for image, label in _pairs(one)}
        if len(own) < len(one):
            raise DataError(f"task {task}: an image is there twice; each test image has one row")
        expected = {image: name for image, name in last.items() if name in one.classes}
        if own != expected:
            other = sorted(image for image, _ in own.items() ^ expected.items())
            raise DataError(
                f"task {task}: expected the test images of the last task whose classes are known by then, with the "
                f"same labels, {len(expected):,} of them; got {len(own):,}, and '{other[0]}' differs; without a "
                f"column image the rows must stand in the same order in each task"
            )


def _pairs(predictions: Predictions) -> "zip[tuple[str, int]]":
    return zip(predictions.images, predictions.labels.tolist(), strict=True)


def _like(
    run: Path, predictions: Sequence[Predictions], settings: dict[str, Any]
) -> tuple[list[Predictions], tuple[str, ...]]:
    """With the sources and groups of the other run; its data and split go into the settings."""
    record = read_run(run)
    rows = {row["image"]: row for row in read_split(run / "split.csv") if row["part"] == "test"}
    last = predictions[-1]
    own = {image: last.classes[label] for image, label in _pairs(last)}
    theirs = {image: row["class"] for image, row in rows.items()}
    if own != theirs:
        common = len(own.items() & theirs.items())
        raise DataError(
            f"--like {run}: it was tested on {len(theirs):,} images and these predictions are of {len(own):,}, "
            f"{common:,} in common by name and class; give the names of split.csv as image, or leave --like out"
        )
    size = {key: value for key, value in settings["data"].items() if key == "size"}
    data = {key: value for key, value in record.settings["data"].items() if key in ("name", "root", "file")}
    kept = ("split_by", "groups", "split", "folds", "fold", "split_seed", "leave_out", "minimum")
    scenario = {key: value for key, value in record.settings.get("scenario", {}).items() if key in kept}
    settings |= {"data": {**data, **size}, "scenario": scenario}
    with_sources = [
        replace(one, sources=tuple(rows[image].get("source", "") for image in one.images)) for one in predictions
    ]
    return with_sources, tuple(rows[image].get("group", "") for image in last.images)


def _notes(table: PredictionTable, origin: Origin) -> list[str]:
    notes = [f"{origin.method}: imported from {origin.toolbox or 'another toolbox'}; what nobody gave is not known."]
    if "image" not in table.cells:
        notes.append(f"{origin.method}: the images have no names; rows at the same place are taken for the same image.")
    return notes


# --- arrays of an .npz file, read without pickle: each is compared with what the file holds before memory is taken


_DAMAGED = (OSError, ValueError, EOFError, KeyError, RuntimeError, NotImplementedError, zipfile.BadZipFile)


def read_npz(path: Path) -> dict[str, np.ndarray]:
    """Name -> array, of numbers and text alone; objects, which are pickles, are refused."""
    try:
        refuse_special(path)
        with zipfile.ZipFile(path) as file:
            entries = file.infolist()
            if (size := sum(entry.file_size for entry in entries)) > LARGEST:
                raise ValueError(f"{size:,} bytes unpacked; at most {LARGEST:,} are accepted")
            return {entry.filename.removesuffix(".npy"): _array(file, entry) for entry in entries}
    except _DAMAGED as error:
        reason = one_line(error)
        raise FileFormatError(f"{path} cannot be read as .npz: {reason}") from error


def _array(file: zipfile.ZipFile, entry: zipfile.ZipInfo) -> np.ndarray:
    with file.open(entry) as stream:
        version = npy.read_magic(stream)
        read_header = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}.get(version)
        if read_header is None:
            raise ValueError(f"{entry.filename} is of version {version}; save it with numpy.savez")
        shape, fortran, dtype = read_header(stream)
        if dtype.kind not in "biufU":
            raise ValueError(f"{entry.filename} holds {dtype}; expected numbers or text, no objects (pickles)")
        if (claimed := dtype.itemsize * int(np.prod(shape, dtype=object))) != (left := entry.file_size - stream.tell()):
            raise ValueError(f"{entry.filename} claims {claimed:,} bytes and holds {left:,}")
        values = np.frombuffer(stream.read(), dtype)
    return values.reshape(shape, order="F" if fortran else "C")
