"""Predictions: the outputs of a model for images, and the CSV file of a run's test images after each task.

Every metric is a pure function of these files, so a result can be checked without the model, and computed for the
predictions of any toolbox. Columns: image, label, source, score:<class>..., distance:<class>.... Other toolboxes may
name the score columns by the class alone, or give a column `predicted` with names of classes.
"""

import csv
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from endocil.errors import EndocilError, SettingsError
from endocil.io.files import ENCODING_ERRORS, original, write_csv
from endocil.learning.memory import KeptImages
from endocil.model.calibration import probabilities
from endocil.model.manifest import Calibration, HeldOutScores
from endocil.model.operating_points import COVERAGE, OperatingPoint, decisions, operating_point, prediction_sets

Head = Literal["softmax", "nearest_mean"]
HEADS: tuple[Head, ...] = get_args(Head)
SCORE, DISTANCE = "score:", "distance:"
Floats = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Predictions:
    """What a model says of images, row for row, among all classes that it knows.

    An image that cannot be read has its row too: its reason in `errors`, NaN for its numbers, -1 as its prediction.
    Predictions read from a file have no out-of-distribution scores, nearest exemplars or calibration."""

    images: tuple[str, ...]
    labels: NDArray[np.int64]  # (n,) into classes; -1 where the class of an image is unknown
    classes: tuple[str, ...]  # in the order of learning
    scores: Floats  # (n, C) logits of the softmax head; 1 for the predicted class where there are no `true_scores`
    distances: Floats | None  # (n, C) squared, to the class means; None without exemplars
    sources: tuple[str, ...]  # "" where unknown
    ood_score: Floats | None = None  # (n,) the larger, the farther from everything learned
    nearest: tuple[tuple[int, ...], ...] = ()  # rows of the model's exemplars, the nearest first
    nearest_distances: tuple[tuple[float, ...], ...] = ()  # of their features, made length 1
    calibration: Calibration | None = None
    errors: tuple[str, ...] = ()  # of each image, why it cannot be read, or ""; () where all can
    shown: int = 3  # classes that `top` names
    true_scores: bool = True  # false: a file gave the predicted classes alone

    def __post_init__(self) -> None:
        n, c = len(self.images), len(self.classes)
        if self.errors and len(self.errors) != n:
            raise _error("errors", f"{n}, one for each image", len(self.errors))
        if n == 0 or self.labels.shape != (n,) or len(self.sources) != n:
            came = f"{n} images, labels {self.labels.shape}, {len(self.sources)} sources"
            raise _error("predictions", "images, each with a label and a source", came)
        if len(set(self.classes)) < c or not -1 <= self.labels.min() <= self.labels.max() < c:
            came = f"{self.labels.min()} to {self.labels.max()} into {self.classes}"
            raise _error("labels", "indices into distinct classes", came)
        for name, matrix in {"scores": self.scores, "distances": self.distances}.items():
            if matrix is not None and matrix.shape != (n, c):
                raise _error(name, f"the shape {(n, c)}, images by classes", matrix.shape)
            if matrix is not None and not np.isfinite(matrix[self.readable]).all():
                raise _error(name, "finite numbers", "NaN or infinity: did training diverge?")

    def __len__(self) -> int:
        return len(self.images)

    @property
    def readable(self) -> NDArray[np.bool_]:
        """(n,) which images could be read."""
        return np.array([not error for error in self.errors or ("",) * len(self)])

    @property
    def unreadable(self) -> tuple[tuple[str, str], ...]:
        """(image, reason) of those that could not."""
        return tuple((image, error) for image, error in zip(self.images, self.errors, strict=False) if error)

    def take(self, rows: Sequence[int]) -> "Predictions":
        """Those of some images."""
        return replace(
            self,
            images=tuple(self.images[row] for row in rows),
            labels=self.labels[rows],
            scores=self.scores[rows],
            distances=None if self.distances is None else self.distances[rows],
            sources=tuple(self.sources[row] for row in rows),
            errors=tuple(self.errors[row] for row in rows) if self.errors else (),
            ood_score=None if self.ood_score is None else self.ood_score[rows],
            nearest=tuple(self.nearest[row] for row in rows) if self.nearest else (),
            nearest_distances=tuple(self.nearest_distances[row] for row in rows) if self.nearest_distances else (),
        )

    def predicted(self, head: Head = "softmax") -> NDArray[np.int64]:
        """The class each image is given by this head, (n,), -1 where it cannot be read; ties go to the class learned
        first."""
        return np.where(self.readable, np.argmax(self.outputs(head), axis=1), -1).astype(np.int64)

    def outputs(self, head: Head = "softmax") -> Floats:
        """(n, C) of this head; the class with the largest wins."""
        stored = {"softmax": self.scores, "nearest_mean": None if self.distances is None else -self.distances}
        if (matrix := stored.get(head)) is None:
            raise _error("head", "softmax, or nearest_mean where exemplars were kept", repr(head))
        return matrix

    @property
    def calibrated(self) -> bool:
        return self.calibration is not None and self.calibration.improved

    @cached_property
    def probabilities(self) -> Floats:
        """(n, C) of the softmax head."""
        fitted = self.calibration
        return _probabilities(self.scores, fitted.temperature if fitted else None)

    @cached_property
    def mean_probabilities(self) -> Floats | None:
        """(n, C) of the nearest-mean head; None for methods without class means."""
        if self.distances is None:
            return None
        fitted = self.calibration
        return _probabilities(-self.distances, fitted.mean_temperature if fitted else None)

    @cached_property
    def out_of_distribution(self) -> NDArray[np.bool_] | None:
        """(n,) which images are flagged; None without a threshold."""
        threshold = self.calibration.ood_threshold if self.calibration else None
        if threshold is None or self.ood_score is None:
            return None
        return np.asarray(self.ood_score.astype(np.float64) > threshold)

    @cached_property
    def _plain(self) -> NDArray[np.float64]:
        """(n, C) probabilities of the softmax head without a temperature."""
        return probabilities(torch.from_numpy(self.scores), None).numpy()

    def _held_out_scores(self) -> HeldOutScores:
        if self.calibration is None or self.calibration.scores is None:
            raise SettingsError(
                "the model has no held-out images of every class, so neither prediction sets nor operating points; set "
                "scenario.validation in its run, or give --validation to 'endocil learn'"
            )
        return self.calibration.scores

    def prediction_sets(self, coverage: float = COVERAGE, *, by_class: bool = True) -> list[tuple[str, ...]]:
        """A set of classes for each image that holds the right one with at least this probability, for images like the
        held-out ones (operating_points.py); none for images that cannot be read.

        `by_class`: for each class by itself, whatever its share; otherwise on average over the held-out images."""
        sets = prediction_sets(self._plain, self.classes, self._held_out_scores(), coverage, by_class=by_class)
        return [own if readable else () for own, readable in zip(sets, self.readable, strict=True)]

    def operating_points(self, sensitivities: Mapping[str, float]) -> dict[str, OperatingPoint]:
        """Thresholds for required sensitivities of some classes, with intervals."""
        scores = self._held_out_scores()
        return {name: operating_point(scores, name, required) for name, required in sensitivities.items()}

    def decisions(self, sensitivities: Mapping[str, float] | None = None) -> list[tuple[str, ...]]:
        """Of each image the classes whose required sensitivity makes it one of theirs; else the most probable class."""
        points = self.operating_points(sensitivities) if sensitivities else {}
        decided = decisions(self._plain, self.classes, points)
        return [own if readable else () for own, readable in zip(decided, self.readable, strict=True)]

    def top(self, k: int | None = None) -> list[list[tuple[str, float]]]:
        """The k most probable classes of each image with their probabilities; none where it cannot be read."""
        shown = self.shown if k is None else k
        rows = zip(self.probabilities, self.readable, strict=True)
        return [top_classes(row, self.classes, shown) if readable else [] for row, readable in rows]


