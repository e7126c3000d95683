"""What stands between requests and the processor: a fair queue for decoding, and batches for the model's one thread."""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from endocil.serve.schemas import ApiError, busy

Item = TypeVar("Item")
Result = TypeVar("Result")
ModelT = TypeVar("ModelT")
BatchT = TypeVar("BatchT")


async def gather(coroutines: Iterable[Coroutine[Any, Any, Result]]) -> list[Result]:
    """All results; when one fails, the others are cancelled."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(coroutine) for coroutine in coroutines]
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from None
    return [task.result() for task in tasks]


class FairQueue:
    """Threads shared fairly between requests: a large request does not delay a small one.

    Each call of `map` waits for a free thread with as many items as there are threads, and then again behind the
    others: asyncio's semaphore serves those that wait in their order. Of the large items only one is worked on at a
    time, which bounds the memory, and leaves the other threads to small ones."""

    def __init__(self, threads: int) -> None:
        self._n_threads, self._free, self._large = threads, asyncio.Semaphore(threads), asyncio.Semaphore(1)
        self._threads = ThreadPoolExecutor(threads, "fair-queue")

    async def map(
        self, function: Callable[[Item], Result], items: Sequence[Item], large: Sequence[bool] = ()
    ) -> list[Result]:
        """Results in the order of the items; items not begun are dropped when one fails or the caller gives up."""
        results: dict[int, Result] = {}
        remaining = iter(enumerate(items))

        async def work() -> None:
            for index, item in remaining:
                results[index] = await self._run(function, item, large=bool(large) and large[index])

        await gather(work() for _ in range(self._n_threads))
        return [results[index] for index in range(len(items))]

    async def _run(self, function: Callable[[Item], Result], item: Item, *, large: bool) -> Result:
        """Its place becomes free when the thread is done, also where the caller has given up before."""
        loop = asyncio.get_running_loop()
        places = [self._large, self._free] if large else [self._free]
        async with AsyncExitStack() as held:
            for place in places:
                await held.enter_async_context(place)
            future = self._threads.submit(function, item)
            held.pop_all()
        future.add_done_callback(lambda _: [loop.call_soon_threadsafe(place.release) for place in places])
        return await asyncio.wrap_future(future)

    def close(self) -> None:
        self._threads.shutdown()


@dataclass(eq=False)
class Reservation:
    """Places of one request in the queue, from its admission until its images are in a forward pass."""

    remaining: int


@dataclass(eq=False)
class _Job(Generic[ModelT, BatchT]):
    model: ModelT
    pixels: Tensor  # (n, size, size, 3) uint8
    reservation: Reservation
    future: "Future[tuple[BatchT, int]]" = field(default_factory=Future)


class Engine(Generic[ModelT, BatchT]):
    """A bounded queue in front of the one thread that runs models; images that wait for the same model share a batch.

    While a forward pass runs, jobs queue up; the next pass takes as many of them as fit into a batch. So no image
    waits for a batch to fill, and a busy server runs few large passes. A request with more images than a batch holds
    is split."""

    def __init__(self, predict: Callable[[ModelT, Tensor], BatchT], *, queue: int, batch: int) -> None:
        self.predict, self.queue, self.batch = predict, queue, batch
        self.waiting = 0  # images admitted but not yet in a forward pass; counted once for each model
        self._jobs: list[_Job[ModelT, BatchT]] = []
        self._calls: list[tuple[Callable[[], object], Future[Any]]] = []
        self._closing = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="model", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Finishes the jobs and calls in the queue, then ends."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join()

    def check_capacity(self, n_images: int) -> None:
        """Raises at once where `n_images` more do not fit: the client can try again instead of waiting in vain."""
        if self._closing:
            raise ApiError(503, "stopping", "the server is stopping")
        if self.waiting + n_images > self.queue:
            raise busy(f"{self.waiting} images are already waiting; try again")

    @contextmanager
    def reserve(self, n_images: int) -> Iterator[Reservation]:
        """Places for images before they are decoded; unused places are released at the end."""
        reservation = Reservation(n_images)
        with self._changed:
            self.check_capacity(n_images)
            self.waiting += n_images
        try:
            yield reservation
        finally:
            with self._changed:
                self.waiting -= reservation.remaining

    async def run(self, model: ModelT, pixels: Tensor, reservation: Reservation) -> list[tuple[BatchT, int]]:
        """For each image the result of the pass that contained it, and its row in that pass."""
        jobs = [_Job[ModelT, BatchT](model, part, reservation) for part in torch.split(pixels, self.batch)]
        with self._changed:
            self.check_capacity(0)
            self._jobs += jobs
            self._changed.notify()
        try:
            results = await asyncio.gather(*(asyncio.wrap_future(job.future) for job in jobs))
        finally:  # jobs of a client that gave up leave the queue
            with self._changed:
                self._jobs = [job for job in self._jobs if job not in jobs]
        pairs = zip(results, jobs, strict=True)
        return [(batch, start + row) for (batch, start), job in pairs for row in range(len(job.pixels))]

    async def call(self, function: Callable[[], Result]) -> Result:
        """Something else that needs a model, in the same thread: at most one call between two forward passes, so that
        images never wait for more than one. Callers bound how many calls wait."""
        future: Future[Result] = Future()
        with self._changed:
            self.check_capacity(0)
            self._calls.append((function, future))
            self._changed.notify()
        try:
            return await asyncio.wrap_future(future)
        finally:
            with self._changed:
                self._calls = [one for one in self._calls if one[1] is not future]

    def _run(self) -> None:
        while self._wait():
            self._run_pass()
            self._run_call()

    def _wait(self) -> bool:
        """Until there is something to do; whether there is: otherwise the engine is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._jobs or self._calls or self._closing)
            return bool(self._jobs or self._calls)

    def _run_call(self) -> None:
        with self._changed:
            function, future = self._calls.pop(0) if self._calls else (None, None)
        if function is None or future is None or not future.set_running_or_notify_cancel():
            return
        try:
            future.set_result(function())
        except BaseException as error:
            future.set_exception(error)

    def _run_pass(self) -> None:
        jobs = [job for job in self._next_jobs() if job.future.set_running_or_notify_cancel()]
        if not jobs:  # none, or nobody waits for them any more
            return
        try:
            batch = self.predict(jobs[0].model, torch.cat([job.pixels for job in jobs]))
        except BaseException as error:  # a request must never wait for ever because a pass failed
            for job in jobs:
                job.future.set_exception(error)
            return
        start = 0
        for job in jobs:
            job.future.set_result((batch, start))
            start += len(job.pixels)

    def _next_jobs(self) -> list[_Job[ModelT, BatchT]]:
        """The first job, and others of the same model as far as they fit into a batch."""
        with self._changed:
            selected: list[_Job[ModelT, BatchT]] = []
            size = 0
            for job in self._jobs:
                if not selected or (job.model is selected[0].model and size + len(job.pixels) <= self.batch):
                    selected.append(job)
                    size += len(job.pixels)
                    job.reservation.remaining -= len(job.pixels)
            self._jobs = [job for job in self._jobs if job not in selected]
            self.waiting -= size
            return selected
