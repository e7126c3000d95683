"""Files of predictions: the CSV file of a run's test images after each task, and the list of `endocil predict`.

Every metric is a pure function of a run's files, so a result can be checked without the model, and computed for the
predictions of any toolbox. Columns: image, label, source, score:<class>..., distance:<class>.... Other toolboxes may
name the score columns by the class alone, or give a column `predicted` with names of classes.
"""

import csv
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from endocil.io.files import ENCODING_ERRORS, original, write_csv
from endocil.learning.memory import KeptImages
from endocil.model.operating_points import COVERAGE
from endocil.model.predictions import Predictions, top_classes, unexpected

SCORE, DISTANCE = "score:", "distance:"


@dataclass(frozen=True)
class Decided:
    """What the list of predictions says beside them: which model decided what, and when."""

    model: str  # sha256 of the model file
    time: str  # UTC, ISO 8601
    true_classes: Sequence[str] = ()  # of each image, "" where unknown
    coverage: float = COVERAGE  # of the prediction sets
    sensitivities: Mapping[str, float] = field(default_factory=dict)  # required of some classes


def write_prediction_list(
    path: Path,
    predictions: Predictions,
    exemplars: KeptImages,
    drawn: Sequence[str] = (),
    *,
    decided: Decided | None = None,
) -> None:
    """For people: a CSV file with one line for each image, its most probable classes first, or why it is unreadable.

    `drawn`: the file of each readable image's Grad-CAM overlay, where they were asked for."""
    p = predictions
    shown, reasons = min(p.shown, len(p.classes)), max((len(rows) for rows in p.nearest), default=0)
    header = ["image", "error", "calibrated"]
    header += [f"{column}_{i}" for i in range(1, shown + 1) for column in ("class", "probability")]
    header += ["mean_class", "mean_probability", "out_of_distribution", "ood_score"]
    header += [f"exemplar_{i}{column}" for i in range(1, reasons + 1) for column in ("", "_class", "_distance")]
    header += ["gradcam"] if drawn else []
    more = [] if decided is None else _decided_columns(p, decided)
    rows, overlays = [], iter(drawn)
    for i, image in enumerate(p.images):
        if p.errors and p.errors[i]:
            rows.append([image, p.errors[i], *[""] * (len(header) - 2)])
            continue
        best = top_classes(p.probabilities[i], p.classes, p.shown)
        mean = [("", "")] if p.mean_probabilities is None else top_classes(p.mean_probabilities[i], p.classes, 1)
        flag = "" if p.out_of_distribution is None else bool(p.out_of_distribution[i])
        near = zip(p.nearest[i], p.nearest_distances[i], strict=True) if p.nearest else ()
        of_exemplars = [
            (exemplars.provenance[row].image, exemplars.provenance[row].class_name, distance) for row, distance in near
        ]
        cells = [image, "", p.calibrated, *(cell for pair in (*best, *mean) for cell in pair), flag]
        cells += ["" if p.ood_score is None else float(p.ood_score[i])]
        cells += [cell for exemplar in of_exemplars for cell in exemplar]
        rows.append([_cell(cell) for cell in (*cells, *([next(overlays)] if drawn else []))])
    last = [[cells[i] for _, cells in more] for i in range(len(rows))]
    write_csv(path, [*header, *(name for name, _ in more)], [[*row, *own] for row, own in zip(rows, last, strict=True)])


SEPARATOR = " | "  # between the classes of a cell


def _decided_columns(p: Predictions, decided: Decided) -> list[tuple[str, list[str]]]:
    """Decision, prediction set and its coverage, true class, model and time of each image."""
    n, sets = len(p), [""] * len(p)
    covered = p.calibration is not None and p.calibration.scores is not None
    if covered:
        sets = [SEPARATOR.join(own) for own in p.prediction_sets(decided.coverage)]
    return [
        ("decision", [SEPARATOR.join(own) for own in p.decisions(decided.sensitivities)]),
        ("prediction_set", sets),
        ("coverage", [f"{decided.coverage:g}" if covered else ""] * n),
        ("true_class", list(decided.true_classes) or [""] * n),
        ("model", [decided.model] * n),
        ("time", [decided.time] * n),
    ]


