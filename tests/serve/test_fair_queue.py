"""The threads that decode are shared fairly between requests."""

import asyncio
import threading

import pytest
from serve.test_engine import run

from endocil.serve.queues import FairQueue


def test_a_small_request_is_not_behind_a_large_one() -> None:
    async def steps() -> None:
        queue, let, done = FairQueue(1), threading.Event(), list[str]()

        def work(name: str) -> str:
            assert let.wait(30)
            done.append(name)
            return name.upper()

        large = asyncio.create_task(queue.map(work, [f"large {i}" for i in range(6)]))
        await asyncio.sleep(0.05)
        small = asyncio.create_task(queue.map(work, ["small 0", "small 1"]))
        await asyncio.sleep(0.05)
        let.set()
        assert await small == ["SMALL 0", "SMALL 1"]
        assert await large == [f"LARGE {i}" for i in range(6)]  # in their order
        assert done.index("small 1") <= 4
        queue.close()

    run(steps())


def test_what_nobody_waits_for_is_not_done() -> None:
    async def steps() -> None:
        queue, let, done = FairQueue(1), threading.Event(), list[int]()

        def work(number: int) -> None:
            done.append(number)
            assert let.wait(30)

        abandoned = asyncio.create_task(queue.map(work, range(5)))
        while not done:
            await asyncio.sleep(0.005)
        abandoned.cancel()
        with pytest.raises(asyncio.CancelledError):
            await abandoned
        let.set()
        await queue.map(work, [9])
        queue.close()
        assert done == [0, 9]

    run(steps())


def test_one_that_fails_fails_its_request_alone() -> None:
    async def steps() -> None:
        queue = FairQueue(2)
        with pytest.raises(ZeroDivisionError):
            await queue.map(lambda n: 1 // n, [1, 0, 1])
        assert await queue.map(lambda n: 1 // n, [1, 1]) == [1, 1]
        queue.close()

    run(steps())


def test_one_large_item_at_a_time_and_small_ones_beside_it() -> None:
    async def steps() -> None:
        queue, let, now, most = FairQueue(2), threading.Semaphore(0), list[int](), list[int]()

        def work(pixels: int) -> int:
            now.append(pixels)
            most.append(sum(now))
            if pixels > 1:
                assert let.acquire(timeout=30)
            now.remove(pixels)
            return pixels

        requests = [asyncio.create_task(queue.map(work, [50, 50], [True, True])) for _ in range(3)]
        while not now:
            await asyncio.sleep(0.005)
        assert await queue.map(work, [1, 1, 1], [False] * 3) == [1, 1, 1]  # while a large one is at work
        assert now == [50]
        requests[0].cancel()  # its thread goes on, and so nothing large may begin
        await asyncio.sleep(0.05)
        assert now == [50]
        let.release(6)
        assert await asyncio.gather(*requests[1:]) == [[50, 50]] * 2
        assert max(most) <= 51
        queue.close()

    run(steps())
