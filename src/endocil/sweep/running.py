"""The runs of a sweep that are not finished, one after another or side by side, shown while they go."""

import os
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console

from endocil.display import plain_progress
from endocil.errors import EndocilError
from endocil.settings import Settings, load_settings
from endocil.sweep.checking import Checks, told
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


def refuse_copies(environment: Mapping[str, str]) -> None:
    """A launcher that starts a sweep several times would run the same runs several times. In a batch script of Slurm
    that starts it without srun there is one, however many tasks the job has."""
    torchrun = environment.get("WORLD_SIZE", "1") if "TORCHELASTIC_RUN_ID" in environment else "1"
    for launcher, copies in (("torchrun", torchrun), ("srun", environment.get("SLURM_STEP_NUM_TASKS", "1"))):
        if copies != "1":
            raise EndocilError(
                f"{launcher} has started {copies} processes of this sweep; start it once: without torchrun, and in "
                "Slurm without srun or by srun --ntasks=1. It starts its runs itself"
            )


def run_all(
    folder: SweepFolder,
    runs: Sequence[Planned],
    how: How,
    console: Console,
    finished: Callable[[Path], None] = lambda run: None,
) -> list[Outcome]:
    """Run what is not finished and return what failed. `finished` is told of every finished run, once."""
    refuse_copies(os.environ)
    folder.refuse_file()
    refuse_what_cannot_work(folder, runs, how, console)
    with folder.locked():
        return _run_left(folder, runs, how, console, finished)


def refuse_what_cannot_work(folder: SweepFolder, runs: Sequence[Planned], how: How, console: Console) -> None:
    """What a run would refuse, of all runs that are left, before the first of them begins."""

    def as_run(one: Planned) -> Settings:
        settings = folder.settings(one, share=how.share)
        # where Ray runs it there may be devices that are not here
        return settings if how.ray is None else load_settings(settings, ["run.accelerator=cpu"])

    checks = Checks([one for one in runs if folder.state(one) != "finished"], as_run)
    if not checks.n_runs:
        return

    def say(text: str) -> None:
        console.print(text, highlight=False, markup=False, soft_wrap=True)

    say(str(checks))
    found = checks.problems(plain_progress(console, "reading the data"))
    for problem, several in found.items():
        say(f"cannot run: {told(problem, several)}")
    if found:
        stopped = len({one.digest for several in found.values() for one in several})
        raise EndocilError(f"{stopped} of {checks.n_runs} runs cannot work, so none was started; see above")


def _run_left(
    folder: SweepFolder,
    runs: Sequence[Planned],
    how: How,
    console: Console,
    finished: Callable[[Path], None],
) -> list[Outcome]:
    left = [one for one in runs if folder.state(one) != "finished"]
    for one in runs:
        if one not in left:
            finished(folder.run(one).path)
    jobs = [folder.job(one, share=how.share) for one in left]
    workers = how.workers or default_workers(left)
    at_a_time = f"{workers} at a time" if how.ray is None else "on Ray"
    done = f"{len(runs)} runs, {len(runs) - len(left)} of them finished before"
    begin = [f"{done}; {at_a_time}, in {folder.path}"]
    if jobs and how.ray is not None:
        begin.append(
            "starting Ray, or joining it" if how.ray == "auto" else f"connecting to Ray at {how.ray}"
        )
    console.print("\n".join(begin), highlight=False, markup=False, soft_wrap=True)
    # closing: however this ends, the runs end first
    with closing(how.on(jobs, workers)) as outcomes, Board(console, jobs, workers) as board:
        for outcome in outcomes if jobs else ():
            board.look()
            if outcome is not None:
                board.ended(outcome)
                if not outcome.error:
                    finished(outcome.job.folder)
    return board.failed
