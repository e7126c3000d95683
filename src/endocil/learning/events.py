"""The log of a model that learns: events.jsonl, one line per event, and the environment."""

import importlib.metadata
import json
import platform
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from endocil.errors import EndocilError, FileFormatError
from endocil.io.files import parse_json, private, write_atomically
from endocil.networks import instruction_set
from endocil.settings.settings import Settings, resume_command

Show = Callable[[dict[str, Any]], None]


Count = Annotated[int, Field(ge=0, le=2**53)]  # which a float can hold
_Measured = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class _Event(BaseModel):
    """What readers of an event rely on; older runs have fewer keys, and further keys are not looked at."""

    model_config = ConfigDict(strict=True, extra="allow")
    task: Count = 0


class _Phase(_Event):
    epochs: Count
    images: Count


class _TaskEvent(_Event):
    task: Count
    classes: list[str]
    new: Count = 0
    exemplars: Count = 0
    phases: list[_Phase] = []
    notes: list[str] = []


class _EpochEvent(_Event):
    task: Count
    phase: str
    epoch: Count
    epochs: Count
    learning_rate: float
    losses: dict[str, float]
    per_class: dict[str, list[float | None]] = {}
    weight_norms: list[float] = []
    classifier_gradient: float | None = None
    gamma: float | None = None
    images: Count = 0
    seconds: _Measured = 0.0
    images_per_second: _Measured = 0.0


class _SelectionEvent(_Event):
    task: Count
    kept: Count
    of: Count
    mmd2: float | None = None
    bound: float | None = None


class _LearnedEvent(_Event):
    task: Count
    parameters: Count
    peak_megabytes: _Measured
    measured: dict[str, float] = {}


_EVENTS: dict[str, type[_Event]] = {
    "task": _TaskEvent,
    "epoch": _EpochEvent,
    "selection": _SelectionEvent,
    "learned": _LearnedEvent,
}


def read_events(path: Path, *, finished: bool = False) -> list[dict[str, Any]]:
    """The events so far; none where there is no file yet, and without a last line that is half written.

    `finished`: nobody writes any more, so a missing file and a last line that is not whole are errors."""
    try:
        lines = path.read_bytes().split(b"\n")
    except FileNotFoundError as error:
        if not finished:
            return []
        raise FileFormatError(f"cannot read {path}: {error}; the run folder is incomplete") from error
    except OSError as error:
        raise FileFormatError(f"cannot read {path}: {error}") from error
    return [
        _event(f"{path}, line {number}", line)
        for number, line in enumerate(lines if finished else lines[:-1], 1)
        if line
    ]


def _event(place: str, line: bytes) -> dict[str, Any]:
    try:
        event = parse_json(line)
    except ValueError as error:
        raise FileFormatError(f"{place} is not JSON: {error}; the file is damaged") from error
    if not isinstance(event, dict) or not isinstance(event.get("event"), str):
        raise FileFormatError(f"{place} is not an event: expected a JSON object with the key 'event'")
    refuse_unfit(place, _EVENTS.get(event["event"], _Event), event)
    return event


def refuse_unfit(place: object, expected: type[BaseModel], value: Any) -> None:
    """One line where what was read is not as this package writes it."""
    try:
        expected.model_validate(value)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"])) or "its content"
        message = f"{first['msg'][:1].lower()}{first['msg'][1:]}"
        raise FileFormatError(f"{place}, {key}: {message}; the file is damaged, or not a file of a run") from None


class Journal:
    """Appends events to a file and hands each to the display. `lines` is what a checkpoint remembers.

    `silent`: of several processes that learn together, one keeps the journal and the others read it at most."""

    def __init__(self, path: Path, show: Show, *, silent: bool = False) -> None:
        self.path, self.show, self.lines, self.silent = path, show, 0, silent

    def cut_back(self, lines: int) -> list[dict[str, Any]]:
        """Keep the first lines only and return their events: what came after the checkpoint is done again.

        A damaged line is left out with a remark: it is a record, and the checkpoint alone decides how to go on. An
        empty line stays in its place, as the checkpoint counts the lines for a process that is stopped once more."""
        kept, past = list[bytes](), list[dict[str, Any]]()
        stored = self.path.read_bytes().split(b"\n") if lines and self.path.exists() else []
        for number, line in enumerate(stored[:lines], 1):
            try:
                past += [_event(f"{self.path}, line {number}", line)] if line else []
                kept.append(line + b"\n")
            except FileFormatError as error:
                kept.append(b"\n")
                self.show({"event": "remarks", "remarks": [f"left out of the record: {error}"]})
        if not self.silent:
            write_atomically(self.path, b"".join(kept))
        self.lines = len(kept)
        return past

    def epochs(self, task: int, phase: str) -> list[dict[str, Any]]:
        """What was written about the epochs of a phase."""
        wanted = {"event": "epoch", "task": task, "phase": phase}
        return [record for record in read_events(self.path) if wanted.items() <= record.items()]

    def write(self, event: str, **fields: Any) -> None:
        if self.silent:
            return
        record = {"event": event, **fields}
        try:
            with open(self.path, "a", encoding="utf-8", opener=private) as file:
                file.write(json.dumps(record) + "\n")
        except OSError as error:
            raise EndocilError(
                f"cannot write {self.path}: {error.strerror or error}; fix that (free some space), "
                f"then continue with '{resume_command(self.path.parent)}'"
            ) from error
        self.lines += 1
        self.show(record)


def environment(settings: Settings, processes: int = 1) -> dict[str, Any]:
    """Versions and machine, without host names and paths, so that it can be published."""
    names = ("endocil", "torch", "numpy", "lightning-fabric", "pillow", "simplejpeg", "safetensors")
    return {
        "python": platform.python_version(),
        **{name: importlib.metadata.version(name) for name in names},
        "system": platform.system(),
        "machine": platform.machine(),
        "processor": processor(),
        "instructions": instruction_set(),
        "accelerator": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "processes": processes,
        "threads": settings.run.threads,
        "commit": _commit(),
    }


def processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown")


def _commit() -> str | None:
    """The commit of a source checkout, with '+' when files were changed; none for an installed package."""
    here = Path(__file__).parents[1]
    if not (here.parents[1] / "pyproject.toml").is_file():
        return None
    try:
        commit = _git(here, "rev-parse", "--short=12", "HEAD")
        return commit + ("+" if _git(here, "status", "--porcelain", "--", str(here)) else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def _git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(folder), *arguments], check=True, capture_output=True, text=True)
    return done.stdout.strip()
