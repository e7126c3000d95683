"""What a run will cost: its passes over images from the method's own phases, its speed from a few real steps."""

import copy
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from endocil.data.batches import ImageSet, training_batches
from endocil.data.scenario import Task
from endocil.data.splits import TEST, TRAIN, VALIDATION
from endocil.errors import EndocilError
from endocil.learning.build import build_augmentation
from endocil.learning.first_task import refuse_more_than_the_network
from endocil.learning.numerics import Precision, times_slower
from endocil.learning.parallel import one_device, peak_megabytes, telling_compiler_errors
from endocil.learning.training import compare_with_float32, only_training, optimizer_of, step
from endocil.methods.base import Method, Phase, TaskData
from endocil.networks import compile_backbones
from endocil.runs.build import Parts, Progress, assemble
from endocil.runs.tensorboard import refuse_missing_package
from endocil.settings.settings import Settings


def estimate(parts: Parts, seconds: float = 2.0) -> tuple[str, ...]:
    """Time and memory, measured on a few real steps of a copy of the method in the middle of its tasks."""
    torch.set_num_threads(parts.settings.run.threads or torch.get_num_threads())
    with telling_compiler_errors():
        method, trained = trial(parts)
        speeds = {phase.name: speed(parts.settings, method, phase, seconds) for phase in trained}
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


def speed(settings: Settings, method: Method, phase: Phase, seconds: float) -> float:
    """Images per second of a phase, from a few real steps."""
    seen = build_augmentation(settings.train) if phase.augmented else None
    size, device = phase.schedule.batch_size, method.device
    cut = training_batches(phase.images, size, seen, 0, ("estimate",), device)
    batches = [batch for _, batch in zip(range(4), cut, strict=False)]
    images, began = 0, time.perf_counter()
    fabric, train = one_device(device.type), settings.train
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


# Before hours are spent: what a run will do, what it will cost, and what cannot work, with the way out.

Plan = Sequence[tuple[Task, tuple[Phase, ...]]]  # what each task would train
PURPOSES = {TRAIN: "train", VALIDATION: "validate", TEST: "test"}


@dataclass(frozen=True)
class Preflight:
    facts: tuple[str, ...]
    remarks: tuple[str, ...]  # worth knowing, not in the way
    problems: tuple[str, ...]  # the run cannot work

    def refuse_problems(self) -> None:
        if self.problems:
            raise EndocilError("; ".join(self.problems))


def examined(settings: Settings, progress: Progress | None = None) -> tuple[Parts, Preflight]:
    """All that is asked of settings before a run begins: `endocil run` and `endocil check` both start here, and a sweep
    asks the same of its runs (sweep/checking.py)."""
    refuse_what_is_not_here(settings)
    parts = assemble(settings, progress)
    return parts, preflight(parts)


def refuse_what_is_not_here(settings: Settings) -> None:
    """What the settings want of this machine: known before an image is read."""
    one_device(settings.run.accelerator)
    if settings.run.tensorboard:
        refuse_missing_package()
    if settings.run.first_tasks is not None:
        _refuse_no_folder(Path(settings.run.first_tasks).expanduser())


def _refuse_no_folder(path: Path) -> None:
    there = next(one for one in (path, *path.absolute().parents) if one.exists())
    if not there.is_dir():
        raise EndocilError(f"run.first_tasks is {path}, but {there} is a file; choose a folder, new or not")


def preflight(parts: Parts) -> Preflight:
    """The checks that cost nothing; `estimate` adds time and memory by trying a few steps."""
    planned = [*plan(parts)]
    facts = (
        _images_fact(parts),
        *(_task_fact(parts, task) for task in parts.scenario.tasks),
        _memory_fact(parts),
        *_schedule_facts(parts, planned),
    )
    remarks = (*parts.notes, *_small_classes(parts), *_nothing_to_evaluate(parts), *_slow(parts))
    return Preflight(facts, remarks, tuple(problems(parts, planned)))


