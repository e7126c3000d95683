"""How far the runs of a sweep are, read from their events; a line for each on a terminal, plain lines otherwise."""

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.table import Column

from endocil.io.terminal import duration
from endocil.learning.events import read_events
from endocil.runs.follow import TaskSize, state_of, task_sizes
from endocil.runs.sweep.worker import Job, Outcome


@dataclass
class RunProgress:
    """One run from outside: which share of its training is done, and how long the rest will take."""

    job: Job
    logged: int = 0  # bytes of the log before the sweep began; more than that: it has started
    sizes: tuple[TaskSize, ...] = ()
    text: str = "starting"
    share: float = 0.0
    left: float | None = None  # seconds

    def started(self) -> bool:
        return self.job.log.exists() and self.job.log.stat().st_size > self.logged

    def update(self) -> None:
        with suppress(OSError, ValueError, KeyError):  # a file that is being written
            self.sizes = self.sizes or task_sizes(self.job.folder / "split.csv")
            state = state_of(read_events(self.job.folder / "events.jsonl"), self.sizes)
            self.share, self.left = state.share, state.left
            if state.tasks:
                phase = f" {state.phase} {state.epoch}/{state.epochs}" if state.phase else ""
                self.text = f"task {state.tasks[-1].index}{phase}"


@dataclass
class ProgressDisplay:
    """The sweep on the screen."""

    console: Console
    jobs: Sequence[Job]
    workers: int
    failed: list[Outcome] = field(default_factory=list)
    finished: list[Outcome] = field(default_factory=list)

    def __post_init__(self) -> None:
        sizes = {job.name: job.log.stat().st_size if job.log.exists() else 0 for job in self.jobs}
        self.waiting = {job.name: RunProgress(job, sizes[job.name]) for job in self.jobs}
        self.running: dict[str, RunProgress] = {}
        self.rows: dict[str, TaskID] = {}
        self.bar: Progress | None = None
        self.updated = 0.0

    def __enter__(self) -> "ProgressDisplay":
        if self.console.is_terminal:
            columns = (
                TextColumn(
                    "{task.description}", table_column=Column(no_wrap=True, overflow="ellipsis", ratio=1)
                ),
                BarColumn(bar_width=16),
                TextColumn("{task.fields[text]}", table_column=Column(no_wrap=True)),
            )
            self.bar = Progress(*columns, console=self.console, transient=True, expand=True)
            self.rows[""] = self.bar.add_task("sweep", total=len(self.jobs), text="")
            self.bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self.bar is not None:
            self.bar.stop()

    def update(self) -> None:
        """Show which runs have started and how far each is; at most once a second."""
        if time.monotonic() - self.updated < 1.0:
            return
        self.updated = time.monotonic()
        for name in [name for name, run in self.waiting.items() if run.started()]:
            self.running[name] = self.waiting.pop(name)
            self._add_started(name)
        if self.bar is None:
            return
        for name, run in self.running.items():
            run.update()
            text = run.text if run.left is None else f"{run.text}, {duration(run.left)} left"
            self.bar.update(self.rows[name], completed=run.share, text=text)
        done = len(self.finished) + len(self.failed)
        self.bar.update(self.rows[""], completed=done, text=self._summary())

    def add_outcome(self, outcome: Outcome) -> None:
        name = outcome.job.name
        if self.waiting.pop(name, None) is not None:  # it began and ended since the last update
            self._add_started(name)
        self.running.pop(name, None)
        (self.failed if outcome.error else self.finished).append(outcome)
        if self.bar is not None:
            self.bar.remove_task(self.rows.pop(name))
        result = f"failed ({outcome.error})" if outcome.error else f"finished in {duration(outcome.seconds)}"
        self._print(f"{name}: {result}; {self._summary()}")

    def _add_started(self, name: str) -> None:
        if self.bar is None:
            self._print(f"{name}: started")
        else:
            self.rows[name] = self.bar.add_task(name, total=1.0, text="")

    def _summary(self) -> str:
        n_failed, left = len(self.failed), len(self.waiting) + len(self.running)
        failed = f", {n_failed} failed" if n_failed else ""
        seconds = self.seconds_left()
        estimate = "" if seconds is None or not left else f", about {duration(seconds)}"
        return f"{len(self.finished)} finished{failed}, {left} left{estimate}"

    def seconds_left(self) -> float | None:
        """By the mean of the finished runs; none before the first is finished."""
        if not self.finished:
            return None
        mean = sum(one.seconds for one in self.finished) / len(self.finished)
        running = sum(mean * (1.0 - run.share) for run in self.running.values())
        return (running + mean * len(self.waiting)) / self.workers

    def _print(self, text: str) -> None:
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)