def _cell(value: str | bool | float) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return value if isinstance(value, str) else f"{value:.6g}"


def write_predictions(path: Path | str, predictions: Predictions) -> None:
    """Write one task's predictions; float32 values come back bit for bit."""
    p = predictions
    if p.unreadable:
        raise unexpected(path, "predictions of images that can be read", f"{p.unreadable[0][0]}: {p.unreadable[0][1]}")
    if (p.labels < 0).any():
        raise unexpected(path, "predictions of images whose classes are known", "some without a label")
    matrices = {SCORE: p.scores} if p.true_scores else {}
    matrices |= {} if p.distances is None else {DISTANCE: p.distances}
    header = ["image", "label", "source", *([] if p.true_scores else ["predicted"])]
    header += [prefix + name for prefix in matrices for name in p.classes]
    labels, predicted = ([p.classes[one] for one in rows.tolist()] for rows in (p.labels, p.predicted()))
    cells = [[] if p.true_scores else predicted, *(_texts(column) for one in matrices.values() for column in one.T)]
    write_csv(Path(path), header, zip(p.images, labels, p.sources, *filter(len, cells), strict=True))


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


def read_run_predictions(paths: Iterable[Path | str], *, of_run: bool = False) -> list[Predictions]:
    """Read one file per task, in order; task s owns the classes that are new in file s.

    `of_run`: files of a run's folder, where a task may bring images of known classes alone. Elsewhere two files of the
    same classes are a mistake, such as two seeds."""
    return predictions_in_order(map(read_table, paths), of_run=of_run)


def predictions_in_order(tables: "Iterable[PredictionTable]", *, of_run: bool = False) -> list[Predictions]:
    """One table per task, in order; task s owns the classes that are new in table s."""
    run: list[Predictions] = []
    for table in tables:
        now = _predictions_of(table, known=run[-1].classes if run else ())
        if run and not of_run and len(now.classes) == len(run[-1].classes):
            raise unexpected(table.path, "the next task, with classes the file before has not", _list(now.classes))
        if gone := set(run[-1].labels.tolist() if run else ()).difference(now.labels.tolist()):
            names = _list(now.classes[label] for label in sorted(gone))
            raise unexpected(table.path, "test images of all classes seen so far", f"none of {names}")
        run.append(now)
    if not run:
        raise unexpected("predictions", "one file per task, in the order of learning", "none")
    return run


def read_predictions(path: Path | str, *, known: Sequence[str] = ()) -> Predictions:
    """Read one task's predictions; `known` are the classes of the tasks before, in the order of learning."""
    return _predictions_of(read_table(path), known)


def _predictions_of(table: "PredictionTable", known: Sequence[str]) -> Predictions:
    columns = table.named(SCORE) | {name: name for name in table.bare()}
    if bool(columns) == ("predicted" in table.cells):
        raise unexpected(f"{table.path}, line 1", "score columns, or else `predicted`", _list(table.columns))
    found = columns or sorted(set(table.cells["label"]))
    classes = (*known, *(name for name in found if name not in known))
    one_hot = np.eye(len(classes), dtype=np.float32)
    scores = table.matrix(columns, classes) if columns else one_hot[table.indices("predicted", classes)]
    labels = table.indices("label", classes)
    if strays := set(table.bare()).difference(known, table.cells["label"]):  # a stray column would pass for a class
        expected = f"classes as score columns (name them {SCORE}<class> or remove them)"
        raise unexpected(f"{table.path}, line 1", expected, _list(map(repr, sorted(strays))))
    distances = table.named(DISTANCE)
    return Predictions(
        images=table.cells.get("image") or tuple(map(str, range(len(labels)))),
        labels=labels,
        classes=classes,
        scores=scores,
        distances=table.matrix(distances, classes) if distances else None,
        true_scores=bool(columns),
        sources=table.cells.get("source") or ("",) * len(labels),
    )


