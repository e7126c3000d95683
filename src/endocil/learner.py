"""One step of a life: grow, train the phases, consolidate, choose exemplars, measure the class means."""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from endocil.checkpoint import Checkpoint, Position, grow, save_checkpoint
from endocil.errors import EndocilError
from endocil.evaluation import CLASS_MEANS, class_means, view
from endocil.images.augment import Augmentation
from endocil.images.batch import ImageSet
from endocil.images.cache import Images
from endocil.journal import Journal
from endocil.memory import ExemplarMemory
from endocil.methods.method import Method, Phase, Task, TaskData
from endocil.training import Epoch, fit, momentum_of
from endocil.usage import peak_megabytes

if TYPE_CHECKING:
    from pathlib import Path

    from lightning_fabric import Fabric


class Learner:
    """A method and its memory that learn task after task, leaving a checkpoint behind as they go."""

    def __init__(
        self,
        method: Method,
        memory: ExemplarMemory | None,
        images: Images,
        *,
        folder: "Path",
        fabric: "Fabric",
        journal: Journal,
        augmentation: Augmentation,
        seed: int,
        evaluation_batch: int = 256,
        checkpoint_seconds: float = 30.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.method, self.memory, self.images = method, memory, images
        self.folder, self.fabric, self.journal = folder, fabric, journal
        self.augmentation, self.seed = augmentation, seed
        self.evaluation_batch, self.checkpoint_seconds = evaluation_batch, checkpoint_seconds
        self.clock, self.saved_at = clock, clock()

    def learn(self, task: Task, new: ImageSet, unfinished: Checkpoint | None = None) -> None:
        """Learn a task's new images; an unfinished checkpoint of this task says where to go on."""
        at = unfinished.position if unfinished else Position(task.index)
        if at.grown == task.index:
            grow(self.method, task, self.fabric.device)
        data = TaskData(new, self._exemplars(), self.augmentation)
        phases = self.method.phases(task, data)
        if at == Position(task.index):
            self._announce(task, data, phases)
        for index in range(at.phase, len(phases)):
            self._train(task, index, phases[index], unfinished if index == at.phase and at.epoch else None)
        self.method.consolidate(task, data)
        self._remember(task, new)
        parameters = {parameter for module in self.method.predictors for parameter in module.parameters()}
        self.journal.write(
            "learned",
            task=task.index,
            parameters=sum(parameter.numel() for parameter in parameters),
            peak_megabytes=peak_megabytes(self.fabric.device),
        )

    def save(self, position: Position, phase: Phase | None = None, epoch: Epoch | None = None) -> None:
        save_checkpoint(
            self.folder,
            position,
            self.journal.lines,
            self.method,
            self.memory,
            momentum=momentum_of(epoch.optimizer) if epoch else (),
            rule=phase.gradients if phase and epoch else None,
        )
        self.saved_at = self.clock()

    def _exemplars(self) -> ImageSet:
        if self.memory is None:
            return ImageSet.of(self.images, torch.empty(0, dtype=torch.int64), from_memory=True)
        return self.memory.images(self.images)

    def _announce(self, task: Task, data: TaskData, phases: tuple[Phase, ...]) -> None:
        plan = [
            {"name": phase.name, "epochs": phase.schedule.epochs, "images": len(phase.images)}
            for phase in phases
        ]
        self.journal.write(
            "task",
            task=task.index,
            classes=list(self.images.table.classes[task.new]),
            new=len(data.new),
            exemplars=len(data.exemplars),
            phases=plan,
            notes=self.method.notes(task, data),
        )

    def _train(self, task: Task, index: int, phase: Phase, unfinished: Checkpoint | None) -> None:
        start, momentum = 0, []
        if unfinished is not None:
            start, momentum = unfinished.position.epoch, unfinished.momentum()
            phase.gradients.load_state_dict(unfinished.part("rule"))
        phase.gradients.to(self.fabric.device)
        for epoch in fit(
            phase,
            self.method,
            fabric=self.fabric,
            augmentation=self.augmentation,
            seed=self.seed,
            key=(task.index, index),
            observe=self.method.classifier,
            start=start,
            momentum=momentum,
        ):
            where = {
                "task": task.index,
                "phase": phase.name,
                "epoch": epoch.index,
                "epochs": phase.schedule.epochs,
            }
            self.journal.write("epoch", **where, **epoch.measured)
            if self.clock() - self.saved_at >= self.checkpoint_seconds:
                self.save(Position(task.index, index, epoch.index + 1), phase, epoch)
        self.save(Position(task.index, index + 1, 0))

    def _remember(self, task: Task, new: ImageSet) -> None:
        """One pass over the new images and the exemplars serves the choice and the class means of all classes."""
        if self.memory is None:
            return
        images = new + self._exemplars()
        seen = view(self.method, images, self.evaluation_batch, to_choose=True)
        if not bool(seen.features.isfinite().all()):
            raise EndocilError(
                f"the network's features are not finite after task {task.index}; lower train.learning_rate"
            )
        # images of a known class compete with its old exemplars
        candidates = torch.nonzero(torch.isin(images.labels, torch.tensor(new.classes()))).flatten()
        chosen = self.memory.add(
            images.take(candidates), seen.choosing[candidates], seen.scores[candidates], task.index
        )
        for choice in chosen:
            name = self.images.table.classes[choice.label]
            what = {"task": task.index, "class": name, "kept": choice.kept, "of": choice.of}
            self.journal.write("selection", **what, mmd2=choice.mmd2, bound=choice.bound)
        exemplars = self._exemplars()
        features = seen.features[_positions(images.rows, exemplars.rows)]
        self.method.statistics[CLASS_MEANS] = class_means(features, exemplars.labels, task.n_seen)


def _positions(rows: Tensor, wanted: Tensor) -> Tensor:
    """Where the wanted rows stand among the rows."""
    order = torch.argsort(rows, stable=True)
    return order[torch.searchsorted(rows[order], wanted)]
