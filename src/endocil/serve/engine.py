"""The one thread that asks models. What waits for the same model goes through it together."""

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch
from torch import Tensor

from endocil.serve.refusals import Refusal, busy

Asked = TypeVar("Asked")
Told = TypeVar("Told")


@dataclass(eq=False)
class _Job(Generic[Asked, Told]):
    asked: Asked
    pixels: Tensor  # (n, size, size, 3) uint8
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
    waits for company, and a busy server does few large passes."""

    def __init__(
        self,
        predict: Callable[[Asked, Tensor], Told],
        *,
        queue: int,
        batch: int,
        passed: Callable[[int], None] = lambda n: None,
    ) -> None:
        self.predict, self.queue, self.batch, self.passed = predict, queue, batch, passed
        self._jobs: deque[_Job[Asked, Told]] = deque()
        self._waiting = 0  # images
        self._closing = False
        self._news = threading.Condition()
        self._thread = threading.Thread(target=self._work, name="model", daemon=True)

    @property
    def waiting(self) -> int:
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

    async def ask(self, asked: Asked, pixels: Tensor) -> tuple[Told, int]:
        """What was told of a pass that held these pictures, and in which of its rows they begin."""
        loop = asyncio.get_running_loop()
        job = _Job[Asked, Told](asked, pixels, loop.create_future(), loop)
        with self._news:
            self.refuse_more(len(pixels))
            self._jobs.append(job)
            self._waiting += len(pixels)
            self._news.notify()
        try:
            return await job.future
        finally:
            self._forget(job)

    def _forget(self, job: _Job[Asked, Told]) -> None:
        """Whoever gave up is not kept waiting for."""
        with self._news:
            if job in self._jobs:
                self._jobs.remove(job)
                self._waiting -= len(job.pixels)

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
            self.passed(start)

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
                else:
                    left.append(job)
            self._jobs, self._waiting = left, self._waiting - size
            return taken
