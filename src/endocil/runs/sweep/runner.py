"""The runs of a sweep in their folder: checked before the first begins, then run side by side, here or on Ray."""

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
from endocil.errors import EndocilError, ResourceError, SettingsError
from endocil.io.files import write_atomically
from endocil.io.locks import lock
from endocil.io.terminal import plain_progress
from endocil.learning.build import build_learning, build_memory
from endocil.methods import method_class
from endocil.runs.build import Progress, assemble, images_and_scenario
from endocil.runs.folder import RunFolder
from endocil.runs.preflight import plan, problems, refuse_what_is_not_here
from endocil.runs.records import RunRecord, read_run
from endocil.runs.sweep.executors import RunResources, default_workers, run_locally, run_on_ray
from endocil.runs.sweep.plan import PlannedRun, override, table_names
from endocil.runs.sweep.progress import ProgressDisplay
from endocil.runs.sweep.worker import Job, Outcome
from endocil.settings.settings import Settings, load_settings

LISTED_SOURCES = 3  # settings files that a problem names


@dataclass(frozen=True)
class Execution:
    """Where the runs are run, how many at a time, and the resources of each."""

    workers: int | None = None
    retries: int = 1
    share_first_task: bool = True
    ray: str | None = None
    resources: RunResources = field(default_factory=RunResources)

    def __post_init__(self) -> None:
        if self.ray is None and self.resources != RunResources():
            raise SettingsError("--gpus-per-run and --cpus-per-run are for --ray; without it set --workers")

    def outcomes(self, jobs: Sequence[Job], workers: int) -> Generator[Outcome | None, None, None]:
        if self.ray is None:
            return run_locally(jobs, workers, self.retries)
        return run_on_ray(jobs, self.ray, self.resources, self.retries, self.workers)


@dataclass(frozen=True)
class SweepFolder:
    """A folder for each run, their settings and logs below logs/, and the first tasks that they share."""

    path: Path

    @contextmanager
    def locked(self) -> Iterator[None]:
        """One sweep at a time works here, where the system can lock files: two would begin the same runs."""
        self.path.mkdir(parents=True, exist_ok=True)
        with (self.path / ".lock").open("ab") as file:
            if lock(file, wait=False) == "taken":
                raise ResourceError(
                    f"another sweep is working in {self.path}; let it finish, or choose another folder with -o"
                )
            yield

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
        return load_settings(
            settings, [override("run.first_tasks", str(self.path.resolve() / "first-tasks"))]
        )

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
    with folder.locked():
        return _run_unfinished(folder, runs, execution, console, on_finished)


def _run_unfinished(
    folder: SweepFolder,
    runs: Sequence[PlannedRun],
    execution: Execution,
    console: Console,
    on_finished: Callable[[Path], None],
) -> list[Outcome]:
    left = folder.unfinished(runs)
    for one in runs:
        if one not in left:
            on_finished(folder.run(one).path)
    jobs = [folder.job(one, share_first_task=execution.share_first_task) for one in left]
    workers = execution.workers or default_workers(left)
    at_a_time = f"{workers} at a time" if execution.ray is None else "on Ray"
    counts = f"{len(runs)} runs, {len(runs) - len(left)} of them finished before"
    _print(console, f"{counts}; {at_a_time}, in {folder.path}")
    if jobs and execution.ray is not None:
        joining = execution.ray == "auto"
        _print(console, "starting Ray, or joining it" if joining else f"connecting to Ray at {execution.ray}")
    # closing: however this ends, the runs end first
    with (
        closing(execution.outcomes(jobs, workers)) as outcomes,
        ProgressDisplay(console, jobs, workers) as display,
    ):
        for outcome in outcomes if jobs else ():
            display.update()
            if outcome is not None:
                display.add_outcome(outcome)
                if not outcome.error:
                    on_finished(outcome.job.folder)
    return display.failed


def _print(console: Console, text: str) -> None:
    console.print(text, highlight=False, markup=False, soft_wrap=True)


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


