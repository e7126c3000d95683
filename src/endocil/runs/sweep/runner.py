"""The runs of a sweep in their folder: checked before the first begins, then run side by side, here or on Ray."""

import os
import re
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, TaskID, TextColumn
from rich.progress import Progress as ProgressBars
from rich.table import Column

from endocil.data.cache import Images, Progress
from endocil.data.scenario import Scenario
from endocil.data.splits import TRAIN
from endocil.errors import EndocilError, SettingsError
from endocil.io.files import locked, write_atomically
from endocil.io.terminal import duration, plain_progress, printable
from endocil.learning.build import build_learning, build_memory
from endocil.learning.events import read_events
from endocil.methods import method_class
from endocil.runs.folder import RunFolder
from endocil.runs.follow import TaskSize, state_of, task_sizes
from endocil.runs.parts import assemble, images_and_scenario, with_run_settings
from endocil.runs.preflight import plan_and_problems, refuse_missing_resources, refuse_wrong_numbers
from endocil.runs.records import RunRecord, read_run
from endocil.runs.sweep.executors import Job, Outcome, default_workers, run_locally, run_on_ray
from endocil.runs.sweep.plan import PlannedRun, runs_by, table_names
from endocil.settings.settings import Settings

LISTED_SOURCES = 3  # settings files that a problem names


@dataclass(frozen=True)
class Execution:
    """Where the runs are run, how many at a time, and the resources of each."""

    workers: int | None = None
    retries: int = 1
    share_first_task: bool = True
    ray: str | None = None
    cpus: float = 1.0
    gpus: float = 0.0

    def __post_init__(self) -> None:
        if self.ray is None and (self.cpus, self.gpus) != (1.0, 0.0):
            raise SettingsError("--gpus-per-run and --cpus-per-run are for --ray; without it set --workers")


@dataclass(frozen=True)
class SweepFolder:
    """A folder for each run, their settings and logs below logs/, and the first tasks that they share."""

    path: Path

    def run(self, planned: PlannedRun) -> RunFolder:
        """A run is known by its digest: it keeps its folder when the sweep file changes and names others."""
        existing = sorted(self.path.glob(f"*-{planned.digest}"))
        return RunFolder(existing[0] if existing else self.path / planned.name)

    def state(self, planned: PlannedRun) -> str:
        run = self.run(planned)
        if run.finished():
            return "finished"
        return "unfinished" if (run.path / "settings.toml").exists() else "new"

    def unfinished(self, runs: Sequence[PlannedRun]) -> list[PlannedRun]:
        return [one for one in runs if self.state(one) != "finished"]

    def settings(self, planned: PlannedRun, *, share_first_task: bool) -> Settings:
        """The settings that the run's process gets; first tasks are kept in this folder unless they name another."""
        settings = planned.settings
        if not share_first_task or settings.run.first_tasks is not None:
            return settings
        return with_run_settings(settings, first_tasks=str(self.path.resolve() / "first-tasks"))

    def job(self, planned: PlannedRun, *, share_first_task: bool) -> Job:
        """Write the files of a worker. Paths are absolute, so that they mean the same on every machine."""
        root = self.path.resolve()
        text = self.settings(planned, share_first_task=share_first_task).to_toml()
        file = root / "logs" / f"{planned.name}.toml"
        write_atomically(file, text)
        # a worker on another machine needs the variables that the settings name, and the place of the image cache
        names = sorted({*re.findall(r"\$\{?(\w+)", text), "ENDOCIL_CACHE"})
        return Job(
            name=planned.name,
            folder=root / self.run(planned).path.name,
            settings=file,
            log=file.with_suffix(".log"),
            working_directory=Path.cwd(),
            environment={name: os.environ[name] for name in names if name in os.environ},
        )

    def records(self, runs: Sequence[PlannedRun]) -> dict[str, list[RunRecord]]:
        """The finished runs by the name of their table, which does not depend on which runs are finished."""
        records: dict[str, list[RunRecord]] = {}
        names = table_names(runs)
        for one in runs:
            if self.run(one).finished():
                records.setdefault(names[one.digest], []).append(read_run(self.run(one).path))
        return records


