"""A bounded queue in front of the one thread that runs models; images that wait for the same model share a batch."""

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch
from torch import Tensor

from endocil.serve.errors import ApiError, busy

ModelT = TypeVar("ModelT")
BatchT = TypeVar("BatchT")


@dataclass(eq=False)
class Reservation:
    """Places of one request in the queue, from its admission until its images are in a forward pass."""

    remaining: int


@dataclass(eq=False)
class _Job(Generic[ModelT, BatchT]):
    model: ModelT
    pixels: Tensor  # (n, size, size, 3) uint8
    reservation: Reservation
    future: "asyncio.Future[tuple[BatchT, int]]"
    loop: asyncio.AbstractEventLoop

    def finish(self, batch: BatchT, start: int) -> None:
        self._call_in_loop(lambda: self.future.set_result((batch, start)))

    def fail(self, error: BaseException) -> None:
        self._call_in_loop(lambda: self.future.set_exception(error))

    def _call_in_loop(self, function: Callable[[], None]) -> None:
        self.loop.call_soon_threadsafe(lambda: None if self.future.done() else function())


class Engine(Generic[ModelT, BatchT]):
    """While a forward pass runs, jobs queue up; the next pass takes as many of them as fit into a batch.

    So no image waits for a batch to fill, and a busy server runs few large passes. A request with more images than a
    batch holds is split."""

    def __init__(self, predict: Callable[[ModelT, Tensor], BatchT], *, queue: int, batch: int) -> None:
        self.predict, self.queue, self.batch = predict, queue, batch
        self._jobs: deque[_Job[ModelT, BatchT]] = deque()
        self._waiting = 0
        self._closing = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="model", daemon=True)

    @property
    def waiting(self) -> int:
        """Images admitted but not yet in a forward pass; counted once for each model."""
        return self._waiting

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Finishes the jobs in the queue, then ends."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join()

    def check_capacity(self, n_images: int) -> None:
        """Raises at once where `n_images` more do not fit: the client can try again instead of waiting in vain."""
        if self._closing:
            raise ApiError(503, "stopping", "the server is stopping")
        if self._waiting + n_images > self.queue:
            raise busy(f"{self._waiting} images are already waiting; try again")

    @contextmanager
    def reserve(self, n_images: int) -> Iterator[Reservation]:
        """Places for images before they are decoded; unused places are released at the end."""
        reservation = Reservation(n_images)
        with self._changed:
            self.check_capacity(n_images)
            self._waiting += n_images
        try:
            yield reservation
        finally:
            with self._changed:
                self._waiting -= reservation.remaining

    async def run(self, model: ModelT, pixels: Tensor, reservation: Reservation) -> list[tuple[BatchT, int]]:
        """For each image the result of the pass that contained it, and its row in that pass."""
        loop = asyncio.get_running_loop()
        parts = torch.split(pixels, self.batch)
        jobs = [_Job[ModelT, BatchT](model, part, reservation, loop.create_future(), loop) for part in parts]
        with self._changed:
            self.check_capacity(0)
            self._jobs.extend(jobs)
            self._changed.notify()
        try:
            results = await asyncio.gather(*(job.future for job in jobs))
        finally:  # jobs of a client that gave up leave the queue
            with self._changed:
                self._jobs = deque(job for job in self._jobs if job not in jobs)
        pairs = zip(results, parts, strict=True)
        return [(batch, start + row) for (batch, start), part in pairs for row in range(len(part))]

    def _run(self) -> None:
        while jobs := self._next_jobs():
            try:
                batch = self.predict(jobs[0].model, torch.cat([job.pixels for job in jobs]))
            except BaseException as error:  # a request must never wait for ever because a pass failed
                for job in jobs:
                    job.fail(error)
                continue
            start = 0
            for job in jobs:
                job.finish(batch, start)
                start += len(job.pixels)

    def _next_jobs(self) -> list[_Job[ModelT, BatchT]]:
        """The first job, and others of the same model as far as they fit into a batch; empty: the engine is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._jobs or self._closing)
            selected: list[_Job[ModelT, BatchT]] = []
            rest: deque[_Job[ModelT, BatchT]] = deque()
            size = 0
            for job in self._jobs:
                if not selected or (job.model is selected[0].model and size + len(job.pixels) <= self.batch):
                    selected.append(job)
                    size += len(job.pixels)
                    job.reservation.remaining -= len(job.pixels)
                else:
                    rest.append(job)
            self._jobs, self._waiting = rest, self._waiting - size
            return selected
