"""A thread pool shared fairly between requests: a large request does not delay a small one."""

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(eq=False)
class _Task(Generic[Result]):
    function: Callable[[], Result]
    future: "Future[Result]" = field(default_factory=Future)

    def run(self) -> None:
        if not self.future.set_running_or_notify_cancel():
            return
        try:
            self.future.set_result(self.function())
        except BaseException as error:  # a caller must never wait for ever because its task failed
            self.future.set_exception(error)


class FairQueue:
    """Each call of `map` has a line of its own; threads take the first task of each line in rotation."""

    def __init__(self, threads: int) -> None:
        self._threads = ThreadPoolExecutor(threads, "fair-queue")
        self._lines: deque[deque[_Task[Any]]] = deque()
        self._lock = threading.Lock()

    async def map(self, function: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
        """Results in the order of the items; tasks not begun are dropped when one fails or the caller gives up."""
        tasks = [_Task[Result](partial(function, item)) for item in items]
        line: deque[_Task[Any]] = deque(tasks)
        with self._lock:
            self._lines.append(line)
        for _ in tasks:
            self._threads.submit(self._run_next)
        try:
            return await asyncio.gather(*(asyncio.wrap_future(task.future) for task in tasks))
        finally:
            with self._lock:
                line.clear()
            for task in tasks:
                task.future.cancel()

    def close(self) -> None:
        self._threads.shutdown()

    def _run_next(self) -> None:
        task = self._next()
        if task is not None:
            task.run()

    def _next(self) -> _Task[Any] | None:
        with self._lock:
            while self._lines:
                line = self._lines.popleft()
                if line:
                    self._lines.append(line)
                    return line.popleft()
        return None
