"""Before the first run of a sweep: what `endocil run` would refuse, found once for all the runs that it concerns.

Runs of the same data read it once, which also fills the cache that they will read from. Settings that differ in seed or
memory alone build their method once.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence

from endocil.assembly import Progress, assemble, build_learning, build_memory, images_and_scenario
from endocil.errors import EndocilError
from endocil.estimate import plan
from endocil.images.cache import Images
from endocil.methods import method_class
from endocil.preflight import problems, refuse_what_is_not_here
from endocil.scenario import TRAIN, Scenario
from endocil.settings import Settings
from endocil.sweep.plan import Planned

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
