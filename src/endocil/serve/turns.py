"""Work in threads, request by request in turn: one that brings much does not keep another waiting."""

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, TypeVar

Thing = TypeVar("Thing")
Made = TypeVar("Made")


@dataclass(eq=False)
class _Work(Generic[Made]):
    act: Callable[[], Made]
    future: "Future[Made]" = field(default_factory=Future)

    def do(self) -> None:
        if not self.future.set_running_or_notify_cancel():
            return
        try:
            self.future.set_result(self.act())
        except BaseException as error:  # nobody may wait for ever because one thing failed
            self.future.set_exception(error)


class Turns:
    """So many things at a time. Each request has a line of its own; the first of each line is taken in turn."""

    def __init__(self, threads: int) -> None:
        self._threads = ThreadPoolExecutor(threads, "turns")
        self._lines: deque[deque[_Work[Any]]] = deque()
        self._lock = threading.Lock()

    async def each(self, act: Callable[[Thing], Made], things: Sequence[Thing]) -> list[Made]:
        """What `act` makes of each; where one fails, or nobody waits any more, the rest is left."""
        works = [_Work[Made](partial(act, thing)) for thing in things]
        line: deque[_Work[Any]] = deque(works)
        with self._lock:
            self._lines.append(line)
        for _ in works:
            self._threads.submit(self._do_next)
        try:
            return await asyncio.gather(*(asyncio.wrap_future(work.future) for work in works))
        finally:
            with self._lock:
                line.clear()
            for work in works:
                work.future.cancel()

    def close(self) -> None:
        self._threads.shutdown()

    def _do_next(self) -> None:
        work = self._next()
        if work is not None:
            work.do()

    def _next(self) -> _Work[Any] | None:
        with self._lock:
            while self._lines:
                line = self._lines.popleft()
                if line:
                    self._lines.append(line)
                    return line.popleft()
        return None
