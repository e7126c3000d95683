"""Finished runs, read back from their folders as this version would have written them, for tables, pages and ledger."""

import json
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from endocil.errors import EndocilError, FileFormatError
from endocil.io.files import read_csv
from endocil.learning.build import complete
from endocil.learning.events import read_events
from endocil.settings.settings import Settings, load_settings

Json = Mapping[str, Any]
Complete = Callable[[Json], Json]


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


def read_run(folder: Path, *, complete: Complete | None = None) -> RunRecord:
    """Read a finished run; another folder and an unfinished run are refused.

    `complete` fills in defaults that a setting has got since the run was recorded, so that its seeds stay together."""
    folder = Path(folder)
    _refuse_other_folders(folder)
    metrics, settings = _finished_metrics(folder), _read_toml(folder / "settings.toml")
    return RunRecord(
        name=folder.resolve().name,
        settings=complete(settings) if complete else settings,
        environment=_read_json(folder / "environment.json"),
        metrics=metrics,
        events=tuple(read_events(folder / "events.jsonl", finished=True)),
        images=_count_images(read_csv(folder / "split.csv")),
        exemplars=_last_memory(folder / "memory", len(metrics["task_sizes"])),
        leaks=_read_json_if_there(folder / "leaks.json"),
        notes=tuple(_read_json_if_there(folder / "data.json").get("notes", ())),
        folder=folder,
    )


def _refuse_other_folders(folder: Path) -> None:
    if not folder.is_dir():
        raise FileFormatError(
            f"there is no run folder {folder}; expected the folder given to `endocil run -o`"
        )
    if not (folder / "settings.toml").is_file():
        raise FileFormatError(
            f"{folder} is not a run: it has no settings.toml; give the folder of `endocil run -o`"
        )


def _finished_metrics(folder: Path) -> Json:
    unfinished = f"the run {folder} is not finished; finish it with `endocil resume {folder}`"
    if not (folder / "metrics.json").is_file():
        raise FileFormatError(unfinished)
    metrics = _read_json(folder / "metrics.json")
    try:
        complete = len(metrics["softmax"]["acc"]) == len(metrics["task_sizes"])
    except (KeyError, TypeError) as error:
        raise FileFormatError(
            f"{folder / 'metrics.json'} lacks {error}; expected the file that `endocil run` writes"
        ) from error
    if not complete:
        raise FileFormatError(unfinished)
    return metrics


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise FileFormatError(f"cannot read {path}: {error}; the run folder is not whole") from error


def _read_toml(path: Path) -> Json:
    try:
        return tomllib.loads(_read(path))
    except tomllib.TOMLDecodeError as error:
        raise FileFormatError(f"{path} is not TOML: {error}") from error


def _read_json(path: Path) -> Json:
    try:
        value = json.loads(_read(path))
    except json.JSONDecodeError as error:
        raise FileFormatError(f"{path} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise FileFormatError(f"{path}: expected a JSON object, got {type(value).__name__}")
    return value


def _read_json_if_there(path: Path) -> Json:
    """Runs of earlier versions have fewer files."""
    return _read_json(path) if path.is_file() else {}


def _count_images(rows: Iterable[Mapping[str, str]]) -> dict[str, dict[str, int]]:
    counts: dict[str, dict[str, int]] = {}
    for row in rows:
        parts = counts.setdefault(row["class"], {})
        parts[row["part"]] = parts.get(row["part"], 0) + 1
    return counts


def _last_memory(folder: Path, n_tasks: int) -> tuple[Mapping[str, str], ...]:
    """Methods without replay keep nothing and may have no file."""
    path = folder / f"task-{n_tasks - 1}.csv"
    return tuple(read_csv(path)) if path.is_file() else ()


def completed(settings: Mapping[str, Any] | Settings) -> dict[str, Any]:
    """Settings with every default written out; as they are where they name things that are not here."""
    try:
        recorded = load_settings(settings)
        filled = complete(recorded).model_dump(mode="json", exclude_none=True)
    except EndocilError:
        return dict(settings)
    if recorded.run.threads is None:
        del filled["run"]["threads"]  # complete takes this machine's, which is not where the run was
    return filled


def read_runs(folders: Iterable[Path]) -> list[RunRecord]:
    """Finished runs, of whatever version, as they can be compared."""
    return [read_run(folder, complete=completed) for folder in folders]
