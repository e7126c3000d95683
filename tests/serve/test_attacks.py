"""Attacks on a server, each refused: too much, too slow, too often, of the wrong kind."""

import io
import math
import socket
import struct
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image
from serve.conftest import Client, Response, Running, form, png, until
from torch import Tensor

from endocil.errors import EndocilError
from endocil.model.manifest import Preprocessing
from endocil.model.predictions import Predictions
from endocil.serve import service as serving_service
from endocil.serve import uploads
from endocil.serve.guard import Limits
from endocil.serve.served_models import ServedModel

PREDICT = "/api/v1/predict"
Serving = Callable[..., Client]


def code(response: Response) -> tuple[int, str]:
    return response.status_code, response.json()["error"]["code"]


def test_an_upload_that_says_it_is_too_large_is_refused_before_it_is_read(serving: Serving) -> None:
    client = serving(limits=Limits(upload_megabytes=0.01))
    assert code(client.post(PREDICT, files=form(bytes(20_000)))) == (413, "too-large")


def cut_off(line: socket.socket) -> bool:
    for _ in range(3000):
        try:
            line.sendall(b"a\r\n%s\r\n" % bytes(10))
        except OSError:
            return True
        time.sleep(0.01)
    return False


def test_an_upload_without_a_length_is_cut_off_while_it_arrives(running: Callable[..., Running]) -> None:
    server = running(limits=Limits(upload_megabytes=0.1, header_seconds=0.3))
    head = b'--x\r\nContent-Disposition: form-data; name="images"\r\n\r\n'
    answer = b""
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as line:
        line.sendall(
            f"POST {PREDICT} HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n"
            "Content-Type: multipart/form-data; boundary=x\r\n\r\n".encode()
        )
        line.sendall(b"%x\r\n%s\r\n" % (len(head), head))
        for _ in range(11):
            line.sendall(b"%x\r\n%s\r\n" % (10_000, bytes(10_000)))
        answer = line.recv(10_000)
        assert cut_off(line)  # what still comes is thrown away, and soon the line is cut
    assert b"413 " in answer.splitlines()[0]
    assert server.service.memory.used == 0
    assert httpx.get(f"{server.address}/api/v1/health").status_code == 200


def test_too_many_images_are_refused(serving: Serving, pictures: list[bytes]) -> None:
    client = serving(limits=Limits(images=3))
    assert client.post(PREDICT, files=form(*pictures[:3])).status_code == 200
    assert code(client.post(PREDICT, files=form(*pictures[:4]))) == (413, "too-large")


