"""Requests take turns at the threads that decode."""

import asyncio
import threading

import pytest
from serve.test_engine import lived

from endocil.serve.engine import Turns


def test_a_small_request_is_not_behind_a_large_one() -> None:
    async def life() -> None:
        turns, let, done = Turns(1), threading.Event(), list[str]()

        def work(name: str) -> str:
            assert let.wait(30)
            done.append(name)
            return name.upper()

        large = asyncio.create_task(turns.each(work, [f"large {i}" for i in range(6)]))
        await asyncio.sleep(0.05)
        small = asyncio.create_task(turns.each(work, ["small 0", "small 1"]))
        await asyncio.sleep(0.05)
        let.set()
        assert await small == ["SMALL 0", "SMALL 1"]
        assert await large == [f"LARGE {i}" for i in range(6)]  # in their order
        assert done.index("small 1") <= 4
        turns.close()

    lived(life())


def test_what_nobody_waits_for_is_not_done() -> None:
    async def life() -> None:
        turns, let, done = Turns(1), threading.Event(), list[int]()

        def work(number: int) -> None:
            done.append(number)
            assert let.wait(30)

        given_up = asyncio.create_task(turns.each(work, range(5)))
        while not done:
            await asyncio.sleep(0.005)
        given_up.cancel()
        with pytest.raises(asyncio.CancelledError):
            await given_up
        let.set()
        await turns.each(work, [9])
        turns.close()
        assert done == [0, 9]

    lived(life())


def test_one_that_fails_fails_its_request_alone() -> None:
    async def life() -> None:
        turns = Turns(2)
        with pytest.raises(ZeroDivisionError):
            await turns.each(lambda n: 1 // n, [1, 0, 1])
        assert await turns.each(lambda n: 1 // n, [1, 1]) == [1, 1]
        turns.close()

    lived(life())