def _probabilities(scores: Floats, temperature: float | None) -> Floats:
    return probabilities(torch.from_numpy(scores), temperature).float().numpy()


def top_classes(probabilities: Floats, classes: Sequence[str], k: int) -> list[tuple[str, float]]:
    """The k most probable classes of one image; ties go to the class learned first."""
    return [(classes[i], float(probabilities[i])) for i in np.argsort(-probabilities, kind="stable")[:k].tolist()]


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
        raise _error(path, "predictions of images that can be read", f"{p.unreadable[0][0]}: {p.unreadable[0][1]}")
    if (p.labels < 0).any():
        raise _error(path, "predictions of images whose classes are known", "some without a label")
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
            raise _error(table.path, "the next task, with classes the file before has not", _list(now.classes))
        if gone := set(run[-1].labels.tolist() if run else ()).difference(now.labels.tolist()):
            names = _list(now.classes[label] for label in sorted(gone))
            raise _error(table.path, "test images of all classes seen so far", f"none of {names}")
        run.append(now)
    if not run:
        raise _error("predictions", "one file per task, in the order of learning", "none")
    return run


def read_predictions(path: Path | str, *, known: Sequence[str] = ()) -> Predictions:
    """Read one task's predictions; `known` are the classes of the tasks before, in the order of learning."""
    return _predictions_of(read_table(path), known)


