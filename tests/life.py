"""A short life on small pictures, for tests of methods, learner and resume."""

import itertools
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from endocil.data.augment import Augmentation
from endocil.data.batches import ImageSet
from endocil.data.cache import Images
from endocil.data.scenario import Scenario, Task, build_scenario
from endocil.learning.checkpoint import Checkpoint, Position, load_checkpoint, restore
from endocil.learning.events import Journal
from endocil.learning.learner import Learner
from endocil.learning.memory import ExemplarMemory, build_selector
from endocil.learning.parallel import OneProcess
from endocil.methods import METHODS, Method, build_method
from endocil.methods.base import TaskData, shared_schedule
from endocil.methods.frozen import FrozenMethod
from endocil.networks import build_backbone
from endocil.registry import trust

EPOCHS, QUOTA = 2, 4
POOLED = "small_networks:Pooled"  # a backbone that learns in no time, for tests of what surrounds it
SMALLER: dict[str, dict[str, Any]] = {  # options that keep a test's life short and its numbers small
    "derpp": {"alpha": 0.01},
    "multistage": {"random": 40},
    "multistage_fsa": {"random": 40},
    "podnet": {"proxies": 2, "balance_epochs": 2},
    "ranpac": {"projected": 40},
}


def new_method(
    name: str,
    *,
    seed: int = 0,
    epochs: int = EPOCHS,
    rate: float = 0.1,
    network: str = "resnet18",
    freeze: tuple[str, ...] = (),
    **options: Any,
) -> Any:  # a Method, whose attributes depend on which one it is
    trust([name, network])
    width = {"width": 8} if network == "resnet18" else {}
    backbone, _ = build_backbone(network, seed=seed, freeze=freeze, options=width)
    schedule = shared_schedule(epochs=epochs, milestones=(1,), batch_size=8, learning_rate=rate)
    return build_method(name, backbone, SMALLER.get(name, {}) | options, schedule=schedule, seed=seed)


