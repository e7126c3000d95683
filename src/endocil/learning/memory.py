"""What is kept between tasks: a few exemplars of each class, in order of choice, with where they come from."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from endocil.components import selection
from endocil.components.selection import Selection
from endocil.data.batches import ImageSet
from endocil.data.cache import Images
from endocil.data.scenario import Task
from endocil.data.seeding import generator
from endocil.errors import EndocilError
from endocil.learning.features import CLASS_MEANS, View, class_means, unit, view
from endocil.learning.parallel import by_one
from endocil.methods.base import Method
from endocil.registry import check_options, resolve

if TYPE_CHECKING:
    from lightning_fabric import Fabric


@dataclass(frozen=True)
class Candidates:
    """The images of one class among which exemplars are chosen."""

    features: Tensor  # (m, d) of length 1
    scores: Tensor  # (m, n_seen) logits
    generator: torch.Generator


Selector = Callable[[Candidates, int], Selection]


def _by_mmd(
    candidates: Candidates,
    n: int,
    *,
    kernels: int = 5,  # the usual multi-kernel MMD code; the paper does not say
    scale: float = 2.0,  # as above
    bandwidth: Literal["index", "literal"] = "index",
    self_pairs: bool = False,
    refine: Literal["none", "swap"] = "none",  # the paper's algorithm ends with the greedy picks
) -> Selection:
    return selection.select_by_mmd(
        candidates.features,
        n,
        kernels=kernels,
        scale=scale,
        bandwidth=bandwidth,
        self_pairs=self_pairs,
        refine=refine,
    )


SELECTORS: dict[str, Callable[..., Selection]] = {
    "mmd": _by_mmd,
    "mean": lambda candidates, n: selection.select_by_mean(candidates.features, n),
    "random": lambda candidates, n: selection.select_at_random(
        len(candidates.features), n, candidates.generator
    ),
    "entropy": lambda candidates, n: selection.select_by_entropy(candidates.scores, n),
    "distance": lambda candidates, n: selection.select_by_distance(candidates.scores, n),
}


def build_selector(name: str, options: Mapping[str, Any]) -> Selector:
    """A selector by name with its options; one's own is a function of (candidates, n) as 'package.module:function'."""
    selector = resolve("memory.select", name, SELECTORS)
    check_options("memory", selector, options)
    chosen = partial(selector, **options)
    try:  # options that cannot work are found now, not after the first task
        chosen(Candidates(torch.eye(3), torch.eye(3), generator(0)), 2)
    except ValueError as error:
        raise EndocilError(f"memory.select '{name}' with {dict(options)}: {error}") from error
    return chosen


@dataclass(frozen=True)
class Choice:
    """What was kept of one class."""

    label: int
    kept: int
    of: int
    mmd2: float | None  # of the exemplars against all candidates, where the selector measures it
    bound: float | None  # the paper's bound on it


def even_share(available: Sequence[int], total: int) -> int:
    """The largest number q such that q of each class, or all it has where it has fewer, are at most `total` together.

    What a small class leaves over goes to the others in this way. A remainder that does not give one more to every
    class with images left stays unused, so that no class is favoured."""
    left, rest = total, sorted(available)
    for done, least in enumerate(rest):
        each = left // (len(rest) - done)
        if each < least:
            return each
        left -= least
    return rest[-1] if rest else total


