"""Before the first run of a sweep: what `endocil run` would refuse, found once for all the runs that it concerns.

Runs of the same data read it once, which also fills the cache that they will read from. Settings that differ in seed or
memory alone build their method once.
"""

import os
import re
from collections import defaultdict
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console

from endocil.data.cache import Images
from endocil.data.scenario import Scenario
from endocil.data.splits import TRAIN
from endocil.errors import EndocilError
from endocil.io.files import write_atomically
from endocil.io.locks import lock
from endocil.io.terminal import plain_progress
from endocil.methods import method_class
from endocil.reports.page import write_page
from endocil.runs.build import Progress, assemble, build_learning, build_memory, images_and_scenario
from endocil.runs.folder import RunFolder
from endocil.runs.preflight import plan, problems, refuse_what_is_not_here
from endocil.runs.records import RunRecord, read_run
from endocil.runs.settings import Settings, load_settings
from endocil.runs.sweep.executors import Room, default_workers, on_ray, on_this_machine
from endocil.runs.sweep.plan import Planned, override, tables
from endocil.runs.sweep.progress import Board
from endocil.runs.sweep.worker import Job, Outcome

Data = tuple[Images, Scenario]
Alike = Mapping[str, Sequence[Planned]]  # runs that are refused together or not at all
NAMED = 3  # settings that a problem names


class Checks:
    """The runs of a sweep by their data and settings. `as_run`: a run's settings as its process will get them."""

    def __init__(self, runs: Sequence[Planned], as_run: Callable[[Planned], Settings]) -> None:
        self.as_run, self.n_runs = as_run, len(runs)
        self.tried: dict[str, list[str]] = {}
        self.by_data: dict[str, dict[str, list[Planned]]] = defaultdict(lambda: defaultdict(list))
        for one in runs:
            self.by_data[_data(one.settings)][_but_the_seed(one.settings)].append(one)

    def __str__(self) -> str:
        settings = sum(map(len, self.by_data.values()))
        sets = "a data set" if len(self.by_data) == 1 else f"{len(self.by_data)} data sets"
        return f"checking {self.n_runs} runs before the first begins: {settings} settings (seeds apart) on {sets}"

    def problems(self, progress: Progress | None = None) -> dict[str, list[Planned]]:
        """What cannot work, each once, with the runs that it keeps from working."""
        found: dict[str, list[Planned]] = defaultdict(list)
        for alike in self.by_data.values():
            for problem, several in self._of_data(alike, progress):
                found[problem] += several
        return found

    def _of_data(self, alike: Alike, progress: Progress | None) -> Iterator[tuple[str, Sequence[Planned]]]:
        data, first = None, next(iter(alike.values()))[0]
        try:
            data = images_and_scenario(first.settings, progress)
        except EndocilError as error:
            yield str(error), [one for several in alike.values() for one in several]
        for several in alike.values():
            for problem in self._of_settings(self.as_run(several[0]), data):
                yield problem, several

    def _of_settings(self, settings: Settings, data: Data | None) -> list[str]:
        """Each memory, and the method once for all memories; where the data is missing, once for all data."""
        try:
            _refuse_memory(settings, data)
        except EndocilError as error:
            return [str(error)]
        own = settings.model_dump_json(exclude={"seed", "data", "scenario", "memory"})
        key = own if data is None else _data(settings) + own
        if key not in self.tried:
            self.tried[key] = _learning_problems(settings, data)
        return self.tried[key]


def _refuse_memory(settings: Settings, data: Data | None) -> None:
    if not method_class(settings.method.name).replay:
        return
    memory = build_memory(settings)
    if data is not None:
        _, scenario = data
        memory.planned(scenario.counts(TRAIN).tolist(), [task.new for task in scenario.tasks])


def _learning_problems(settings: Settings, data: Data | None) -> list[str]:
    try:
        refuse_what_is_not_here(settings)
        if data is None:  # what can be told without; the rest comes to light when the data is there
            build_learning(settings)
            return []
        parts = assemble(settings, data=data)
        return problems(parts, [*plan(parts)])
    except EndocilError as error:
        return [str(error)]


