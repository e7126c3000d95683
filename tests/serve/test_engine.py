"""The queue before the model's thread: what waits together goes together, nobody waits for ever."""

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any

import pytest
import torch

from endocil.serve.engine import Engine
from endocil.serve.limits import Refusal


def pictures(n: int, shade: int = 0) -> torch.Tensor:
    return torch.full((n, 2, 2, 3), shade, dtype=torch.uint8)


def lived(coroutine: Coroutine[Any, Any, None]) -> None:
    """In a thread of its own: the thread of the tests may have a loop that a browser needs."""
    failed: list[BaseException] = []

    def live() -> None:
        try:
            asyncio.run(coroutine)
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=live)
    thread.start()
    thread.join(60)
    assert not thread.is_alive()
    if failed:
        raise failed[0]


class Recorder:
    """A model that tells the shade of each picture, once it is let."""

    def __init__(self, *, held: bool = False) -> None:
        self.passes: list[tuple[str, int]] = []
        self.let = threading.Event()
        if not held:
            self.let.set()

    def __call__(self, asked: str, pixels: torch.Tensor) -> list[int]:
        assert self.let.wait(30)
        self.passes.append((asked, len(pixels)))
        if asked == "broken":
            raise ZeroDivisionError
        return pixels[:, 0, 0, 0].tolist()


Asking = Engine[str, list[int]]


async def ask(engine: Asking, name: str, pixels: torch.Tensor) -> list[int]:
    """What is told of each picture, with places for just these."""
    with engine.admitted(len(pixels)) as places:
        return [told[row] for told, row in await engine.ask(name, pixels, places)]


async def until_waiting(engine: Asking, n: int) -> None:
    async with asyncio.timeout(30):
        while engine.waiting < n:
            await asyncio.sleep(0.005)


def test_what_waits_for_the_same_model_goes_together_and_each_gets_its_own() -> None:
    async def life() -> None:
        model = Recorder(held=True)
        engine: Asking = Engine(model, queue=100, batch=4)
        engine.start()
        first = asyncio.create_task(ask(engine, "a", pictures(1, 1)))
        while engine.waiting:
            await asyncio.sleep(0.005)
        await asyncio.sleep(0.05)
        sizes = [("a", 2), ("b", 1), ("a", 2), ("a", 1), ("b", 1)]
        others = [
            asyncio.create_task(ask(engine, name, pictures(n, 10 + i))) for i, (name, n) in enumerate(sizes)
        ]
        await until_waiting(engine, 7)
        model.let.set()
        assert await first == [1]
        for i, ((_, n), one) in enumerate(zip(sizes, others, strict=True)):
            assert await one == [10 + i] * n
        engine.close()
        assert model.passes == [("a", 1), ("a", 4), ("b", 2), ("a", 1)]

    lived(life())


def test_more_than_a_batch_in_one_request_goes_in_several_passes_and_is_answered_whole() -> None:
    async def life() -> None:
        model = Recorder(held=True)
        engine: Asking = Engine(model, queue=100, batch=4)
        engine.start()
        first = asyncio.create_task(ask(engine, "a", pictures(1)))
        await asyncio.sleep(0.05)
        many = torch.arange(9, dtype=torch.uint8)[:, None, None, None].expand(9, 2, 2, 3)
        large = asyncio.create_task(ask(engine, "a", many))
        await until_waiting(engine, 9)
        small = asyncio.create_task(ask(engine, "a", pictures(3, 50)))
        await until_waiting(engine, 12)
        model.let.set()
        await first
        assert await large == list(range(9))
        assert await small == [50] * 3
        engine.close()
        assert model.passes == [
            ("a", 1),
            ("a", 4),
            ("a", 4),
            ("a", 4),
        ]  # the last of the large one had company

    lived(life())


def test_places_are_taken_before_anything_waits_and_given_back() -> None:
    async def life() -> None:
        engine: Asking = Engine(Recorder(), queue=5, batch=4)
        engine.start()
        with engine.admitted(4) as places:
            assert engine.waiting == 4
            with pytest.raises(Refusal) as refused:
                await ask(engine, "a", pictures(2))
            assert refused.value.status_code == 429
            assert len(await engine.ask("a", pictures(3), places)) == 3  # the fourth could not be read
            assert engine.waiting == 1
        assert engine.waiting == 0
        with pytest.raises(ZeroDivisionError), engine.admitted(5):
            raise ZeroDivisionError
        assert engine.waiting == 0
        engine.close()

    lived(life())

    lived(life())


def test_a_full_queue_refuses_and_has_room_again() -> None:
    async def life() -> None:
        model = Recorder(held=True)
        engine: Asking = Engine(model, queue=3, batch=2)
        engine.start()
        first = asyncio.create_task(ask(engine, "a", pictures(1)))
        await asyncio.sleep(0.05)
        second = asyncio.create_task(ask(engine, "a", pictures(3)))
        await until_waiting(engine, 3)
        with pytest.raises(Refusal) as refused:
            await ask(engine, "a", pictures(1))
        assert refused.value.status_code == 429
        assert refused.value.headers == {"Retry-After": "1"}
        model.let.set()
        await asyncio.gather(first, second)
        await ask(engine, "a", pictures(3))
        engine.close()

    lived(life())


def test_a_pass_that_fails_fails_its_requests_and_no_others() -> None:
    async def life() -> None:
        engine: Asking = Engine(Recorder(), queue=9, batch=4)
        engine.start()
        with pytest.raises(ZeroDivisionError):
            await ask(engine, "broken", pictures(1))
        assert await ask(engine, "a", pictures(1, 5)) == [5]
        engine.close()

    lived(life())


def test_whoever_gives_up_leaves_the_queue() -> None:
    async def life() -> None:
        model = Recorder(held=True)
        engine: Asking = Engine(model, queue=9, batch=4)
        engine.start()
        first = asyncio.create_task(ask(engine, "a", pictures(1)))
        await asyncio.sleep(0.05)
        waiting = asyncio.create_task(ask(engine, "a", pictures(2)))
        await until_waiting(engine, 2)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert engine.waiting == 0
        model.let.set()
        await first
        engine.close()
        assert model.passes == [("a", 1)]

    lived(life())


def test_closing_answers_what_waits_and_takes_no_more() -> None:
    async def life() -> None:
        model = Recorder(held=True)
        engine: Asking = Engine(model, queue=9, batch=1)
        engine.start()
        asked = [asyncio.create_task(ask(engine, "a", pictures(1, i))) for i in range(5)]
        await asyncio.sleep(0.05)
        closing = asyncio.create_task(asyncio.to_thread(engine.close))
        await asyncio.sleep(0.05)
        with pytest.raises(Refusal) as refused:
            await ask(engine, "a", pictures(1))
        assert refused.value.status_code == 503
        model.let.set()
        await closing
        assert await asyncio.gather(*asked) == [[i] for i in range(5)]

    lived(life())