def _images_fact(parts: Parts) -> str:
    table, scenario = parts.images.table, parts.scenario
    megabytes = parts.images.pixels[0].numel() * len(table) / 1e6
    parted = [(int(scenario.counts(part).sum()), what) for part, what in PURPOSES.items()]
    told = ", ".join(f"{n:,} to {what}" for n, what in parted if n or what != "validate")
    return (
        f"{len(table):,} images in {len(table.classes)} classes: {told}; "
        f"{megabytes:,.0f} MB at {parts.settings.data.size} px"
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
    kept = sum(planned_exemplars(parts, len(parts.scenario.tasks)))
    megabytes = kept * parts.images.pixels[0].numel() / 1e6
    how = parts.settings.memory.select
    return f"method {parts.settings.method.name}: {kept:,} exemplars at the end, chosen by {how} ({megabytes:,.1f} MB)"


def _schedule_facts(parts: Parts, planned: Plan) -> list[str]:
    """What is trained for how long, in the first task and in the later ones."""
    facts = [f"task {task.index} trains: {trained(phases)}" for task, phases in planned[:2]]
    if parts.settings.method.options.get("native_schedule"):
        facts.append("the method's own schedule: epochs, rates and batch size of [train] play no part")
    return facts


def trained(phases: Sequence[Phase]) -> str:
    """The phases of a task in words."""
    if not phases:
        return "nothing, as the method has no phase here"
    told = ", ".join(f"{phase.name} {phase.schedule.epochs} epochs" for phase in phases)
    return f"{told}; batches of {max(phase.schedule.batch_size for phase in phases)}"


def _small_classes(parts: Parts) -> list[str]:
    if parts.memory is None:
        return []
    train = parts.scenario.counts(TRAIN).tolist()
    quota = parts.memory.quota(train)
    counts = zip(parts.images.table.classes, train, strict=True)
    small = [f"{name} ({count})" for name, count in counts if count < quota]
    return (
        [f"smaller than the {quota} exemplars a class may keep, so all are kept: {', '.join(small)}"]
        if small
        else []
    )


def _slow(parts: Parts) -> list[str]:
    told = ["train.compile: the first steps of every task take longer, up to minutes"]
    return [*(told if parts.settings.train.compile else ()), *_slow_numbers(parts)]


def _slow_numbers(parts: Parts) -> list[str]:
    bits = parts.settings.train.precision
    if bits == "32":
        return []
    device = one_device(parts.settings.run.accelerator).device
    slower = times_slower(bits, device)
    if slower <= 1.0:
        return []
    return [
        f"train.precision '{bits}' takes {slower:.1f} times as long as '32' in a convolution on this {device.type}; "
        f"leave it out to be faster"
    ]


def _nothing_to_evaluate(parts: Parts) -> list[str]:
    part = parts.settings.run.evaluate
    counts = zip(parts.images.table.classes, parts.scenario.counts(part), strict=True)
    return [f"class {name} has no {part} image" for name, count in counts if count == 0]


def problems(parts: Parts, planned: Plan) -> list[str]:
    first = parts.scenario.tasks[0]
    found = schedule_problems(phase for _, phases in planned for phase in phases)
    if first.n_new == 1:
        found.append(
            "the first task has one class, and one class alone cannot be learned; "
            "give it at least two by scenario.increments or fewer scenario.tasks"
        )
    train = parts.scenario.counts(TRAIN)
    empty = [name for name, count in zip(parts.images.table.classes, train, strict=True) if count == 0]
    if empty:
        found.append(
            f"no training image of {', '.join(empty)}; change the split, or list them in scenario.leave_out"
        )
    for task in parts.scenario.tasks:
        if int(train[task.new].sum()) == 1:
            found.append(
                f"task {task.index} has a single training image, and batch norm needs two; raise scenario.minimum"
            )
    part = parts.settings.run.evaluate
    if not int(parts.scenario.counts(part)[first.seen].sum()):
        way_out = "scenario.validation" if part == VALIDATION else "scenario.split_by, groups or folds"
        found.append(
            f"no {part} image of the first task's classes, so nothing can be measured; change {way_out}"
        )
    return found


def schedule_problems(phases: Iterable[Phase]) -> list[str]:
    """Milestones in whole epochs that a phase never reaches; shares follow its length."""
    found = {}
    for chosen in (phase.schedule for phase in phases):
        whole = [one for one in chosen.milestones if isinstance(one, int)]
        if not chosen.cosine and whole and min(whole) >= chosen.epochs:
            found[chosen.epochs] = (
                f"train.milestones {whole} all lie at or beyond the {chosen.epochs} epochs: the learning rate would "
                f"never fall; give shares of the epochs, such as train.milestones=[0.5,0.7], or earlier epochs"
            )
    return [*found.values()]
