"""Finished runs, read from their folders, missing settings filled in by defaults, for tables, pages and ledger."""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import accumulate
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

from endocil.errors import EndocilError, FileFormatError
from endocil.io.files import parse_json, parse_toml, read_csv
from endocil.io.text_tables import listed
from endocil.learning.build import complete
from endocil.learning.events import Count, read_events, refuse_unfit
from endocil.settings.settings import Settings, load_settings, resume_command

Json = Mapping[str, Any]
Complete = Callable[[Json], Json]


class _Known(BaseModel):
    """What readers of a file rely on; older runs have fewer keys, and further keys are not looked at."""

    model_config = ConfigDict(strict=True, extra="allow")


_TASK = re.compile("[0-9]{1,6}")
_Whole = Annotated[int, Field(ge=-(2**53), le=2**53)]  # which a float can hold
_Finite = Annotated[float, Field(allow_inf_nan=False)]


class _Name(_Known):
    name: str


class _Data(_Name):
    size: int = 0


class _Train(_Known):
    epochs: _Whole = 1
    milestones: list[_Whole | _Finite] = []
    warmup: _Whole | _Finite = 0


class _Memory(_Known):
    per_class: int | None = None
    total: int | None = None
    select: str | None = None


class _RunSection(_Known):
    evaluate: str = "test"
    gallery: bool = False


class _Scenario(_Known):
    groups: str = "given"
    split: str | None = None


class _Network(_Known):
    backbone: str = ""
    weights: str | None = None


class _Imported(_Known):
    toolbox: str


class _Settings(_Known):
    seed: int
    data: _Data
    method: _Name
    scenario: _Scenario = _Scenario()
    network: _Network = _Network()
    memory: _Memory = _Memory()
    train: _Train = _Train()
    run: _RunSection = _RunSection()
    imported: _Imported | None = None


Figures = dict[str, float | None]


class _Class(_Known):
    recall: float | None
    precision: float | None
    f1: float | None
    images: Count


class _Source(_Known):
    __pydantic_extra__: dict[str, _Finite | None]
    images: Count
    per_class: dict[str, _Class] = {}


class _Head(_Known):
    acc_last: float
    f1_last: float
    acc_avg: float
    f1_avg: float
    af: float | None
    af_printed: float | None
    forgetting_max: float | None
    balanced_last: float | None
    acc: list[float]
    f1: list[float]
    task_accuracy: list[list[float | None]]
    confusion: list[list[Count]]
    confusions: list[list[list[Count]]] = []
    per_class: dict[str, _Class]
    per_class_over_tasks: list[Figures] = []
    per_source: dict[str, _Source]


class _Metrics(_Known):
    softmax: _Head
    nearest_mean: _Head | None = None
    classes: list[str] = Field(min_length=1)
    task_sizes: list[int] = Field(min_length=1)
    test_images: list[int] = []

    @model_validator(mode="after")
    def _refuse_contradictions(self) -> "_Metrics":
        classes, tasks = len(self.classes), len(self.task_sizes)
        if sum(self.task_sizes) != classes or self.task_sizes[0] < 1 or min(self.task_sizes) < 0:
            raise ValueError(f"{classes} classes, but tasks of {self.task_sizes[:10]}")
        for head in filter(None, (self.softmax, self.nearest_mean)):
            if [len(row) for row in head.confusion] != [classes] * classes:
                raise ValueError(f"confusion is not a table of {classes} by {classes} classes")
            seen = list(accumulate(self.task_sizes))
            if head.confusions and [[*map(len, one)] for one in head.confusions] != [[n] * n for n in seen]:
                raise ValueError(f"confusions are not tables of {seen[:10]} classes")
            if len(head.acc) != tasks or len(head.f1) != tasks:
                raise ValueError(f"acc and f1 are not of {tasks} tasks")
            if [len(row) for row in head.task_accuracy] != [tasks] * tasks:
                raise ValueError(f"task_accuracy is not a table of {tasks} by {tasks} tasks")
            if set(head.per_class) != set(self.classes):
                raise ValueError("per_class is not of the run's classes")
        return self


class _Leaks(_Known):
    __pydantic_extra__: dict[str, float | None]


class _DataNotes(_Known):
    notes: list[str] = []


@dataclass(frozen=True)
class RunRecord:
    """The records of one run, without its images and predictions."""

    name: str
    settings: Json
    environment: Json
    metrics: Json
    events: tuple[Json, ...]
    images: Mapping[str, Mapping[str, int]]  # class -> part -> number of images
    exemplars: tuple[Mapping[str, str], ...]  # the memory after the last task
    leaks: Json = field(default_factory=dict)  # how much of the test part the training part has seen
    notes: tuple[str, ...] = ()  # on the images: what was left out, repeated, or could not be split
    folder: Path | None = None  # where its predictions are

    def events_of(self, kind: str) -> tuple[Json, ...]:
        return tuple(event for event in self.events if event["event"] == kind)


def is_incremental(metrics: Json) -> bool:
    """False for a run of one task, such as JointTrain: nothing came later, so nothing could be forgotten."""
    return len(metrics["task_sizes"]) > 1


