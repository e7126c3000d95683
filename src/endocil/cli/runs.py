"""endocil init, run, resume, check, watch and tensorboard: one run, from its settings to its display as it learns."""

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from endocil.cli.console import Devices, Nodes, Output, Overrides, RunPath, Source, Trust, console, resumable, say
from endocil.cli.ledger import add
from endocil.errors import SettingsError
from endocil.io.files import refuse_existing, write_atomically
from endocil.io.process import is_rank_zero
from endocil.io.terminal import Display, duration, plain_progress, printable

if TYPE_CHECKING:  # endocil.runs loads torch
    from endocil.runs.follow import Event, FolderFollower, Snapshot
    from endocil.settings.settings import Settings

LINES_PER_PHASE = 4  # where the output is no terminal
COLOURS = {"running": "green", "finished": "blue", "stopped": "red", "unknown": "yellow"}


def init(
    images: Annotated[Path, typer.Argument(metavar="IMAGES", help="A folder with a folder of images for each class.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="The settings file to write.")] = Path("mine.toml"),
    minutes: Annotated[float, typer.Option(help="Time that learning may take on this machine.")] = 10.0,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the settings file if it exists.")] = False,
) -> None:
    """Look at a folder of images and write settings for it, with a comment on each choice."""
    from endocil.runs.init import choose, described, look_at, settings_text

    if not minutes > 0:
        raise SettingsError(f"--minutes is {minutes:g}; expected more than 0")
    if output.suffix != ".toml":
        raise SettingsError(f"{output}: settings need a name that ends in .toml")
    refuse_existing(output, force=force)
    look = look_at(images, plain_progress(console(), "looking at the images"))
    choice = choose(look, minutes=minutes)
    write_atomically(output, settings_text(images, look, choice))
    for line in described(look, choice):
        say(line)
    say(f"wrote {output}; read it, then:")
    for command in (f"check {output}", f"run {output} -o runs/{output.stem}", f"show runs/{output.stem}"):
        say(f"  endocil {command}")


def run(
    source: Source,
    changes: Overrides = None,
    output: Output = None,
    into: Annotated[
        Path | None, typer.Option("--ledger", help="Add the results to this ledger; do nothing if they are there.")
    ] = None,
    devices: Devices = 1,
    nodes: Nodes = 1,
) -> None:
    """Learn a sequence of tasks and write results into a run folder."""
    from endocil.runs import run as experiment
    from endocil.runs.folder import new_folder
    from endocil.settings.settings import load_settings

    settings = load_settings(source, changes or ())
    entry = in_ledger(settings, into) if into is not None else None
    if entry is not None:
        say(f"already in the ledger: {entry}")
        return
    folder = output or new_folder(settings, Path(source).stem)
    _learn(folder, settings, lambda **shown: experiment.run(settings, folder, devices=devices, nodes=nodes, **shown))
    if is_rank_zero() and into is not None:
        add([folder], into)


def in_ledger(settings: "Settings", ledger: Path) -> Path | None:
    """The ledger's file of a run with these settings, if there is one; one on other images is refused."""
    from endocil.data.scenario import scenario_digest
    from endocil.learning.build import complete
    from endocil.reports.ledger import find_in_ledger, refuse_other_images
    from endocil.runs.parts import kept_table, scenario_of
    from endocil.runs.records import completed

    settings = complete(settings.trusted())
    entry = find_in_ledger(completed(settings), ledger, complete=completed)
    if entry is None:
        return None
    table = kept_table(settings)
    counts = dict(zip(table.classes, table.counts().tolist(), strict=True))
    root = settings.data.options.get("root", settings.data.name)
    refuse_other_images(entry, counts, lambda: scenario_digest(scenario_of(table, settings)), where=f"a run on {root}")
    return entry


def resume(
    folder: RunPath, changes: Overrides = None, devices: Devices = 1, nodes: Nodes = 1, trust: Trust = False
) -> None:
    """Continue a stopped run; on the same devices the result is the same bit for bit. --set data.root=FOLDER names the
    place of images that have been moved."""
    from endocil.runs import run as experiment
    from endocil.runs.folder import RunFolder

    here = RunFolder(folder)
    settings = here.settings
    here.refuse_other_folder()
    if here.finished():
        say(f"{folder} is finished; nothing to do")
    _learn(
        folder,
        settings,
        lambda **shown: experiment.resume(
            here, changes=changes or (), devices=devices, nodes=nodes, trust=trust, **shown
        ),
    )


def _learn(folder: Path, settings: "Settings", go: Callable[..., Any]) -> None:
    """Show the run as it learns, then write its page and print its table."""
    from endocil.methods import method_title
    from endocil.reports.page import write_run_page
    from endocil.reports.tables import comparison
    from endocil.runs.records import read_run

    screen = console()
    name = f"{method_title(settings.method.name)} seed {settings.seed}"
    with resumable(folder), Display(screen, name) as display:
        go(show=display, progress=plain_progress(screen, "reading the data"))
    if is_rank_zero():
        record = read_run(folder)
        write_run_page(record, folder)
        say(comparison([record]).text())
        say(f"page: {folder / 'report.html'}")


def check(source: Source, changes: Overrides = None) -> None:
    """Check settings and data without training: what a run would do, what it would cost, what cannot work."""
    from endocil.runs.preflight import check_run, estimate
    from endocil.settings.settings import load_settings

    settings = load_settings(source, changes or ())
    parts, preflight = check_run(settings, plain_progress(console(), "reading the data"))
    lines = [*preflight.facts, *(f"note: {remark}" for remark in preflight.remarks)]
    if not preflight.problems:
        lines += estimate(parts)
    for line in lines:
        say(line)
    preflight.refuse_problems()
    say("ready to run")


def tensorboard(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN", help="Folders of runs, or of sweeps.")],
) -> None:
    """Write TensorBoard event files of runs into RUN/tensorboard; run.tensorboard=true writes them during the run."""
    from endocil.runs.folder import RunFolder
    from endocil.runs.records import run_folders
    from endocil.runs.trackers import write_tensorboard

    for folder in run_folders(runs):
        here = RunFolder(folder)
        here.refuse_other_folder()
        with here.locked():
            say(f"wrote {write_tensorboard(here)}; view with: tensorboard --logdir {folder}")


# --- watch: live on a terminal, in lines elsewhere


def watch(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run, or of a sweep.")],
    once: Annotated[bool, typer.Option("--once", help="Show the present state and end.")] = False,
    every: Annotated[float, typer.Option(min=0.1, help="Seconds between two updates.")] = 1.0,
) -> None:
    """Follow a run: losses, accuracy after each task, time left. Ctrl-C ends the display, not the run."""
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
        lines = event_lines(runs[0].events, runs[0].accuracies) if follower.single else [_status_counts(runs)]
        # a run that went on from a checkpoint does its last lines again: only what differs is printed
        pairs = enumerate(zip(printed, lines, strict=False))
        same = next((i for i, (before, now) in pairs if before != now), min(len(printed), len(lines)))
        for line in lines[same:]:
            say(line)
        printed = lines
        time.sleep(every)
        runs = follower.snapshots()
    sweep_lines = [*("  ".join(filter(None, _row(run))) for run in runs), _status_counts(runs)]
    for line in _run_lines(runs[0]) if follower.single else sweep_lines:
        say(line)


def event_lines(events: "Sequence[Event]", accuracies: Sequence[float]) -> list[str]:
    """The events so far in lines; further events add lines and change none."""
    lines: list[str] = []
    for event in events:
        if event["event"] == "task":
            lines.append(f"task {event['task'] + 1}: {', '.join(event['classes'])}")
        elif event["event"] == "epoch" and (event["epoch"] + 1) % max(1, event["epochs"] // LINES_PER_PHASE) == 0:
            position = f"task {event['task'] + 1} {event['phase']} {event['epoch'] + 1}/{event['epochs']}"
            lines.append(f"  {position}: {_losses(event['losses'])}; learning rate {event['learning_rate']:.3g}")
        elif event["event"] == "learned" and event["task"] < len(accuracies):
            lines.append(f"  task {event['task'] + 1} learned: accuracy {accuracies[event['task']]:.2f} %")
    return lines


def run_panel(run: "Snapshot") -> RenderableType:
    """The progress of a run, its tasks, and notes."""
    place, status = printable(f"  {run.folder}  "), (run.status_text, COLOURS[run.status])
    head = Text.assemble((printable(run.name), "bold"), place, status)
    parts: list[RenderableType] = [head, Text(printable(_position_and_losses(run)))]
    if run.status != "finished":
        parts.append(ProgressBar(total=1.0, completed=run.state.share, width=60))
    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column("task", justify="right", no_wrap=True)
    table.add_column("new classes", ratio=1)
    for name in ("new images", "exemplars", "kept of them", "accuracy"):
        table.add_column(name, justify="right", no_wrap=True)
    for task in run.state.tasks:
        classes = Text(printable(", ".join(task.classes)))  # a name with brackets is no markup
        counts = (f"{task.new:,}", f"{task.exemplars:,}", f"{task.kept:,}" if task.kept else "")
        table.add_row(str(task.index + 1), classes, *counts, _accuracy(run, task.index))
    return Group(*parts, table, *(Text(printable(f"note: {note}")) for note in run.notes))


def _run_lines(run: "Snapshot") -> list[str]:
    """The same in plain lines."""
    lines = [f"{run.name}, {run.folder}: {run.status_text}", _position_and_losses(run)]
    for task in run.state.tasks:
        kept = f", {task.kept:,} of them kept" if task.kept else ""
        accuracy = _accuracy(run, task.index)
        lines.append(
            f"task {task.index + 1}: {', '.join(task.classes)}; {task.new:,} new images{kept}, trained with "
            f"{task.exemplars:,} exemplars{f'; accuracy {accuracy}' if accuracy else ''}"
        )
    return [*lines, *(f"note: {note}" for note in run.notes)]


def sweep_table(runs: "Sequence[Snapshot]") -> RenderableType:
    """The runs of a sweep, a row each."""
    table = Table("run", "", "where", "done", "left", "accuracy", box=None, padding=(0, 2, 0, 0))
    for run in runs:
        name, status, *progress = _row(run)
        table.add_row(Text(printable(name)), Text(status, COLOURS[status]), *progress)
    return Group(table, Text(_status_counts(runs)))


def _row(run: "Snapshot") -> tuple[str, str, str, str, str, str]:
    """Name, status, position, share done, time left, and the last accuracy so far."""
    state, finished = run.state, run.status == "finished"
    done = "100%" if finished else f"{state.share:.0%}"
    left = "" if finished or state.left is None else duration(state.left)
    return run.folder.name, run.status, state.position, done, left, _accuracy(run, len(run.accuracies) - 1)


def _status_counts(runs: "Sequence[Snapshot]") -> str:
    statuses = [run.status for run in runs]
    return ", ".join(f"{statuses.count(one)} {one}" for one in dict.fromkeys(statuses))


def _position_and_losses(run: "Snapshot") -> str:
    state = run.state
    parts = [state.position]
    if state.losses:
        parts.append(f"losses: {_losses(state.losses)}")
    if state.learning_rate is not None:
        parts.append(f"learning rate {state.learning_rate:.3g}")
    if state.seconds_per_epoch is not None:
        parts.append(f"{state.seconds_per_epoch:.2g} s/epoch")
    if run.status != "finished" and state.left is not None:
        parts.append(f"{state.share:.0%} done, about {duration(state.left)} of training left")
    return "; ".join(parts)


def _losses(losses: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:.3f}" for name, value in losses.items())


def _accuracy(run: "Snapshot", task: int) -> str:
    """On all classes seen after this task, where it was measured."""
    return f"{run.accuracies[task]:.2f} %" if 0 <= task < len(run.accuracies) else ""
