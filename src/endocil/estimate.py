"""What a run will cost: its passes over images from the method's own phases, its speed from a few real steps."""

import copy
import time
from collections import Counter
from collections.abc import Iterator, Mapping

import torch

from endocil.assembly import Parts
from endocil.devices import one_device, telling_compiler_errors
from endocil.first_task import refuse_more_than_the_network
from endocil.images.batch import ImageSet, training_batches
from endocil.methods.method import Method, Phase, TaskData
from endocil.networks import compile_backbones
from endocil.precision import Precision
from endocil.scenario import TRAIN, Task
from endocil.training import compare_with_float32, only_training, optimizer_of, step
from endocil.usage import peak_megabytes


def estimate(parts: Parts, seconds: float = 2.0) -> tuple[str, ...]:
    """Time and memory, measured on a few real steps of a copy of the method in the middle of its tasks."""
    torch.set_num_threads(parts.settings.run.threads or torch.get_num_threads())
    with telling_compiler_errors():
        method, trained = trial(parts)
        speeds = {phase.name: speed(parts, method, phase, seconds) for phase in trained}
    parameters = sum(p.numel() for p in parts.method.backbone.parameters())
    return (
        _time(parts, speeds),
        f"about {peak_megabytes(method.device):,.0f} MB of memory; backbone of {parameters:,} parameters",
    )


def _time(parts: Parts, speeds: Mapping[str, float]) -> str:
    passes = _planned(parts)
    total = sum(passes.values())
    if not total:
        return "nothing to train: the method has no phases"
    # a phase that the task of the trial does not have goes at the speed of its first phase
    default = next(iter(speeds.values()))
    minutes = sum(images / speeds.get(name, default) for name, images in passes.items()) / 60
    return (
        f"about {minutes:,.1f} minutes of training at {total / minutes / 60:,.0f} images/s "
        f"({total:,} image passes, {parts.settings.run.threads} threads)"
    )


def trial(parts: Parts) -> tuple[Method, tuple[Phase, ...]]:
    """A copy of the method on the run's device, grown to the middle of its tasks, and what it would train there; if
    that is nothing, the first task that trains."""
    tasks = parts.scenario.tasks
    middle = tasks[min(max(1, len(tasks) // 2), len(tasks) - 1)]
    device = one_device(parts.settings.run.accelerator).device
    for task in (middle, *tasks):
        method = grown(parts, task)
        method.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        if parts.settings.train.compile:
            compile_backbones(method)
        if phases := method.phases(task, _data(parts, task)):
            break
    return method, phases


def grown(parts: Parts, task: Task) -> Method:
    """A copy of the method that has made room for the tasks up to this one."""
    method = copy.deepcopy(parts.method)
    for earlier in parts.scenario.tasks[: task.index + 1]:
        method.grow(earlier)
    return method


def _data(parts: Parts, task: Task) -> TaskData:
    """The task's new images and, of each old class, as many images as the memory will hold."""
    kept = planned_exemplars(parts, task.index)
    old = [parts.scenario.rows(TRAIN, slice(label, label + 1))[:n] for label, n in enumerate(kept)]
    stand_ins = torch.cat([torch.empty(0, dtype=torch.int64), *old])
    new = ImageSet.of(parts.images, parts.scenario.rows(TRAIN, task.new))
    return TaskData(new, ImageSet.of(parts.images, stand_ins, from_memory=True), parts.augmentation)


def planned_exemplars(parts: Parts, n_tasks: int) -> list[int]:
    """How many exemplars of each class the memory holds once the first tasks are learned."""
    if parts.memory is None:
        return []
    new = [task.new for task in parts.scenario.tasks[:n_tasks]]
    return parts.memory.planned(parts.scenario.counts(TRAIN).tolist(), new)


def speed(parts: Parts, method: Method, phase: Phase, seconds: float) -> float:
    """Images per second of a phase, from a few real steps."""
    seen = parts.augmentation if phase.augmented else None
    size, device = phase.schedule.batch_size, method.device
    cut = training_batches(phase.images, size, seen, 0, ("estimate",), device)
    batches = [batch for _, batch in zip(range(4), cut, strict=False)]
    images, began = 0, time.perf_counter()
    fabric, train = one_device(device.type), parts.settings.train
    precision = Precision(train.precision)
    phase.gradients.to(device)
    with only_training(method, (*phase.train, phase.gradients)):
        compare_with_float32(phase, method, 0, ("estimate",), fabric, precision, train.accumulate)
        optimizer = optimizer_of(phase)
        for turn in range(20):
            batch = batches[turn % len(batches)]
            step(phase, batch, optimizer, fabric, precision, train.accumulate)
            if turn == 0:  # the first step warms up
                _wait_for(method)
                images, began = 0, time.perf_counter()
                continue
            images += len(batch)
            if time.perf_counter() - began > seconds:
                break
        _wait_for(method)
    return images / (time.perf_counter() - began)


def _wait_for(method: Method) -> None:
    """Until the device has done all that was asked of it: reading a number waits."""
    float(method.classifier.weight.detach().flatten()[0])


def planned_images(parts: Parts) -> int:
    """Image passes of the whole run: the images of each phase of each task, once an epoch."""
    return sum(_planned(parts).values())


def _planned(parts: Parts) -> Counter[str]:
    """Image passes by the name of the phase."""
    passes = Counter[str]()
    for _, phases in plan(parts):
        for phase in phases:
            passes[phase.name] += phase.schedule.epochs * len(phase.images)
    return passes


def plan(parts: Parts) -> Iterator[tuple[Task, tuple[Phase, ...]]]:
    """What each task would train, asked of a copy of the method that grows and never learns."""
    method = copy.deepcopy(parts.method)
    for task in parts.scenario.tasks:
        method.grow(task)
        phases = method.phases(task, _data(parts, task))
        if task.index == 0 and parts.settings.run.first_tasks is not None:
            for phase in phases:
                refuse_more_than_the_network(method, phase)
        yield task, phases
