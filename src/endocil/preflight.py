"""Before hours are spent: what a run will do, what it will cost, and what cannot work, with the way out."""

import copy
import time
from collections import Counter
from dataclasses import dataclass

import torch

from endocil.assembly import Parts
from endocil.errors import EndocilError
from endocil.images.batch import ImageSet, training_batches
from endocil.methods.method import Method, Phase, TaskData
from endocil.scenario import TEST, TRAIN, Task
from endocil.training import only_training
from endocil.usage import peak_megabytes


@dataclass(frozen=True)
class Preflight:
    facts: tuple[str, ...]
    remarks: tuple[str, ...]  # worth knowing, not in the way
    problems: tuple[str, ...]  # the run cannot work

    def refuse_problems(self) -> None:
        if self.problems:
            raise EndocilError("; ".join(self.problems))


def preflight(parts: Parts) -> Preflight:
    """The checks that cost nothing; `estimate` adds time and memory by trying a few steps."""
    facts = (
        _images_fact(parts),
        *(_task_fact(parts, task) for task in parts.scenario.tasks),
        _memory_fact(parts),
    )
    remarks = (*parts.notes, *_small_classes(parts), *_no_test_images(parts))
    return Preflight(facts, remarks, tuple(_problems(parts)))


def _images_fact(parts: Parts) -> str:
    table, scenario = parts.images.table, parts.scenario
    megabytes = parts.images.pixels[0].numel() * len(table) / 1e6
    return (
        f"{len(table):,} images in {len(table.classes)} classes: {scenario.counts(TRAIN).sum():,} to train, "
        f"{scenario.counts(TEST).sum():,} to test; {megabytes:,.0f} MB at {parts.settings.data.size} px"
    )


def _task_fact(parts: Parts, task: Task) -> str:
    train, test = (parts.scenario.counts(part) for part in (TRAIN, TEST))
    classes = ", ".join(
        f"{name} {train[label]}+{test[label]}"
        for label, name in enumerate(parts.images.table.classes)
        if task.n_old <= label < task.n_seen
    )
    return f"task {task.index}: {classes} (train+test)"


def _memory_fact(parts: Parts) -> str:
    if parts.memory is None:
        return f"method {parts.settings.method.name}: keeps no exemplars"
    kept = exemplars_after(parts, len(parts.scenario.tasks))
    megabytes = kept * parts.images.pixels[0].numel() / 1e6
    how = parts.settings.memory.select
    return f"method {parts.settings.method.name}: {kept:,} exemplars at the end, chosen by {how} ({megabytes:,.1f} MB)"


def exemplars_after(parts: Parts, n_tasks: int) -> int:
    """How many exemplars the memory holds once these tasks are learned."""
    if parts.memory is None or n_tasks == 0:
        return 0
    n_seen = parts.scenario.tasks[n_tasks - 1].n_seen
    quota = parts.memory.quota(n_seen)
    return int(parts.scenario.counts(TRAIN)[:n_seen].clip(max=quota).sum())


def _small_classes(parts: Parts) -> list[str]:
    if parts.memory is None:
        return []
    quota = parts.memory.quota(len(parts.images.table.classes))
    counts = zip(parts.images.table.classes, parts.scenario.counts(TRAIN), strict=True)
    small = [f"{name} ({count})" for name, count in counts if count < quota]
    return (
        [f"smaller than the {quota} exemplars a class may keep, so all are kept: {', '.join(small)}"]
        if small
        else []
    )


def _no_test_images(parts: Parts) -> list[str]:
    counts = zip(parts.images.table.classes, parts.scenario.counts(TEST), strict=True)
    return [f"class {name} has no test image" for name, count in counts if count == 0]


