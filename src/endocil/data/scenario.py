"""The scenario: which classes are kept, in which order and task they are learned, and which images train and test."""

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from endocil.data.cache import cached_arrays
from endocil.data.decode import file_of, read_file
from endocil.data.seeding import generator
from endocil.data.splits import TEST, TRAIN, UNUSED, Folds, Split, by_image
from endocil.data.table import ImageTable
from endocil.errors import DataError, EndocilError, SettingsError

DIGEST_RULES = "content 1"  # raise it when the same files get another digest


@dataclass(frozen=True)
class Task:
    """The classes that arrive together; it owns the class ranges, so that nobody multiplies class counts."""

    index: int
    n_old: int
    n_new: int

    @property
    def number(self) -> int:
        """As people count: the first task is task 1. Files and formulas count from 0, by `index`."""
        return self.index + 1

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
    part: np.ndarray  # (N,) str: train, validation, test, or unused
    notes: tuple[str, ...] = ()  # on the split
    arrivals: np.ndarray | None = None  # (N,) int: the task in which an image comes to learn from; none: its class's

    def rows(self, part: str, classes: slice) -> torch.Tensor:
        """Rows of the table in this part whose class lies in the range, in table order."""
        labels = self.table.labels
        chosen = (self.part == part) & (labels >= classes.start) & (labels < classes.stop)
        return torch.from_numpy(np.flatnonzero(chosen))

    def counts(self, part: str) -> np.ndarray:
        return np.bincount(self.table.labels[self.part == part], minlength=len(self.table.classes))

    @property
    def class_tasks(self) -> np.ndarray:
        """(C,) the task that brings each class."""
        return np.repeat([task.index for task in self.tasks], [task.n_new for task in self.tasks])

    def arriving(self, part: str, task: Task) -> torch.Tensor:
        """Rows of this part that come in this task: images of its new classes, and of known ones that come back."""
        if self.arrivals is None:
            return self.rows(part, task.new)
        return torch.from_numpy(np.flatnonzero((self.part == part) & (self.arrivals == task.index)))

    def arriving_counts(self, part: str) -> list[list[int]]:
        """Of each task, how many images of each class seen by then come in it."""
        labels = self.table.labels
        return [
            np.bincount(labels[self.arriving(part, task).numpy()], minlength=task.n_seen).tolist()
            for task in self.tasks
        ]

    def joined(self) -> "Scenario":
        """The same images as one task: what JointTrain learns."""
        return replace(self, tasks=(Task(0, 0, len(self.table.classes)),), arrivals=None)