@dataclass(frozen=True)
class PredictionTable:
    """The cells of a file by column, and the line each row ends on, for messages."""

    path: Path | str
    cells: Mapping[str, tuple[str, ...]]
    lines: Sequence[int]
    numbers: Mapping[str, NDArray[np.float32]] = field(default_factory=dict)  # columns that are no text

    @property
    def columns(self) -> list[str]:
        return [*self.cells, *self.numbers]

    def take(self, rows: Sequence[int]) -> "PredictionTable":
        """Some rows."""
        cells = {name: tuple(column[row] for row in rows) for name, column in self.cells.items()}
        numbers = {name: column[rows] for name, column in self.numbers.items()}
        return replace(self, cells=cells, lines=[self.lines[row] for row in rows], numbers=numbers)

    def named(self, prefix: str) -> dict[str, str]:
        """Class -> column, of the columns with this prefix."""
        return {name.removeprefix(prefix): name for name in self.columns if name.startswith(prefix)}

    def bare(self) -> list[str]:
        """Columns without a prefix, which must be scores."""
        about = ("image", "label", "source", "predicted")
        return [name for name in self.cells if name not in about and not name.startswith((SCORE, DISTANCE))]

    def indices(self, column: str, classes: Sequence[str]) -> NDArray[np.int64]:
        number = {name: i for i, name in enumerate(classes)}
        found = np.array([number.get(name, -1) for name in self.cells[column]], dtype=np.int64)
        self._check(column, found >= 0, f"one of {_list(classes)}")
        return found

    def matrix(self, columns: Mapping[str, str], classes: Sequence[str]) -> NDArray[np.float32]:
        if set(columns) != set(classes):
            raise unexpected(f"{self.path}, line 1", f"a column for each of {_list(classes)}", _list(columns))
        named = [columns[name] for name in classes]
        values = {name: self.numbers[name] if name in self.numbers else _float32(self.cells[name]) for name in named}
        for name, column in values.items():
            self._check(name, np.isfinite(column), "a finite number")
        return np.stack(list(values.values()), axis=1)  # (N, C)

    def _check(self, column: str, good: NDArray[np.bool_], expected: str) -> None:
        for row in np.flatnonzero(~good).tolist():
            where = f"{self.path}, line {self.lines[row]}, column {column}"
            got = repr(self.cells[column][row]) if column in self.cells else self.numbers[column][row]
            raise unexpected(where, expected, got)


def read_table(path: Path | str) -> PredictionTable:
    """A CSV file, not yet looked at but for the number of fields."""
    try:  # spreadsheets put a mark before the header
        with open(path, encoding="utf-8-sig", errors=ENCODING_ERRORS, newline="") as file:
            reader = csv.reader(file)
            header = list(map(original, next(reader, [])))
            rows = [(reader.line_num, list(map(original, row))) for row in reader if row]
    except (OSError, csv.Error) as error:
        raise unexpected(path, "predictions as CSV text", error) from error
    if "label" not in header or len(set(header)) < len(header):
        raise unexpected(f"{path}, line 1", "distinct columns, `label` among them", repr(",".join(header)[:200]))
    for line, row in rows:
        if len(row) != len(header):
            raise unexpected(f"{path}, line {line}", f"{len(header)} fields as in line 1", len(row))
    if not rows:
        raise unexpected(path, "a line for each test image after the header", "none")
    columns = zip(*(row for _, row in rows), strict=True)
    return PredictionTable(path, dict(zip(header, columns, strict=True)), [line for line, _ in rows])


def _list(names: Iterable[str]) -> str:
    return ", ".join(names)