def _problems(parts: Parts) -> list[str]:
    first = parts.scenario.tasks[0]
    found = []
    if first.n_new == 1:
        found.append(
            "the first task has one class, and one class alone cannot be learned; "
            "give it at least two by scenario.increments or fewer scenario.tasks"
        )
    train = parts.settings.train
    for task in parts.scenario.tasks:
        if int(parts.scenario.counts(TRAIN)[task.new].sum()) < 2:
            found.append(
                f"task {task.index} has a single training image, and batch norm needs two; raise scenario.minimum"
            )
    if train.milestones and min(train.milestones) >= train.epochs:
        found.append(
            f"train.milestones {list(train.milestones)} all lie at or beyond the "
            f"{train.epochs} epochs: the learning rate would never fall; set train.milestones"
        )
    return found


def estimate(parts: Parts, seconds: float = 2.0) -> tuple[str, ...]:
    """Time and memory, measured on a few real steps of a copy of the method in the middle of its tasks."""
    torch.set_num_threads(parts.settings.run.threads or torch.get_num_threads())
    method, trained = trial(parts)
    speeds = {phase.name: speed(parts, method, phase, seconds) for phase in trained}
    passes = _planned(parts)
    # a phase that the middle task does not have (the first task's) goes at the speed of its first phase
    default = next(iter(speeds.values()))
    minutes = sum(images / speeds.get(name, default) for name, images in passes.items()) / 60
    total = sum(passes.values())
    parameters = sum(p.numel() for p in parts.method.backbone.parameters())
    return (
        f"about {minutes:,.1f} minutes of training at {total / minutes / 60:,.0f} images/s "
        f"({total:,} image passes, {parts.settings.run.threads} threads)",
        f"about {peak_megabytes(parts.method.device):,.0f} MB of memory; backbone of {parameters:,} parameters",
    )


def trial(parts: Parts) -> tuple[Method, tuple[Phase, ...]]:
    """A copy of the method, grown to the middle of its tasks, and what it would train there."""
    tasks = parts.scenario.tasks
    middle = tasks[min(max(1, len(tasks) // 2), len(tasks) - 1)]
    method = copy.deepcopy(parts.method)
    for task in tasks[: middle.index + 1]:
        method.grow(task)
    method.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return method, method.phases(middle, _data(parts, middle))


def _data(parts: Parts, task: Task) -> TaskData:
    """The task's new images and, of each old class, as many images as the memory will hold."""
    quota = parts.memory.quota(task.n_old) if parts.memory is not None and task.n_old else 0
    old = [parts.scenario.rows(TRAIN, slice(label, label + 1))[:quota] for label in range(task.n_old)]
    stand_ins = torch.cat([torch.empty(0, dtype=torch.int64), *old])
    new = ImageSet.of(parts.images, parts.scenario.rows(TRAIN, task.new))
    return TaskData(new, ImageSet.of(parts.images, stand_ins, from_memory=True), parts.augmentation)


def speed(parts: Parts, method: Method, phase: Phase, seconds: float) -> float:
    """Images per second of a phase."""
    cut = training_batches(
        phase.images, phase.schedule.batch_size, parts.augmentation, 0, ("estimate",), parts.method.device
    )
    batches = [batch for _, batch in zip(range(4), cut, strict=False)]
    images, began = 0, time.perf_counter()
    with only_training(method, phase.train):
        for turn in range(20):
            batch = batches[turn % len(batches)]
            outcome = phase.objective(batch)
            torch.stack([loss.mean() for loss in outcome.losses.values()]).sum().backward()  # type: ignore[no-untyped-call]
            if turn == 0:  # the first step warms up
                images, began = 0, time.perf_counter()
                continue
            images += len(batch)
            if time.perf_counter() - began > seconds:
                break
    return images / (time.perf_counter() - began)


def planned_images(parts: Parts) -> int:
    """Image passes of the whole run: the images of each phase of each task, once an epoch."""
    return sum(_planned(parts).values())


def _planned(parts: Parts) -> Counter[str]:
    """Image passes by the name of the phase, as a copy of the method that only grows plans them."""
    method, passes = copy.deepcopy(parts.method), Counter[str]()
    for task in parts.scenario.tasks:
        method.grow(task)
        for phase in method.phases(task, _data(parts, task)):
            passes[phase.name] += phase.schedule.epochs * len(phase.images)
    return passes
