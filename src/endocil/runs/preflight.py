"""Checks before a run: what a run will do, what it will cost, and what cannot work, with the way out.

The cost comes from the method's own phases (how many passes over images) and from a few real steps (how fast)."""

import copy
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from endocil.data.batches import ImageSet
from endocil.data.cache import Progress
from endocil.data.scenario import Task
from endocil.data.splits import TEST, TRAIN, VALIDATION
from endocil.data.table import spelling
from endocil.errors import DataError, SettingsError
from endocil.io.terminal import duration
from endocil.learning.build import build_augmentation
from endocil.learning.first_task import refuse_more_than_the_network
from endocil.learning.numerics import Precision, times_slower
from endocil.learning.optimizers import optimizer_of
from endocil.learning.parallel import explaining_compiler_errors, one_device, peak_megabytes
from endocil.learning.training import batches_of, compare_with_float32, only_training, refuse_unfit, step
from endocil.methods import METHODS, method_title
from endocil.methods.base import Method, Phase, TaskData
from endocil.model.new_images import refuse_unfit_names
from endocil.networks import compile_backbones
from endocil.runs.parts import RunParts, assemble
from endocil.runs.trackers import refuse_missing_package
from endocil.settings.settings import Settings

Plan = Sequence[tuple[Task, tuple[Phase, ...]]]  # the phases that each task will train


@dataclass(frozen=True)
class Preflight:
    facts: tuple[str, ...]
    remarks: tuple[str, ...]  # worth knowing, but no obstacle
    problems: tuple[str, ...]  # the run cannot work

    def refuse_problems(self) -> None:
        if self.problems:
            raise SettingsError("; ".join(self.problems))


def check_run(settings: Settings, progress: Progress | None = None) -> tuple[RunParts, Preflight]:
    """Everything that is checked before a run begins: `endocil run` and `endocil check` both start here, and a sweep
    checks the same for its runs (sweep/runner.py)."""
    refuse_missing_resources(settings)
    parts = assemble(settings.trusted(), progress)
    return parts, preflight(parts)


def refuse_missing_resources(settings: Settings) -> None:
    """The device, package and folder that the settings ask for: checked before an image is read."""
    one_device(settings.run.accelerator)
    if settings.run.tensorboard:
        refuse_missing_package("tensorboard")
    if settings.run.wandb:
        refuse_missing_package("wandb")
    if settings.run.first_tasks is not None:
        path = Path(settings.run.first_tasks).expanduser()
        existing = next(one for one in (path, *path.absolute().parents) if one.exists())
        if not existing.is_dir():
            raise SettingsError(f"run.first_tasks is {path}, but {existing} is a file; choose a folder, new or not")


def preflight(parts: RunParts) -> Preflight:
    """The checks that cost nothing; `estimate` adds time and memory by trying a few steps."""
    planned, problems = plan_and_problems(parts)
    return Preflight(tuple(_facts(parts, planned)), tuple(_remarks(parts)), tuple(problems))


def plan_and_problems(parts: RunParts) -> tuple[Plan, list[str]]:
    """What each task will train, and what cannot work."""
    unable = [*parts.method.problems(len(parts.images.table.classes)), *_known_classes_alone(parts)]
    planned = [] if unable else [*plan(parts)]  # the plan grows the method, which may be too large for the memory
    return planned, [*unable, *_problems(parts, planned)]


