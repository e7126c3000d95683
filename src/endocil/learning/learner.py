"""One step of learning: grow, train the phases, consolidate, choose exemplars, measure the class means."""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from torch import Tensor

from endocil.data.augment import Augmentation
from endocil.data.batches import ImageSet
from endocil.data.scenario import Task
from endocil.io.process import deferring, is_requested
from endocil.learning.checkpoint import Checkpoint, Position, grow, save_checkpoint
from endocil.learning.events import Journal
from endocil.learning.features import FeatureStore, features_of
from endocil.learning.first_task import FirstTasks, put_into
from endocil.learning.memory import ExemplarMemory, exemplars_of, update_memory
from endocil.learning.numerics import Bits, Precision, refuse_not_finite
from endocil.learning.optimizers import state_of
from endocil.learning.parallel import Processes, all_gather, broadcast, peak_megabytes, tensors_of_rank_zero
from endocil.learning.training import Epoch, fit
from endocil.methods.base import Method, Phase, TaskData
from endocil.networks import compile_backbones, sync_batch_norm


class Learner:
    """A method and its memory that learn task after task, leaving a checkpoint behind as they go."""

    def __init__(
        self,
        method: Method,
        memory: ExemplarMemory | None,
        *,
        folder: Path,
        fabric: Processes,
        journal: Journal,
        augmentation: Augmentation,
        seed: int,
        evaluation_batch: int = 256,
        checkpoint_seconds: float = 30.0,
        first_tasks: FirstTasks | None = None,
        features: FeatureStore | None = None,
        bits: Bits = "32",
        accumulate: int = 1,
        mixup: float = 0.0,
        compiled: bool = False,
        balanced: bool = False,
        recorded: Mapping[str, Any] | None = None,
        clock: Callable[[], float] = time.monotonic,
        stop: Callable[[], bool] = is_requested,
    ) -> None:
        """`balanced`: phases see every class equally often. `recorded`: the settings that it learns by, kept in every
        checkpoint. `stop`: whether the process is told to stop, which it does between two steps, with a checkpoint.

        `results`, kept in every checkpoint too: the files of the tasks that are done, with their digests."""
        self.method, self.memory, self.recorded = method, memory, recorded
        self.results: dict[str, str] = {}
        self.folder, self.fabric, self.journal = folder, fabric, journal
        self.augmentation, self.seed = augmentation, seed
        self.evaluation_batch, self.checkpoint_seconds = evaluation_batch, checkpoint_seconds
        self.first_tasks, self.bits, self.accumulate, self.compiled = first_tasks, bits, accumulate, compiled
        self.features, self.mixup, self.balanced = features, mixup, balanced
        self.clock, self.saved_at, self.stop = clock, clock(), stop

    def learn(
        self,
        task: Task,
        new: ImageSet,
        classes: Sequence[str],
        unfinished: Checkpoint | None = None,
        *,
        licence: str = "",
        consent: str = "",
    ) -> None:
        """Learn a task's new images, from its unfinished checkpoint if one is given.

        `classes`: the names of all classes seen once the task is learned. `licence` and `consent` are kept beside
        the images that become exemplars."""
        at = unfinished.position if unfinished else Position(task.index)
        if at.grown == task.index:
            grow(self.method, task, self.fabric.device)
        if self.fabric.world_size > 1:
            sync_batch_norm(self.method)
        if self.compiled:
            compile_backbones(self.method)
        exemplars = exemplars_of(self.memory, new)

        def features(images: ImageSet) -> Tensor:
            batch, store = self.evaluation_batch, self.features
            return features_of(self.method, images, batch, fabric=self.fabric, store=store)

        data = TaskData(new, exemplars, self.augmentation, features)
        if at.grown == task.index and type(self.method).prepare is not Method.prepare:
            self.method.prepare(task, data)
            broadcast(self.fabric, self.method.state_dict().values())
        phases = self.method.phases(task, data.balanced(self.seed) if self.balanced else data)
        if at == Position(task.index):
            self._announce(task, data, phases, classes)
        for index in range(at.phase, len(phases)):
            rest = unfinished if index == at.phase and (at.epoch or at.step) else None
            alone = self.fabric.world_size == 1  # several processes round otherwise
            if self.first_tasks is not None and alone and phases[index].first_task_name and task.index == 0:
                self._train_once(self.first_tasks, task, index, phases[index], rest)
            else:
                self._train(task, index, phases[index], rest)
        self.method.measurements.clear()
        self.method.consolidate(task, data)
        broadcast(self.fabric, self.method.state_dict().values())
        self.method.statistics |= tensors_of_rank_zero(self.fabric, self.method.statistics)
        values = {**self.method.state_dict(), **self.method.statistics}
        refuse_not_finite(values, f"after task {task.number} was consolidated")
        if self.memory is not None:
            choices = update_memory(
                self.method,
                self.memory,
                new,
                task,
                classes,
                batch_size=self.evaluation_batch,
                fabric=self.fabric,
                store=self.features,
                licence=licence,
                consent=consent,
            )
            for choice in choices:
                fields = {"class": classes[choice.label], "kept": choice.kept, "of": choice.of}
                self.journal.write("selection", task=task.index, **fields, mmd2=choice.mmd2, bound=choice.bound)
        parameters = {parameter for module in self.method.predictors for parameter in module.parameters()}
        self.journal.write(
            "learned",
            task=task.index,
            parameters=sum(parameter.numel() for parameter in parameters),
            peak_megabytes=peak_megabytes(self.fabric.device),
            measured=dict(self.method.measurements),
        )

    def save(
        self,
        position: Position,
        phase: Phase | None = None,
        epoch: Epoch | None = None,
        precision: Precision | None = None,
    ) -> None:
        if self.fabric.global_rank > 0:
            return
        save_checkpoint(
            self.folder,
            position,
            self.journal.lines,
            self.method,
            self.memory,
            optimizer=state_of(epoch.optimizer) if epoch else None,
            rule=phase.gradients if phase and epoch else None,
            precision=precision,
            log=epoch.log if epoch else None,
            settings=self.recorded,
            results=self.results,
        )
        self.saved_at = self.clock()

    def _announce(self, task: Task, data: TaskData, phases: tuple[Phase, ...], classes: Sequence[str]) -> None:
        plan = [
            {"name": phase.name, "epochs": phase.schedule.epochs, "images": phase.images_per_epoch} for phase in phases
        ]
        self.journal.write(
            "task",
            task=task.index,
            classes=list(classes[task.new]),
            new=len(data.new),
            exemplars=len(data.exemplars),
            phases=plan,
            notes=self.method.notes(task, data),
        )

    def _train_once(
        self, store: FirstTasks, task: Task, index: int, phase: Phase, unfinished: Checkpoint | None
    ) -> None:
        """Take the phase's network from the store, or train it and keep it there for others."""

        def log(text: str) -> None:
            self.journal.show({"event": "remarks", "remarks": [text]})

        same = {"seed": self.seed, "augmentation": self.augmentation}
        with store.of(self.method, phase, **same, log=log) as place:  # type: ignore[arg-type]
            found = place.take()
            if found is None:
                self._train(task, index, phase, unfinished)
                place.keep(self.method, self.journal.epochs(task.index, phase.name))
                return
        put_into(self.method, found.state)
        for record in found.epochs[unfinished.position.epoch if unfinished else 0 :]:
            self.journal.write(**{**record, "shared": True})
        self.save(Position(task.index, index + 1, 0))

    def _train(self, task: Task, index: int, phase: Phase, unfinished: Checkpoint | None) -> None:
        """With a checkpoint after some of the epochs; and at once where the process is told to stop."""
        start_epoch, start_step, state, log, precision = 0, 0, None, None, Precision(self.bits)
        if unfinished is not None:
            start_epoch, start_step = unfinished.position.epoch, unfinished.position.step
            state, log = unfinished.optimizer(), unfinished.part("log")
            phase.gradients.load_state_dict(unfinished.part("rule"))
            precision.load_state_dict(unfinished.part("precision") or precision.state_dict())
        phase.gradients.to(self.fabric.device)
        epochs = fit(
            phase,
            self.method,
            fabric=self.fabric,
            augmentation=self.augmentation,
            seed=self.seed,
            key=(task.index, index),
            logged_head=self.method.classifier,
            start_epoch=start_epoch,
            start_step=start_step,
            state=state,
            log_state=log,
            precision=precision,
            accumulate=self.accumulate,
            mixup=self.mixup,
            store=self.features,
            stop=self.stop,
        )
        with deferring(), closing(epochs):
            for epoch in epochs:
                if epoch.stopped_at:
                    self.save(Position(task.index, index, epoch.index, epoch.stopped_at), phase, epoch, precision)
                    raise KeyboardInterrupt
                where = {"task": task.index, "phase": phase.name, "epoch": epoch.index, "epochs": phase.schedule.epochs}
                self.journal.write("epoch", **where, **epoch.measured)
                stopping = any(all_gather(self.fabric, self.stop()))
                if stopping or self.clock() - self.saved_at >= self.checkpoint_seconds:
                    self.save(Position(task.index, index, epoch.index + 1), phase, epoch, precision)
                if stopping:
                    raise KeyboardInterrupt
        self.save(Position(task.index, index + 1, 0))
        if self.fabric.world_size == 1 and self.stop():
            raise KeyboardInterrupt