def _predictions_of(table: "PredictionTable", known: Sequence[str]) -> Predictions:
    columns = table.named(SCORE) | {name: name for name in table.bare()}
    if bool(columns) == ("predicted" in table.cells):
        raise _error(f"{table.path}, line 1", "score columns, or else `predicted`", _list(table.columns))
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
            raise _error(f"{self.path}, line 1", f"a column for each of {_list(classes)}", _list(columns))
        named = [columns[name] for name in classes]
        values = {name: self.numbers[name] if name in self.numbers else _float32(self.cells[name]) for name in named}
        for name, column in values.items():
            self._check(name, np.isfinite(column), "a finite number")
        return np.stack(list(values.values()), axis=1)  # (N, C)

    def _check(self, column: str, good: NDArray[np.bool_], expected: str) -> None:
        for row in np.flatnonzero(~good).tolist():
            where = f"{self.path}, line {self.lines[row]}, column {column}"
            came = repr(self.cells[column][row]) if column in self.cells else self.numbers[column][row]
            raise _error(where, expected, came)


def read_table(path: Path | str) -> PredictionTable:
    """A CSV file, not yet looked at but for the number of fields."""
    try:  # spreadsheets put a mark before the header
        with open(path, encoding="utf-8-sig", errors=ENCODING_ERRORS, newline="") as file:
            reader = csv.reader(file)
            header = list(map(original, next(reader, [])))
            rows = [(reader.line_num, list(map(original, row))) for row in reader if row]
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
    return PredictionTable(path, dict(zip(header, columns, strict=True)), [line for line, _ in rows])


def _check_strays(table: PredictionTable, known: Sequence[str]) -> None:
    """A stray column would pass for a class; so without the prefix only labels count as names of classes."""
    if strays := set(table.bare()).difference(known, table.cells["label"]):
        expected = f"classes as score columns (name them {SCORE}<class> or remove them)"
        raise _error(f"{table.path}, line 1", expected, _list(map(repr, sorted(strays))))


def _error(where: object, expected: str, came: object) -> EndocilError:
    text = f"{where}: expected {expected}; came {came}"
    return EndocilError(text.encode("utf-8", "backslashreplace").decode())  # names need not be valid UTF-8


def _list(names: Iterable[str]) -> str:
    return ", ".join(names)