def _facts(parts: RunParts, planned: Plan) -> Iterator[str]:
    settings, table, scenario = parts.settings, parts.images.table, parts.scenario
    pixels = parts.images.pixels[0].numel()  # bytes of one image
    train, validation, test = (scenario.counts(part) for part in (TRAIN, VALIDATION, TEST))
    validating = f"{validation.sum():,} to validate, " if validation.sum() else ""
    yield (
        f"{len(table):,} images in {len(table.classes)} classes: {train.sum():,} to train, {validating}"
        f"{test.sum():,} to test; {pixels * len(table) / 1e6:,.0f} MB at {settings.data.size} px"
    )
    for task, coming in zip(scenario.tasks, scenario.arriving_counts(TRAIN), strict=True):
        labels = range(task.n_old, task.n_seen)
        classes = ", ".join(f"{table.classes[label]} {coming[label]}+{test[label]}" for label in labels)
        back = ", ".join(f"{table.classes[label]} {coming[label]}" for label in range(task.n_old) if coming[label])
        again = f"{'; ' * bool(labels)}again to train: {back}" if back else ""
        yield f"task {task.number}: {classes}{' (train+test)' if labels else ''}{again}"
    title = method_title(settings.method.name)
    if parts.memory is None:
        yield f"{title}: keeps no exemplars"
    else:
        kept = sum(planned_exemplars(parts, len(scenario.tasks)))
        yield (
            f"{title}: {kept:,} exemplars at the end, chosen by {settings.memory.select} "
            f"({kept * pixels / 1e6:,.1f} MB)"
        )
    described = [describe_phases(phases) for _, phases in planned]
    alike = len(described) > 2 and len(set(described[1:])) == 1
    for index, phases in enumerate(described[:2] if alike else described):
        yield f"{'later tasks' if alike and index else f'task {index + 1}'}: {phases}"
    if settings.method.options.get("native_schedule"):
        yield "the method's own schedule: epochs, rates and batch size of [train] are not used"


def describe_phases(phases: Sequence[Phase]) -> str:
    """The phases of a task in words."""
    if not phases:
        return "nothing is trained"
    return "; ".join(
        f"phase '{phase.name}', {phase.schedule.epochs} epoch{'s' * (phase.schedule.epochs != 1)}, "
        f"batches of {phase.schedule.batch_size}"
        for phase in phases
    )


def _remarks(parts: RunParts) -> Iterator[str]:
    settings, classes = parts.settings, parts.images.table.classes
    yield from parts.notes
    alike: dict[str, list[str]] = {}
    for name in classes:
        alike.setdefault(spelling(name), []).append(name)
    for names in alike.values():
        if len(names) > 1:
            yield f"classes that differ in spelling alone: {', '.join(names)}; if they are one class, give it one name"
    if parts.memory is not None:
        train = parts.scenario.counts(TRAIN).tolist()
        quota = parts.memory.quota(train)
        small = [f"{name} ({count})" for name, count in zip(classes, train, strict=True) if count < quota]
        if small:
            yield f"smaller than the {quota} exemplars a class may keep, so all are kept: {', '.join(small)}"
    part = settings.run.evaluate
    for name, count in zip(classes, parts.scenario.counts(part), strict=True):
        if count == 0:
            yield f"class {name} has no {part} image"
    if settings.train.compile:
        yield "train.compile: the first steps of every task take longer, up to minutes"
    bits = settings.train.precision
    if bits != "32":
        device = one_device(settings.run.accelerator).device
        slower = times_slower(bits, device)
        if slower > 1.0:
            yield (
                f"train.precision '{bits}' takes {slower:.1f} times as long as '32' in a convolution on this "
                f"{device.type}; leave it out to be faster"
            )


def _known_classes_alone(parts: RunParts) -> list[str]:
    """Tasks that bring no new class, where the method cannot learn them."""
    tasks = [str(task.number) for task in parts.scenario.tasks if not task.n_new]
    if not tasks or parts.method.learns_known_classes:
        return []
    title = method_title(parts.settings.method.name)
    able = ", ".join(sorted(method_title(name) for name, method in METHODS.items() if method.learns_known_classes))
    return [
        f"task {', '.join(tasks)} brings images of known classes alone, and {title} says that it "
        f"needs a new class in each task (learns_known_classes); methods that need none: {able}"
    ]


