"""A run, or the runs of a sweep, on the screen: a picture that changes on a terminal, lines otherwise."""

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
from endocil.runs.follow import Event, State, TaskState, View

if TYPE_CHECKING:
    from rich.console import RenderableType

    from endocil.runs.follow import Followed, View

LINES = 4  # of a phase, on a screen that is no terminal


def picture(view: View) -> RenderableType:
    """Where the run is, its tasks, and what is worth knowing."""
    head = Text.assemble((view.name, "bold"), f"  {view.folder}  ", (view.told, _colour(view)))
    parts: list[RenderableType] = [head, Text(_where(view))]
    if view.standing != "finished":
        parts.append(ProgressBar(total=1.0, completed=view.state.share, width=60))
    parts += [_tasks(view), *(Text(f"note: {note}") for note in view.notes)]
    return Group(*parts)


def summary(view: View) -> list[str]:
    """The same in plain lines."""
    tasks = [_task_line(task, view.accuracies) for task in view.state.tasks]
    return [
        f"{view.name}, {view.folder}: {view.told}",
        _where(view),
        *tasks,
        *(f"note: {n}" for n in view.notes),
    ]


def log(events: Sequence[Event], accuracies: Sequence[float]) -> list[str]:
    """What has happened so far in lines; with more events lines are added, and none changes."""
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


def board(views: Sequence[View]) -> RenderableType:
    """The runs of a sweep, a row each."""
    table = Table("run", "", "where", "done", "left", "accuracy", box=None, padding=(0, 2, 0, 0))
    for view in views:
        standing = Text(view.standing, _colour(view))
        table.add_row(view.folder.name, standing, _brief(view.state), *_progress(view))
    return Group(table, Text(counted(views)))


def board_lines(views: Sequence[View]) -> list[str]:
    rows = [(view.folder.name, view.standing, _brief(view.state), *_progress(view)) for view in views]
    return [*("  ".join(filter(None, row)) for row in rows), counted(views)]


def counted(views: Sequence[View]) -> str:
    kinds = [view.standing for view in views]
    return ", ".join(f"{kinds.count(kind)} {kind}" for kind in dict.fromkeys(kinds))


def _colour(view: View) -> str:
    return {"running": "green", "finished": "blue", "stopped": "red", "unknown": "yellow"}[view.standing]


def _position(state: State) -> str:
    """Tasks are counted from 0, as everywhere."""
    if not state.tasks:
        return "no task yet"
    task = f"task {state.tasks[-1].index} ({len(state.tasks)} of {state.n_tasks})"
    return f"{task}, {state.phase}, epoch {state.epoch} of {state.epochs}" if state.phase else task


def _brief(state: State) -> str:
    if not state.tasks:
        return "no task yet"
    phase = f" {state.phase} {state.epoch}/{state.epochs}" if state.phase else ""
    return f"task {state.tasks[-1].index}/{state.n_tasks - 1}{phase}"


def _where(view: View) -> str:
    state = view.state
    told = [_position(state)]
    if state.losses:
        told.append(f"losses: {_losses(state.losses)}")
    if state.learning_rate is not None:
        told.append(f"learning rate {state.learning_rate:.3g}")
    if state.seconds_per_epoch is not None:
        told.append(f"{state.seconds_per_epoch:.2g} s/epoch")
    if view.standing != "finished" and state.left is not None:
        told.append(f"{state.share:.0%} done, about {duration(state.left)} of training left")
    return "; ".join(told)


def _progress(view: View) -> tuple[str, str, str]:
    """Done, left and the last accuracy that is known."""
    known = f"{view.accuracies[-1]:.2f} %" if view.accuracies else ""
    if view.standing == "finished":
        return "100%", "", known
    left = view.state.left
    return f"{view.state.share:.0%}", "" if left is None else duration(left), known


def _losses(losses: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:.3f}" for name, value in losses.items())


def _tasks(view: View) -> Table:
    numbers = ("new images", "exemplars", "kept of them", "accuracy")
    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column("task", justify="right", no_wrap=True)
    table.add_column("new classes", ratio=1)
    for name in numbers:
        table.add_column(name, justify="right", no_wrap=True)
    for task in view.state.tasks:
        classes = Text(", ".join(task.classes))  # a name with brackets is no markup
        table.add_row(str(task.index), classes, *_counts(task), _accuracy(task, view.accuracies))
    return table


def _counts(task: TaskState) -> tuple[str, str, str]:
    return f"{task.new:,}", f"{task.exemplars:,}", f"{task.kept:,}" if task.kept else ""


def _accuracy(task: TaskState, accuracies: Sequence[float]) -> str:
    return f"{accuracies[task.index]:.2f} %" if task.index < len(accuracies) else ""


def _task_line(task: TaskState, accuracies: Sequence[float]) -> str:
    kept = f", {task.kept:,} of them kept" if task.kept else ""
    measured = _accuracy(task, accuracies)
    return (
        f"task {task.index}: {', '.join(task.classes)}; {task.new:,} new images{kept}, trained with "
        f"{task.exemplars:,} exemplars{f'; accuracy {measured}' if measured else ''}"
    )


# endocil watch and tensorboard: a run while it learns, or afterwards.


def watch(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run, or of a sweep.")],
    once: Annotated[bool, typer.Option("--once", help="Show how it stands and end.")] = False,
    every: Annotated[float, typer.Option("--every", min=0.1, help="Seconds between two looks.")] = 1.0,
) -> None:
    """Show a run while it learns: losses, accuracy after each task, time left. Ctrl-C ends the watching alone."""
    from endocil.runs.follow import Followed

    followed = Followed(folder)
    try:
        if console().is_terminal:
            _on_a_terminal(followed, once, every)
        else:
            _in_lines(followed, once, every)
    except KeyboardInterrupt:
        return


def _on_a_terminal(followed: "Followed", once: bool, every: float) -> None:
    from rich.live import Live

    def drawn(views: "Sequence[View]") -> "RenderableType":
        return picture(views[0]) if followed.alone else board(views)

    views = followed.look()
    if once:
        console().print(drawn(views))
        return
    with Live(drawn(views), console=console(), auto_refresh=False) as live:
        while followed.moving(views):
            time.sleep(every)
            views = followed.look()
            live.update(drawn(views), refresh=True)


def _in_lines(followed: "Followed", once: bool, every: float) -> None:
    """What is new at each look, and how it stands at the end."""
    said: list[str] = []
    views = followed.look()
    while not once and followed.moving(views):
        lines = log(views[0].events, views[0].accuracies) if followed.alone else [counted(views)]
        for line in lines[_alike(said, lines) :]:
            say(line)
        said = lines
        time.sleep(every)
        views = followed.look()
    for line in summary(views[0]) if followed.alone else board_lines(views):
        say(line)


def _alike(one: "Sequence[str]", other: "Sequence[str]") -> int:
    """How many lines both begin with: a run that went on from a checkpoint does its last lines again."""
    return next(
        (i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other))
    )


def tensorboard(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Folders of runs.")],
) -> None:
    """Write what runs have recorded for TensorBoard, below RUN/tensorboard; a run that learns does it by itself with
    run.tensorboard=true."""
    from endocil.runs.folder import RunFolder
    from endocil.runs.tensorboard import write_tensorboard

    for folder in runs:
        here = RunFolder(folder)
        here.settings()  # refuses another folder
        with here.locked():
            say(f"wrote {write_tensorboard(here)}; look at it with: tensorboard --logdir {folder}")
