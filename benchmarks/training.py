"""How fast is training: fit() against a bare step, EndoCIL against iCaRL, and what the options cost or save.

    python benchmarks/training.py [--rounds 48] [--batches 2] [--only fit methods ...]

ResNet-18 of width 32 on synthetic endoscopy of 64 px, batches of 64, one thread. What is compared takes turns, an epoch
each; the figure is the median over the rounds of the ratio of their images per second, with its range. Ratios are of
processor time, which other work on the machine changes least; those of two processes are of wall time. "Bare" is
forward, cross-entropy, backward and SGD on one batch that lies in memory: no reading, no augmentation, no log.
"""

import argparse
import json
import multiprocessing
import os
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from endocil.data.augment import Augmentation
from endocil.data.batches import ImageSet, training_batches
from endocil.data.scenario import Task
from endocil.data.splits import TRAIN
from endocil.errors import EndocilError
from endocil.learning.checkpoint import grow
from endocil.learning.numerics import Precision
from endocil.learning.parallel import OneProcess, Processes, learning_on
from endocil.learning.training import fit
from endocil.methods.base import Method, Phase, TaskData
from endocil.networks import compile_backbones, sync_batch_norm
from endocil.runs.parts import RunParts, assemble
from endocil.runs.preflight import planned_exemplars
from endocil.settings.settings import load_settings

Row = tuple[str, str, str]  # what, the figure, a remark
Turn = Callable[[], object]
Clock = Callable[[], float]
COMPILING = 300.0  # seconds that torch.compile and its measurement may take


@dataclass(frozen=True)
class Size:
    """How much is measured, and of what."""

    rounds: int = 48
    batches: int = 2  # of an epoch: short turns, so that what disturbs hits both
    batch: int = 64
    width: int = 32
    pixels: int = 64
    images: int = 2000  # that are drawn

    @property
    def per_epoch(self) -> int:
        return self.batches * self.batch

    def parts(self, method: str) -> RunParts:
        chosen = {
            "method.name": method,
            "data.size": self.pixels,
            "data.images": self.images,
            "data.imbalance": 1.0,
            "data.classes": 8,
            "scenario.leave_out": [],
            "network.width": self.width,
            "scenario.tasks": 2,
            "train.batch_size": self.batch,
            "train.learning_rate": 0.001,  # so many epochs without a falling rate must not run away
        }
        return assemble(load_settings("demo", [f"{key}={value}" for key, value in chosen.items()]))