class ExemplarMemory:
    """Rows of the table for each class, first choice first.

    `per_class` keeps as many of every class and never chooses again; `total` is shared among the classes seen by
    `even_share`, so that old classes give up their last choices. What a class has given up is gone: its share is
    of the images it still has.
    """

    def __init__(
        self, *, per_class: int | None = None, total: int | None = None, select: Selector, seed: int = 0
    ) -> None:
        if (per_class is None) == (total is None):
            raise EndocilError("set memory.per_class or memory.total, one of them")
        self.per_class, self.total, self.select, self.seed = per_class, total, select, seed
        self.rows: dict[int, Tensor] = {}
        self.tasks: dict[int, int] = {}

    def quota(self, available: Sequence[int]) -> int:
        """How many of a class may be kept when each has so many to choose from."""
        if self.per_class is not None:
            return self.per_class
        if (self.total or 0) < len(available):
            raise EndocilError(
                f"memory.total is {self.total}, less than one image for each of {len(available)} classes"
            )
        return even_share(available, self.total or 0)

    def planned(self, counts: Sequence[int], tasks: Sequence[slice]) -> list[int]:
        """How many of each class are kept once these tasks, with so many images of each class, are learned."""
        kept: list[int] = []
        for new in tasks:
            available = [*kept, *counts[new]]
            quota = self.quota(available)
            kept = [min(quota, n) for n in available]
        return kept

    def add(self, candidates: ImageSet, features: Tensor, scores: Tensor, task: int) -> list[Choice]:
        """Choose exemplars of every class among the candidates; a class smaller than the quota keeps all."""
        labels, choices = candidates.labels, []
        counts = {label: int((labels == label).sum()) for label in candidates.classes()}
        available = {label: len(rows) for label, rows in self.rows.items()} | counts
        quota = self.quota(list(available.values()))
        features = unit(features)
        for label in counts:
            mine = torch.nonzero(labels == label).flatten()
            random = generator(self.seed, task, label, "selection")
            chosen = self.select(Candidates(features[mine], scores[mine], random), quota)
            self.rows[label] = candidates.rows[mine[chosen.indices.cpu()]]
            self.tasks.setdefault(label, task)
            mmd2 = None if chosen.mmd2 is None else float(chosen.mmd2[-1])
            choices.append(Choice(label, len(self.rows[label]), len(mine), mmd2, chosen.bound))
        self.rows = {label: rows[:quota] for label, rows in sorted(self.rows.items())}
        return choices

    def __len__(self) -> int:
        return sum(len(rows) for rows in self.rows.values())

    def images(self, images: Images) -> ImageSet:
        """All exemplars, class by class, first choice first."""
        rows = torch.cat([torch.empty(0, dtype=torch.int64), *self.rows.values()])
        return ImageSet.of(images, rows, from_memory=True)

    def records(self, images: Images) -> list[tuple[str, str, int, int, str, str]]:
        """Where each exemplar comes from: image, class, order of choice, task, group, source."""
        table = images.table
        return [
            (
                table.ids[row],
                table.classes[label],
                order,
                self.tasks[label],
                table.groups[row],
                table.sources[row],
            )
            for label, rows in self.rows.items()
            for order, row in enumerate(rows.tolist())
        ]

    def state(self) -> dict[str, Tensor]:
        labels = [label for label, rows in self.rows.items() for _ in rows]
        return {
            "rows": torch.cat([torch.empty(0, dtype=torch.int64), *self.rows.values()]),
            "labels": torch.tensor(labels, dtype=torch.int64),
            "tasks": torch.tensor([self.tasks[label] for label in labels], dtype=torch.int64),
        }

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        self.rows, self.tasks = {}, {}
        for label in torch.unique(state["labels"]).tolist():
            mine = state["labels"] == label
            self.rows[label] = state["rows"][mine]
            self.tasks[label] = int(state["tasks"][mine][0])


# After a task: exemplars chosen and class means measured, by one pass over the new images and the old exemplars.


def remember(
    method: Method, memory: ExemplarMemory, new: ImageSet, task: Task, batch_size: int, fabric: "Fabric"
) -> list[Choice]:
    """What the memory keeps of the new images' classes; the means of all classes go into the statistics."""
    images = new + memory.images(new.images)
    seen = view(method, images, batch_size, to_choose=True, fabric=fabric)
    if not bool(seen.features.isfinite().all()):
        raise EndocilError(
            f"the network's features are not finite after task {task.index}; lower train.learning_rate"
        )
    # images of a known class compete with its old exemplars
    candidates = torch.nonzero(torch.isin(images.labels, torch.tensor(new.classes()))).flatten()
    chosen = _choose(memory, images.take(candidates), seen.take(candidates), task, fabric)
    exemplars = memory.images(new.images)
    features = seen.features[_positions(images.rows, exemplars.rows)]
    method.statistics[CLASS_MEANS] = class_means(features, exemplars.labels, task.n_seen)
    return chosen


def _choose(
    memory: ExemplarMemory, candidates: ImageSet, seen: View, task: Task, fabric: "Fabric"
) -> list[Choice]:
    """Of several processes one chooses: a last digit must not make them differ."""

    def choose() -> tuple[list[Choice], dict[str, Tensor]]:
        return memory.add(candidates, seen.choosing, seen.scores, task.index), memory.state()

    chosen, state = by_one(fabric, choose)
    memory.load_state(state)
    return chosen


def _positions(rows: Tensor, wanted: Tensor) -> Tensor:
    """Where the wanted rows stand among the rows."""
    order = torch.argsort(rows, stable=True)
    return order[torch.searchsorted(rows[order], wanted)]
