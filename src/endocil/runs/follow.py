"""What the events of a run say about it: pure functions, no files, no clock."""

import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO, Literal

from endocil.data.leaks import RATES
from endocil.errors import EndocilError
from endocil.io.files import read_csv
from endocil.io.locks import Lock, lock
from endocil.metrics.metrics import accuracy
from endocil.model.predictions import read_run_predictions
from endocil.runs.folder import RunFolder

Event = Mapping[str, Any]


@dataclass(frozen=True)
class TaskSize:
    """How many classes and training images a task brings, from the recorded split."""

    classes: int
    images: int


@dataclass(frozen=True)
class TaskState:
    """One task that has begun."""

    index: int
    classes: tuple[str, ...]
    new: int
    exemplars: int  # that it was trained with
    planned: int  # image passes of all its phases
    notes: tuple[str, ...] = ()
    kept: int = 0  # exemplars chosen of its own classes
    learned: bool = False


@dataclass(frozen=True)
class State:
    """Where a run is."""

    n_tasks: int
    tasks: tuple[TaskState, ...] = ()
    phase: str = ""
    epoch: int = 0  # epochs of the phase that are done
    epochs: int = 0
    losses: Mapping[str, float] = field(default_factory=dict)
    learning_rate: float | None = None
    seconds_per_epoch: float | None = None  # of this phase, as far as it was trained here
    share: float = 0.0  # of all image passes
    left: float | None = None  # seconds of training


def state_of(events: Sequence[Event], sizes: Sequence[TaskSize]) -> State:
    """The state after these events of a run whose tasks have these sizes."""
    tasks = _tasks(events)
    epochs = [event for event in events if event["event"] == "epoch"]
    last = epochs[-1] if epochs and tasks and epochs[-1]["task"] == tasks[-1].index else None
    done, planned = _passes(epochs), _planned(tasks, sizes)
    learned = sum(task.learned for task in tasks) / max(1, len(sizes))  # all there is of a run without phases
    known = State(len(sizes), tasks, share=min(1.0, done / planned) if planned else learned)
    if last is None:
        return known
    return replace(
        known,
        phase=last["phase"],
        epoch=last["epoch"] + 1,
        epochs=last["epochs"],
        losses=last["losses"],
        learning_rate=last["learning_rate"],
        seconds_per_epoch=_seconds_per_epoch(epochs, last),
        left=_left(epochs, max(0, planned - done)),
    )


def _tasks(events: Sequence[Event]) -> tuple[TaskState, ...]:
    learned = {event["task"] for event in events if event["event"] == "learned"}
    kept = Counter[int]()
    for event in events:
        if event["event"] == "selection":
            kept[event["task"]] += event["kept"]
    return tuple(
        TaskState(
            event["task"],
            tuple(event["classes"]),
            event.get("new", 0),
            event.get("exemplars", 0),
            sum(phase["epochs"] * phase["images"] for phase in event.get("phases", ())),
            tuple(event.get("notes", ())),
            kept[event["task"]],
            event["task"] in learned,
        )
        for event in events
        if event["event"] == "task"
    )


def _passes(epochs: Sequence[Event]) -> int:
    return sum(event.get("images", 0) for event in epochs)


def _planned(tasks: Sequence[TaskState], sizes: Sequence[TaskSize]) -> int:
    """Image passes of the whole run. Tasks to come are taken to train as often as the last that has begun, on their
    new images and on as many exemplars of each older class as were kept so far."""
    known = sum(task.planned for task in tasks)
    if not tasks or not tasks[-1].new:
        return known
    often = tasks[-1].planned / (tasks[-1].new + tasks[-1].exemplars)
    chosen = [task for task in tasks if task.kept]
    per_class = sum(task.kept for task in chosen) / max(1, sum(len(task.classes) for task in chosen))
    to_come, older = 0.0, sum(size.classes for size in sizes[: len(tasks)])
    for size in sizes[len(tasks) :]:
        to_come += size.images + per_class * older
        older += size.classes
    return known + round(often * to_come)


def _seconds_per_epoch(epochs: Sequence[Event], last: Event) -> float | None:
    where = ("task", "phase")
    phase = [event for event in _trained_here(epochs) if all(event[key] == last[key] for key in where)]
    return sum(event["seconds"] for event in phase) / len(phase) if phase else None


def _left(epochs: Sequence[Event], passes: int) -> float | None:
    """By the time that the image passes so far have taken."""
    here = _trained_here(epochs)
    images = _passes(here)
    return passes * sum(event["seconds"] for event in here) / images if images else None


def _trained_here(epochs: Sequence[Event]) -> list[Event]:
    """Epochs of a shared first task were trained by another run, which has spent their time."""
    return [event for event in epochs if not event.get("shared")]


# Following a run's folder: what has happened since the last look, and whether anybody works on it.

Standing = Literal["running", "finished", "stopped", "unknown"]