def check_runs(
    folder: SweepFolder, runs: Sequence[PlannedRun], execution: Execution, console: Console
) -> None:
    """Refuse what `endocil run` would refuse, for all unfinished runs, before the first of them begins."""

    def settings_of(one: PlannedRun) -> Settings:
        settings = folder.settings(one, share_first_task=execution.share_first_task)
        # Ray may run it where there are devices that are not here
        return settings if execution.ray is None else load_settings(settings, ["run.accelerator=cpu"])

    left = folder.unfinished(runs)
    if not left:
        return
    checks = PlanChecks(left, settings_of)
    _print(console, str(checks))
    by_problem = checks.problems(plain_progress(console, "reading the data"))
    for problem, concerned in by_problem.items():
        _print(console, f"cannot run: {_problem_line(problem, concerned)}")
    if by_problem:
        stopped = len({one.digest for concerned in by_problem.values() for one in concerned})
        raise SettingsError(f"{stopped} of {len(left)} runs cannot work, so none was started; see above")


def _problem_line(problem: str, runs: Sequence[PlannedRun]) -> str:
    """A problem with its settings files, the number of runs that it concerns, and one of them by name."""
    sources = list(dict.fromkeys(one.source for one in runs))
    listed = ", ".join(sources[:LISTED_SOURCES]) + (" and others" if len(sources) > LISTED_SOURCES else "")
    several = f"{len(runs)} runs of {listed}, such as" if len(runs) > 1 else "run"
    return f"{' '.join(problem.split())} ({several} {runs[0].name})"


Data = tuple[Images, Scenario]


class PlanChecks:
    """Checks runs by groups that are refused together or not at all.

    Runs of the same data read it once, which also fills the cache that they will read from. Settings that differ in
    seed or memory alone build their method once. `settings_of` gives the settings that a run's process will get."""

    def __init__(self, runs: Sequence[PlannedRun], settings_of: Callable[[PlannedRun], Settings]) -> None:
        self.settings_of, self.n_runs = settings_of, len(runs)
        self.method_problems: dict[str, list[str]] = {}
        self.by_data: dict[str, dict[str, list[PlannedRun]]] = defaultdict(lambda: defaultdict(list))
        for one in runs:
            without_seed = one.settings.model_dump_json(exclude={"seed"})
            self.by_data[_data_key(one.settings)][without_seed].append(one)

    def __str__(self) -> str:
        settings = sum(map(len, self.by_data.values()))
        sets = "a data set" if len(self.by_data) == 1 else f"{len(self.by_data)} data sets"
        return f"checking {self.n_runs} runs before the first begins: {settings} settings (seeds apart) on {sets}"

    def problems(self, progress: Progress | None = None) -> dict[str, list[PlannedRun]]:
        """Each problem once, with the runs that it concerns."""
        by_problem: dict[str, list[PlannedRun]] = defaultdict(list)
        for by_settings in self.by_data.values():
            groups = list(by_settings.values())
            data: Data | None = None
            try:
                data = images_and_scenario(groups[0][0].settings, progress)
            except EndocilError as error:
                by_problem[str(error)] += [one for group in groups for one in group]
            for group in groups:
                for problem in self._problems_of(self.settings_of(group[0]), data):
                    by_problem[problem] += group
        return by_problem

    def _problems_of(self, settings: Settings, data: Data | None) -> list[str]:
        """Each memory, and the method once for all memories; where the data is missing, once for all data."""
        try:
            _check_memory(settings, data)
        except EndocilError as error:
            return [str(error)]
        own = settings.model_dump_json(exclude={"seed", "data", "scenario", "memory"})
        key = own if data is None else _data_key(settings) + own
        if key not in self.method_problems:
            self.method_problems[key] = _method_problems(settings, data)
        return self.method_problems[key]


def _data_key(settings: Settings) -> str:
    """The same for runs of the same images in the same tasks."""
    seed = settings.seed if settings.scenario.order == "seeded" else ""
    return f"{settings.data.model_dump_json()} {settings.scenario.model_dump_json()} {seed}"


def _check_memory(settings: Settings, data: Data | None) -> None:
    if not method_class(settings.method.name).replay:
        return
    memory = build_memory(settings)
    if data is not None:
        _, scenario = data
        memory.planned(scenario.counts(TRAIN).tolist(), [task.new for task in scenario.tasks])


def _method_problems(settings: Settings, data: Data | None) -> list[str]:
    try:
        refuse_what_is_not_here(settings)
        if data is None:  # checked as far as possible; the rest needs the data
            build_learning(settings)
            return []
        parts = assemble(settings, data=data)
        return problems(parts, [*plan(parts)])
    except EndocilError as error:
        return [str(error)]
