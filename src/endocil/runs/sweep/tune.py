"""Settings drawn from a search, and ranked by what they reach on the validation part. The test part has no say."""

import itertools
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from endocil.errors import EndocilError
from endocil.methods import method_class
from endocil.metrics.metrics import METRICS
from endocil.reports.tables import Cell, Column, Table, spread
from endocil.runs.experiments import flat, written
from endocil.runs.records import RunRecord
from endocil.runs.settings import Settings, load_settings
from endocil.runs.sweep.plan import Planned, Range, SweepFile

HEADS = ("softmax", "nearest_mean")
NUMBERS = ("acc_last", "f1_last", "acc_avg", "f1_avg", "af", "forgetting_max", "balanced_last")
LOWER = ("af", "forgetting_max")  # are better when lower
Point = dict[str, Any]


def points(file: SweepFile) -> list[Point]:
    """The settings to try: the whole grid of lists, or as many as `samples` drawn at random, the same each time."""
    if not file.search:
        raise EndocilError(
            "there is nothing to search: give the sweep file a [search] table (docs/sweeps.md)"
        )
    ranges = [key for key, values in file.search.items() if isinstance(values, Range)]
    if file.samples is None and ranges:
        raise EndocilError(
            f"search.{ranges[0]} is a range: say how many points to draw, such as samples = 20"
        )
    if file.samples is None:
        lists = [values for values in file.search.values() if isinstance(values, list)]
        return [dict(zip(file.search, chosen, strict=True)) for chosen in itertools.product(*lists)]
    draw = random.Random(file.sampling_seed)
    return [{key: _drawn(values, draw) for key, values in file.search.items()} for _ in range(file.samples)]


def _drawn(values: Range | list[Any], draw: random.Random) -> Any:
    if isinstance(values, list):
        return draw.choice(values)
    low, high = values.low, values.high
    if isinstance(low, int) and isinstance(high, int):
        return _whole(low, high, values.log, draw)
    number = _by_size(low, high, draw) if values.log else draw.uniform(low, high)
    return min(max(float(f"{number:.4g}"), float(low)), float(high))  # rounding may have stepped over an end


def _whole(low: int, high: int, log: bool, draw: random.Random) -> int:
    if not log:
        return draw.randint(low, high)
    # from half a number beyond the ends, as otherwise less is rounded to them than to the others
    return min(max(round(_by_size(low - 0.5, high + 0.5, draw)), low), high)


def _by_size(low: float, high: float, draw: random.Random) -> float:
    return math.exp(draw.uniform(math.log(low), math.log(high)))


def head_and_metric(name: str) -> tuple[str, str]:
    head, _, metric = name.partition(".")
    if head not in HEADS or metric not in NUMBERS:
        known = ", ".join(f"{one}.{metric}" for one in HEADS for metric in NUMBERS)
        raise EndocilError(f"metric '{name}' is not known; known: {known}")
    return head, metric


def refuse_without_validation(runs: Sequence[Planned]) -> None:
    for one in runs:
        chosen = one.settings.scenario
        if not chosen.validation and chosen.split is None:
            raise EndocilError(
                "tuning needs validation images, which no result is reported on: set scenario.validation to a share "
                "of the training images, such as 0.2, under [set] or by --set"
            )
    if len({one.source for one in runs}) > 1:
        raise EndocilError(
            "tuning finds one settings file: name one under settings, and tune each data set alone"
        )


def refuse_without_value(runs: Sequence[Planned], name: str) -> None:
    """Nothing is nearest to the means of exemplars that nobody keeps: known before anything is run."""
    head, metric = head_and_metric(name)
    for method in (one.settings.method.name for one in runs):
        if head == "nearest_mean" and not method_class(method).replay:
            raise EndocilError(
                f"metric '{name}' needs exemplars, and the method '{method}' keeps none; "
                f'set metric = "softmax.{metric}" or leave the method out'
            )


@dataclass(frozen=True)
class Candidate:
    """Settings that differ in the seed alone, and their runs."""

    runs: Sequence[Planned]
    values: Sequence[float | None]  # of the metric, one for each finished run

    @property
    def mean(self) -> float | None:
        known = [value for value in self.values if value is not None and math.isfinite(value)]
        return sum(known) / len(known) if known and len(known) == len(self.runs) else None

    def settings(self) -> Settings:
        """What `endocil run` takes: the first seed's, evaluated on the test part as ever, without what tuning set."""
        values = self.runs[0].settings.model_dump(mode="json", exclude_none=True)
        own = ("evaluate", "first_tasks", *(() if self.runs[0].threads_chosen else ("threads",)))
        run = {key: value for key, value in values["run"].items() if key not in own}
        return load_settings({**values, "run": run})


def ranked(runs: Sequence[Planned], records: Mapping[str, RunRecord], name: str) -> list[Candidate]:
    """Best first by the mean over seeds; candidates with a run that is missing come last. `records` by digest."""
    head, metric = head_and_metric(name)
    members: dict[str, list[Planned]] = {}
    for one in runs:
        members.setdefault(one.candidate, []).append(one)
    found = []
    for several in members.values():
        done = [records[one.digest] for one in several if one.digest in records]
        found.append(Candidate(several, [(one.metrics[head] or {}).get(metric) for one in done]))
    sign = 1.0 if metric in LOWER else -1.0
    return sorted(found, key=lambda one: math.inf if one.mean is None else sign * one.mean)


def table(candidates: Sequence[Candidate], name: str) -> Table:
    """What was tried, best first; without a value there is no rank."""
    keys = list(dict.fromkeys(key for one in candidates for key, _ in one.runs[0].varied if key != "seed"))
    columns = (
        Column("rank", "Rank", True),
        *(Column(key, key) for key in keys),
        Column("seeds", "Seeds", True),
        Column(name, f"{name} (validation)", True, "min" if name.partition(".")[2] in LOWER else "max"),
    )
    rows = []
    for rank, one in enumerate(candidates, 1):
        told = flat(one.runs[0].settings.model_dump(mode="json", exclude_none=True))
        shown: list[Cell] = [written(told.get(key)) for key in keys]
        value = spread(one.values) if one.mean is not None else None
        rows.append((None if value is None else rank, *shown, len(one.values), value))
    return Table(f"Validation results: {METRICS[name.partition('.')[2]]}", columns, tuple(rows))
