"""`endocil tune`: settings drawn from a search and ranked on the validation part; the test part is not used."""

import itertools
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from endocil.errors import SettingsError
from endocil.methods import method_class
from endocil.model.predictions import HEADS
from endocil.runs.records import RunRecord
from endocil.runs.sweep.plan import PlannedRun, Range, SweepFile, runs_by
from endocil.settings.settings import Settings, load_settings

METRIC_NAMES = ("acc_last", "f1_last", "acc_avg", "f1_avg", "af", "forgetting_max", "balanced_last")
LOWER_IS_BETTER = ("af", "forgetting_max")
Point = dict[str, Any]


def points(file: SweepFile) -> list[Point]:
    """The settings to try: the whole grid of lists, or as many as `samples` drawn at random, the same each time."""
    if not file.search:
        raise SettingsError("there is nothing to search: give the sweep file a [search] table (docs/run.md)")
    ranges = [key for key, values in file.search.items() if isinstance(values, Range)]
    if file.samples is None and ranges:
        raise SettingsError(f"search.{ranges[0]} is a range: say how many points to draw, such as samples = 20")
    if file.samples is None:
        lists = [values for values in file.search.values() if isinstance(values, list)]
        return [dict(zip(file.search, chosen, strict=True)) for chosen in itertools.product(*lists)]
    generator = random.Random(file.sampling_seed)
    return [{key: _draw(values, generator) for key, values in file.search.items()} for _ in range(file.samples)]


def _draw(values: Range | list[Any], generator: random.Random) -> Any:
    if isinstance(values, list):
        return generator.choice(values)
    low, high = values.low, values.high
    whole = isinstance(low, int) and isinstance(high, int)
    if whole and not values.log:
        return generator.randint(int(low), int(high))
    if values.log:
        # half a number beyond the ends, because rounding would otherwise reach them half as often as the others
        beyond = 0.5 if whole else 0.0
        number = math.exp(generator.uniform(math.log(low - beyond), math.log(high + beyond)))
    else:
        number = generator.uniform(low, high)
    # rounding may have stepped over an end
    return min(max(round(number), low), high) if whole else min(max(float(f"{number:.4g}"), float(low)), float(high))


def split_metric(name: str) -> tuple[str, str]:
    head, _, metric = name.partition(".")
    if head not in HEADS or metric not in METRIC_NAMES:
        known = ", ".join(f"{one}.{metric}" for one in HEADS for metric in METRIC_NAMES)
        raise SettingsError(f"metric '{name}' is not known; known: {known}")
    return head, metric


def check_runs_to_tune(runs: Sequence[PlannedRun], name: str) -> None:
    """Validation images, one settings file, and a metric that every method has: nearest means need exemplars."""
    head, metric = split_metric(name)
    for settings in (one.settings for one in runs):
        if not settings.scenario.validation and settings.scenario.split is None:
            raise SettingsError(
                "tuning needs validation images: the test images must not decide; set scenario.validation to a share "
                "of the training images, such as 0.2, under [set] or by --set"
            )
        method = settings.method.name
        if head == "nearest_mean" and not method_class(method).replay:
            raise SettingsError(
                f"metric '{name}' needs exemplars, and the method '{method}' keeps none; "
                f'set metric = "softmax.{metric}" or leave the method out'
            )
    if len({one.source for one in runs}) > 1:
        raise SettingsError("tuning finds one settings file: name one under settings, and tune each data set alone")


@dataclass(frozen=True)
class Candidate:
    """Settings that differ in the seed alone, and their runs."""

    runs: Sequence[PlannedRun]
    values: Sequence[float | None]  # of the metric, one for each finished run

    @property
    def mean(self) -> float | None:
        finite = [value for value in self.values if value is not None and math.isfinite(value)]
        return sum(finite) / len(finite) if finite and len(finite) == len(self.runs) else None

    def settings(self) -> Settings:
        """For `endocil run`: those of the first seed, evaluated on the test part, without what tuning has set."""
        values = self.runs[0].settings.model_dump(mode="json", exclude_none=True)
        set_by_tuning = ("evaluate", "first_tasks", *(() if self.runs[0].threads_chosen else ("threads",)))
        run = {key: value for key, value in values["run"].items() if key not in set_by_tuning}
        return load_settings({**values, "run": run})


def rank_candidates(runs: Sequence[PlannedRun], records: Mapping[str, RunRecord], name: str) -> list[Candidate]:
    """Best first by the mean over seeds; candidates with a run that is missing come last. `records` by digest."""
    head, metric = split_metric(name)
    candidates = []
    for seeds in runs_by(runs, lambda one: one.candidate_key):
        finished = [records[one.digest] for one in seeds if one.digest in records]
        candidates.append(Candidate(seeds, [(one.metrics[head] or {}).get(metric) for one in finished]))
    sign = 1.0 if metric in LOWER_IS_BETTER else -1.0
    return sorted(candidates, key=lambda one: math.inf if one.mean is None else sign * one.mean)
