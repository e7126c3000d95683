"""What the events of a run say about it: pure functions, no files, no clock."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

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
