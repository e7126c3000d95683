"""Following a run's folder: what has happened since the last look, and whether anybody works on it."""

import json
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal

from endocil.audit.leaks import RATES
from endocil.errors import EndocilError
from endocil.files import read_csv
from endocil.locking import Lock, lock
from endocil.metrics import accuracy
from endocil.predictions import read_run_predictions
from endocil.run_folder import RunFolder
from endocil.watching.state import Event, State, TaskSize, state_of

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
