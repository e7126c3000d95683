"""endocil watch and tensorboard: a run while it learns, or afterwards."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from endocil.commands.common import console, say

if TYPE_CHECKING:
    from rich.console import RenderableType

    from endocil.watching.following import Followed, View


def watch(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run, or of a sweep.")],
    once: Annotated[bool, typer.Option("--once", help="Show how it stands and end.")] = False,
    every: Annotated[float, typer.Option("--every", min=0.1, help="Seconds between two looks.")] = 1.0,
) -> None:
    """Show a run while it learns: losses, accuracy after each task, time left. Ctrl-C ends the watching alone."""
    from endocil.watching.following import Followed

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

    from endocil.watching.screen import board, picture

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
    from endocil.watching.screen import board_lines, counted, log, summary

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
    from endocil.run_folder import RunFolder
    from endocil.tracking import write_tensorboard

    for folder in runs:
        here = RunFolder(folder)
        here.settings()  # refuses another folder
        with here.locked():
            say(f"wrote {write_tensorboard(here)}; look at it with: tensorboard --logdir {folder}")