def _data(settings: Settings) -> str:
    """The same for runs of the same images in the same tasks."""
    seed = settings.seed if settings.scenario.order == "seeded" else ""
    return f"{settings.data.model_dump_json()} {settings.scenario.model_dump_json()} {seed}"


def _but_the_seed(settings: Settings) -> str:
    return settings.model_dump_json(exclude={"seed"})


def told(problem: str, runs: Sequence[Planned]) -> str:
    """A problem in one line: whose it is, how many runs it concerns, and one of them by name."""
    names = list(dict.fromkeys(one.source for one in runs))
    listed = ", ".join(names[:NAMED]) + (" and others" if len(names) > NAMED else "")
    several = f"{len(runs)} runs of {listed}, such as" if len(runs) > 1 else "run"
    return f"{' '.join(problem.split())} ({several} {runs[0].name})"


# The folder of a sweep: a folder for each run, their settings and logs, the first tasks they share, and the pages.


@dataclass(frozen=True)
class SweepFolder:
    path: Path

    @contextmanager
    def locked(self) -> Iterator[None]:
        """One sweep at a time works here, where the system can lock files: two would begin the same runs."""
        self.path.mkdir(parents=True, exist_ok=True)
        with (self.path / ".lock").open("ab") as file:
            if lock(file, wait=False) == "taken":
                raise EndocilError(
                    f"another sweep is working in {self.path}; let it finish, or choose another folder with -o"
                )
            yield

    def run(self, planned: Planned) -> RunFolder:
        """A run is known by its digest: it keeps its folder when the sweep file changes and names others."""
        there = [*sorted(self.path.glob(f"*-{planned.digest}")), self.path / planned.name]
        return RunFolder(there[0])

    def state(self, planned: Planned) -> str:
        run = self.run(planned)
        if run.finished():
            return "finished"
        return "unfinished" if (run.path / "settings.toml").exists() else "new"

    def settings(self, planned: Planned, *, share: bool) -> Settings:
        """As the run gets them: `share` its first task with others of this sweep, unless they say where."""
        settings = planned.settings
        if not share or settings.run.first_tasks is not None:
            return settings
        place = str(self.path.resolve() / "first-tasks")
        return load_settings(settings, [override("run.first_tasks", place)])

    def refuse_file(self) -> None:
        if self.path.is_file():
            raise EndocilError(f"{self.path} is a file; choose another folder with -o")

    def job(self, planned: Planned, *, share: bool) -> Job:
        """Write what a worker needs. Paths are whole, so that they mean the same on every machine."""
        whole = self.path.resolve()
        text, file = self.settings(planned, share=share).to_toml(), whole / "logs" / f"{planned.name}.toml"
        write_atomically(file, text)
        return Job(
            name=planned.name,
            folder=whole / self.run(planned).path.name,
            settings=file,
            log=file.with_suffix(".log"),
            here=Path.cwd(),
            environment=_variables(text),
        )

    def records(self, runs: Sequence[Planned]) -> dict[str, list[RunRecord]]:
        """The finished runs by the table in which they belong, which has the same name when others are finished."""
        found: dict[str, list[RunRecord]] = {}
        table_of = tables(runs)
        for one in runs:
            if self.run(one).finished():
                found.setdefault(table_of[one.digest], []).append(read_run(self.run(one).path))
        return found

    def write_page(self, source: str, records: Sequence[RunRecord], *, alone: bool) -> str:
        """One page for each data set; returns where it is, or why there is none."""
        page = self.path / ("report.html" if alone else f"report-{source}.html")
        try:
            write_page(records, page, title=f"endocil sweep {self.path.resolve().name}: {source}")
        except EndocilError as error:  # what varies may be the classes or the split
            return f"no page for {source}: {error}"
        return f"page: {page}"


def _variables(settings: str) -> dict[str, str]:
    """The variables of the environment that settings name, and where decoded images are kept: a worker on another
    machine must know them too."""
    names = {*re.findall(r"\$\{?(\w+)", settings), "ENDOCIL_CACHE"}
    return {name: os.environ[name] for name in sorted(names) if name in os.environ}


# The runs of a sweep that are not finished, one after another or side by side, shown while they go.


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
