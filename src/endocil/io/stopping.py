"""Ctrl-C and SIGTERM: a program that can keep what it has done is given the time for it, any other ends at once.

Slurm (scancel, preemption, the end of a job's time) and Docker (docker stop) send SIGTERM, later SIGKILL."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_requested = False
_deferred = False
_last = int(signal.SIGINT)


def interrupt(number: int, frame: Any) -> None:
    """A handler of signals: KeyboardInterrupt, or a note for what runs in `deferring`.

    A second Ctrl-C does not wait; a second SIGTERM does, as launchers may pass the same one on twice."""
    global _requested, _last
    impatient = _requested and number == signal.SIGINT
    _requested, _last = True, number
    if impatient or not _deferred:
        raise KeyboardInterrupt


@contextmanager
def interruptible() -> Iterator[None]:
    """SIGINT and SIGTERM end the block as KeyboardInterrupt."""
    global _requested
    if threading.current_thread() is not threading.main_thread():  # which alone can receive signals
        yield
        return
    _requested = False
    numbers = [signal.SIGTERM]
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
