"""How cost grows with tasks, classes, images and exemplars; and what the paper's protocol would cost one GPU.

    python benchmarks/growth.py [--rounds 2] [--plot docs/images/growth.png] > growth.csv
    python benchmarks/growth.py --protocol [--teraflops 5 20]

Growth: a life of 4 tasks, 4 new classes each, 100 training images and 10 exemplars of each class; one number changes
at a time. Measured in the last task: selecting the exemplars of its new classes (features of d = 512), an epoch of
fit() for EndoCIL and for DER, whose network grows, and the evaluation of 25 test images of every class. ResNet-18 of
width 8 at 32 px, one thread, the best of the rounds in processor time; the points take turns. Every measurement runs
in a fork of its own; memory is what it needs at most beyond what the fork began with, the network included.

Protocol: floating-point operations of forward and backward are counted (not timed) for every phase of every task of
every method, once for all data sets, at 64 px and multiplied by 16 for 256 px; image passes come from the published
class counts. What is left out: evaluation, selection and EWC's Fisher pass.
"""

import argparse
import csv
import multiprocessing
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from selection import features_like_a_network, status
from torch import nn
from torch.utils.flop_counter import FlopCounterMode
from training import data_of, rows_of, spread

from endocil.components.selection import select_by_mmd
from endocil.data.augment import Augmentation
from endocil.data.batches import ImageSet, training_batches
from endocil.data.cache import Images
from endocil.data.decode import FileReader
from endocil.data.scenario import Task, keep_classes
from endocil.data.table import ImageTable
from endocil.datasets.public.facts import find, published_table
from endocil.learning.build import build_learning, complete
from endocil.learning.checkpoint import grow
from endocil.learning.memory import ExemplarMemory, build_selector
from endocil.learning.parallel import OneProcess
from endocil.learning.training import fit, only_training, total_loss
from endocil.methods import METHODS, Method, build_method
from endocil.methods.base import Phase, TaskData, shared_schedule
from endocil.model.predictions import predict
from endocil.networks import build_backbone
from endocil.runs.parts import RunParts, scenario_of
from endocil.settings.settings import load_settings

CPU = torch.device("cpu")
PIXELS, TESTED = 32, 25


@dataclass(frozen=True)
class Life:
    """The numbers that a user chooses or the data gives."""

    tasks: int = 4
    classes: int = 4  # new ones of each task
    images: int = 100  # of each class, to train with
    exemplars: int = 10  # of each class

    @property
    def seen(self) -> int:
        return self.tasks * self.classes


AXES: dict[str, tuple[int, ...]] = {
    "tasks": (2, 4, 8, 16),
    "classes": (2, 4, 8, 16),
    "images": (50, 100, 200, 400, 800),
    "exemplars": (5, 10, 20, 40, 80),
}
NAMES = {
    "tasks": "tasks",
    "classes": "new classes of a task",
    "images": "training images of a class",
    "exemplars": "exemplars of a class",
}


def class_names(n: int) -> tuple[str, ...]:
    return tuple(f"class {label}" for label in range(n))