def training(name: str, size: Size, *, later: bool = False) -> tuple[Method, Phase]:
    """A method and the phase of its first or second task, with as many images as the size asks for."""
    parts = size.parts(name)
    task = parts.scenario.tasks[int(later)]
    for grown in parts.scenario.tasks[: task.index + 1]:
        grow(parts.method, grown, torch.device("cpu"))
    new, exemplars = rows_of(parts, task)
    exemplars = spread(exemplars, min(len(exemplars), size.per_epoch // 2))
    new = spread(new, size.per_epoch - len(exemplars))
    (phase,) = parts.method.phases(task, data_of(parts, new, exemplars))
    # epochs without end: as many are trained as are asked for
    return parts.method, replace(phase, schedule=replace(phase.schedule, epochs=10**6, milestones=()))


def rows_of(parts: RunParts, task: Task) -> tuple[Tensor, Tensor]:
    """A task's new images, and as many images of each old class as the memory will hold."""
    kept = planned_exemplars(parts, task.index)
    old = [parts.scenario.rows(TRAIN, slice(label, label + 1))[:n] for label, n in enumerate(kept)]
    return parts.scenario.rows(TRAIN, task.new), torch.cat([torch.empty(0, dtype=torch.int64), *old])


def data_of(parts: RunParts, new: Tensor, exemplars: Tensor) -> TaskData:
    return TaskData(
        ImageSet.of(parts.images, new), ImageSet.of(parts.images, exemplars, from_memory=True), parts.augmentation
    )


def spread(rows: Tensor, n: int) -> Tensor:
    """n of the rows from all over them, some more than once where there are too few."""
    return rows[torch.arange(n) * len(rows) // max(1, n)]


def epochs(method: Method, phase: Phase, fabric: Processes | None = None, **options: Any) -> Turn:
    """Every call trains one epoch of fit()."""
    running = fit(
        phase,
        method,
        fabric=fabric or OneProcess(),
        augmentation=Augmentation(),
        seed=0,
        key=(0, 0),
        logged_head=method.classifier,
        **options,
    )
    return lambda: next(running)


def bare_epochs(size: Size, *, channels_last: bool = True) -> Turn:
    """Every call takes as many steps as an epoch, all on the same batch."""
    method, phase = training("finetune", size)
    layout = torch.channels_last if channels_last else torch.contiguous_format
    network = nn.Sequential(method.backbone, method.classifier).train()
    network.to(memory_format=layout)  # type: ignore[call-overload]
    chosen = phase.schedule
    optimizer = torch.optim.SGD(
        network.parameters(), chosen.learning_rate, chosen.momentum, weight_decay=chosen.weight_decay
    )
    batch = next(training_batches(phase.images, size.batch, None, 0, (0,), torch.device("cpu")))
    images, labels = batch.images.contiguous(memory_format=layout), batch.labels

    def epoch() -> None:
        for _ in range(size.batches):
            optimizer.zero_grad(set_to_none=True)
            functional.cross_entropy(network(images), labels).backward()
            optimizer.step()

    return epoch


def seconds(turn: Turn, clock: Clock) -> float:
    began = clock()
    turn()
    return clock() - began


def ratios(one: Turn, other: Turn, rounds: int, clock: Clock = time.process_time) -> tuple[list[float], float]:
    """Images per second of the one by those of the other, round by round, and the ratio of their best rounds.

    The first round warms up and does not count; who goes first changes from round to round."""
    took: dict[bool, list[float]] = {True: [], False: []}
    for turn in range(rounds + 1):
        for first in (True, False) if turn % 2 else (False, True):
            took[first].append(seconds(one if first else other, clock))
    pairs = zip(took[False][1:], took[True][1:], strict=True)
    return [theirs / ours for theirs, ours in pairs], min(took[False][1:]) / min(took[True][1:])


def figure(what: str, found: tuple[list[float], float], remark: str = "") -> Row:
    """Median, range and the ratio of the best rounds as a row."""
    each, best = found
    spread = f"{min(each):.3f} to {max(each):.3f} in {len(each)} rounds, best against best {best:.3f}"
    return what, f"{statistics.median(each):.3f}", f"{spread}; {remark}" if remark else spread


def fit_against_bare(size: Size) -> Row:
    ours = epochs(*training("icarl", size))
    found = ratios(ours, bare_epochs(size), size.rounds)
    return figure("fit(), first task / bare step", found, "target 0.95")


def endocil_against_icarl(size: Size) -> Row:
    ours, theirs = (epochs(*training(name, size, later=True)) for name in ("endocil", "icarl"))
    return figure("EndoCIL / iCaRL, later task", ratios(ours, theirs, size.rounds), "target 0.98")


def layouts(size: Size) -> Row:
    found = ratios(bare_epochs(size), bare_epochs(size, channels_last=False), size.rounds)
    return figure("channels-last / contiguous, bare step", found)


def precision(size: Size) -> Row:
    what, half = ("train.precision bf16 / 32, fit()", epochs(*training("icarl", size), precision=Precision("bf16")))
    try:
        return figure(what, ratios(half, epochs(*training("icarl", size)), size.rounds))
    except EndocilError as refused:  # on processors whose 16-bit kernels are wrong
        return (what, "-", str(refused))


def accumulation(size: Size) -> Row:
    pieces = epochs(*training("icarl", size), accumulate=4)
    return figure("train.accumulate 4 / 1, fit()", ratios(pieces, epochs(*training("icarl", size)), size.rounds))


def compiled_ratios(size: Size) -> tuple[list[float], float]:
    method, phase = training("icarl", size)
    compile_backbones(method)
    return ratios(epochs(method, phase), epochs(*training("icarl", size)), size.rounds)


def compilation(size: Size, limit: float = COMPILING) -> Row:
    """In a process of its own, because a compiler may be missing, take for ever, or leave processes behind."""
    what = "train.compile / eager, fit()"
    code = "import json, training; print(json.dumps(training.compiled_ratios(training.Size(**{}))))"
    started = subprocess.Popen(
        [sys.executable, "-c", code.format(asdict(size))],
        cwd=Path(__file__).parent,
        env={**os.environ, "OMP_NUM_THREADS": "1", "TORCHINDUCTOR_COMPILE_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        told, wrong = started.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        os.killpg(started.pid, signal.SIGKILL)
        started.communicate()
        return what, "not available", f"not ready after {limit:.0f} s"
    if started.returncode:
        reasons = [line for line in wrong.splitlines() if line.strip()] or ["no reason given"]
        return what, "not available", reasons[-1][:200]
    return figure(what, tuple(json.loads(told.splitlines()[-1])), "compiling not counted")


def two_against_one(size: Size) -> Row:
    """The first of two processes trains an epoch alone while the other waits, then both share one, in turns."""
    context = multiprocessing.get_context("spawn")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    answers = context.SimpleQueue()
    team = [context.Process(target=team_member, args=(rank, port, size, answers)) for rank in (0, 1)]
    for member in team:
        member.start()
    for member in team:
        member.join()
    if any(member.exitcode for member in team):
        return "two processes / one, same batch", "not available", "a process failed; see its message"
    return figure("two processes / one, same batch", answers.get(), "wall time, one thread each")


def team_member(rank: int, port: int, size: Size, answers: Any) -> None:
    os.environ |= {"LOCAL_RANK": str(rank), "NODE_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    with learning_on("cpu", 2) as fabric:
        method, phase = training("icarl", size)
        sync_batch_norm(method)
        together = epochs(method, phase, fabric)
        alone = epochs(*training("icarl", size)) if rank == 0 else lambda: None

        def in_step(turn: Turn) -> Turn:
            """The clock starts when both are there, and stops when both are done."""

            def wait_for_both() -> None:
                turn()
                torch.distributed.barrier()

            return wait_for_both

        torch.distributed.barrier()
        found = ratios(in_step(together), in_step(alone), size.rounds, time.perf_counter)
        if rank == 0:
            answers.put(found)


MEASURED: dict[str, Callable[[Size], Row]] = {
    "fit": fit_against_bare,
    "methods": endocil_against_icarl,
    "layouts": layouts,
    "precision": precision,
    "accumulation": accumulation,
    "compilation": compilation,
    "processes": two_against_one,
}


def rows(size: Size | None = None, only: Sequence[str] = ()) -> list[Row]:
    """One row for each thing measured, all with one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return [measure(size or Size()) for name, measure in MEASURED.items() if not only or name in only]
    finally:
        torch.set_num_threads(threads)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=Size.rounds)
    parser.add_argument("--batches", type=int, default=Size.batches, help="steps of an epoch")
    parser.add_argument("--only", nargs="*", default=list(MEASURED), choices=MEASURED)
    chosen = parser.parse_args()
    size = Size(rounds=chosen.rounds, batches=chosen.batches)
    print("| images/s | ratio | |\n|---|---|---|", flush=True)
    for name in chosen.only:
        for row in rows(size, [name]):
            print(f"| {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    main()