def _problems(parts: RunParts, planned: Plan) -> list[str]:
    first = parts.scenario.tasks[0]
    trained = [phase for _, phases in planned for phase in phases]
    reasons = [*schedule_problems(trained), *_unfit(trained, parts.settings)]
    if first.n_new == 1:
        reasons.append(
            "the first task has one class, and a single class cannot be learned; "
            "give it at least two by scenario.increments or fewer scenario.tasks"
        )
    try:
        refuse_unfit_names(parts.images.table)  # else the model could not be saved at the end
    except DataError as error:
        reasons.append(str(error))
    train = parts.scenario.counts(TRAIN)
    empty = [name for name, count in zip(parts.images.table.classes, train, strict=True) if count == 0]
    if empty:
        reasons.append(f"no training image of {', '.join(empty)}; change the split, or list them in scenario.leave_out")
    arriving = parts.scenario.arriving_counts(TRAIN)
    for task, coming in zip(parts.scenario.tasks, arriving, strict=True):
        if sum(coming) == 1:
            reasons.append(
                f"task {task.number} has a single training image, and batch norm needs two; raise scenario.minimum"
            )
        late = [parts.images.table.classes[label] for label in range(task.n_old, task.n_seen) if not coming[label]]
        if late := [name for name in late if name not in empty]:
            reasons.append(
                f"task {task.number} brings {', '.join(late)}, but all its images of them are in the test part; "
                f"change the split, or the task of some images"
            )
    part = parts.settings.run.evaluate
    if not int(parts.scenario.counts(part)[first.seen].sum()):
        way_out = "scenario.validation" if part == VALIDATION else "scenario.split_by, groups or folds"
        reasons.append(f"no {part} image of the first task's classes, so nothing can be measured; change {way_out}")
    return reasons


def schedule_problems(phases: Iterable[Phase]) -> list[str]:
    """Milestones in whole epochs that a phase never reaches; shares follow its length."""
    by_length = {}
    for schedule in (phase.schedule for phase in phases):
        whole = [one for one in schedule.milestones if isinstance(one, int)]
        if not schedule.cosine and whole and min(whole) >= schedule.epochs:
            by_length[schedule.epochs] = (
                f"train.milestones {whole} all lie at or beyond the {schedule.epochs} epochs: the learning rate would "
                f"never fall; give shares of the epochs, such as train.milestones=[0.5,0.7], or earlier epochs"
            )
    return [*by_length.values()]


def _unfit(phases: Iterable[Phase], settings: Settings) -> Iterator[str]:
    """What phases of any task ask for that does not go with the settings, once each."""
    told = set[str]()
    for phase in phases:
        try:
            refuse_unfit(phase, accumulate=settings.train.accumulate, mixup=settings.train.mixup)
        except SettingsError as error:
            if str(error) not in told:
                yield str(error)
            told.add(str(error))


# --- what will be trained


def plan(parts: RunParts) -> Iterator[tuple[Task, tuple[Phase, ...]]]:
    """The phases of each task, from a copy of the method that grows and never learns."""
    method = copy.deepcopy(parts.method)
    for task in parts.scenario.tasks:
        method.grow(task)
        phases = method.phases(task, _task_data(parts, task))
        if task.index == 0 and parts.settings.run.first_tasks is not None:
            for phase in phases:
                refuse_more_than_the_network(method, phase)
        yield task, phases


def _task_data(parts: RunParts, task: Task) -> TaskData:
    """The task's new images and, of each old class, as many images as the memory will hold."""
    kept = planned_exemplars(parts, task.index)
    old = [parts.scenario.rows(TRAIN, slice(label, label + 1))[:n] for label, n in enumerate(kept)]
    stand_ins = torch.cat([torch.empty(0, dtype=torch.int64), *old])
    exemplars = ImageSet.of(parts.images, stand_ins, from_memory=True)
    return TaskData(parts.arriving(TRAIN, task), exemplars, parts.augmentation)


