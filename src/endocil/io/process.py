"""This process: the signals that stop it, its rank among others, and the memory that it may still take.

Ctrl-C, SIGTERM and SIGUSR1: a program that can keep what it has done is given the time for it, any other ends at once.
Slurm (scancel, preemption, the end of a job's time) and Docker (docker stop) send SIGTERM, later SIGKILL; SIGUSR1 is
what Slurm's --signal usually sends some time before the end. Torch is not loaded here."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from endocil.errors import SettingsError

STOP = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGUSR1") if hasattr(signal, name))  # Windows: the first
PLACES = ("NODE_RANK", "LOCAL_RANK")  # without a launcher: of the machine, and of a process on it
MACHINE = Path("/proc/meminfo")
CONTAINER = Path("/sys/fs/cgroup")  # version 2
_requested = False
_deferred = False
_last = int(signal.SIGINT)


def interrupt(number: int, frame: Any) -> None:
    """A handler of signals: KeyboardInterrupt, or a note for what runs in `deferring`.

    A second Ctrl-C does not wait; a second signal of `STOP` does, as launchers may pass the same one on twice."""
    global _requested, _last
    impatient = _requested and number == signal.SIGINT
    _requested, _last = True, number
    if impatient or not _deferred:
        raise KeyboardInterrupt


@contextmanager
def interruptible() -> Iterator[None]:
    """SIGINT and the signals of `STOP` end the block as KeyboardInterrupt."""
    global _requested
    if threading.current_thread() is not threading.main_thread():  # which alone can receive signals
        yield
        return
    _requested = False
    numbers = [*STOP]
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:  # as for a command in the background of a script
        numbers.append(signal.SIGINT)
    before = {number: signal.signal(number, interrupt) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        _requested = False


@contextmanager
def deferring() -> Iterator[None]:
    """In this block a signal does not interrupt: the block asks `is_requested` from time to time."""
    global _deferred
    before, _deferred = _deferred, True
    try:
        yield
    finally:
        _deferred = before


def is_requested() -> bool:
    return _requested


def exit_status() -> int:
    """Of a command that was interrupted, by the signal that did it."""
    return 128 + _last


def is_rank_zero() -> bool:
    """Whether this process prints and writes for all of them."""
    if "RANK" in os.environ:  # set by torchrun
        return os.environ["RANK"] == "0"
    if slurm_tasks() > 1:
        return os.environ.get("SLURM_PROCID", "0") == "0"
    return all(os.environ.get(name, "0") == "0" for name in PLACES)


def slurm_tasks() -> int:
    """How many processes srun has started; 1 in a batch script without srun, however many tasks the job has."""
    return environment_number("SLURM_STEP_NUM_TASKS")


def environment_number(name: str) -> int:
    text = os.environ.get(name, "1")
    if not text.isdigit() or int(text) < 1:
        raise SettingsError(f"the environment variable {name} is '{text}'; expected a number of 1 or more")
    return int(text)


def available_memory() -> int | None:
    """Bytes, of the machine or of its container, whichever is less; none where the system does not say."""
    found = []
    with suppress(OSError, ValueError, StopIteration):
        lines = MACHINE.read_text("ascii").splitlines()
        found.append(1024 * int(next(line for line in lines if line.startswith("MemAvailable:")).split()[1]))
    with suppress(OSError, ValueError):  # "max" where there is no limit
        limit, used = ((CONTAINER / name).read_text("ascii") for name in ("memory.max", "memory.current"))
        found.append(int(limit) - int(used))
    return min(found, default=None)
