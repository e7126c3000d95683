"""Predictions: what a model says of the test images, one CSV file per task.

Every metric is a pure function of these files, so a result can be checked without the model, and computed for
the predictions of any toolbox. Columns: image, label, source, score:<class>..., distance:<class>.... Other
toolboxes may name the score columns by the class alone, or give a column `predicted` with names of classes.
"""

import csv
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from endocil.data.batches import ImageSet
from endocil.errors import EndocilError
from endocil.io.files import ENCODING_ERRORS, write_csv
from endocil.learning.features import CLASS_MEANS, mean_distances, view
from endocil.methods.base import Method

if TYPE_CHECKING:
    from lightning_fabric import Fabric

Head = Literal["softmax", "nearest_mean"]
HEADS: tuple[Head, ...] = get_args(Head)
SCORE, DISTANCE = "score:", "distance:"


@dataclass(frozen=True, eq=False)
class Predictions:
    """What the model after one task says of the test images of all classes seen so far."""

    images: tuple[str, ...]
    labels: NDArray[np.int64]  # (N,) into classes
    classes: tuple[str, ...]  # seen so far, in the order of learning
    scores: NDArray[np.float32]  # (N, C) raw logits of the softmax head
    distances: NDArray[np.float32] | None  # (N, C) squared, to the class means; None without exemplars
    sources: tuple[str, ...]  # "" where unknown

    def __post_init__(self) -> None:
        n, c = len(self.images), len(self.classes)
        if n == 0 or self.labels.shape != (n,) or len(self.sources) != n:
            came = f"{n} images, labels {self.labels.shape}, {len(self.sources)} sources"
            raise _error("predictions", "images, each with a label and a source", came)
        if len(set(self.classes)) < c or not 0 <= self.labels.min() <= self.labels.max() < c:
            came = f"{self.labels.min()} to {self.labels.max()} into {self.classes}"
            raise _error("labels", "indices into distinct classes", came)
        for name, matrix in {"scores": self.scores, "distances": self.distances}.items():
            if matrix is not None and matrix.shape != (n, c):
                raise _error(name, f"the shape {(n, c)}, images by classes", matrix.shape)
            if matrix is not None and not np.isfinite(matrix).all():
                raise _error(name, "finite numbers", "NaN or infinity: did training diverge?")

    def predicted(self, head: Head) -> NDArray[np.int64]:
        """The class each image is given by this head, (N,); ties go to the class learnt first."""
        stored = {"softmax": -self.scores, "nearest_mean": self.distances}  # the smallest wins
        if (matrix := stored.get(head)) is None:
            raise _error("head", "softmax, or nearest_mean where exemplars were kept", repr(head))
        return np.asarray(np.argmin(matrix, axis=1), dtype=np.int64)


def write_predictions(path: Path | str, predictions: Predictions) -> None:
    """Write one task's predictions; float32 values come back bit for bit."""
    p = predictions
    matrices = {SCORE: p.scores} | ({} if p.distances is None else {DISTANCE: p.distances})
    header = ["image", "label", "source", *(prefix + name for prefix in matrices for name in p.classes)]
    labels = [p.classes[label] for label in p.labels.tolist()]
    numbers = [_texts(column) for matrix in matrices.values() for column in matrix.T]
    write_csv(Path(path), header, zip(p.images, labels, p.sources, *numbers, strict=True))


def _texts(column: NDArray[np.float32]) -> list[str]:
    """The shortest decimals that give the same float32 values back."""
    column = column.astype(np.float32)
    texts: list[str] = column.astype(str).tolist()
    # Readers round twice, to double and then to float32; that loses 7.038531e-26, where nine digits are safe.
    for i in np.flatnonzero(_float32(texts) != column):
        texts[i] = f"{float(column[i]):.9g}"
    return texts


def _float32(texts: Iterable[str]) -> NDArray[np.float32]:
    with np.errstate(over="ignore"):  # too large a number becomes infinity, which is refused
        return np.array([_number(text) for text in texts]).astype(np.float32)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return float("nan")


def read_run_predictions(paths: Iterable[Path | str]) -> list[Predictions]:
    """Read one file per task, in order; task s owns the classes that are new in file s."""
    run: list[Predictions] = []
    for path in paths:
        now = read_predictions(path, known=run[-1].classes if run else ())
        if run and len(now.classes) == len(run[-1].classes):
            raise _error(path, "the next task, with classes the file before has not", _list(now.classes))
        if gone := set(run[-1].labels.tolist() if run else ()).difference(now.labels.tolist()):
            names = _list(now.classes[label] for label in sorted(gone))
            raise _error(path, "test images of all classes seen so far", f"none of {names}")
        run.append(now)
    if not run:
        raise _error("predictions", "one file per task, in the order of learning", "none")
    return run