def bomb(width: int, height: int) -> bytes:
    """A small PNG file that claims to be a large picture."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(1000))) + chunk(b"IEND", b"")
    )


@pytest.mark.parametrize(
    ("width", "height"), [(8_000, 7_000), (9_000, 9_900), (60_000, 60_000), (2**31 - 1, 2**31 - 1)]
)
def test_a_bomb_is_refused_by_its_header(client: Client, width: int, height: int, pictures: list[bytes]) -> None:
    begun = time.process_time()
    good, bad = client.post(PREDICT, files=form(pictures[0], bomb(width, height))).json()["images"]
    assert good["predictions"]
    assert bad["error"]["code"] == "unreadable"
    assert time.process_time() - begun < 5  # 56 million pixels would have been decoded otherwise


def tiff_of_one_tile(width: int, height: int) -> bytes:
    """An image of 32 x 32 pixels in a tile of any size, which is decoded whole."""
    content = zlib.compress(bytes(100))
    fields = {256: 32, 257: 32, 258: 8, 259: 8, 262: 1, 277: 1, 322: width, 323: height, 325: len(content)}
    fields[324] = 8 + 2 + 12 * (len(fields) + 1) + 4
    entries = [struct.pack("<HHII", tag, 4, 1, value) for tag, value in sorted(fields.items())]
    return b"II*\0" + struct.pack("<IH", 8, len(entries)) + b"".join(entries) + bytes(4) + content


def test_a_tile_counts_as_much_as_an_image(serving: Serving) -> None:
    """165 bytes made a decoder take 1.6 GB."""
    client = serving(limits=Limits(megapixels=1))
    (huge,) = client.post(PREDICT, files=form(tiff_of_one_tile(16384, 32768))).json()["images"]
    (large,) = client.post(PREDICT, files=form(tiff_of_one_tile(1024, 1024))).json()["images"]
    assert huge["error"]["message"].startswith("16384 x 32768 pixels; at most")
    assert large["error"]["message"] == "1024 x 1024 pixels; at most 1,000,000 are accepted"


def test_a_jpeg_of_thousands_of_scans_is_not_decoded(client: Client) -> None:
    """Each is a pass over all pixels: 385 kB took 11 seconds, 32 MB would take a quarter of an hour."""
    file = io.BytesIO()
    Image.new("RGB", (64, 64)).save(file, "JPEG", progressive=True)
    sound = file.getvalue()
    scan = sound[sound.rindex(b"\xff\xda") : -2]
    few, many = (sound[:-2] + n * scan + sound[-2:] for n in (20, 2000))
    good, bad = client.post(PREDICT, files=form(few, many)).json()["images"]
    assert good["predictions"]
    assert bad["error"]["message"] == "a JPEG of 2,010 scans; at most 100 are accepted"


def test_three_tiny_files_of_49_megapixels_do_not_fill_the_memory(
    serving: Serving, pictures: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """38 bytes each, at once: they are decoded one by one, and a small image beside them."""
    file, at_work, most = io.BytesIO(), list[int](), list[int]()
    Image.new("RGB", (7000, 7000)).save(file, "WEBP", lossless=True, quality=0, method=0)
    tiny = file.getvalue()
    assert len(tiny) < 50
    done = threading.Event()

    def decode(data: bytes, preprocessing: Preprocessing, max_pixels: int) -> np.ndarray:
        at_work.append(math.prod(uploads.header_size(data)))
        most.append(sum(at_work))
        try:
            if data == tiny:
                assert done.wait(30)
            return np.zeros((preprocessing.size, preprocessing.size, 3), np.uint8)
        finally:
            at_work.pop()

    monkeypatch.setattr(serving_service, "decode_image", decode)
    client = serving()
    with ThreadPoolExecutor(3) as pool:
        waiting = [pool.submit(client.post, PREDICT, files=form(tiny)) for _ in range(3)]
        until(lambda: client.service.engine.waiting == 3)
        assert client.post(PREDICT, files=form(pictures[0])).status_code == 200
        done.set()
        assert [one.result().status_code for one in waiting] == [200] * 3
    assert max(most) < 50_000_000


def test_the_limit_of_pixels_is_that_of_the_server(serving: Serving) -> None:
    client = serving(limits=Limits(megapixels=0.01))
    large, small = png(np.zeros((101, 100, 3), np.uint8)), png(np.zeros((100, 100, 3), np.uint8))
    first, second = client.post(PREDICT, files=form(large, small)).json()["images"]
    assert first["error"]["message"] == "100 x 101 pixels; at most 10,000 are accepted"
    assert second["predictions"]


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (b"%PDF-1.7", "application/pdf"),
        (b"{}", "application/json"),
        (b"images=1", "application/x-www-form-urlencoded"),
        (b"x", "multipart/form-data"),
        (b"x", "multipart/mixed; boundary=x"),
        (b"x", ""),
    ],
)
def test_what_is_no_form_is_refused(client: Client, content: bytes, kind: str) -> None:
    assert code(client.post(PREDICT, content=content, headers={"Content-Type": kind})) == (415, "wrong-type")


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"", "malformed"),
        (b"garbage", "malformed"),
        (b"--x--\r\n", "no-images"),
        (b'--x\r\nContent-Disposition: form-data; name="images"\r\n\r\ncut', "malformed"),
        (b'--x\r\nContent-Disposition: form-data; name="other"\r\n\r\n1\r\n--x--\r\n', "unknown-field"),
        (b"--x\r\n\r\nno header\r\n--x--\r\n", "unknown-field"),
        (b"--x\r\nX: " + b"a" * 5000 + b"\r\n\r\n1\r\n--x--\r\n", "malformed"),
    ],
)
def test_a_damaged_form_is_refused(client: Client, body: bytes, expected: str) -> None:
    kind = {"Content-Type": "multipart/form-data; boundary=x"}
    assert code(client.post(PREDICT, content=body, headers=kind)) == (400, expected)


@pytest.mark.parametrize(
    "data",
    [
        b"GIF89a" + bytes(100),
        b"<svg/>",
        b"MZ" + bytes(100),
        b"\x00" * 1000,
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n",
    ],
)
def test_files_of_other_kinds_are_no_images(client: Client, data: bytes) -> None:
    (image,) = client.post(PREDICT, files=form(data)).json()["images"]
    assert image["error"]["code"] == "unreadable"
    assert image["predictions"] == []


def test_a_slow_upload_is_given_up(running: Callable[..., Running]) -> None:
    server = running(limits=Limits(upload_seconds=0.5))

    def drops() -> Iterator[bytes]:
        yield b'--x\r\nContent-Disposition: form-data; name="images"\r\n\r\n'
        while True:
            time.sleep(0.1)
            yield b"a"

    begun = time.monotonic()
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as line:
        line.sendall(
            f"POST {PREDICT} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n"
            "Content-Type: multipart/form-data; boundary=x\r\n\r\n--x\r\n".encode()
        )
        answer = line.recv(10_000)  # nothing more is sent
    assert b"408 " in answer.splitlines()[0]
    assert b"too-slow" in answer or b"connection: close" in answer.lower()
    assert 0.4 < time.monotonic() - begun < 20
    assert server.service.memory.used == 0
    with pytest.raises(httpx.HTTPError):  # one that never stops to send a little
        httpx.post(
            f"{server.address}{PREDICT}", content=drops(), headers={"Content-Type": "multipart/form-data; boundary=x"}
        ).raise_for_status()
    assert time.monotonic() - begun < 20


@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\nHost: loc"])
def test_a_connection_that_sends_no_complete_headers_is_closed(running: Callable[..., Running], sent: bytes) -> None:
    server = running(limits=Limits(header_seconds=0.3))
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as line:
        line.sendall(sent)
        assert line.recv(1000) == b""
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as line:
        line.sendall(b"GET /api/v1/health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert b"200 OK" in line.recv(10_000)
        line.sendall(sent or b"G")  # the second request of a connection is no better
        while data := line.recv(10_000):
            assert data


def test_a_small_body_where_no_images_are_expected(client: Client) -> None:
    response = client.put("/api/v1/models/model-1", content=b'{"file": "' + b"a" * 70_000 + b'"}')
    assert code(response) == (413, "too-large")

    def pieces() -> Iterator[bytes]:
        for _ in range(100):
            yield bytes(1000)

    response = client.put("/api/v1/models/model-1", content=pieces(), headers={"Content-Type": "application/json"})
    assert code(response) == (413, "too-large")


def test_a_full_queue_says_come_again(serving: Serving, pictures: list[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    client = serving(limits=Limits(queue=4, images=2))
    held, begun, right = threading.Event(), threading.Event(), client.service.engine.predict

    def slow(loaded: ServedModel, pixels: Tensor) -> Predictions:
        begun.set()
        assert held.wait(60)
        return right(loaded, pixels)

    monkeypatch.setattr(client.service.engine, "predict", slow)
    with ThreadPoolExecutor(3) as pool:
        first = pool.submit(client.post, PREDICT, files=form(pictures[0]))
        assert begun.wait(30)
        waiting = [pool.submit(client.post, PREDICT, files=form(*pictures[:2])) for _ in range(2)]
        until(lambda: client.service.engine.waiting == 4)
        refused = client.post(PREDICT, files=form(pictures[0]))
        assert code(refused) == (429, "busy")
        assert int(refused.headers["Retry-After"]) >= 1
        assert client.get("/api/v1/health").status_code == 200  # others are not held up
        held.set()
        assert [one.result().status_code for one in (first, *waiting)] == [200] * 3
    assert client.post(PREDICT, files=form(pictures[0])).status_code == 200


def test_uploads_of_all_requests_together_are_bounded(serving: Serving, pictures: list[bytes]) -> None:
    client = serving(limits=Limits(memory_megabytes=0.02))
    assert code(client.post(PREDICT, files=form(bytes(30_000)))) == (429, "busy")
    assert client.service.memory.used == 0
    assert client.post(PREDICT, files=form(pictures[0])).status_code == 200


def test_an_answer_that_takes_too_long_is_given_up(
    serving: Serving, pictures: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    client = serving(limits=Limits(answer_seconds=0.2))
    held, right = threading.Event(), client.service.engine.predict

    def slow(loaded: ServedModel, pixels: Tensor) -> Predictions:
        assert held.wait(60)
        return right(loaded, pixels)

    monkeypatch.setattr(client.service.engine, "predict", slow)
    assert code(client.post(PREDICT, files=form(pictures[0]))) == (503, "timeout")
    assert code(client.post(PREDICT, files=form(pictures[0]))) == (503, "timeout")
    assert client.service.engine.waiting == 0  # whoever gave up does not wait
    held.set()


def test_limits_that_cannot_work_are_refused() -> None:
    with pytest.raises(EndocilError, match=r"expected at most 89\.5, the largest image that can be decoded"):
        Limits(megapixels=100)
    with pytest.raises(EndocilError, match="the limit batch is 0; expected a number above 0"):
        Limits(batch=0)
    for name in ("upload_megabytes", "megapixels", "request_megapixels", "upload_seconds", "answer_seconds"):
        for value in (float("inf"), float("nan"), -1.0):
            wrong: dict[str, Any] = {name: value}
            with pytest.raises(EndocilError, match=f"the limit {name} is {value}; expected a number above 0"):
                Limits(**wrong)
    with pytest.raises(EndocilError, match="64 images for two models, but only 127 can wait"):
        Limits(queue=127)
    assert Limits(queue=128)


TRAVERSALS = [
    "/assets/../app.py",
    "/assets/..%2fapp.py",
    "/assets/%2e%2e/app.py",
    "/../../etc/passwd",
    "/%2e%2e/%2e%2e/etc/passwd",
    "/assets/..\\..\\etc\\passwd",
    "//etc/passwd",
    "/assets//etc/passwd",
    "/api/v1/runs/../../etc/passwd/report",
    "/api/v1/runs/..%2f..%2fetc%2fpasswd/report",
    "/api/v1/models/..%2f..%2fv1.endocil",
    "/api/v1/models/model-1/exemplars/../../../etc/passwd",
    "/api/v1/models/model-1/exemplars/0000000000000000/..%2f..%2fetc%2fpasswd.png",
]


@pytest.mark.parametrize("path", TRAVERSALS)
def test_no_path_leads_to_the_disk(running: Callable[..., Running], path: str) -> None:
    server = running()
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as line:  # clients tidy paths up
        line.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
        answer = b""
        while data := line.recv(65_536):
            answer += data
    assert answer.split()[1] in (b"404", b"422", b"400")
    assert b"root:" not in answer
    assert b"def create_app" not in answer
