"""Runs seen from outside while they learn: how far they are by their events, and whether a process works on them."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from endocil.data.leaks import RATES
from endocil.errors import DataError
from endocil.io.files import LOCK_FILE, Lock, lock
from endocil.learning.events import read_events
from endocil.methods import method_title
from endocil.metrics.metrics import accuracy
from endocil.model.prediction_files import read_run_predictions
from endocil.runs.folder import RunFolder
from endocil.runs.records import read_notes, read_split
from endocil.settings.settings import resume_command

Event = Mapping[str, Any]
Status = Literal["running", "finished", "stopped", "unknown"]
STATUSES: dict[Lock, Status] = {"taken": "running", "held": "stopped", "none": "unknown"}  # of an unfinished run


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
    """How far a run is."""

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

    @property
    def position(self) -> str:
        """The present task and epoch, such as "task 1/2 train 3/10"."""
        if not self.tasks:
            return "no task yet"
        phase = f" {self.phase} {self.epoch}/{self.epochs}" if self.phase else ""
        return f"task {self.tasks[-1].index + 1}/{self.n_tasks}{phase}"


def state_of(events: Sequence[Event], sizes: Sequence[TaskSize]) -> State:
    """The state after these events of a run whose tasks have these sizes."""
    tasks = _tasks(events)
    epochs = [event for event in events if event["event"] == "epoch"]
    # a first task that was taken over from another run has cost this run no time
    trained = [event for event in epochs if not event.get("shared")]
    done, planned = _passes(epochs), _planned(tasks, sizes)
    learned = sum(task.learned for task in tasks) / max(1, len(sizes))  # for a run without phases
    state = State(len(sizes), tasks, share=min(1.0, done / planned) if planned else learned)
    if not epochs or not tasks or epochs[-1]["task"] != tasks[-1].index:
        return state
    last = epochs[-1]
    of_phase = [
        one.get("seconds", 0.0) for one in trained if (one["task"], one["phase"]) == (last["task"], last["phase"])
    ]
    seconds, passes = sum(one.get("seconds", 0.0) for one in trained), _passes(trained)
    return replace(
        state,
        phase=last["phase"],
        epoch=last["epoch"] + 1,
        epochs=last["epochs"],
        losses=last["losses"],
        learning_rate=last["learning_rate"],
        seconds_per_epoch=sum(of_phase) / len(of_phase) if of_phase else None,
        left=max(0, planned - done) * seconds / passes if passes else None,
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
    """Image passes of the whole run. Later tasks are assumed to train as often as the last that has begun, on their
    new images and on as many exemplars of each older class as were kept so far."""
    begun = sum(task.planned for task in tasks)
    if not tasks or not tasks[-1].new:
        return begun
    passes_per_image = tasks[-1].planned / (tasks[-1].new + tasks[-1].exemplars)
    selected = [task for task in tasks if task.kept]
    per_class = sum(task.kept for task in selected) / max(1, sum(len(task.classes) for task in selected))
    images, older = 0.0, sum(size.classes for size in sizes[: len(tasks)])
    for size in sizes[len(tasks) :]:
        images += size.images + per_class * older
        older += size.classes
    return begun + round(passes_per_image * images)


def task_sizes(split: Path) -> tuple[TaskSize, ...]:
    rows = read_split(split)
    images = Counter(int(row["task"]) for row in rows if row["part"] == "train")
    first: dict[str, int] = {}  # the task that brings a class; images of it may come back in later ones
    for row in rows:
        first[row["class"]] = min(int(row["task"]), first.get(row["class"], int(row["task"])))
    classes = Counter(first.values())
    return tuple(TaskSize(classes[task], images[task]) for task in sorted({int(row["task"]) for row in rows}))


@dataclass(frozen=True)
class Snapshot:
    """A run at one moment."""

    folder: Path
    name: str  # method and seed
    status: Status
    state: State
    events: tuple[Event, ...]
    accuracies: tuple[float, ...]  # of the softmax head on all classes seen, after each finished task
    notes: tuple[str, ...]

    @property
    def status_text(self) -> str:
        """The status in words, with what to do."""
        if self.status == "stopped":
            return f"stopped: no process is working on it; continue with '{resume_command(self.folder)}'"
        if self.status == "unknown":
            return "not finished; whether a process is working on it cannot be determined on this file system"
        return self.status


class RunFollower:
    """Takes snapshots of a run; files that do not change are read once."""

    def __init__(self, folder: Path) -> None:
        self.run = RunFolder(folder)
        settings = self.run.settings
        self.name = f"{method_title(settings.method.name)} seed {settings.seed}"
        self.sizes = task_sizes(folder / "split.csv")
        leaks, notes = read_notes(folder)
        rates = [(leaks[key], kind) for key, kind in RATES.items() if leaks.get(key)]
        leaking = (f"{rate:.1%} of the test images have {kind} in the training part" for rate, kind in rates)
        self.notes = (*notes, *leaking)
        self.accuracies: tuple[float, ...] = ()

    def snapshot(self) -> Snapshot:
        # before the events, so that those of a finished run are all read
        lock_state = _lock_state(self.run.path)
        status = "finished" if self.run.finished() else STATUSES[lock_state]
        events = read_events(self.run.events)
        state = state_of(events, self.sizes)
        notes = (*self.notes, *(f"task {task.index + 1}: {note}" for task in state.tasks for note in task.notes))
        return Snapshot(self.run.path, self.name, status, state, tuple(events), self._accuracies(state), notes)

    def _accuracies(self, state: State) -> tuple[float, ...]:
        """Of the tasks that are learned and predicted; predictions are read again when there is one more."""
        learned = sum(task.learned for task in state.tasks)
        files = [file for task in range(learned) if (file := self.run.predictions(task)).exists()]
        if len(files) != len(self.accuracies):
            self.accuracies = tuple(accuracy(one, "softmax") for one in read_run_predictions(files, of_run=True))
        return self.accuracies


def _lock_state(folder: Path) -> Lock:
    """Whether a process works here: it holds the folder's lock, which the system releases however the process ends.

    The state is that of taking the lock, which is released at once."""
    file = folder / LOCK_FILE
    if not file.exists():  # no process has worked here yet
        return "held"
    with file.open("rb") as opened:
        return lock(opened, wait=False)


class FolderFollower:
    """Takes snapshots of a run, or of the runs of a sweep: the folders in it that are runs, also those that begin
    later."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.single = folder, (folder / "settings.toml").exists()
        self.followers: dict[Path, RunFollower] = {}
        if not self._runs() and not self._sweep_at_work():
            raise DataError(f"{folder} is neither a run nor a folder with runs; start one with 'endocil run'")

    def snapshots(self) -> list[Snapshot]:
        for run in self._runs():
            if run not in self.followers:
                self.followers[run] = RunFollower(run)
        return [follower.snapshot() for follower in self.followers.values()]

    def may_change(self, snapshots: Sequence[Snapshot]) -> bool:
        """Whether later snapshots may differ."""
        return any(one.status in ("running", "unknown") for one in snapshots) or self._sweep_at_work()

    def _runs(self) -> list[Path]:
        if self.single:
            return [self.folder]
        return sorted(file.parent for file in self.folder.glob("*/settings.toml"))

    def _sweep_at_work(self) -> bool:
        """A sweep may be between two runs."""
        return not self.single and _lock_state(self.folder) == "taken"