class Life:
    """A learner in a folder, with its scenario; `step` learns one task and leaves a checkpoint."""

    def __init__(
        self,
        images: Images,
        folder: Path,
        method: Method,
        *,
        increments: tuple[int, ...] = (2, 1, 3),
        select: str | None = None,
        clock: Callable[[], float] = lambda: 0.0,
        total: int | None = None,
        stop: Callable[[], bool] = lambda: False,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.images, self.folder = images, folder
        self.method: Any = method  # its attributes depend on which method it is
        scenario = build_scenario(images.table, increments=increments)
        self.scenario: Scenario = scenario.joined() if method.joint else scenario
        chosen = build_selector(select or method.default_selector, {})
        budget: dict[str, Any] = {"total": total} if total else {"per_class": QUOTA}
        size = images.pixels.shape[1]
        self.memory: Any = ExemplarMemory(**budget, select=chosen, size=size) if method.replay else None
        self.fabric = OneProcess()
        self.journal = Journal(folder / "events.jsonl", lambda record: None)
        method.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.learner = Learner(
            method,
            self.memory,
            folder=folder,
            fabric=self.fabric,
            journal=self.journal,
            augmentation=Augmentation(),
            seed=method.seed,
            clock=clock,
            stop=stop,
        )

    def new_images(self, task: Task) -> ImageSet:
        return ImageSet.of(self.images, self.scenario.rows("train", task.new))

    def data(self, task: Task) -> TaskData:
        new = self.new_images(task)
        return TaskData(new, new.take(torch.arange(0)) if self.memory is None else self.memory.images())

    def kept_rows(self) -> dict[int, Tensor]:
        """The rows of the exemplars in the table of images, by class, first choice first."""
        assert self.memory is not None
        row_of = {name: row for row, name in enumerate(self.images.table.ids)}
        rows = torch.tensor([row_of[one.image] for one in self.memory.exemplars.provenance])
        return {label: rows[self.memory.labels == label] for label in self.memory.counts()}

    def step(self, task: Task) -> None:
        self.learner.learn(task, self.new_images(task), self.images.table.classes)
        self.learner.save(Position(task.index + 1))

    def live(self, tasks: int | None = None) -> "Life":
        for task in self.scenario.tasks[:tasks]:
            self.step(task)
        return self

    def take_up(self) -> Checkpoint:
        """What a new process finds in the folder."""
        checkpoint = load_checkpoint(self.folder)
        assert checkpoint is not None
        self.journal.cut_back(checkpoint.events)
        classes = self.images.table.classes
        restore(checkpoint, self.method, self.memory, self.scenario.tasks, classes, self.fabric.device)
        return checkpoint

    def go_on(self) -> "Life":
        """Resume from the folder's checkpoint, as a new process would, to the end."""
        checkpoint = self.take_up()
        at = checkpoint.position
        for task in self.scenario.tasks[at.task :]:
            unfinished = checkpoint if task.index == at.task and at != Position(at.task) else None
            self.learner.learn(task, self.new_images(task), self.images.table.classes, unfinished)
            self.learner.save(Position(task.index + 1))
        return self


class Lives:
    """The life of each method, trained once for all tests of a process, with a copy of its folder at every epoch that
    it told of, as a stop at that moment leaves it, and after every task."""

    def __init__(self, images: Images, folder: Path) -> None:
        self.images, self.folder = images, folder
        self._whole: dict[str, Life] = {}

    def whole(self, name: str) -> Life:
        """Read only."""
        if name not in self._whole:
            folder, numbers = self.folder / name, itertools.count(1)
            every_epoch = itertools.count(0, 100).__next__  # by this clock a checkpoint is due after each
            life = Life(self.images, folder / "whole", new_method(name), clock=every_epoch)

            def keep(record: dict[str, Any]) -> None:
                if record["event"] == "epoch":
                    shutil.copytree(life.folder, folder / f"epoch-{next(numbers)}")

            life.journal.show = keep
            for task in life.scenario.tasks:
                life.step(task)
                shutil.copytree(life.folder, folder / f"task-{task.index}")
            self._whole[name] = life
        return self._whole[name]

    def stops(self, name: str) -> list[Path]:
        """The folders of lives that were stopped at their first, second, ... epoch; read only."""
        self.whole(name)
        return sorted((self.folder / name).glob("epoch-*"), key=lambda path: int(path.name.split("-")[1]))

    def after(self, name: str, tasks: int, folder: Path) -> Life:
        """A life of the test's own that has learned so many tasks; in joint training at most the one there is."""
        tasks = min(tasks, len(self.whole(name).scenario.tasks))
        if tasks == 0:
            return Life(self.images, folder, new_method(name))
        life = Life(self.images, self.copied(name, tasks, folder), new_method(name))
        life.take_up()
        life.method.eval()  # as learning leaves it
        return life

    def copied(self, name: str, tasks: int, folder: Path) -> Path:
        """What lies in the folder of a life that has learned so many tasks."""
        self.whole(name)
        return Path(shutil.copytree(self.folder / name / f"task-{tasks - 1}", folder, dirs_exist_ok=True))


def state_of(method: Method) -> dict[str, Tensor]:
    state = {**method.state_dict(), **{f"statistics/{k}": v for k, v in method.statistics.items()}}
    return {name: value.detach().clone() for name, value in state.items()}


def differing(one: dict[str, Tensor], other: dict[str, Tensor]) -> list[str]:
    """Names whose bits differ, or that only one side has."""
    return [
        name
        for name in sorted({*one, *other})
        if name not in one or name not in other or not torch.equal(one[name], other[name])
    ]


ALL_METHODS = sorted(METHODS)
FIRST_TASK_ALONE = ["multistage_fsa"]  # trains in the first task, and never again
FROZEN = [  # they train nothing
    name for name in ALL_METHODS if issubclass(METHODS[name], FrozenMethod) and name not in FIRST_TASK_ALONE
]
TRAINED = [name for name in ALL_METHODS if name not in (*FROZEN, *FIRST_TASK_ALONE)]
