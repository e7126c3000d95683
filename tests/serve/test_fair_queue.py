"""The threads that decode are shared fairly between requests."""

import asyncio
import threading

import pytest
from serve.test_engine import run

from endocil.serve.fair_queue import FairQueue


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
