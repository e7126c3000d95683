"""A short life on small pictures, for tests of methods, learner and resume."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from lightning_fabric import Fabric
from torch import Tensor

from endocil.checkpoint import Position, load_checkpoint, restore
from endocil.images.augment import Augmentation
from endocil.images.batch import ImageSet
from endocil.images.cache import Images
from endocil.journal import Journal
from endocil.learner import Learner
from endocil.memory import ExemplarMemory, build_selector
from endocil.methods import METHODS, Method, build_method
from endocil.methods.method import Task, TaskData, shared_schedule
from endocil.networks import build_backbone
from endocil.scenario import Scenario, build_scenario

EPOCHS, QUOTA = 2, 4


def new_method(
    name: str, *, seed: int = 0, epochs: int = EPOCHS, freeze: tuple[str, ...] = (), **options: Any
) -> Method:
    backbone, _ = build_backbone("resnet18", seed=seed, freeze=freeze, options={"width": 8})
    schedule = shared_schedule(epochs=epochs, milestones=(1,), batch_size=8)
    return build_method(name, backbone, options, schedule=schedule, seed=seed)


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
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.images, self.folder, self.method = images, folder, method
        scenario = build_scenario(images.table, increments=increments)
        self.scenario: Scenario = scenario.joined() if method.joint else scenario
        chosen = build_selector(select or method.selects, {})
        budget = {"total": total} if total else {"per_class": QUOTA}
        self.memory = ExemplarMemory(**budget, select=chosen) if method.replay else None
        self.fabric = Fabric(accelerator="cpu", devices=1)
        self.journal = Journal(folder / "events.jsonl", lambda record: None)
        method.to(memory_format=torch.channels_last)
        self.learner = Learner(
            method,
            self.memory,
            images,
            folder=folder,
            fabric=self.fabric,
            journal=self.journal,
            augmentation=Augmentation(),
            seed=method.seed,
            clock=clock,
        )

    def new_images(self, task: Task) -> ImageSet:
        return ImageSet.of(self.images, self.scenario.rows("train", task.new))

    def data(self, task: Task) -> TaskData:
        return TaskData(self.new_images(task), self.learner._exemplars())

    def step(self, task: Task) -> None:
        self.learner.learn(task, self.new_images(task))
        self.learner.save(Position(task.index + 1))

    def live(self, tasks: int | None = None) -> "Life":
        for task in self.scenario.tasks[:tasks]:
            self.step(task)
        return self

    def go_on(self) -> "Life":
        """Resume from the folder's checkpoint, as a new process would, to the end."""
        checkpoint = load_checkpoint(self.folder)
        assert checkpoint is not None
        self.journal.cut_back(checkpoint.events)
        restore(checkpoint, self.method, self.memory, self.scenario.tasks, self.fabric.device)
        at = checkpoint.position
        for task in self.scenario.tasks[at.task :]:
            unfinished = checkpoint if task.index == at.task and at != Position(at.task) else None
            self.learner.learn(task, self.new_images(task), unfinished)
            self.learner.save(Position(task.index + 1))
        return self


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
