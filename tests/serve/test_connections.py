"""Connections: idle ones do not lock others out, and a stop answers everything that was read."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import pytest
from serve.conftest import Running, form, until
from serve.test_load_limits import REQUEST, is_answered, read_all
from torch import Tensor

from endocil.model.predictions import Predictions
from endocil.serve import server as http_server
from endocil.serve.guard import Limits
from endocil.serve.served_models import ServedModel

PREDICT = "/api/v1/predict"
LIMIT = 6
SLOW_BODY = (
    f"POST {PREDICT} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n"
    "Content-Type: multipart/form-data; boundary=x\r\n\r\n"
    '--x\r\nContent-Disposition: form-data; name="images"\r\n\r\n'
).encode()


@contextmanager
def lines_to(server: Running, n: int) -> Iterator[list[socket.socket]]:
    with ExitStack() as stack:
        yield [stack.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=30)) for _ in range(n)]


@pytest.mark.parametrize(
    ("sent", "told"),
    [(b"", b""), (b"GET / HTTP/1.1\r\nHost: loc", b""), (REQUEST, b"200"), (SLOW_BODY, b"408")],
    ids=["silent", "slow headers", "kept open", "slow bodies"],
)
def test_connections_that_keep_the_server_waiting_make_room_for_others(
    running: Callable[..., Running], monkeypatch: pytest.MonkeyPatch, sent: bytes, told: bytes
) -> None:
    monkeypatch.setattr(http_server, "PATIENCE", 0.2)
    server = running(limits=Limits(connections=LIMIT, header_seconds=60, upload_seconds=60))
    with lines_to(server, LIMIT) as idle:
        for line in idle:
            line.sendall(sent)
        until(lambda: len(server.server.connections.open) == LIMIT)
        time.sleep(0.4)
        begun = time.monotonic()
        for _ in range(2 * LIMIT):  # more than all of them
            with socket.create_connection(("127.0.0.1", server.port), timeout=30) as line:
                assert is_answered(line)
        assert time.monotonic() - begun < 5
        closed = idle[0]  # the one that kept it waiting for longest
        closed.settimeout(10)
        assert told in (read_all(closed).splitlines() or [b""])[0]
        assert len(server.server.connections.open) <= LIMIT


def test_an_upload_that_goes_on_and_a_request_under_way_do_not_make_room(
    running: Callable[..., Running], pictures: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "PATIENCE", 0.2)
    server = running(limits=Limits(connections=2))
    held, begun, right = threading.Event(), threading.Event(), server.service.engine.predict

    def slow(loaded: ServedModel, pixels: Tensor) -> Predictions:
        begun.set()
        assert held.wait(60)
        return right(loaded, pixels)

    server.service.engine.predict = slow
    answers = list[int]()
    asking = threading.Thread(
        target=lambda: answers.append(
            httpx.post(f"{server.address}{PREDICT}", files=form(pictures[0]), timeout=60).status_code
        )
    )
    asking.start()
    assert begun.wait(60)
    with lines_to(server, 1) as (uploading,):
        uploading.sendall(SLOW_BODY)
        for _ in range(8):
            uploading.sendall(bytes(10_000))
            time.sleep(0.05)
        with socket.create_connection(("127.0.0.1", server.port), timeout=30) as surplus:
            surplus.sendall(REQUEST)
            assert b"503" in read_all(surplus).splitlines()[0]
    held.set()
    asking.join(60)
    assert answers == [200]


def test_a_client_that_does_not_read_its_answer_is_given_up(
    running: Callable[..., Running], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = running(limits=Limits(upload_seconds=0.3))
    monkeypatch.setattr(server.service.metrics, "text", lambda: bytes(30_000_000))
    with socket.socket() as line:
        line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        line.connect(("127.0.0.1", server.port))
        line.sendall(b"GET /api/v1/metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
        until(lambda: len(server.server.connections.open) == 1)
        until(lambda: not server.server.connections.open)


def test_a_stop_says_so_in_its_answers_and_drops_nothing_that_was_read(running: Callable[..., Running]) -> None:
    """Requests that are half sent, sent at once, or not yet accepted when the signal comes."""
    server = running()
    with lines_to(server, 3) as (half, pipelined, idle):
        assert is_answered(half)
        assert is_answered(idle)
        half.sendall(REQUEST[:30])
        time.sleep(0.2)
        server.server.should_exit = True
        until(lambda: server.server.connections.stopping)
        half.sendall(REQUEST[30:])
        pipelined.sendall(3 * REQUEST)
        idle.sendall(REQUEST)  # on a connection that was idle
        for line, n in ((half, 1), (pipelined, 3), (idle, 1)):
            answer = read_all(line)  # to its end
            assert answer.count(b"HTTP/1.1 200 OK") == n
            assert answer.lower().count(b"connection: close") == 1  # the last one
        server.thread.join(30)
        assert not server.thread.is_alive()
    assert server.server.unfinished == 0


def test_a_stop_is_bounded_and_what_is_unanswered_is_told(
    running: Callable[..., Running], pictures: list[bytes]
) -> None:
    server = running(limits=Limits(stop_seconds=0.3))
    held, begun = threading.Event(), threading.Event()

    def stuck(loaded: ServedModel, pixels: Tensor) -> Predictions:
        begun.set()
        assert held.wait(60)
        raise ZeroDivisionError

    server.service.engine.predict = stuck
    answers = list[httpx.Response]()
    asking = threading.Thread(
        target=lambda: answers.append(httpx.post(f"{server.address}{PREDICT}", files=form(pictures[0]), timeout=60))
    )
    asking.start()
    assert begun.wait(60)
    server.server.should_exit = True
    asking.join(30)
    held.set()
    server.stop()
    (answer,) = answers
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "stopping")
    assert answer.headers["connection"] == "close"
    assert server.server.unfinished == 1


def start(command: list[str]) -> tuple["subprocess.Popen[str]", str]:
    """A server in a process of its own, and its address."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    environment.pop("ENDOCIL_TOKEN", None)
    process = subprocess.Popen(
        [sys.executable, "-m", "endocil", "serve", *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    while line and "Listening on " not in line:
        line = process.stdout.readline()
    return process, line.partition("Listening on ")[2].split(" ")[0]


@pytest.mark.slow
def test_the_exit_status_tells_whether_all_were_answered(folder: Path, pictures: list[bytes]) -> None:
    process, address = start([str(folder / "v1.endocil"), "--port", "0", "--stop-seconds", "1"])
    port = int(address.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port), timeout=30) as line:
        line.sendall(SLOW_BODY)  # a request that never arrives completely
        time.sleep(0.5)
        begun = time.monotonic()
        process.send_signal(signal.SIGTERM)
        assert b"503" in read_all(line).splitlines()[0]
        _, errors = process.communicate(timeout=30)
    assert time.monotonic() - begun < 10
    assert process.returncode == 1
    said = errors.splitlines()[-1]
    assert "stopped with 1 requests unanswered, which got status 503" in said
    assert [json.loads(one)["event"] for one in errors.splitlines()[:-1]] == ["started", "request", "stopped"]
