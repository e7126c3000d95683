"""Work in threads, request by request in turn: one that brings much does not keep another waiting."""

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from endocil.serve.limits import Refusal, busy

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


# The one thread that asks models. What waits for the same model goes through it together.

Asked = TypeVar("Asked")
Told = TypeVar("Told")


@dataclass(eq=False)
class Places:
    """Those of one request in the queue, from when it is let in until its images go through the model."""

    left: int


@dataclass(eq=False)
class _Job(Generic[Asked, Told]):
    asked: Asked
    pixels: Tensor  # (n, size, size, 3) uint8
    places: Places
    future: "asyncio.Future[tuple[Told, int]]"
    loop: asyncio.AbstractEventLoop

    def tell(self, told: Told, start: int) -> None:
        self._later(lambda: self.future.set_result((told, start)))

    def fail(self, error: BaseException) -> None:
        self._later(lambda: self.future.set_exception(error))

    def _later(self, act: Callable[[], None]) -> None:
        self.loop.call_soon_threadsafe(lambda: None if self.future.done() else act())


class Engine(Generic[Asked, Told]):
    """A bounded queue before one thread.

    While a forward pass runs others queue up, and the next pass takes as many of them as a batch holds. So nobody
    waits for company, and a busy server does few large passes. What has more images than a batch goes in several."""

    def __init__(self, predict: Callable[[Asked, Tensor], Told], *, queue: int, batch: int) -> None:
        self.predict, self.queue, self.batch = predict, queue, batch
        self._jobs: deque[_Job[Asked, Told]] = deque()
        self._waiting = 0  # images
        self._closing = False
        self._news = threading.Condition()
        self._thread = threading.Thread(target=self._work, name="model", daemon=True)

    @property
    def waiting(self) -> int:
        """Images that were let in and have not come to the model; twice where two models are asked."""
        return self._waiting

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Answers what waits, then ends."""
        with self._news:
            self._closing = True
            self._news.notify()
        self._thread.join()

    def refuse_more(self, n_images: int) -> None:
        """Told at once, a client can come again; it would wait in vain otherwise."""
        if self._closing:
            raise Refusal(503, "stopping", "the server is stopping")
        if self._waiting + n_images > self.queue:
            raise busy(f"{self._waiting} images are waiting already; try again")

    @contextmanager
    def admitted(self, n_images: int) -> Iterator[Places]:
        """Places for so many, before they are even decoded; those that are not used are free again at the end."""
        places = Places(n_images)
        with self._news:
            self.refuse_more(n_images)
            self._waiting += n_images
        try:
            yield places
        finally:
            with self._news:
                self._waiting -= places.left

    async def ask(self, asked: Asked, pixels: Tensor, places: Places) -> list[tuple[Told, int]]:
        """For each picture what was told of the pass that held it, and its row there."""
        loop = asyncio.get_running_loop()
        parts = torch.split(pixels, self.batch)
        jobs = [_Job[Asked, Told](asked, part, places, loop.create_future(), loop) for part in parts]
        with self._news:
            self.refuse_more(0)
            self._jobs.extend(jobs)
            self._news.notify()
        try:
            told = await asyncio.gather(*(job.future for job in jobs))
        finally:
            self._forget(jobs)
        pairs = zip(told, parts, strict=True)
        return [(one, start + row) for (one, start), part in pairs for row in range(len(part))]

    def _forget(self, jobs: list[_Job[Asked, Told]]) -> None:
        """Whoever gave up is not kept waiting for."""
        with self._news:
            self._jobs = deque(job for job in self._jobs if job not in jobs)

    def _work(self) -> None:
        while jobs := self._next():
            try:
                told = self.predict(jobs[0].asked, torch.cat([job.pixels for job in jobs]))
            except BaseException as error:  # nobody may wait for ever because one pass failed
                for job in jobs:
                    job.fail(error)
                continue
            start = 0
            for job in jobs:
                job.tell(told, start)
                start += len(job.pixels)

    def _next(self) -> list[_Job[Asked, Told]]:
        """The first that waits, and others of the same model as far as they fit; none: the engine ends."""
        with self._news:
            self._news.wait_for(lambda: self._jobs or self._closing)
            taken: list[_Job[Asked, Told]] = []
            left: deque[_Job[Asked, Told]] = deque()
            size = 0
            for job in self._jobs:
                alike = not taken or (job.asked is taken[0].asked and size + len(job.pixels) <= self.batch)
                if alike:
                    taken.append(job)
                    size += len(job.pixels)
                    job.places.left -= len(job.pixels)
                else:
                    left.append(job)
            self._jobs, self._waiting = left, self._waiting - size
            return taken