def run_all(
    folder: SweepFolder,
    runs: Sequence[PlannedRun],
    execution: Execution,
    console: Console,
    on_finished: Callable[[Path], None] = lambda run: None,
) -> list[Outcome]:
    """Run what is not finished and return what failed. `on_finished` is called once for every finished run."""
    check_started_once(os.environ)
    if folder.path.is_file():
        raise SettingsError(f"{folder.path} is a file; choose another folder with -o")
    check_runs(folder, runs, execution, console)
    folder.path.mkdir(parents=True, exist_ok=True)
    refusal = f"another sweep is working in {folder.path}; let it finish, or choose another folder with -o"
    with locked(folder.path, refusal):  # two sweeps would begin the same runs
        left = folder.unfinished(runs)
        for one in runs:
            if one not in left:
                folder.run(one).tidy_up()
                on_finished(folder.run(one).path)
        jobs = [folder.job(one, share_first_task=execution.share_first_task) for one in left]
        workers = execution.workers or default_workers(left)
        at_a_time = f"{workers} at a time" if execution.ray is None else "on Ray"
        counts = f"{len(runs)} runs, {len(runs) - len(left)} of them finished before"
        _print(console, f"{counts}; {at_a_time}, in {folder.path}")
        if not jobs:
            return []
        if execution.ray is None:
            outcomes = run_locally(jobs, workers, execution.retries)
        else:
            joining = execution.ray == "auto"
            _print(console, "starting Ray, or joining it" if joining else f"connecting to Ray at {execution.ray}")
            resources, retries = (execution.cpus, execution.gpus), execution.retries
            outcomes = run_on_ray(jobs, execution.ray, *resources, retries, execution.workers)
        # closing: however this ends, the runs end first
        with closing(outcomes), ProgressDisplay(console, jobs, workers) as display:
            for outcome in outcomes:
                display.update()
                if outcome is not None:
                    display.add_outcome(outcome)
                    if not outcome.error:
                        on_finished(outcome.job.folder)
        return display.failed


def _print(console: Console, text: str) -> None:
    console.print(printable(text), highlight=False, markup=False, soft_wrap=True)


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
        with suppress(OSError, EndocilError):  # a file that is being written, or damaged
            self.sizes = self.sizes or task_sizes(self.job.folder / "split.csv")
            state = state_of(read_events(self.job.folder / "events.jsonl"), self.sizes)
            self.share, self.left = state.share, state.left
            if state.tasks:
                self.text = state.position


@dataclass
class ProgressDisplay:
    """The sweep on the screen: a bar for each run on a terminal, plain lines elsewhere."""

    console: Console
    jobs: Sequence[Job]
    workers: int
    failed: list[Outcome] = field(default_factory=list)
    finished: list[Outcome] = field(default_factory=list)

    def __post_init__(self) -> None:
        sizes = {job.name: job.log.stat().st_size if job.log.exists() else 0 for job in self.jobs}
        self.waiting = {job.name: RunProgress(job, sizes[job.name]) for job in self.jobs}
        self.running: dict[str, RunProgress] = {}
        self.updated = 0.0
        columns = (
            TextColumn("{task.description}", table_column=Column(no_wrap=True, overflow="ellipsis", ratio=1)),
            BarColumn(bar_width=16),
            TextColumn("{task.fields[text]}", table_column=Column(no_wrap=True)),
        )
        plain = not self.console.is_terminal
        self.bars = ProgressBars(*columns, console=self.console, transient=True, expand=True, disable=plain)
        self.rows: dict[str, TaskID] = {"": self.bars.add_task("sweep", total=len(self.jobs), text="")}

    def __enter__(self) -> "ProgressDisplay":
        self.bars.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.bars.stop()

    def update(self) -> None:
        """Show which runs have started and how far each is; at most once a second."""
        if time.monotonic() - self.updated < 1.0:
            return
        self.updated = time.monotonic()
        for name in [name for name, run in self.waiting.items() if run.started()]:
            self.running[name] = self.waiting.pop(name)
            self._add_started(name)
        for name, run in self.running.items():
            run.update()
            text = run.text if run.left is None else f"{run.text}, {duration(run.left)} left"
            self.bars.update(self.rows[name], completed=run.share, text=text)
        done = len(self.finished) + len(self.failed)
        self.bars.update(self.rows[""], completed=done, text=self._summary())

    def add_outcome(self, outcome: Outcome) -> None:
        name = outcome.job.name
        if self.waiting.pop(name, None) is not None:  # it began and ended since the last update
            self._add_started(name)
        self.running.pop(name, None)
        (self.failed if outcome.error else self.finished).append(outcome)
        self.bars.remove_task(self.rows.pop(name))
        result = f"failed ({outcome.error})" if outcome.error else f"finished in {duration(outcome.seconds)}"
        _print(self.console, f"{name}: {result}; {self._summary()}")

    def _add_started(self, name: str) -> None:
        self.rows[name] = self.bars.add_task(name, total=1.0, text="")
        if not self.console.is_terminal:
            _print(self.console, f"{name}: started")

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


# --- checks before the first run begins


