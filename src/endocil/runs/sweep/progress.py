"""How far the runs of a sweep are, read from their events; a line for each on a terminal, plain lines otherwise."""

import json
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.table import Column

from endocil.io.files import read_csv
from endocil.io.terminal import duration
from endocil.runs.sweep.worker import Job, Outcome


@dataclass
class Watch:
    """One run from outside: which share of its training is done, and how long the rest will take."""

    job: Job
    logged: int = 0  # bytes of the log before the sweep began; more than that: it has started
    weights: tuple[float, ...] = ()  # each task's share of the training images
    text: str = "starting"
    share: float = 0.0
    left: float | None = None  # seconds

    def started(self) -> bool:
        return self.job.log.exists() and self.job.log.stat().st_size > self.logged

    def look(self) -> None:
        with suppress(OSError, ValueError, KeyError):  # a file that is being written
            lines = (self.job.folder / "events.jsonl").read_text("utf-8").splitlines()
            events = [json.loads(line) for line in lines]
            self.weights = self.weights or _weights(self.job.folder / "split.csv")
            self._measure([event for event in events if event["event"] in ("task", "epoch", "learned")])

    def _measure(self, events: Sequence[dict[str, Any]]) -> None:
        phases, done, paid, seconds = [], 0.0, 0.0, 0.0
        for event in events:
            if event["event"] == "task":
                phases = event["phases"]
                self.text = f"task {event['task']}"
                continue
            if event["event"] == "learned":
                done += (
                    0.0 if phases else self.weights[event["task"]]
                )  # a task without phases is done at once
                continue
            epochs = sum(phase["epochs"] for phase in phases)
            part = self.weights[event["task"]] / epochs
            done += part
            if not event.get("shared"):
                paid, seconds = paid + part, seconds + event["seconds"]
            self.text = f"task {event['task']} {event['phase']} {event['epoch'] + 1}/{event['epochs']}"
        self.share = min(done, 1.0)
        self.left = (1.0 - self.share) * seconds / paid if paid else None


def _weights(split: Path) -> tuple[float, ...]:
    tasks = [int(row["task"]) for row in read_csv(split) if row["part"] == "train"]
    return tuple(tasks.count(task) / len(tasks) for task in range(max(tasks) + 1))


@dataclass
class Board:
    """The sweep on the screen."""

    console: Console
    jobs: Sequence[Job]
    workers: int
    failed: list[Outcome] = field(default_factory=list)
    finished: list[Outcome] = field(default_factory=list)

    def __post_init__(self) -> None:
        sizes = {job.name: job.log.stat().st_size if job.log.exists() else 0 for job in self.jobs}
        self.waiting = {job.name: Watch(job, sizes[job.name]) for job in self.jobs}
        self.running: dict[str, Watch] = {}
        self.rows: dict[str, TaskID] = {}
        self.bar: Progress | None = None
        self.looked = 0.0

    def __enter__(self) -> "Board":
        if self.console.is_terminal:
            narrow = Column(no_wrap=True, overflow="ellipsis", ratio=1)
            columns = (
                TextColumn("{task.description}", table_column=narrow),
                BarColumn(bar_width=16),
                TextColumn("{task.fields[told]}", table_column=Column(no_wrap=True)),
            )
            self.bar = Progress(*columns, console=self.console, transient=True, expand=True)
            self.rows[""] = self.bar.add_task("sweep", total=len(self.jobs), told="")
            self.bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self.bar is not None:
            self.bar.stop()

    def look(self) -> None:
        """See who has started and how far everyone is; at most once a second."""
        if time.monotonic() - self.looked < 1.0:
            return
        self.looked = time.monotonic()
        for name in [name for name, watch in self.waiting.items() if watch.started()]:
            self.running[name] = self.waiting.pop(name)
            self._started(name)
        for name, watch in self.running.items() if self.bar else ():
            watch.look()
            told = watch.text if watch.left is None else f"{watch.text}, {duration(watch.left)} left"
            self._update(name, watch.share, told)
        self._update("", len(self.finished) + len(self.failed), self._summary())

    def ended(self, outcome: Outcome) -> None:
        name = outcome.job.name
        if self.waiting.pop(name, None) is not None:  # it began and ended since the last look
            self._started(name)
        self.running.pop(name, None)
        (self.failed if outcome.error else self.finished).append(outcome)
        if self.bar is not None:
            self.bar.remove_task(self.rows.pop(name))
        what = f"failed ({outcome.error})" if outcome.error else f"finished in {duration(outcome.seconds)}"
        self._say(f"{name}: {what}; {self._summary()}")

    def _started(self, name: str) -> None:
        if self.bar is None:
            self._say(f"{name}: started")
        else:
            self.rows[name] = self.bar.add_task(name, total=1.0, told="")

    def _update(self, name: str, completed: float, told: str) -> None:
        if self.bar is not None:
            self.bar.update(self.rows[name], completed=completed, told=told)

    def _summary(self) -> str:
        n_failed, left = len(self.failed), len(self.waiting) + len(self.running)
        failed = f", {n_failed} failed" if n_failed else ""
        seconds = self.seconds_left()
        soon = "" if seconds is None or not left else f", about {duration(seconds)}"
        return f"{len(self.finished)} finished{failed}, {left} left{soon}"

    def seconds_left(self) -> float | None:
        """By the mean of the finished runs; none before the first is finished."""
        if not self.finished:
            return None
        mean = sum(one.seconds for one in self.finished) / len(self.finished)
        running = sum(mean * (1.0 - watch.share) for watch in self.running.values())
        return (running + mean * len(self.waiting)) / self.workers

    def _say(self, text: str) -> None:
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)