def is_imported(settings: Json) -> bool:
    """Predictions of another toolbox (runs/import_predictions.py): settings that nobody gave are not known."""
    return "imported" in settings


def read_run(folder: Path) -> RunRecord:
    """Read a finished run; another folder and an unfinished run are refused."""
    folder = Path(folder)
    if not folder.is_dir():
        raise FileFormatError(f"there is no run folder {folder}; expected the folder given to `endocil run -o`")
    if not (folder / "settings.toml").is_file():
        raise FileFormatError(
            f"{folder} is not a run: it has no settings.toml; give the folder of `endocil run -o`, or of a sweep that "
            f"has runs"
        )
    metrics, settings = _finished_metrics(folder), _parsed(folder / "settings.toml", parse_toml, _Settings)
    images: dict[str, Counter[str]] = defaultdict(Counter)
    for row in read_split(folder / "split.csv"):
        images[row["class"]][row["part"]] += 1
    leaks, notes = read_notes(folder)
    memory = folder / "memory" / f"task-{len(metrics['task_sizes']) - 1}.csv"  # methods without replay have none
    return RunRecord(
        name=folder.resolve().name,
        settings=settings,
        environment=_parsed(folder / "environment.json", parse_json),
        metrics=metrics,
        events=tuple(read_events(folder / "events.jsonl", finished=True)),
        images=images,
        exemplars=tuple(read_csv(memory)) if memory.is_file() else (),
        leaks=leaks,
        notes=notes,
        folder=folder,
    )


def read_split(path: Path) -> list[dict[str, str]]:
    """The rows of a run's split.csv, with image, class, task (a number) and part."""
    rows, expected = read_csv(path), ("image", "class", "task", "part")
    if rows and not {*expected} <= rows[0].keys():
        raise FileFormatError(f"{path} lacks the columns {listed(expected)}; it is damaged")
    for row in rows:
        if not _TASK.fullmatch(row["task"]):
            raise FileFormatError(f"{path}: {row['image']} has the task {row['task'][:20]!r}, no number; it is damaged")
    return rows


def read_notes(folder: Path) -> tuple[Json, tuple[str, ...]]:
    """How much of the test part the training part has seen, and notes on the images, as a run writes them before it
    learns; runs of earlier versions have fewer files."""
    files = ((folder / "leaks.json", _Leaks), (folder / "data.json", _DataNotes))
    leaks, data = (_parsed(file, parse_json, expected) if file.is_file() else {} for file, expected in files)
    return leaks, tuple(data.get("notes", ()))


def _finished_metrics(folder: Path) -> Json:
    file, complete = folder / "metrics.json", False
    if file.is_file():
        metrics = _parsed(file, parse_json)
        try:
            complete = len(metrics["softmax"]["acc"]) == len(metrics["task_sizes"])
        except (KeyError, TypeError) as error:
            raise FileFormatError(f"{file} lacks {error}; expected the file that `endocil run` writes") from error
        if complete:
            refuse_unfit(file, _Metrics, metrics)
    if not complete:
        raise FileFormatError(f"the run {folder} is not finished; finish it with `{resume_command(folder)}`")
    return metrics


def _parsed(path: Path, parse: Callable[[str], Any], expected: type[BaseModel] | None = None) -> Json:
    """The object in a JSON or TOML file, as it is expected to be."""
    try:
        value = parse(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise FileFormatError(f"cannot read {path}: {error}; the run folder is incomplete") from error
    except ValueError as error:
        raise FileFormatError(f"{path} is not {path.suffix[1:].upper()}: {error}") from error
    if not isinstance(value, dict):
        raise FileFormatError(f"{path}: expected a JSON object, got {type(value).__name__}")
    if expected is not None:
        refuse_unfit(path, expected, value)
    return value


def completed(settings: Mapping[str, Any] | Settings) -> dict[str, Any]:
    """Settings with every default written out; as they are where they name things that are not here."""
    if not isinstance(settings, Settings) and is_imported(settings):
        return dict(settings)
    try:
        recorded = settings if isinstance(settings, Settings) else load_settings(settings)
        filled = complete(recorded).model_dump(mode="json", exclude_none=True)
    except EndocilError:
        return dict(settings)
    if recorded.run.threads is None:
        del filled["run"]["threads"]  # complete takes this machine's, which is not where the run was
    return filled


def run_folders(folders: Iterable[Path]) -> list[Path]:
    """The folders of runs; one of several runs, as sweep, tune and demo write it, stands for all of them."""
    found: list[Path] = []
    for folder in map(Path, folders):
        alone = (folder / "settings.toml").is_file()
        found += (not alone and sorted(file.parent for file in folder.glob("*/settings.toml"))) or [folder]
    return found


def read_runs(folders: Iterable[Path]) -> list[RunRecord]:
    """Finished runs of any version, with the defaults that settings have got since, so that seeds stay together."""
    return [replace(run, settings=completed(run.settings)) for run in map(read_run, run_folders(folders))]