def check_started_once(environment: Mapping[str, str]) -> None:
    """A launcher that starts a sweep several times would run the same runs several times. In a batch script of Slurm
    that starts it without srun there is one process, however many tasks the job has."""
    torchrun = environment.get("WORLD_SIZE", "1") if "TORCHELASTIC_RUN_ID" in environment else "1"
    for launcher, copies in (("torchrun", torchrun), ("srun", environment.get("SLURM_STEP_NUM_TASKS", "1"))):
        if copies != "1":
            raise SettingsError(
                f"{launcher} has started {copies} processes of this sweep; start it once: without torchrun, and in "
                "Slurm without srun or by srun --ntasks=1. It starts its runs itself"
            )


def check_runs(folder: SweepFolder, runs: Sequence[PlannedRun], execution: Execution, console: Console) -> None:
    """Refuse what `endocil run` would refuse, for all unfinished runs, before the first of them begins."""

    def settings_of(one: PlannedRun) -> Settings:
        settings = folder.settings(one, share_first_task=execution.share_first_task)
        if execution.ray is None:
            return settings
        # a machine of Ray may have devices that this one lacks, and other kernels
        plain = settings.train.model_copy(update={"precision": "32", "compile": False})
        return with_run_settings(settings.model_copy(update={"train": plain}), accelerator="cpu")

    left = folder.unfinished(runs)
    if not left:
        return
    data_sets = {_data_key(one.settings) for one in left}
    settings = {(_data_key(one.settings), _key_without_seed(one)) for one in left}
    on = "a data set" if len(data_sets) == 1 else f"{len(data_sets)} data sets"
    _print(
        console,
        f"checking {len(left)} runs before the first begins: {len(settings)} settings, not counting seeds, on {on}",
    )
    by_problem = find_problems(left, settings_of, plain_progress(console, "reading the data"))
    for problem, concerned in by_problem.items():
        sources = list(dict.fromkeys(one.source for one in concerned))
        listed = ", ".join(sources[:LISTED_SOURCES]) + (" and others" if len(sources) > LISTED_SOURCES else "")
        several = f"{len(concerned)} runs of {listed}, such as" if len(concerned) > 1 else "run"
        _print(console, f"cannot run: {' '.join(problem.split())} ({several} {concerned[0].name})")
    if by_problem:
        stopped = len({one.digest for concerned in by_problem.values() for one in concerned})
        raise SettingsError(f"{stopped} of {len(left)} runs would fail, so none was started; see above")


Data = tuple[Images, Scenario]


def find_problems(
    runs: Sequence[PlannedRun], settings_of: Callable[[PlannedRun], Settings], progress: Progress | None = None
) -> dict[str, list[PlannedRun]]:
    """Each problem once, with the runs that it concerns. `settings_of`: the settings that a run's process will get.

    Runs on the same data read it once, which also fills the cache that they will read from. Runs that differ in seed
    or memory alone build their method once."""
    by_problem: dict[str, list[PlannedRun]] = defaultdict(list)
    method_problems: dict[str, list[str]] = {}
    for on_same_data in runs_by(runs, lambda one: _data_key(one.settings)):
        data: Data | None = None
        try:
            data = images_and_scenario(on_same_data[0].settings, progress)
        except EndocilError as error:
            by_problem[str(error)] += on_same_data
        for seeds in runs_by(on_same_data, _key_without_seed):
            settings = settings_of(seeds[0])
            try:
                if method_class(settings.method.name).replay:
                    memory = build_memory(settings)
                    if data is not None:
                        memory.planned(data[1].arriving_counts(TRAIN))
            except EndocilError as error:
                by_problem[str(error)] += seeds
                continue
            key = settings.model_dump_json(exclude={"seed", "data", "scenario", "memory"})
            if data is not None:  # without the data, the method is checked once for all data
                key += _data_key(settings)
            if key not in method_problems:
                method_problems[key] = _problems_of(settings, data)
            for problem in method_problems[key]:
                by_problem[problem] += seeds
    return by_problem


def _key_without_seed(one: PlannedRun) -> str:
    return one.settings.model_dump_json(exclude={"seed"})


def _data_key(settings: Settings) -> str:
    """The same for runs of the same images in the same tasks."""
    seed = settings.seed if settings.scenario.order == "seeded" else ""
    return f"{settings.data.model_dump_json()} {settings.scenario.model_dump_json()} {seed}"


def _problems_of(settings: Settings, data: Data | None) -> list[str]:
    """Of the method; where the data is missing, it is checked as far as possible without."""
    try:
        refuse_missing_resources(settings)
        if data is None:
            build_learning(settings)
            return []
        parts = assemble(settings, data=data)
        _, problems = plan_and_problems(parts)
        if not problems:
            refuse_wrong_numbers(parts)
        return problems
    except EndocilError as error:
        return [str(error)]
