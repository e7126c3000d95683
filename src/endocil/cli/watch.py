"""endocil watch and tensorboard: a run, or the runs of a sweep, live on a terminal and in lines elsewhere."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from endocil.cli.common import console, say
from endocil.io.terminal import duration

if TYPE_CHECKING:  # endocil.runs.follow loads torch
    from endocil.runs.follow import Event, FolderFollower, Snapshot, State, TaskState

LINES = 4  # for each phase, where the output is no terminal


def run_panel(run: "Snapshot") -> RenderableType:
    """How far the run is, its tasks, and notes."""
    head = Text.assemble((run.name, "bold"), f"  {run.folder}  ", (run.status_text, _colour(run)))
    parts: list[RenderableType] = [head, Text(_position_and_losses(run))]
    if run.status != "finished":
        parts.append(ProgressBar(total=1.0, completed=run.state.share, width=60))
    parts += [_tasks(run), *(Text(f"note: {note}") for note in run.notes)]
    return Group(*parts)


def run_lines(run: "Snapshot") -> list[str]:
    """The same in plain lines."""
    tasks = [_task_line(task, run.accuracies) for task in run.state.tasks]
    return [
        f"{run.name}, {run.folder}: {run.status_text}",
        _position_and_losses(run),
        *tasks,
        *(f"note: {n}" for n in run.notes),
    ]


def event_lines(events: "Sequence[Event]", accuracies: Sequence[float]) -> list[str]:
    """The events so far in lines; further events add lines and change none."""
    lines: list[str] = []
    for event in events:
        if event["event"] == "task":
            lines.append(f"task {event['task']}: {', '.join(event['classes'])}")
        elif event["event"] == "epoch" and (event["epoch"] + 1) % max(1, event["epochs"] // LINES) == 0:
            where = f"task {event['task']} {event['phase']} {event['epoch'] + 1}/{event['epochs']}"
            lines.append(f"  {where}: {_losses(event['losses'])}; learning rate {event['learning_rate']:.3g}")
        elif event["event"] == "learned" and event["task"] < len(accuracies):
            lines.append(f"  task {event['task']} learned: accuracy {accuracies[event['task']]:.2f} %")
    return lines


def sweep_table(runs: "Sequence[Snapshot]") -> RenderableType:
    """The runs of a sweep, a row each."""
    table = Table("run", "", "where", "done", "left", "accuracy", box=None, padding=(0, 2, 0, 0))
    for run in runs:
        table.add_row(run.folder.name, Text(run.status, _colour(run)), _brief(run.state), *_progress(run))
    return Group(table, Text(status_counts(runs)))


def sweep_lines(runs: "Sequence[Snapshot]") -> list[str]:
    rows = [(run.folder.name, run.status, _brief(run.state), *_progress(run)) for run in runs]
    return [*("  ".join(filter(None, row)) for row in rows), status_counts(runs)]


def status_counts(runs: "Sequence[Snapshot]") -> str:
    statuses = [run.status for run in runs]
    return ", ".join(f"{statuses.count(one)} {one}" for one in dict.fromkeys(statuses))


def _colour(run: "Snapshot") -> str:
    return {"running": "green", "finished": "blue", "stopped": "red", "unknown": "yellow"}[run.status]


def _position(state: "State") -> str:
    """Tasks are counted from 0, as everywhere."""
    if not state.tasks:
        return "no task yet"
    task = f"task {state.tasks[-1].index} ({len(state.tasks)} of {state.n_tasks})"
    return f"{task}, {state.phase}, epoch {state.epoch} of {state.epochs}" if state.phase else task


def _brief(state: "State") -> str:
    if not state.tasks:
        return "no task yet"
    phase = f" {state.phase} {state.epoch}/{state.epochs}" if state.phase else ""
    return f"task {state.tasks[-1].index}/{state.n_tasks - 1}{phase}"


def _position_and_losses(run: "Snapshot") -> str:
    state = run.state
    parts = [_position(state)]
    if state.losses:
        parts.append(f"losses: {_losses(state.losses)}")
    if state.learning_rate is not None:
        parts.append(f"learning rate {state.learning_rate:.3g}")
    if state.seconds_per_epoch is not None:
        parts.append(f"{state.seconds_per_epoch:.2g} s/epoch")
    if run.status != "finished" and state.left is not None:
        parts.append(f"{state.share:.0%} done, about {duration(state.left)} of training left")
    return "; ".join(parts)


def _progress(run: "Snapshot") -> tuple[str, str, str]:
    """Done, left and the last accuracy so far."""
    last = f"{run.accuracies[-1]:.2f} %" if run.accuracies else ""
    if run.status == "finished":
        return "100%", "", last
    left = run.state.left
    return f"{run.state.share:.0%}", "" if left is None else duration(left), last


def _losses(losses: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:.3f}" for name, value in losses.items())


def _tasks(run: "Snapshot") -> Table:
    numbers = ("new images", "exemplars", "kept of them", "accuracy")
    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column("task", justify="right", no_wrap=True)
    table.add_column("new classes", ratio=1)
    for name in numbers:
        table.add_column(name, justify="right", no_wrap=True)
    for task in run.state.tasks:
        classes = Text(", ".join(task.classes))  # a name with brackets is no markup
        table.add_row(str(task.index), classes, *_counts(task), _accuracy(task, run.accuracies))
    return table


def _counts(task: "TaskState") -> tuple[str, str, str]:
    return f"{task.new:,}", f"{task.exemplars:,}", f"{task.kept:,}" if task.kept else ""


def _accuracy(task: "TaskState", accuracies: Sequence[float]) -> str:
    return f"{accuracies[task.index]:.2f} %" if task.index < len(accuracies) else ""


def _task_line(task: "TaskState", accuracies: Sequence[float]) -> str:
    kept = f", {task.kept:,} of them kept" if task.kept else ""
    measured = _accuracy(task, accuracies)
    return (
        f"task {task.index}: {', '.join(task.classes)}; {task.new:,} new images{kept}, trained with "
        f"{task.exemplars:,} exemplars{f'; accuracy {measured}' if measured else ''}"
    )


def watch(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run, or of a sweep.")],
    once: Annotated[bool, typer.Option("--once", help="Show the present state and end.")] = False,
    every: Annotated[float, typer.Option("--every", min=0.1, help="Seconds between two updates.")] = 1.0,
) -> None:
    """Show a run while it learns: losses, accuracy after each task, time left. Ctrl-C ends the display, not the run."""
    from endocil.runs.follow import FolderFollower

    follower = FolderFollower(folder)
    try:
        if console().is_terminal:
            _show_live(follower, once, every)
        else:
            _show_lines(follower, once, every)
    except KeyboardInterrupt:
        return


def _show_live(follower: "FolderFollower", once: bool, every: float) -> None:
    from rich.live import Live

    def rendered(runs: "Sequence[Snapshot]") -> RenderableType:
        return run_panel(runs[0]) if follower.single else sweep_table(runs)

    runs = follower.snapshots()
    if once:
        console().print(rendered(runs))
        return
    with Live(rendered(runs), console=console(), auto_refresh=False) as live:
        while follower.may_change(runs):
            time.sleep(every)
            runs = follower.snapshots()
            live.update(rendered(runs), refresh=True)


def _show_lines(follower: "FolderFollower", once: bool, every: float) -> None:
    """New lines at each update, and the state at the end."""
    printed: list[str] = []
    runs = follower.snapshots()
    while not once and follower.may_change(runs):
        lines = event_lines(runs[0].events, runs[0].accuracies) if follower.single else [status_counts(runs)]
        for line in lines[_common_prefix(printed, lines) :]:
            say(line)
        printed = lines
        time.sleep(every)
        runs = follower.snapshots()
    for line in run_lines(runs[0]) if follower.single else sweep_lines(runs):
        say(line)


def _common_prefix(one: Sequence[str], other: Sequence[str]) -> int:
    """How many lines both begin with: a run that went on from a checkpoint does its last lines again."""
    return next(
        (i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other))
    )


def tensorboard(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Folders of runs.")],
) -> None:
    """Write the records of runs for TensorBoard, below RUN/tensorboard; a run that learns does it by itself with
    run.tensorboard=true."""
    from endocil.runs.folder import RunFolder
    from endocil.runs.tensorboard import write_tensorboard

    for folder in runs:
        here = RunFolder(folder)
        here.settings()  # refuses another folder
        with here.locked():
            say(f"wrote {write_tensorboard(here)}; look at it with: tensorboard --logdir {folder}")
