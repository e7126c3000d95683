"""The runs of a sweep that are not finished, one after another or side by side, shown while they go."""

from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console

from endocil.errors import EndocilError
from endocil.sweep.cluster import Room, on_ray
from endocil.sweep.folder import SweepFolder
from endocil.sweep.local import default_workers, on_this_machine
from endocil.sweep.plan import Planned
from endocil.sweep.progress import Board
from endocil.sweep.worker import Job, Outcome


@dataclass(frozen=True)
class How:
    """Where the runs are run, how many at a time, and what they take."""

    workers: int | None = None
    retries: int = 1
    share: bool = True
    ray: str | None = None
    room: Room = field(default_factory=Room)

    def __post_init__(self) -> None:
        if self.ray is None and self.room != Room():
            raise EndocilError("--gpus-per-run and --cpus-per-run are for --ray; without it set --workers")

    def on(self, jobs: Sequence[Job], workers: int) -> Generator[Outcome | None, None, None]:
        if self.ray is None:
            return on_this_machine(jobs, workers, self.retries)
        return on_ray(jobs, self.ray, self.room, self.retries, self.workers)


def run_all(
    folder: SweepFolder,
    runs: Sequence[Planned],
    how: How,
    console: Console,
    finished: Callable[[Path], None] = lambda run: None,
) -> list[Outcome]:
    """Run what is not finished and return what failed. `finished` is told of every finished run, once."""
    left = [one for one in runs if folder.state(one) != "finished"]
    for one in runs:
        if one not in left:
            finished(folder.run(one).path)
    jobs = [folder.job(one, share=how.share) for one in left]
    workers = how.workers or default_workers(left)
    at_a_time = f"{workers} at a time" if how.ray is None else "on Ray"
    done = f"{len(runs)} runs, {len(runs) - len(left)} of them finished before"
    console.print(f"{done}; {at_a_time}, in {folder.path}", highlight=False, markup=False, soft_wrap=True)
    # closing: however this ends, the runs end first
    with closing(how.on(jobs, workers)) as outcomes, Board(console, jobs, workers) as board:
        for outcome in outcomes if jobs else ():
            board.look()
            if outcome is not None:
                board.ended(outcome)
                if not outcome.error:
                    finished(outcome.job.folder)
    return board.failed