def keep_classes(
    table: ImageTable,
    *,
    minimum: int = 1,
    leave_out: Sequence[str] = (),
    order: str | Sequence[str] = "alphabetical",  # or "seeded"
    seed: int = 0,  # of that order
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
    if order == "seeded":
        kept = [kept[i] for i in torch.randperm(len(kept), generator=generator(seed, "class order")).tolist()]
    elif isinstance(order, str) and order != "alphabetical":
        raise SettingsError(f"scenario.order is '{order}'; expected 'alphabetical', 'seeded' or a list of class names")
    elif not isinstance(order, str):
        _check_known("scenario.order", order, kept)
        if sorted(order) != kept:
            missing = sorted(set(kept) - set(order))
            problem = f"leaves out {', '.join(missing)}" if missing else "names a class twice"
            raise SettingsError(f"scenario.order {problem}; name each kept class once, or use scenario.leave_out")
        kept = list(order)
    return table.keep_classes(kept)


def _check_known(setting: str, names: Sequence[str], classes: Sequence[str]) -> None:
    for name in names:
        if name not in classes:
            raise SettingsError(f"{setting} names the class '{name}', but the data has: {', '.join(classes)}")


def by_source(table: ImageTable) -> ImageTable:
    """The images arrive source by source, in alphabetical order: each device or centre is a task."""
    if "" in table.sources:
        raise DataError(
            f"scenario.tasks is 'source', but {table.sources.count(''):,} of {len(table):,} images have none; "
            f"give a CSV with a source column, or the number of tasks"
        )
    place = {source: task for task, source in enumerate(sorted(set(table.sources)))}
    return replace(table, arrivals=tuple(place[source] for source in table.sources))


def arrival_order(table: ImageTable) -> tuple[list[str], list[int]]:
    """Classes by the first task in which the data says that images of them arrive, and how many are new in each."""
    first: dict[str, int] = {}
    for label, task in zip(table.labels.tolist(), table.arrivals, strict=True):
        name = table.classes[label]
        if task < 0:
            raise DataError(
                f"scenario.tasks is 'given', but the data does not say when '{name}' arrives; "
                f"give a CSV with a task column, or the number of tasks"
            )
        first[name] = min(task, first.get(name, task))
    order = sorted(first, key=lambda name: (first[name], name))
    sizes = Counter(first.values())
    return order, [sizes[task] for task in sorted(set(table.arrivals))]


def given_arrivals(table: ImageTable, scenario: Scenario) -> Scenario:
    """Images that the data brings later than their class come back then; those of the test part are tested as soon as
    their class is known."""
    arrivals = np.searchsorted(sorted(set(table.arrivals)), table.arrivals)
    known = scenario.class_tasks[table.labels]
    back = (scenario.part == TRAIN) & (arrivals > known)
    if not back.any():
        return scenario
    arrivals = np.where(scenario.part == TEST, known, arrivals)
    names = [name for label, name in enumerate(table.classes) if back[table.labels == label].any()]
    note = f"{int(back.sum()):,} training images come in a later task than their class: {', '.join(names)}"
    return replace(scenario, arrivals=arrivals, notes=(*scenario.notes, note))


def increments_of(n: int, *, first: int | None = None, increment: int | None = None) -> list[int]:
    """`first` classes, then `increment` in each task, as B50-inc10 of the literature; the last task takes what is left.
    Without `first` all tasks have `increment` classes (B0)."""
    if increment is None:
        raise SettingsError("scenario.first is set, but scenario.increment is not; set both, such as 50 and 10")
    first = increment if first is None else first
    if first > n:
        raise SettingsError(f"scenario.first is {first}, but {n} classes are kept; expected at most {n}")
    whole, rest = divmod(n - first, increment)
    return [first, *[increment] * whole, *([rest] if rest else [])]


def build_scenario(
    table: ImageTable,
    *,
    increments: Sequence[int] | None = None,
    tasks: int | None = None,
    first: int | None = None,
    increment: int | None = None,
    split: Split | None = None,
) -> Scenario:
    """Cut the classes, in their order, into tasks; without a split, each class is split by image as in the paper."""
    n = len(table.classes)
    ways = {"increments": increments, "tasks": tasks, "first and increment": first or increment}
    chosen = [f"scenario.{way}" for way, value in ways.items() if value is not None]
    if len(chosen) > 1:
        raise SettingsError(f"{' and '.join(chosen)} are both set; keep one of them")
    if first is not None or increment is not None:
        increments = increments_of(n, first=first, increment=increment)
    if increments is None:
        tasks = 1 if tasks is None else tasks
        if not 1 <= tasks <= n:
            raise SettingsError(f"scenario.tasks is {tasks}, but {n} classes are kept; expected 1 to {n}")
        # as even as possible, the larger ones first: 16 classes in 5 tasks are 4, 3, 3, 3, 3
        increments = [n // tasks + (i < n % tasks) for i in range(tasks)]
    elif any(size < 1 for size in increments) or sum(increments) != n:
        raise SettingsError(
            f"scenario.increments {list(increments)} add up to {sum(increments)}, but {n} classes are kept; "
            f"leave increments out and set scenario.tasks, or change scenario.minimum"
        )
    return _scenario(table, increments, split)


def arriving_scenario(table: ImageTable, *, split: Split) -> Scenario:
    """The tasks that the data gives: a task may bring new classes, images of known ones, or both."""
    return given_arrivals(table, _scenario(table, arrival_order(table)[1], split))


def _scenario(table: ImageTable, increments: Sequence[int], split: Split | None) -> Scenario:
    split = split or by_image(table, validation=0.0, folds=Folds(), seed=1993)
    numbered = tuple(Task(i, sum(increments[:i]), size) for i, size in enumerate(increments))
    return Scenario(table, numbered, split.part, split.notes)


def scenario_digest(scenario: Scenario) -> str:
    """A digest of ids, classes, parts and file contents: the same for a copy of the files."""
    table = scenario.table
    arrays = cached_arrays(table, ("files",), lambda: {"files": _file_digests(table)}, rules=DIGEST_RULES)
    rows = zip(image_rows(scenario), arrays["files"].tolist(), strict=True)
    texts = [DIGEST_RULES, *sorted("\0".join((*row, file)) for row, file in rows)]
    return hashlib.sha256("\0".join(texts).encode(errors="surrogateescape")).hexdigest()[:16]


def image_rows(scenario: Scenario) -> list[tuple[str, str, str]]:
    """Id, class and part of each image."""
    table = scenario.table
    names = [table.classes[label] for label in table.labels]
    return list(zip(table.ids, names, map(str, scenario.part), strict=True))


def _file_digests(table: ImageTable) -> np.ndarray:
    """A digest of the file of each image; "" where it has none."""
    files = [file_of(table.reader, image) for image in table.ids]
    digests: dict[Path | None, str] = {None: ""}
    for file in {file for file in files if file is not None}:  # a file may have many frames
        try:
            digests[file] = hashlib.sha256(read_file(file)).hexdigest()
        except EndocilError:  # a run may leave such images out
            digests[file] = "unreadable"
    return np.array([digests[file] for file in files])


# --- variants: few images of later classes, a long tail, images that come in a later task than their class
#
# They change the training images alone: every variant of a split is tested on the same images. Which images are chosen
# depends on scenario.split_seed and the ids, so all methods and seeds learn from the same ones.


def few_shot(scenario: Scenario, shots: int, seed: int) -> Scenario:
    """Keep `shots` training images of each class of the later tasks, as few-shot class-incremental learning does
    (Tao et al., CVPR 2020, 5 of each); the first task keeps all."""
    if len(scenario.tasks) == 1:
        raise SettingsError(
            "scenario.shots limits the classes of later tasks, but there is one task; set scenario.tasks"
        )
    first, n = scenario.tasks[0].n_new, len(scenario.table.classes)
    return _thinned(scenario, [None] * first + [shots] * (n - first), seed, f"scenario.shots = {shots}")


def long_tail(scenario: Scenario, factor: float, order: str, seed: int) -> Scenario:
    """Class k of C keeps n * factor^(-k / (C - 1)) training images, where n is the size of the largest class (Cui et
    al., CVPR 2019). A class that has fewer keeps all.

    order (Liu et al., ECCV 2022): "ordered", so that k counts in the order of learning; "shuffled", at random."""
    n = len(scenario.table.classes)
    most = int(scenario.counts(TRAIN).max())
    places = torch.randperm(n, generator=generator(seed, "long tail")).tolist() if order == "shuffled" else range(n)
    most_of = [max(1, int(most * factor ** (-k / max(1, n - 1)) + 1e-9)) for k in places]
    return _thinned(scenario, most_of, seed, f"scenario.imbalance = {factor:g}, {order}")


def _thinned(scenario: Scenario, most: Sequence[int | None], seed: int, reason: str) -> Scenario:
    """At most so many training images of each class (None: all)."""
    part = scenario.part.copy()
    for label, limit in enumerate(most):
        rows = _shuffled(scenario, label, seed, "fewer images")
        if limit is not None:
            part[rows[limit:]] = UNUSED
    dropped = int((part == UNUSED).sum() - (scenario.part == UNUSED).sum())
    note = f"{dropped:,} training images are not used: {reason}"
    return replace(scenario, part=part, notes=(*scenario.notes, note))


def blurry(scenario: Scenario, share: float, seed: int) -> Scenario:
    """A share of the training images of each class come later than their class, spread evenly over the tasks after
    it. So tasks overlap in classes as in the blurry protocol of Bang et al. (CVPR 2021), but no image comes before the
    task that brings its class: a model of one growing head has no output for it."""
    if len(scenario.tasks) == 1:
        raise SettingsError("scenario.blurry moves images to later tasks, but there is one task; set scenario.tasks")
    if scenario.arrivals is not None:
        raise SettingsError("scenario.blurry is set, but the data says when each image comes; leave out one of them")
    last = scenario.tasks[-1].index
    arrivals = scenario.class_tasks[scenario.table.labels]
    for task in scenario.tasks[:-1]:
        for label in range(task.n_old, task.n_seen):
            rows = _shuffled(scenario, label, seed, "blurry")
            later = rows[: int(len(rows) * share)]  # below all of them, as the share is below 1
            arrivals[later] = task.index + 1 + np.arange(len(later)) % (last - task.index)
    return replace(scenario, arrivals=arrivals)


def _shuffled(scenario: Scenario, label: int, seed: int, purpose: str) -> np.ndarray:
    """The rows of a class's training images in an order that depends on seed, class and ids."""
    ids, name = scenario.table.ids, scenario.table.classes[label]
    rows = scenario.rows(TRAIN, slice(label, label + 1)).tolist()
    order = torch.randperm(len(rows), generator=generator(seed, purpose, name)).tolist()
    by_id = sorted(rows, key=ids.__getitem__)
    return np.array([by_id[place] for place in order], np.int64)
