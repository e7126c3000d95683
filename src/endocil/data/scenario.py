"""The scenario: which classes are kept, in which order and task they are learned, and which images train and test."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch

from endocil.data.seeding import generator
from endocil.data.splits import TEST, TRAIN, VALIDATION, Folds, Split, by_image
from endocil.data.table import ImageTable
from endocil.errors import DataError, SettingsError

__all__ = [
    "TEST",
    "TRAIN",
    "VALIDATION",
    "Scenario",
    "Task",
    "arrival_order",
    "build_scenario",
    "keep_classes",
]


@dataclass(frozen=True)
class Task:
    """The classes that arrive together; it owns the class ranges, so that nobody multiplies class counts."""

    index: int
    n_old: int
    n_new: int

    @property
    def n_seen(self) -> int:
        return self.n_old + self.n_new

    @property
    def old(self) -> slice:
        return slice(0, self.n_old)

    @property
    def new(self) -> slice:
        return slice(self.n_old, self.n_seen)

    @property
    def seen(self) -> slice:
        return slice(0, self.n_seen)


@dataclass(frozen=True)
class Scenario:
    """A table whose labels stand in the order of learning, its split, and the tasks."""

    table: ImageTable
    tasks: tuple[Task, ...]
    part: np.ndarray  # (N,) str: train, validation or test
    notes: tuple[str, ...] = ()  # on the split

    def rows(self, part: str, classes: slice) -> torch.Tensor:
        """Rows of the table in this part whose class lies in the range, in table order."""
        labels = self.table.labels
        chosen = (self.part == part) & (labels >= classes.start) & (labels < classes.stop)
        return torch.from_numpy(np.flatnonzero(chosen))

    def counts(self, part: str) -> np.ndarray:
        return np.bincount(self.table.labels[self.part == part], minlength=len(self.table.classes))

    def joined(self) -> "Scenario":
        """The same images as one task: what JointTrain learns."""
        return replace(self, tasks=(Task(0, 0, len(self.table.classes)),))


def keep_classes(
    table: ImageTable,
    *,
    minimum: int = 1,
    leave_out: Sequence[str] = (),
    order: Literal["alphabetical", "seeded"] | Sequence[str] = "alphabetical",
    seed: int = 0,
) -> ImageTable:
    """The classes with at least `minimum` images and not left out, in the order in which they will be learned."""
    _check_known("scenario.leave_out", leave_out, table.classes)
    counts = dict(zip(table.classes, table.counts().tolist(), strict=True))
    kept = sorted(name for name in table.classes if counts[name] >= minimum and name not in leave_out)
    if not kept:
        raise SettingsError(
            f"no class is left: the largest has {max(counts.values(), default=0)} images, scenario.minimum asks for "
            f"{minimum}, and {len(leave_out)} are left out; lower scenario.minimum"
        )
    return table.keep_classes(_ordered(kept, order, seed))


def _check_known(setting: str, names: Sequence[str], classes: Sequence[str]) -> None:
    for name in names:
        if name not in classes:
            raise SettingsError(f"{setting} names the class '{name}', but the data has: {', '.join(classes)}")


def _ordered(kept: list[str], order: str | Sequence[str], seed: int) -> list[str]:
    if order == "alphabetical":
        return kept
    if order == "seeded":
        return [kept[i] for i in torch.randperm(len(kept), generator=generator(seed, "class order")).tolist()]
    if isinstance(order, str):
        raise SettingsError(
            f"scenario.order is '{order}'; expected 'alphabetical', 'seeded' or a list of class names"
        )
    _check_known("scenario.order", order, kept)
    if sorted(order) != kept:
        missing = sorted(set(kept) - set(order))
        problem = f"leaves out {', '.join(missing)}" if missing else "names a class twice"
        raise SettingsError(f"scenario.order {problem}; name each kept class once, or use scenario.leave_out")
    return list(order)


def arrival_order(table: ImageTable) -> tuple[list[str], list[int]]:
    """Classes by the task in which the data says they arrive, and how many arrive in each."""
    arrival: dict[str, int] = {}
    for label, task in zip(table.labels.tolist(), table.arrivals, strict=True):
        name = table.classes[label]
        if task < 0:
            raise DataError(
                f"scenario.tasks is 'given', but the data does not say when '{name}' arrives; "
                f"give a CSV with a task column, or the number of tasks"
            )
        if arrival.setdefault(name, task) != task:
            raise DataError(f"the class '{name}' arrives in task {arrival[name]} and in task {task}")
    order = sorted(arrival, key=lambda name: (arrival[name], name))
    sizes = Counter(arrival[name] for name in order)
    return order, [sizes[task] for task in sorted(sizes)]


def build_scenario(
    table: ImageTable,
    *,
    increments: Sequence[int] | None = None,
    tasks: int | None = None,
    split: Split | None = None,
) -> Scenario:
    """Cut the classes, in their order, into tasks; without a split, each class is split by image as in the paper."""
    sizes = _sizes(len(table.classes), increments, tasks)
    split = split or by_image(table, validation=0.0, folds=Folds(), seed=1993)
    return Scenario(table, _tasks(sizes), split.part, split.notes)


def _sizes(n: int, increments: Sequence[int] | None, tasks: int | None) -> list[int]:
    if increments is not None and tasks is not None:
        raise SettingsError("scenario.increments and scenario.tasks are both set; keep one of them")
    if increments is None:
        return _even_sizes(n, 1 if tasks is None else tasks)
    if any(size < 1 for size in increments) or sum(increments) != n:
        raise SettingsError(
            f"scenario.increments {list(increments)} add up to {sum(increments)}, but {n} classes are kept; "
            f"leave increments out and set scenario.tasks, or change scenario.minimum"
        )
    return list(increments)


def _even_sizes(n: int, tasks: int) -> list[int]:
    """As even as it goes, the larger ones first: 16 classes in 5 tasks are 4, 3, 3, 3, 3."""
    if not 1 <= tasks <= n:
        raise SettingsError(f"scenario.tasks is {tasks}, but {n} classes are kept; expected 1 to {n}")
    return [n // tasks + (i < n % tasks) for i in range(tasks)]


def _tasks(sizes: Sequence[int]) -> tuple[Task, ...]:
    starts = np.cumsum([0, *sizes[:-1]]).tolist()
    return tuple(Task(i, start, size) for i, (start, size) in enumerate(zip(starts, sizes, strict=True)))