class Tail:
    """The whole lines of a growing file; a line that is half written is read when it is whole."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.file, self.offset = -1, 0
        self.events: list[Event] = []

    def read(self) -> list[Event]:
        """All events so far. A run that goes on from a checkpoint writes the file anew: then it is read anew."""
        try:
            with self.path.open("rb") as file:
                self._read_on(file)
        except FileNotFoundError:
            self.offset, self.events = 0, []
        return self.events

    def _read_on(self, file: BinaryIO) -> None:
        found = os.fstat(file.fileno())
        if found.st_ino != self.file or found.st_size < self.offset:
            self.file, self.offset, self.events = found.st_ino, 0, []
        file.seek(self.offset)
        whole = file.read().rpartition(b"\n")[0]
        if whole:
            self.offset += len(whole) + 1
            self.events = [*self.events, *map(json.loads, whole.split(b"\n"))]


@dataclass(frozen=True)
class View:
    """One look at a run."""

    folder: Path
    name: str  # method and seed
    standing: Standing
    state: State
    events: tuple[Event, ...]
    accuracies: tuple[float, ...]  # of the softmax head on all classes seen, after each finished task
    notes: tuple[str, ...]

    @property
    def told(self) -> str:
        """In words, with what to do."""
        return {
            "running": "running",
            "finished": "finished",
            "stopped": f"stopped: no process is working on it; go on with 'endocil resume {self.folder}'",
            "unknown": "not finished; whether a process is working on it cannot be told on this file system",
        }[self.standing]


class Follower:
    """Looks at a run again and again; what cannot change is read once."""

    def __init__(self, folder: Path) -> None:
        self.here = RunFolder(folder)
        settings = self.here.settings()
        self.name = f"{settings.method.name.rpartition(':')[2]} seed {settings.seed}"
        self.sizes = task_sizes(folder / "split.csv")
        self.notes = _notes(folder)
        self.tail = Tail(self.here.events)
        self.accuracies: tuple[float, ...] = ()

    def look(self) -> View:
        standing = standing_of(self.here)  # before the events, so that those of a finished run are all read
        try:
            events = self.tail.read()
        except ValueError as error:
            raise EndocilError(
                f"{self.here.events} has a line that is no event: {error}; the file is damaged"
            ) from error
        state = state_of(events, self.sizes)
        notes = (*self.notes, *(f"task {task.index}: {note}" for task in state.tasks for note in task.notes))
        return View(self.here.path, self.name, standing, state, tuple(events), self._accuracies(state), notes)

    def _accuracies(self, state: State) -> tuple[float, ...]:
        """Of the tasks that are learned and predicted; predictions are read when there is one more."""
        learned = sum(task.learned for task in state.tasks)
        there = [self.here.predictions(task) for task in range(learned)]
        there = [file for file in there if file.exists()]
        if len(there) != len(self.accuracies):
            self.accuracies = tuple(accuracy(one, "softmax") for one in read_run_predictions(there))
        return self.accuracies


def standing_of(here: RunFolder) -> Standing:
    held = lock_on(here.path)
    if here.finished():
        return "finished"
    standings: dict[Lock, Standing] = {"taken": "running", "held": "stopped", "none": "unknown"}
    return standings[held]


def lock_on(folder: Path) -> Lock:
    """A process that works here holds the folder's lock; the system gives it back however the process ends.

    The answer is that of trying to take it, which is given back at once."""
    file = folder / ".lock"
    if not file.exists():  # nobody has worked here yet
        return "held"
    with file.open("rb") as opened:
        return lock(opened, wait=False)


def task_sizes(split: Path) -> tuple[TaskSize, ...]:
    rows = read_csv(split)
    images = Counter(int(row["task"]) for row in rows if row["part"] == "train")
    classes = Counter(task for task, _ in {(int(row["task"]), row["class"]) for row in rows})
    return tuple(TaskSize(classes[task], images[task]) for task in sorted(classes))


def _notes(folder: Path) -> tuple[str, ...]:
    """On the images, from the files that a run writes before it learns."""
    data, leaks = (_json(folder / name) for name in ("data.json", "leaks.json"))
    leaking = [
        f"of the test images {leaks[key]:.1%} have {what} in train"
        for key, what in RATES.items()
        if leaks.get(key)
    ]
    return (*data.get("notes", ()), *leaking)


def _json(file: Path) -> dict[str, Any]:
    """Runs of earlier versions lack some files."""
    found: dict[str, Any] = json.loads(file.read_text("utf-8")) if file.is_file() else {}
    return found


class Followed:
    """A run, or the runs of a sweep: the folders in it that are runs, those that begin later too."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.alone = folder, (folder / "settings.toml").exists()
        self.followers: dict[Path, Follower] = {}
        if not self._runs() and not self._at_work():
            raise EndocilError(
                f"{folder} is neither a run nor a folder with runs; start one with 'endocil run'"
            )

    def look(self) -> list[View]:
        for run in self._runs():
            if run not in self.followers:
                self.followers[run] = Follower(run)
        return [follower.look() for follower in self.followers.values()]

    def moving(self, views: Sequence[View]) -> bool:
        """Whether another look may show something new."""
        return any(view.standing in ("running", "unknown") for view in views) or self._at_work()

    def _runs(self) -> list[Path]:
        if self.alone:
            return [self.folder]
        return sorted(file.parent for file in self.folder.glob("*/settings.toml"))

    def _at_work(self) -> bool:
        """Whether a sweep is at work, which may be between two runs."""
        return not self.alone and lock_on(self.folder) == "taken"