def planned_exemplars(parts: RunParts, n_tasks: int) -> list[int]:
    """How many exemplars of each class the memory holds once the first tasks are learned."""
    if parts.memory is None:
        return []
    return parts.memory.planned(parts.scenario.arriving_counts(TRAIN)[:n_tasks])


def image_passes(parts: RunParts) -> Counter[str]:
    """Image passes of the whole run by the name of the phase: its images in each task, once an epoch."""
    passes = Counter[str]()
    for _, phases in plan(parts):
        for phase in phases:
            passes[phase.name] += phase.schedule.epochs * phase.images_per_epoch
    return passes


# --- what it will cost


def estimate(parts: RunParts) -> tuple[str, str]:
    """Time and memory, measured on a few real steps of a copy of the method in the middle of its tasks."""
    threads = parts.settings.run.threads or torch.get_num_threads()
    torch.set_num_threads(threads)
    with explaining_compiler_errors():
        method, phases = trial(parts)
        speeds = {phase.name: speed(parts.settings, method, phase, seconds=2.0) for phase in phases}
    passes = image_passes(parts)
    time_needed = "no time for training: features are computed once, and the rest takes seconds"
    if total := passes.total():
        # a phase that the task of the trial does not have goes at the speed of its first phase
        default = next(iter(speeds.values()))
        seconds = sum(images / speeds.get(name, default) for name, images in passes.items())
        time_needed = (
            f"about {duration(seconds)} of training at {total / seconds:,.0f} images/s "
            f"({total:,} image passes, {threads} thread{'s' * (threads != 1)})"
        )
    parameters = sum(p.numel() for p in parts.method.backbone.parameters())
    memory = f"about {peak_megabytes(method.device):,.0f} MB of memory; backbone of {parameters:,} parameters"
    return time_needed, memory


def refuse_wrong_numbers(parts: RunParts) -> None:
    """With 16 bits or compiled: the comparison with float32 that a run makes before its first step, on a trial."""
    train = parts.settings.train
    if train.precision == "32" and not train.compile:
        return
    torch.set_num_threads(parts.settings.run.threads or torch.get_num_threads())
    with explaining_compiler_errors():
        method, phases = trial(parts)
        for phase in phases:
            with only_training(method, (*phase.train, phase.gradients)):
                _compare(parts.settings, method, phase)


def _compare(settings: Settings, method: Method, phase: Phase) -> None:
    fabric, train = one_device(method.device.type), settings.train
    phase.gradients.to(method.device)
    compare_with_float32(phase, method, 0, ("estimate",), fabric, Precision(train.precision), train.accumulate)


def trial(parts: RunParts) -> tuple[Method, tuple[Phase, ...]]:
    """A copy of the method on the run's device, grown to the middle of its tasks, and its phases there; if it has
    none, the first task that trains."""
    tasks = parts.scenario.tasks
    middle = tasks[min(max(1, len(tasks) // 2), len(tasks) - 1)]
    device = one_device(parts.settings.run.accelerator).device
    for task in (middle, *tasks):
        method = copy.deepcopy(parts.method)
        for earlier in tasks[: task.index + 1]:
            method.grow(earlier)
        method.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        if parts.settings.train.compile:
            compile_backbones(method)
        if phases := method.phases(task, _task_data(parts, task)):
            break
    return method, phases


def speed(settings: Settings, method: Method, phase: Phase, seconds: float) -> float:
    """Images per second of a phase, from a few real steps."""
    refuse_unfit(phase, accumulate=settings.train.accumulate, mixup=settings.train.mixup)
    device, augmentation = method.device, build_augmentation(settings.train)
    cut = batches_of(phase, method, augmentation, 0, ("estimate",))
    batches = [batch for _, batch in zip(range(4), cut, strict=False)]
    images, began = 0, time.perf_counter()
    fabric, train = one_device(device.type), settings.train
    precision = Precision(train.precision)
    with only_training(method, (*phase.train, phase.gradients)):
        _compare(settings, method, phase)
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
