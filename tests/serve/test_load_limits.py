"""Overload: refused at once, and small requests do not wait for large ones."""

import json
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

import numpy as np
import pytest
from serve.conftest import Client, Running, form, png, queued, until
from serve.test_attacks import bomb, code

from endocil.model import DISCLAIMER
from endocil.serve import service as serving_service
from endocil.serve import uploads
from endocil.serve.guard import SECURITY_HEADERS, Limits

PREDICT = "/api/v1/predict"
Serving = Callable[..., Client]


def waiting_images(client: Client) -> int:
    lines = client.get("/api/v1/metrics").text.splitlines()
    return int(float(next(line for line in lines if line.startswith("endocil_waiting_images ")).split()[1]))


class Slowly:
    """Decodes large pictures only when it is let."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.let, self.right, self.begun = threading.Semaphore(0), uploads.decode_image, 0
        monkeypatch.setattr(serving_service, "decode_image", self)

    def __call__(self, data: bytes, *how: Any) -> np.ndarray:
        if len(data) > 9_000:
            self.begun += 1
            assert self.let.acquire(timeout=60)
        return self.right(data, *how)


def large() -> bytes:
    return png(np.random.default_rng(0).integers(0, 256, (60, 60, 3), np.uint8))


def test_images_that_are_being_decoded_fill_the_queue(
    serving: Serving, pictures: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    slowly = Slowly(monkeypatch)
    client = serving(limits=Limits(queue=6, images=3))
    with ThreadPoolExecutor(2) as pool:
        asking = [pool.submit(client.post, PREDICT, files=form(*[large()] * 3)) for _ in range(2)]
        until(lambda: waiting_images(client) == 6)
        assert code(client.post(PREDICT, files=form(pictures[0]))) == (429, "busy")
        slowly.let.release(6)
        assert [one.result().status_code for one in asking] == [200, 200]
    assert waiting_images(client) == 0
    assert client.post(PREDICT, files=form(pictures[0])).status_code == 200


def test_a_small_request_does_not_wait_until_a_large_one_is_decoded(
    serving: Serving, pictures: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    slowly = Slowly(monkeypatch)
    client = serving()
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(client.post, PREDICT, files=form(*[large()] * 20))
        until(lambda: slowly.begun == serving_service.DECODERS)
        second = pool.submit(client.post, PREDICT, files=form(*pictures[:2]))
        until(lambda: waiting_images(client) == 22)
        released = 0
        while not second.done() and released < 14:  # of 20; as if each took a while
            slowly.let.release()
            released += 1
            wait([second], timeout=0.3)
        assert second.done()
        assert not first.done()
        slowly.let.release(20 - released)
        assert [len(one.result().json()["images"]) for one in (first, second)] == [20, 2]


def test_the_pixels_of_a_request_are_bounded_before_any_is_decoded(
    serving: Serving, pictures: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: object) -> None:
        raise AssertionError

    client = serving(limits=Limits(megapixels=50, request_megapixels=100))
    assert client.get("/api/v1/models").json()["limits"]["request_pixels"] == 100_000_000
    with monkeypatch.context() as within:
        within.setattr(serving_service, "decode_image", never)
        refused = client.post(PREDICT, files=form(*[bomb(7000, 7100)] * 3))
    assert code(refused) == (413, "too-large")
    assert "149,100,000 pixels in all; at most 100,000,000" in refused.json()["error"]["message"]
    assert client.service.engine.waiting == 0
    too_large_alone = [bomb(9000, 9000)] * 3  # is not decoded, and does not count
    *bad, good = client.post(PREDICT, files=form(*too_large_alone, pictures[0])).json()["images"]
    assert all(one["error"] for one in bad)
    assert good["predictions"]


def test_comparing_needs_places_for_both_models_at_once(
    serving: Serving, pictures: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    slowly = Slowly(monkeypatch)
    client = serving(limits=Limits(queue=6, images=3))
    both = f"{PREDICT}?compare=model-2"
    assert client.post(both, files=form(*pictures[:3])).status_code == 200  # as many as a request may have
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(client.post, PREDICT, files=form(large()))
        until(lambda: slowly.begun == 1)
        assert code(client.post(both, files=form(*pictures[:3]))) == (429, "busy")
        assert queued(client.service) == 0
        slowly.let.release()
        assert first.result().status_code == 200


def test_where_one_model_fails_the_other_is_not_run_in_vain(
    serving: Serving, pictures: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    client = serving(limits=Limits(batch=1))
    ran = list[str]()

    def broken(loaded: Any, pixels: object) -> object:
        ran.append(loaded.id)
        if len(ran) > 1:  # the first has failed: soon nothing waits any more
            until(lambda: queued(client.service) == 0)
        raise ZeroDivisionError

    monkeypatch.setattr(client.service.engine, "predict", broken)
    response = client.post(f"{PREDICT}?compare=model-2", files=form(*pictures[:8]))
    assert code(response) == (500, "failed")
    assert set(ran) == {"model-1"}
    assert len(ran) <= 2
    assert (queued(client.service), client.service.engine.waiting) == (0, 0)


def test_a_pass_holds_no_more_than_a_batch_and_passes_are_counted(
    serving: Serving, pictures: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    client = serving(limits=Limits(batch=4))
    engine, sizes = client.service.engine, list[int]()
    right = engine.predict

    def recorded(loaded: Any, pixels: Any) -> object:
        sizes.append(len(pixels))
        return right(loaded, pixels)

    monkeypatch.setattr(engine, "predict", recorded)
    together = client.post(f"{PREDICT}?top=5", files=form(*pictures[:5], b"none", *pictures[5:10])).json()
    assert sizes == [4, 4, 2]
    text = client.get("/api/v1/metrics").text
    assert "endocil_forward_passes_total 3.0\n" in text
    assert "endocil_forward_images_total 10.0\n" in text
    answers = [image["predictions"] for image in together["images"] if not image["error"]]
    for picture, (answer,) in zip(pictures[:10], answers, strict=True):
        (alone,) = client.post(f"{PREDICT}?top=5", files=form(picture)).json()["images"][0]["predictions"]
        assert [one["name"] for one in answer["top"]] == [one["name"] for one in alone["top"]]
        assert answer["ood_score"] == pytest.approx(alone["ood_score"], abs=1e-4)


def test_large_pictures_go_in_more_passes_and_each_is_counted(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from endocil.learning import features

    monkeypatch.setattr(features, "MOST_PIXELS", 3 * 32 * 32)
    sizes = list[int]()
    client.service.models.get(None).predict(torch.zeros(7, 32, 32, 3, dtype=torch.uint8), sizes.append)
    assert sizes == [3, 3, 1]


def read_all(line: socket.socket) -> bytes:
    answer = b""
    while data := line.recv(65_536):
        answer += data
    return answer


REQUEST = b"GET /api/v1/health HTTP/1.1\r\nHost: localhost\r\n\r\n"


def is_answered(line: socket.socket) -> bool:
    line.sendall(REQUEST)
    answer = b""
    while not answer.endswith(b'"status":"ok"}'):
        answer += line.recv(65_536) or b"closed"
        assert b"closed" not in answer
    return answer.startswith(b"HTTP/1.1 200 OK")


def test_a_surplus_connection_gets_an_error_and_the_others_go_on(running: Callable[..., Running]) -> None:
    server = running(limits=Limits(connections=3))
    lines = [socket.create_connection(("127.0.0.1", server.port), timeout=30) for _ in range(3)]
    try:
        assert all(is_answered(line) for line in lines)
        with socket.create_connection(("127.0.0.1", server.port), timeout=30) as surplus:
            surplus.sendall(REQUEST)
            head, _, body = read_all(surplus).partition(b"\r\n\r\n")
        with socket.create_connection(("127.0.0.1", server.port), timeout=30) as silent:
            assert read_all(silent) == b""  # closed, and soon
        assert is_answered(lines[0])  # those that are open go on
    finally:
        for line in lines:
            line.close()
    assert head.startswith(b"HTTP/1.1 503 ")
    error_body = json.loads(body)
    assert (error_body["disclaimer"], error_body["error"]["code"]) == (DISCLAIMER, "full")
    assert b"retry-after: 5" in head.lower()
    assert all(name.lower().encode() in head.lower() for name in SECURITY_HEADERS)
    until(lambda: not server.server.server_state.connections)
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as line:  # there is room again
        assert is_answered(line)