def read_predictions(path: Path | str, *, known: Sequence[str] = ()) -> Predictions:
    """Read one task's predictions; `known` are the classes of the tasks before, in the order of learning."""
    table = _read_table(path)
    columns = table.named(SCORE) | {name: name for name in table.bare()}
    if bool(columns) == ("predicted" in table.cells):
        raise _error(f"{path}, line 1", "score columns, or else `predicted`", _list(table.cells))
    found = columns or sorted(set(table.cells["label"]))
    classes = (*known, *(name for name in found if name not in known))
    one_hot = np.eye(len(classes), dtype=np.float32)
    scores = table.matrix(columns, classes) if columns else one_hot[table.indices("predicted", classes)]
    labels = table.indices("label", classes)
    _check_strays(table, known)
    distances = table.named(DISTANCE)
    return Predictions(
        images=table.cells.get("image") or tuple(map(str, range(len(labels)))),
        labels=labels,
        classes=classes,
        scores=scores,
        distances=table.matrix(distances, classes) if distances else None,
        sources=table.cells.get("source") or ("",) * len(labels),
    )


@dataclass(frozen=True)
class _Table:
    """The cells of a CSV file by column, and the line each row ends on, for messages."""

    path: Path | str
    cells: Mapping[str, tuple[str, ...]]
    lines: Sequence[int]

    def named(self, prefix: str) -> dict[str, str]:
        """Class -> column, of the columns with this prefix."""
        return {name.removeprefix(prefix): name for name in self.cells if name.startswith(prefix)}

    def bare(self) -> list[str]:
        """Columns that must be scores, though they do not say so."""
        about = ("image", "label", "source", "predicted")
        return [name for name in self.cells if name not in about and not name.startswith((SCORE, DISTANCE))]

    def indices(self, column: str, classes: Sequence[str]) -> NDArray[np.int64]:
        number = {name: i for i, name in enumerate(classes)}
        found = np.array([number.get(name, -1) for name in self.cells[column]], dtype=np.int64)
        self._check(column, found >= 0, f"one of {_list(classes)}")
        return found

    def matrix(self, columns: Mapping[str, str], classes: Sequence[str]) -> NDArray[np.float32]:
        if set(columns) != set(classes):
            raise _error(f"{self.path}, line 1", f"a column for each of {_list(classes)}", _list(columns))
        values = {columns[name]: _float32(self.cells[columns[name]]) for name in classes}
        for name, column in values.items():
            self._check(name, np.isfinite(column), "a finite number")
        return np.stack(list(values.values()), axis=1)  # (N, C)

    def _check(self, column: str, good: NDArray[np.bool_], expected: str) -> None:
        for row in np.flatnonzero(~good).tolist():
            where = f"{self.path}, line {self.lines[row]}, column {column}"
            raise _error(where, expected, repr(self.cells[column][row]))


def _read_table(path: Path | str) -> _Table:
    try:  # spreadsheets put a mark before the header
        with open(path, encoding="utf-8-sig", errors=ENCODING_ERRORS, newline="") as file:
            reader = csv.reader(file)
            header = next(reader, [])
            rows = [(reader.line_num, row) for row in reader if row]
    except (OSError, csv.Error) as error:
        raise _error(path, "predictions as CSV text", error) from error
    if "label" not in header or len(set(header)) < len(header):
        raise _error(f"{path}, line 1", "distinct columns, `label` among them", repr(",".join(header)[:200]))
    for line, row in rows:
        if len(row) != len(header):
            raise _error(f"{path}, line {line}", f"{len(header)} fields as in line 1", len(row))
    if not rows:
        raise _error(path, "a line for each test image after the header", "none")
    columns = zip(*(row for _, row in rows), strict=True)
    return _Table(path, dict(zip(header, columns, strict=True)), [line for line, _ in rows])


def _check_strays(table: _Table, known: Sequence[str]) -> None:
    """A stray column would pass for a class; so without the prefix only labels count as names of classes."""
    if strays := set(table.bare()).difference(known, table.cells["label"]):
        expected = f"classes as score columns (name them {SCORE}<class> or remove them)"
        raise _error(f"{table.path}, line 1", expected, _list(map(repr, sorted(strays))))


def _error(where: object, expected: str, came: object) -> EndocilError:
    text = f"{where}: expected {expected}; came {came}"
    return EndocilError(text.encode("utf-8", "backslashreplace").decode())  # names need not be valid UTF-8


def _list(names: Iterable[str]) -> str:
    return ", ".join(names)


# Predictions of a method on a set of images.


def predict(
    method: Method,
    images: ImageSet,
    batch_size: int,
    *,
    classes: tuple[str, ...],
    fabric: "Fabric | None" = None,
) -> Predictions:
    """Both heads on the same pass: the softmax head's logits and, with class means, the distances to them."""
    seen = view(method, images, batch_size, fabric=fabric)
    means = method.statistics.get(CLASS_MEANS)
    ids, _, sources = zip(*(images.images.describe(row) for row in images.rows.tolist()), strict=True)
    return Predictions(
        images=ids,
        labels=images.labels.numpy(),
        classes=classes,
        scores=seen.scores.numpy(),
        distances=None if means is None else mean_distances(seen.features, means).numpy(),
        sources=sources,
    )
