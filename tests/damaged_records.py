"""Damaged lists, settings, run folders, caches, checkpoints and requests: further kinds of tests/damaged.py.

Of a cache and a checkpoint it is also compared what is read: a flipped bit must never become a result.
"""

import copy
import json
import random
import socket
import tempfile
import threading
import time
import tomllib
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
from damaged import Results, damage, pictures

WRONG: tuple[Any, ...] = (
    *("text", "", "=cmd()", "\x1b[2J", "\u202egpj.exe", "../../x", "/dev/zero", "x" * 5000, "evil:Thing"),
    *(0, 7, -1, -1.5, 10**9, 10**30, 1e308, float("inf"), float("nan"), True, None),
    *([], {}, ["x"], [[[[]]]], {"x": "y"}, [0] * 1000),
)
MISSING = object()
CELLS = ("", '"', "'=1", "\r", "\n", ",", ";", "\t", "\0", "nan", "-1e999", "../../../etc/passwd", "\udcff", "ä" * 300)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value[:3]) if isinstance(value, list) else ()
    return [path, *(place for key, item in items for place in places(item, (*path, key)))]


def replaced(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    if not path:
        return new
    changed = copy.deepcopy(value)
    inner = changed
    for key in path[:-1]:
        inner = inner[key]
    if new is MISSING:
        del inner[path[-1]]
    else:
        inner[path[-1]] = new
    return changed


def watched(folder: Path) -> None:
    """All that `endocil watch` shows of a run, on a terminal and in lines."""
    from rich.console import Console

    from endocil.cli.runs import _run_lines, event_lines, run_panel
    from endocil.runs.follow import FolderFollower

    (run,) = FolderFollower(folder).snapshots()
    event_lines(run.events, run.accuracies)
    _run_lines(run)
    Console(file=StringIO(), width=100).print(run_panel(run))


def written(value: Any, suffix: str) -> bytes | None:
    """The bytes of a file; None where its format cannot hold the value."""
    import tomli_w

    try:
        if suffix == ".jsonl":
            lines = value if isinstance(value, list) else [value]
            return "".join(json.dumps(line) + "\n" for line in lines).encode()
        return (tomli_w.dumps(value) if suffix == ".toml" else json.dumps(value)).encode("utf-8", "surrogateescape")
    except (TypeError, AttributeError, ValueError):
        return None


def parsed(text: bytes, suffix: str) -> Any:
    if suffix == ".jsonl":
        return [json.loads(line) for line in text.splitlines()]
    return tomllib.loads(text.decode()) if suffix == ".toml" else json.loads(text)


def another(text: bytes, suffix: str, chance: random.Random) -> bytes:
    """A damaged file: its bytes, a cell, or a value that is replaced by one of another type."""
    if suffix == ".csv" and chance.random() < 0.5:
        rows = text.decode().split("\n")
        row = chance.randrange(len(rows))
        cells = rows[row].split(",")
        cells[chance.randrange(len(cells))] = chance.choice(CELLS)
        rows[row] = ",".join(cells)
        return "\n".join(rows).encode("utf-8", "surrogateescape")
    if suffix != ".csv" and chance.random() < 0.7:
        value = parsed(text, suffix)
        changed = written(replaced(value, chance.choice(places(value)), chance.choice(WRONG)), suffix)
        if changed is not None:
            return changed
    return damage(text, chance, [text, *pictures().values()]) or b"\0"


# --- lists, settings, run folders


def try_lists(start: int, stop: int) -> dict[str, Any]:
    """Lists of images, splits and predictions."""
    from endocil.data.splits import by_file
    from endocil.datasets.csv import load
    from endocil.errors import EndocilError
    from endocil.model.prediction_files import read_predictions

    results = Results()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for name in ("a.png", "b.png", "c.png", "d.png"):
            (root / name).write_bytes(pictures()["png"])
        rows = [("a.png", "x", "1", "train"), ("b.png", "x", "2", "test"), ("c.png", "y", "1", "train")]
        rows += [("d.png", "y", "2", "test")]
        sound = "path,label,group,split\n" + "".join(f"{','.join(row)}\n" for row in rows)
        split = "image,class,task,part,group,source\n" + "".join(
            f"{name},{label},0,{part},{group},\n" for name, label, group, part in rows
        )
        scores = "image,label,source,score:x,score:y\n" + "".join(f"{row[0]},{row[1]},,0.5,-0.25\n" for row in rows)
        table = load(file=str(write(root / "sound.csv", sound.encode())))

        def read(kind: int, file: Path) -> None:
            if kind == 0:
                load(file=str(file))
            elif kind == 1:
                by_file(table, file)
            else:
                read_predictions(file)

        for number in range(start, stop):
            chance = random.Random(f"list {number}")
            kind = number % 3
            text = another((sound, split, scores)[kind].encode(), ".csv", chance)
            file = write(root / "list.csv", text)
            results.of(number, ("list", "split", "predictions")[kind], partial(read, kind, file), EndocilError)
    return results.summary()


def write(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def try_settings(start: int, stop: int) -> dict[str, Any]:
    """Settings, sweeps and rules of a release; the network of every tenth that can be read is built."""
    import tomli_w
    from pictures import TINY

    from endocil.errors import EndocilError
    from endocil.learning.build import build_learning, complete
    from endocil.release.gate import read_rules
    from endocil.runs.sweep.plan import read_sweep
    from endocil.settings import presets as package
    from endocil.settings.settings import load_settings, presets

    results = Results()
    own = [tomli_w.dumps(TINY).encode()]
    own += [Path(str(package.__path__[0]), f"{name}.toml").read_bytes() for name in presets()]
    rules = b"[images]\nminimum = 10\n[every_class]\nrecall_drop = 0.1\n[overall]\naccuracy_drop = 0.02\n"
    sweep = b'settings = "smoke"\nseeds = [0, 1]\n[vary]\n"method.name" = ["icarl", "wa"]\n'

    def read(number: int, kind: int, file: Path) -> None:
        if kind == 1:
            read_sweep(file)
        elif kind == 2:
            read_rules(file)
        else:
            settings = complete(load_settings(file))
            if number % 10 == 0 and (settings.network.options.get("width") or 64) <= 16:
                build_learning(settings)

    with tempfile.TemporaryDirectory() as folder:
        for number in range(start, stop):
            chance = random.Random(f"settings {number}")
            kind = (0, 0, 0, 1, 2)[number % 5]
            sound = (own[0] if number % 2 else chance.choice(own), sweep, rules)[kind]
            file = write(Path(folder) / "file.toml", another(sound, ".toml", chance))
            results.of(number, ("settings", "sweep", "rules")[kind], partial(read, number, kind, file), EndocilError)
    return results.summary()


def _sound_run(folder: Path) -> Path:
    from tiny_runs import tiny

    from endocil.runs.run import run

    run(tiny(), folder)
    return folder


def try_runs(start: int, stop: int) -> dict[str, Any]:
    """A file of a finished run is damaged: its table, and the page of every fifth; every other one is watched too."""
    from endocil.errors import EndocilError
    from endocil.reports.page import write_run_page
    from endocil.reports.tables import comparison
    from endocil.runs.records import read_run, read_runs

    results = Results()
    with tempfile.TemporaryDirectory() as place:
        folder = _sound_run(Path(place) / "run")
        (folder / "model.endocil").unlink()  # benchmarks/fuzz_model_files.py has its cases
        files = [path for path in sorted(folder.rglob("*")) if path.suffix in (".json", ".jsonl", ".toml", ".csv")]
        sound = {path: path.read_bytes() for path in files}

        def read(number: int) -> None:
            if number % 2:
                watched(folder)
            comparison(read_runs([folder])).text()
            if number % 5 == 0:
                write_run_page(read_run(folder), folder)

        for number in range(start, stop):
            chance = random.Random(f"run {number}")
            path = files[number % len(files)]
            if number % 50 == 49:
                path.unlink()
            else:
                path.write_bytes(another(sound[path], path.suffix, chance))
            results.of(number, str(path.relative_to(folder)), partial(read, number), EndocilError)
            path.write_bytes(sound[path])
            if {one.name for one in Path(place).iterdir()} != {"run"}:
                results.failures.append(f"{number}: something was written outside")
    return results.summary()


# --- bits that would become results


def try_cache(start: int, stop: int) -> dict[str, Any]:
    """Bits of decoded images and of their checksums: the pixels that are loaded are always the sound ones."""
    from endocil.data.cache import load_images
    from endocil.data.decode import FileReader
    from endocil.data.table import ImageTable
    from endocil.errors import EndocilError

    results = Results()
    with tempfile.TemporaryDirectory() as place:
        root, cache = Path(place) / "images", Path(place) / "cache"
        root.mkdir()
        names = tuple(f"{name}.png" for name in range(6))
        for name in names:
            (root / name).write_bytes(pictures()["png"])
        table = ImageTable(names, np.zeros(6), ("a",), FileReader(root), ("",) * 6, ("",) * 6)
        expected = load_images(table, 16, folder=cache, workers=1).pixels.clone()
        files = sorted(path for path in cache.iterdir() if path.suffix in (".npy", ".json"))
        sound = {path: path.read_bytes() for path in files}

        def read() -> None:
            pixels = load_images(table, 16, folder=cache, workers=1).pixels
            if not bool((pixels == expected).all()):
                raise AssertionError("other pixels were loaded")

        for number in range(start, stop):
            chance = random.Random(f"cache {number}")
            path = files[number % len(files)]
            data = bytearray(sound[path])
            if number % 3:
                data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
            else:
                data = bytearray(damage(bytes(data), chance, list(pictures().values())))
            path.unlink()
            path.write_bytes(data)  # a new file: the old one may be mapped
            results.of(number, path.suffix, read, EndocilError)
            for other in files:
                other.unlink(missing_ok=True)
                other.write_bytes(sound[other])
    return results.summary()


def try_checkpoints(start: int, stop: int) -> dict[str, Any]:
    """Bits of a stopped run's checkpoint and exemplars: refused, or the same tensors."""
    import torch
    from tiny_runs import tiny

    from endocil.errors import EndocilError
    from endocil.learning.checkpoint import load_checkpoint
    from endocil.runs.run import run

    class StoppedError(Exception):
        pass

    def stop_there(record: dict[str, Any]) -> None:
        if record["event"] == "epoch" and record["task"] == 1:
            raise StoppedError

    results = Results()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "run"
        with suppress(StoppedError):
            run(tiny(run={"checkpoint_seconds": 0.0}), folder, show=stop_there)
        expected = load_checkpoint(folder)
        assert expected is not None
        assert expected.exemplars is not None
        files = sorted(folder.glob("*.safetensors"))
        sound = {path: path.read_bytes() for path in files}

        def read() -> None:
            found = load_checkpoint(folder)
            assert found is not None
            assert found.exemplars is not None
            assert expected.exemplars is not None
            same = found.tensors.keys() == expected.tensors.keys() and found.position == expected.position
            same = same and all(torch.equal(found.tensors[name], value) for name, value in expected.tensors.items())
            if not same or not torch.equal(found.exemplars.pixels, expected.exemplars.pixels):
                raise AssertionError("other values were loaded")

        for number in range(start, stop):
            chance = random.Random(f"checkpoint {number}")
            path = files[number % len(files)]
            data = bytearray(sound[path])
            if number % 3:
                data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
            else:
                data = bytearray(damage(bytes(data), chance, list(pictures().values())))
            path.write_bytes(data)
            results.of(number, path.name.partition("-")[0], read, EndocilError)
            path.write_bytes(sound[path])
    return results.summary()


# --- requests

BOUNDARY = b"5d41402abc4b2a76b9719d911017c592"


def request(name: str, content: bytes) -> bytes:
    head = b'Content-Disposition: form-data; name="%s"; filename="x"\r\n\r\n' % name.encode()
    body = b"--" + BOUNDARY + b"\r\n" + head + content + b"\r\n--" + BOUNDARY + b"--\r\n"
    start = b"POST /api/v1/predict?top=3 HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n"
    kind = b"Content-Type: multipart/form-data; boundary=" + BOUNDARY + b"\r\n"
    return start + kind + b"Content-Length: %d\r\n\r\n" % len(body) + body


def plain(line: str, body: bytes = b"") -> bytes:
    length = f"Content-Length: {len(body)}\r\n" if body else ""
    return f"{line} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n{length}\r\n".encode() + body


def requests() -> dict[str, bytes]:
    swap = json.dumps({"file": "v1.endocil"}).encode()
    paths = ("", "api/v1/health", "api/v1/models", "api/v1/models/model-1", "api/v1/runs", "api/v1/metrics")
    return {
        "prediction": request("images", pictures()["jpeg"]),
        "prediction of webp": request("images", pictures()["webp"]),
        **{f"GET /{path}": plain(f"GET /{path}") for path in paths},
        "exchange": plain("PUT /api/v1/models/model-1", swap),
        "exemplar": plain(f"GET /api/v1/models/model-1/exemplars/{'0' * 16}/0.png"),
    }


def try_requests(start: int, stop: int) -> dict[str, Any]:
    """Damaged requests to a server: an answer below 500 or a closed connection; afterwards it answers as before."""
    from untrained import write_untrained

    from endocil.serve.app import create_app
    from endocil.serve.guard import Limits
    from endocil.serve.monitoring import Log
    from endocil.serve.served_models import ServedModels, load
    from endocil.serve.served_runs import Runs
    from endocil.serve.server import Server, listen
    from endocil.serve.service import Service

    class RefusedError(Exception):
        """Closed, or an answer of an error."""

    results = Results()
    with tempfile.TemporaryDirectory() as place:
        file = write_untrained(Path(place) / "v1.endocil", seed=0, name="first")
        limits = Limits(header_seconds=1.0, upload_seconds=1.0, connections=64)
        service = Service(ServedModels([load("model-1", file)], Path(place)), Runs(None), limits)
        listener, address = listen("127.0.0.1", 0)
        server = Server(create_app(service, log=Log(StringIO())), limits)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        while not server.started:
            time.sleep(0.01)
        port, sound = int(address.rpartition(":")[2]), requests()

        def send(data: bytes) -> bytes:
            with socket.create_connection(("127.0.0.1", port), timeout=20) as line:
                try:
                    line.sendall(data)
                    line.shutdown(socket.SHUT_WR)
                    answer = b""
                    while part := line.recv(65536):
                        answer += part
                except ConnectionError:
                    return b""
            return answer

        def exchange(data: bytes) -> None:
            answer = send(data)
            status = int(answer[9:12]) if answer.startswith(b"HTTP/1.1 ") else 0
            if status >= 500:
                raise AssertionError(f"status {status}: {answer[-200:]!r}")
            if not 200 <= status < 300:
                raise RefusedError(f"status {status}")

        expected = send(sound["prediction"]).partition(b"\r\n\r\n")[2]
        for number in range(start, stop):
            chance = random.Random(f"request {number}")
            name = list(sound)[number % len(sound)]
            data = damage(sound[name], chance, list(sound.values())) or b"\0"
            results.of(number, name, partial(exchange, data), RefusedError)
        if send(sound["prediction"]).partition(b"\r\n\r\n")[2] != expected:
            results.failures.append("afterwards a sound request has another answer")
        server.should_exit = True
        thread.join(20)
    return results.summary()


ATTEMPTS: dict[str, Callable[[int, int], dict[str, Any]]] = {
    "lists": try_lists,
    "settings": try_settings,
    "runs": try_runs,
    "cache": try_cache,
    "checkpoints": try_checkpoints,
    "requests": try_requests,
}
