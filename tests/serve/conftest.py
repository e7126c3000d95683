"""Two versions of a model, a server in this process, and one on a real socket."""

import hashlib
import io
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pytest
from pictures import make_images
from PIL import Image
from untrained import write_untrained

pytest.importorskip("fastapi")

from starlette.testclient import TestClient

from endocil.serve.app import create_app
from endocil.serve.guard import Limits
from endocil.serve.monitoring import Log
from endocil.serve.served_models import ServedModel, ServedModels, load
from endocil.serve.served_runs import Runs
from endocil.serve.server import Server, listen
from endocil.serve.service import Service

Files = list[tuple[str, tuple[str, bytes]]]


@pytest.fixture(scope="session")
def versions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two versions; read only."""
    folder = tmp_path_factory.mktemp("versions")
    write_untrained(folder / "v1.endocil", seed=0, name="first")
    write_untrained(folder / "v2.endocil", seed=1, name="second")
    return folder


@pytest.fixture
def folder(versions: Path, tmp_path: Path) -> Path:
    """The same, to write into."""
    return shutil.copytree(versions, tmp_path / "models")


def png(pixels: np.ndarray, kind: str = "PNG") -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, kind)
    return file.getvalue()


def damaged_tiff(name: str) -> bytes:
    """libtiff complains about it on standard error."""
    file, pixels = io.BytesIO(), np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)
    Image.fromarray(pixels).save(file, "TIFF", compression="tiff_adobe_deflate", description=name)
    data = bytearray(file.getvalue())
    data[8 : len(data) // 2] = bytes(len(data) // 2 - 8)
    return bytes(data)


@pytest.fixture(scope="session")
def pictures() -> list[bytes]:
    """Twelve PNG files of different sizes."""
    pixels = make_images([6, 6], size=48, seed=3).pixels.numpy()
    return [png(one[: 48 - 2 * row]) for row, one in enumerate(pixels)]


def until(holds: Callable[[], object]) -> None:
    end = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.01)


def queued(service: Service) -> int:
    """Images that are decoded and wait for a model."""
    with service.engine._changed:
        return sum(len(job.pixels) for job in service.engine._jobs)


def form(*images: bytes) -> Files:
    return [("images", (f"patient-{row}.png", data)) for row, data in enumerate(images)]


_LOADED: dict[tuple[str, str], ServedModel] = {}  # by id and digest


def quickly(paths: Sequence[Path], models: Path | None, runs: Path | None, limits: Limits) -> Service:
    """A server whose models are loaded from files; a model is loaded once for all tests."""
    loaded = []
    for number, path in enumerate(paths, 1):
        key = (f"model-{number}", hashlib.sha256(path.read_bytes()).hexdigest())
        if key not in _LOADED:
            _LOADED[key] = load(key[0], path)
        loaded.append(_LOADED[key])
    return Service(ServedModels(loaded, models), Runs(runs), limits)


class LogStream(io.StringIO):
    """A log that can be read."""

    @property
    def lines(self) -> list[str]:
        return self.getvalue().splitlines()


@pytest.fixture
def log_stream() -> LogStream:
    return LogStream()


class Client(TestClient):
    """A client of a server in this process."""

    service: Service  # what it serves


class Response(Protocol):
    """An answer to a client in this process or over a socket: they come from different libraries."""

    @property
    def status_code(self) -> int: ...

    @property
    def text(self) -> str: ...

    def json(self) -> Any: ...


@pytest.fixture
def serving(versions: Path, log_stream: LogStream) -> Iterator[Callable[..., Client]]:
    """serving(limits=..., token=...): a client of a server in this process; `client.service` is what it serves."""
    open_clients: list[Client] = []

    def start(
        *paths: Path,
        models: Path | None = None,
        runs: Path | None = None,
        limits: Limits | None = None,
        token: str | None = None,
        **headers: str,
    ) -> Client:
        chosen = paths or (versions / "v1.endocil", versions / "v2.endocil")
        service = quickly(chosen, models, runs, limits or Limits())
        app = create_app(service, token=token, log=Log(log_stream))
        client = Client(app, base_url="http://localhost", headers=headers)
        client.service = service
        client.__enter__()
        open_clients.append(client)
        return client

    yield start
    for client in open_clients:
        client.__exit__(None, None, None)


@pytest.fixture
def client(serving: Callable[..., Client]) -> Client:
    return serving()


class Running:
    """A server on a real socket."""

    def __init__(self, service: Service, limits: Limits, log: Log, token: str | None = None) -> None:
        self.service = service
        listener, self.address = listen("127.0.0.1", 0)
        self.server = Server(create_app(service, token=token, log=log), limits)
        self.thread = threading.Thread(target=self.server.run, args=([listener],), daemon=True)
        self.thread.start()
        until(lambda: self.server.started)

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    def stop(self) -> None:
        self.server.should_exit = True
        self.thread.join(30)
        assert not self.thread.is_alive()


@pytest.fixture
def running(versions: Path, log_stream: LogStream) -> Iterator[Callable[..., Running]]:
    """running(limits=...): the same on a socket of 127.0.0.1."""
    servers: list[Running] = []

    def start(*paths: Path, models: Path | None = None, limits: Limits | None = None, **options: Any) -> Running:
        limits = limits or Limits()
        service = quickly(paths or (versions / "v1.endocil",), models, None, limits)
        servers.append(Running(service, limits, Log(log_stream), **options))
        return servers[-1]

    yield start
    for server in servers:
        if server.thread.is_alive():
            server.stop()
