"""The queue before the model's thread: images that wait together share a pass, and no request waits for ever."""

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any

import pytest
import torch

from endocil.serve.queues import Engine
from endocil.serve.schemas import ApiError


def pictures(n: int, shade: int = 0) -> torch.Tensor:
    return torch.full((n, 2, 2, 3), shade, dtype=torch.uint8)


def run(coroutine: Coroutine[Any, Any, None]) -> None:
    """In a thread of its own: the thread of the tests may have a loop that a browser needs."""
    failed: list[BaseException] = []

    def target() -> None:
        try:
            asyncio.run(coroutine)
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=target)
    thread.start()
    thread.join(60)
    assert not thread.is_alive()
    if failed:
        raise failed[0]


class Recorder:
    """A model that predicts the shade of each image, once it is released."""

    def __init__(self, *, held: bool = False) -> None:
        self.passes: list[tuple[str, int]] = []
        self.released = threading.Event()
        if not held:
            self.released.set()

    def __call__(self, model: str, pixels: torch.Tensor) -> list[int]:
        assert self.released.wait(30)
        self.passes.append((model, len(pixels)))
        if model == "broken":
            raise ZeroDivisionError
        return pixels[:, 0, 0, 0].tolist()


ShadeEngine = Engine[str, list[int]]


async def predict(engine: ShadeEngine, name: str, pixels: torch.Tensor) -> list[int]:
    """The shade of each image, with a reservation for just these."""
    with engine.reserve(len(pixels)) as reservation:
        return [batch[row] for batch, row in await engine.run(name, pixels, reservation)]


async def until_waiting(engine: ShadeEngine, n: int) -> None:
    async with asyncio.timeout(30):
        while engine.waiting < n:
            await asyncio.sleep(0.005)


def test_what_waits_for_the_same_model_goes_together_and_each_gets_its_own() -> None:
    async def steps() -> None:
        model = Recorder(held=True)
        engine: ShadeEngine = Engine(model, queue=100, batch=4)
        engine.start()
        first = asyncio.create_task(predict(engine, "a", pictures(1, 1)))
        while engine.waiting:
            await asyncio.sleep(0.005)
        await asyncio.sleep(0.05)
        sizes = [("a", 2), ("b", 1), ("a", 2), ("a", 1), ("b", 1)]
        others = [asyncio.create_task(predict(engine, name, pictures(n, 10 + i))) for i, (name, n) in enumerate(sizes)]
        await until_waiting(engine, 7)
        model.released.set()
        assert await first == [1]
        for i, ((_, n), one) in enumerate(zip(sizes, others, strict=True)):
            assert await one == [10 + i] * n
        engine.close()
        assert model.passes == [("a", 1), ("a", 4), ("b", 2), ("a", 1)]

    run(steps())


def test_more_than_a_batch_in_one_request_goes_in_several_passes_and_is_answered_whole() -> None:
    async def steps() -> None:
        model = Recorder(held=True)
        engine: ShadeEngine = Engine(model, queue=100, batch=4)
        engine.start()
        first = asyncio.create_task(predict(engine, "a", pictures(1)))
        await asyncio.sleep(0.05)
        many = torch.arange(9, dtype=torch.uint8)[:, None, None, None].expand(9, 2, 2, 3)
        large = asyncio.create_task(predict(engine, "a", many))
        await until_waiting(engine, 9)
        small = asyncio.create_task(predict(engine, "a", pictures(3, 50)))
        await until_waiting(engine, 12)
        model.released.set()
        await first
        assert await large == list(range(9))
        assert await small == [50] * 3
        engine.close()
        assert model.passes == [("a", 1), ("a", 4), ("a", 4), ("a", 4)]  # the last of the large one had company

    run(steps())


def test_places_are_taken_before_anything_waits_and_given_back() -> None:
    async def steps() -> None:
        engine: ShadeEngine = Engine(Recorder(), queue=5, batch=4)
        engine.start()
        with engine.reserve(4) as reservation:
            assert engine.waiting == 4
            with pytest.raises(ApiError) as refused:
                await predict(engine, "a", pictures(2))
            assert refused.value.status == 429
            assert len(await engine.run("a", pictures(3), reservation)) == 3  # the fourth could not be read
            assert engine.waiting == 1
        assert engine.waiting == 0
        with pytest.raises(ZeroDivisionError), engine.reserve(5):
            raise ZeroDivisionError
        assert engine.waiting == 0
        engine.close()

    run(steps())


def test_a_full_queue_refuses_and_has_room_again() -> None:
    async def steps() -> None:
        model = Recorder(held=True)
        engine: ShadeEngine = Engine(model, queue=3, batch=2)
        engine.start()
        first = asyncio.create_task(predict(engine, "a", pictures(1)))
        await asyncio.sleep(0.05)
        second = asyncio.create_task(predict(engine, "a", pictures(3)))
        await until_waiting(engine, 3)
        with pytest.raises(ApiError) as refused:
            await predict(engine, "a", pictures(1))
        assert refused.value.status == 429
        assert refused.value.headers == {"Retry-After": "1"}
        model.released.set()
        await asyncio.gather(first, second)
        await predict(engine, "a", pictures(3))
        engine.close()

    run(steps())


def test_a_pass_that_fails_fails_its_requests_and_no_others() -> None:
    async def steps() -> None:
        engine: ShadeEngine = Engine(Recorder(), queue=9, batch=4)
        engine.start()
        with pytest.raises(ZeroDivisionError):
            await predict(engine, "broken", pictures(1))
        assert await predict(engine, "a", pictures(1, 5)) == [5]
        engine.close()

    run(steps())


def test_whoever_gives_up_leaves_the_queue() -> None:
    async def steps() -> None:
        model = Recorder(held=True)
        engine: ShadeEngine = Engine(model, queue=9, batch=4)
        engine.start()
        first = asyncio.create_task(predict(engine, "a", pictures(1)))
        await asyncio.sleep(0.05)
        waiting = asyncio.create_task(predict(engine, "a", pictures(2)))
        await until_waiting(engine, 2)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert engine.waiting == 0
        model.released.set()
        await first
        engine.close()
        assert model.passes == [("a", 1)]

    run(steps())


def test_closing_answers_what_waits_and_takes_no_more() -> None:
    async def steps() -> None:
        model = Recorder(held=True)
        engine: ShadeEngine = Engine(model, queue=9, batch=1)
        engine.start()
        waiting = [asyncio.create_task(predict(engine, "a", pictures(1, i))) for i in range(5)]
        await asyncio.sleep(0.05)
        closing = asyncio.create_task(asyncio.to_thread(engine.close))
        await asyncio.sleep(0.05)
        with pytest.raises(ApiError) as refused:
            await predict(engine, "a", pictures(1))
        assert refused.value.status == 503
        model.released.set()
        await closing
        assert await asyncio.gather(*waiting) == [[i] for i in range(5)]

    run(steps())
