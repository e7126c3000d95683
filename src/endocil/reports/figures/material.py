"""What figures are drawn from: finished runs, grouped by data and by experiment, and what their epochs measured."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import zip_longest
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from endocil.errors import EndocilError
from endocil.runs.experiments import Group, groups, identity, split_title
from endocil.runs.records import Json, RunRecord, is_imported

Floats = NDArray[np.float64]
Gallery = Mapping[str, Sequence[NDArray[np.uint8]]]  # class -> pixels of its exemplars, first choice first
Drawings = Iterator[tuple[str, Figure]]  # what is added to the name of the file, and the figure
Experiment = Group[RunRecord]


class NotDrawnError(EndocilError):
    """What a figure lacks, and what would make it possible."""


@dataclass(frozen=True)
class Material:
    """Runs to be drawn; `gallery` reads the exemplars of a run, or is None where they must not be shown."""

    runs: Sequence[RunRecord]
    gallery: Callable[[RunRecord], Gallery] | None = None
    tell: Callable[[str], None] = lambda line: None

    @cached_property
    def panels(self) -> dict[str, list[Experiment]]:
        """Data, and memory where it varies -> its experiments, each with its seeds."""
        if not self.runs:
            raise NotDrawnError("needs runs: endocil figures RUN... -o FOLDER")
        budgets = {_budget(run.settings) for run in self.runs}

        def place(settings: Json) -> str:
            return split_title(settings) + (f", {_budget(settings)}" if len(budgets) > 1 else "")

        panels: dict[str, list[Experiment]] = {}
        for group in groups(self.runs, place):
            panels.setdefault(place(group.first.settings), []).append(group)
        return panels

    @cached_property
    def styles(self) -> dict[str, int]:
        """Label -> the number of its line style, the same in all figures."""
        labels = dict.fromkeys(group.label for members in self.panels.values() for group in members)
        return {label: number for number, label in enumerate(labels)}

    @property
    def incremental(self) -> dict[str, list[Experiment]]:
        """Without the experiments of one task, which have no later ones."""
        panels = {name: [group for group in members if group.incremental] for name, members in self.panels.items()}
        return {name: members for name, members in panels.items() if members}

    def suffix(self, panel: str, label: str = "") -> str:
        """What tells the file of this data and this experiment from the others."""
        return " ".join(filter(None, [panel if len(self.panels) > 1 else "", label]))


def _budget(settings: Json) -> str:
    memory = settings.get("memory", {})
    if is_imported(settings) and not memory:
        return "memory unknown"
    return f"{memory['total']} in all" if memory.get("total") else f"{memory.get('per_class')} per class"


def families(members: Sequence[Experiment], free: Collection[str]) -> list[list[Experiment]]:
    """Experiments that differ in these settings alone together, in order of appearance."""
    by_settings: dict[str, list[Experiment]] = {}
    for group in members:
        values = identity(group.first.settings)
        fixed = sorted((key, value) for key, value in values.items() if key not in {*free, "seed"})
        by_settings.setdefault(repr(fixed), []).append(group)
    return list(by_settings.values())


def alike(group: Experiment) -> Experiment:
    """The runs that learned the same classes in the same order as the first: their numbers may be averaged."""
    classes = group.first.metrics["classes"]
    return Group(group.label, tuple(run for run in group.results if run.metrics["classes"] == classes))


def numbers(values: Any) -> Floats:
    """Numbers of a record, NaN where it has none."""
    return np.array(values, dtype=np.float64)  # None becomes NaN


def last_task(run: RunRecord) -> int:
    return len(run.metrics["task_sizes"]) - 1


def epochs_of(run: RunRecord, task: int | None = None) -> list[Json]:
    """The epochs of one task, or of all, in the order of learning."""
    return [event for event in run.events_of("epoch") if task is None or event["task"] == task]


def per_class(epochs: Sequence[Json], read: Callable[[Json], Any]) -> Floats | None:
    """Epochs by classes, (E, C); NaN for classes that were not there, None where no epoch has any."""
    rows = [read(event) or () for event in epochs]
    return numbers([*zip_longest(*rows)]).T if any(rows) else None