def image_set(labels: np.ndarray, n_classes: int, from_memory: np.ndarray) -> ImageSet:
    """Images of these labels; a few pictures of noise stand for all of them."""
    n, names = len(labels), class_names(n_classes)
    pixels = torch.randint(256, (64, PIXELS, PIXELS, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    table = ImageTable(tuple(map(str, range(n))), labels, names, FileReader(Path()), ("",) * n, ("",) * n)
    images = Images(table, pixels, torch.arange(n) % len(pixels), ())
    return ImageSet(images, torch.arange(n), torch.from_numpy(from_memory))


def last_task(name: str, life: Life) -> tuple[Method, Task]:
    """A method that has grown to the end of its life."""
    backbone, _ = build_backbone("resnet18", seed=0, options={"width": 8})
    schedule = shared_schedule(learning_rate=0.001, milestones=())
    method = build_method(name, backbone, {}, schedule=schedule, seed=0)
    for index in range(life.tasks):
        task = Task(index, index * life.classes, life.classes)
        grow(method, task, CPU)
    return method, task


def selection(life: Life) -> Callable[[], object]:
    features = features_like_a_network(life.images)
    return lambda: [select_by_mmd(features, life.exemplars) for _ in range(life.classes)]


def epoch(name: str, life: Life) -> Callable[[], object]:
    method, task = last_task(name, life)
    new = np.repeat(np.arange(task.n_old, task.n_seen), life.images)
    old = np.repeat(np.arange(task.n_old), life.exemplars)
    everything = image_set(np.concatenate([new, old]), task.n_seen, np.arange(len(new) + len(old)) >= len(new))
    rows = torch.arange(len(everything))
    data = TaskData(everything.take(rows[: len(new)]), everything.take(rows[len(new) :]))
    (phase,) = method.phases(task, data)
    running = fit(
        phase,
        method,
        fabric=OneProcess(),
        augmentation=Augmentation(),
        seed=0,
        key=(0, 0),
        logged_head=method.classifier,
    )
    return lambda: next(running)


def evaluation(life: Life) -> Callable[[], object]:
    method, task = last_task("endocil", life)
    labels = np.repeat(np.arange(task.n_seen), TESTED)
    images = image_set(labels, task.n_seen, np.zeros(len(labels), bool))
    classes = class_names(task.n_seen)
    return lambda: predict(method, images, 256, classes=classes)


MEASURED: dict[str, Callable[[Life], Callable[[], object]]] = {
    "selection": selection,
    "epoch, EndoCIL": lambda life: epoch("endocil", life),
    "epoch, DER": lambda life: epoch("der", life),
    "evaluation": evaluation,
}


def measure(what: str, life: Life) -> tuple[float, float]:
    """Seconds of the better of two times, and megabytes; the first time makes memory and kernels ready."""
    before = status("VmRSS")
    job = MEASURED[what](life)
    if what == "selection":
        before = status("VmRSS")  # beyond the features themselves
    took = []
    for _ in range(2):
        began = time.process_time()
        job()
        took.append(time.process_time() - began)
    return min(took), max(0.0, status("VmHWM") - before)


def in_a_fork(what: str, life: Life) -> tuple[float, float]:
    with multiprocessing.get_context("fork").Pool(1) as pool:
        return pool.apply(measure, (what, life))


@dataclass(frozen=True)
class Point:
    axis: str
    value: int
    what: str
    seconds: float
    megabytes: float


def points(axes: dict[str, tuple[int, ...]], rounds: int) -> list[Point]:
    """All points once in each round; a point where all axes meet is measured once for each of them."""
    wanted = [(axis, value, what) for axis, values in axes.items() for value in values for what in MEASURED]
    found: dict[tuple[str, int, str], list[tuple[float, float]]] = {key: [] for key in wanted}
    for _ in range(rounds):
        for axis, value, what in wanted:
            found[axis, value, what].append(in_a_fork(what, replace(Life(), **{axis: value})))
    return [Point(*key, min(run[0] for run in runs), max(run[1] for run in runs)) for key, runs in found.items()]


def rows(axes: dict[str, tuple[int, ...]] | None = None, rounds: int = 2) -> list[Point]:
    """The points of all axes, with one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # also: a process with more could not be forked
    try:
        return points(axes or AXES, rounds)
    finally:
        torch.set_num_threads(threads)


def plot(found: Sequence[Point], path: Path) -> None:
    """One column for each number that changes: seconds above, megabytes below."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    colours = ("#0072B2", "#D55E00", "#009E73", "#000000")  # told apart by people who see fewer colours
    markers, lines = "os^D", ("-", "--", "-.", ":")
    figure, panels = pyplot.subplots(2, len(AXES), figsize=(11, 5.2), sharex="col", sharey="row")
    for column, axis in enumerate(AXES):
        for number, what in enumerate(MEASURED):
            mine = [point for point in found if point.axis == axis and point.what == what]
            style = {"color": colours[number], "marker": markers[number], "linestyle": lines[number], "markersize": 4}
            values = [point.value for point in mine]
            panels[0, column].plot(values, [point.seconds for point in mine], label=what, **style)
            panels[1, column].plot(values, [point.megabytes for point in mine], **style)
        ticks = [point.value for point in mine]
        panels[0, column].set_yscale("log")
        for panel in panels[:, column]:
            panel.set_xscale("log", base=2)
            panel.set_xticks(ticks, [str(tick) for tick in ticks])
            panel.minorticks_off()
            panel.grid(color="0.9")
        panels[1, column].set_xlabel(NAMES[axis])
    panels[0, 0].set_ylabel("processor time, s")
    panels[0, 0].yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    panels[1, 0].set_ylabel("memory, MB")
    panels[1, 0].set_ylim(bottom=0)
    names = panels[0, 0].get_legend_handles_labels()
    figure.legend(*names, loc="upper center", ncols=len(MEASURED), frameon=False)
    figure.tight_layout(rect=(0, 0, 1, 0.94))
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


PRESETS = ("hyper-kvasir", "gastrovision", "kvasir-capsule", "capsule-vision")
BUFFERS = (30, 40, 50)
COUNTED, SCALE = 64, 16  # pixels at which operations are counted, and the area of 256 x 256 by that
SAMPLE = 16  # images whose operations are counted
Counted = dict[tuple[str, int, str], float]  # method, task, phase -> operations of an image


@dataclass(frozen=True)
class Work:
    """What one method does with one preset and one buffer."""

    preset: str
    method: str
    buffer: int
    passes: int  # images that go forward and backward
    operations: float  # floating-point operations
    first: str  # "" or the name under which the first task is shared
    first_operations: float


def without_pixels(preset: str, method: str, buffer: int) -> RunParts:
    """The parts of a run on the published number of images; one gray picture stands for all of them."""
    settings = complete(load_settings(preset, [f"method.name={method}", f"memory.per_class={buffer}"]))
    chosen = settings.scenario
    table = published_table(find(settings.data.name))
    kept = keep_classes(table, minimum=chosen.minimum, leave_out=chosen.leave_out, order=chosen.order)
    scenario = scenario_of(kept, settings)
    built, _ = build_learning(settings)
    gray = torch.full((1, COUNTED, COUNTED, 3), 128, dtype=torch.uint8)
    images = Images(scenario.table, gray, torch.zeros(len(scenario.table), dtype=torch.int64), ())
    memory = None
    if built.replay:
        memory = ExemplarMemory(per_class=buffer, select=build_selector("random", {}), size=COUNTED, seed=0)
    return RunParts(settings, images, scenario.joined() if built.joint else scenario, built, memory, Augmentation(), ())


def operations_of(method: nn.Module, phase: Phase) -> float:
    """Forward and backward of one image, at the size at which they are counted."""
    few = phase.images.take(spread(torch.arange(len(phase.images)), SAMPLE))
    batch = next(training_batches(few, SAMPLE, None, 0, (0,), CPU))
    with only_training(method, (*phase.train, phase.gradients)), FlopCounterMode(display=False) as counter:
        outcome = phase.objective(batch)
        phase.gradients.collect(outcome, SAMPLE)
        total_loss(outcome, SAMPLE, SAMPLE).backward()
    return float(counter.get_total_flops()) / SAMPLE


def work_of(preset: str, name: str, buffers: Sequence[int], each: Counted) -> list[Work]:
    """`each`: operations of an image that have been counted already; data and buffer hardly change them."""
    found = []
    for buffer in buffers:
        parts = without_pixels(preset, name, buffer)
        passes, operations = Counter[int](), defaultdict[int, float](float)
        shared = ""
        for task in parts.scenario.tasks:
            grow(parts.method, task, CPU)
            for phase in parts.method.phases(task, data_of(parts, *rows_of(parts, task))):
                key = (name, task.index, phase.name)
                if key not in each:
                    each[key] = operations_of(parts.method, phase)
                seen = phase.schedule.epochs * len(phase.images)
                passes[task.index] += seen
                operations[task.index] += seen * each[key] * SCALE
                if not parts.method.joint:  # its only task has other images than the others' first
                    shared = shared or phase.first_task_name
        found.append(Work(preset, name, buffer, passes.total(), sum(operations.values()), shared, operations[0]))
    return found


def protocol(
    presets: Sequence[str] = PRESETS, methods: Sequence[str] = (), buffers: Sequence[int] = BUFFERS
) -> Iterator[Work]:
    """Every method with every buffer, or once where it keeps no exemplars."""
    each: Counted = {}
    for preset in presets:
        for name in methods or sorted(METHODS):
            yield from work_of(preset, name, buffers if METHODS[name].replay else buffers[:1], each)


def shared_operations(work: Sequence[Work]) -> float:
    """What need not be done again where runs that start alike share their first task."""
    counted: set[tuple[str, str]] = set()
    saved = 0.0
    for run in work:
        if run.first and (run.preset, run.first) in counted:
            saved += run.first_operations
        counted.add((run.preset, run.first))
    return saved


def print_protocol(work: Iterator[Work], teraflops: Sequence[float]) -> None:
    low, high = teraflops
    print(
        f"ESTIMATE, not a measurement: 256 px, ResNet-18 of width 64, 100 epochs, published class counts, one seed.\n"
        f"Operations (2 for a multiplication and an addition) are counted; one GPU is ASSUMED to sustain {low:g} to\n"
        f"{high:g} TFLOP/s in training. Reading, evaluation, selection and EWC's Fisher pass are left out.\n\n"
        f"| preset | method | exemplars of a class | image passes | GFLOP of an image | hours of one GPU |\n"
        f"|---|---|---:|---:|---:|---:|"
    )

    def hours(operations: float) -> str:
        return f"{operations / high / 3.6e15:,.1f} to {operations / low / 3.6e15:,.1f}"

    done = []
    for run in work:
        done.append(run)
        kept = run.buffer if METHODS[run.method].replay else "none"
        print(
            f"| {run.preset} | {run.method} | {kept} | {run.passes:,} | {run.operations / run.passes / 1e9:.1f} "
            f"| {hours(run.operations)} |",
            flush=True,
        )
    total, saved = sum(run.operations for run in done), shared_operations(done)
    print(f"\n{len(done)} runs of one seed: {total / 1e18:.2f} EFLOP, {hours(total)} hours of one GPU;")
    print(f"with shared first tasks {(total - saved) / 1e18:.2f} EFLOP, {hours(total - saved)} hours.")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--plot", type=Path, help="draw the points into this PNG file (needs matplotlib)")
    parser.add_argument("--protocol", action="store_true", help="estimate the paper's protocol instead")
    parser.add_argument("--teraflops", type=float, nargs=2, default=(5.0, 20.0), metavar=("LOW", "HIGH"))
    chosen = parser.parse_args()
    if chosen.protocol:
        torch.set_num_threads(1)
        print_protocol(protocol(), chosen.teraflops)
        return
    found = rows(rounds=chosen.rounds)
    table = csv.writer(sys.stdout)
    table.writerow(["axis", "value", "what", "seconds", "megabytes", "seconds / smallest"])
    for point in found:
        least = next(p.seconds for p in found if (p.axis, p.what) == (point.axis, point.what))
        ratio = f"{point.seconds / least:.2f}"
        table.writerow([point.axis, point.value, point.what, f"{point.seconds:.4f}", f"{point.megabytes:.1f}", ratio])
    if chosen.plot:
        plot(found, chosen.plot)


if __name__ == "__main__":
    main()
