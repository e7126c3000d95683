"""A server under load: thousands of predictions from many clients while models are exchanged. Is any lost?

    python benchmarks/serve_load.py [--predictions 10000] [--clients 50] [--swaps 20] [--restarts 0] [--size 64]
                                    [--width 32] [--models FIRST.endocil SECOND.endocil]

`endocil serve` runs in a process of its own with one thread for torch; clients are threads of this process, each with
a connection that stays open and one image at a time. Every answer is compared with what the two models say of the
image themselves. The bare loop decodes the same files and passes them through the same network one by one, without any
server; it is measured before and after. Memory is the server's resident set.

A restart is a SIGTERM and, when the server has ended, the same command again. Meanwhile a client is refused, or its
connection is closed before its request was read: it asks again. Lost is a request without an answer at any other time,
or with half an answer. Every request that a server has logged as answered must have reached its client, and after a
restart the model must be the one that was put into service last.
"""

import argparse
import http.client
import io
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from untrained import write_untrained

from endocil.data.augment import normalise
from endocil.data.decode import decode
from endocil.model.model import Model

BOUNDARY = "5d41402abc4b2a76b9719d911017c592"
TOLERANCE = 1e-4
PICTURES = 24


def files(size: int) -> list[bytes]:
    """JPEG files a little larger than the network's input."""
    random = np.random.default_rng(0)
    found = []
    for _ in range(PICTURES):
        small = random.integers(0, 256, (8, 8, 3), np.uint8)
        file = io.BytesIO()
        Image.fromarray(small).resize((2 * size, 2 * size), Image.Resampling.BICUBIC).save(file, "JPEG")
        found.append(file.getvalue())
    return found


def body_of(data: bytes) -> bytes:
    head = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="images"; filename="image"\r\n\r\n'
    return head.encode() + data + f"\r\n--{BOUNDARY}--\r\n".encode()


def resident(pid: int) -> float:
    """Megabytes."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1000
    return 0.0


@dataclass
class Load:
    """What the clients share."""

    port: int
    bodies: list[bytes]
    expected: dict[str, list[dict[str, float]]]  # by digest and picture: class to probability
    left: int
    seconds: list[float] = field(default_factory=list)
    by_digest: dict[str, int] = field(default_factory=dict)
    wrong: int = 0
    lost: int = 0
    again: int = 0  # answers of 429
    unread: int = 0  # sent again because of a restart
    restarts: int = 0  # begun
    restarting: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self) -> int | None:
        with self.lock:
            if self.left == 0:
                return None
            self.left -= 1
            return self.left

    def client(self) -> None:
        line = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        while (number := self.take()) is not None:
            self.one(line, number % len(self.bodies))
        line.close()

    def one(self, line: http.client.HTTPConnection, picture: int) -> None:
        kind = {"Content-Type": f"multipart/form-data; boundary={BOUNDARY}"}
        begun = time.perf_counter()
        while True:
            response, restarts = None, self.restarts
            try:
                line.request("POST", "/api/v1/predict?top=100&nearest=0", self.bodies[picture], kind)
                response = line.getresponse()
                said = json.loads(response.read())
            except (OSError, http.client.HTTPException, ValueError):
                line.close()
                unread = response is None and (self.restarting or self.restarts > restarts)
                with self.lock:
                    self.unread += unread
                    self.lost += not unread
                if not unread:
                    return
                time.sleep(1.0)
                continue
            if response.status != 429:
                break
            with self.lock:
                self.again += 1
            time.sleep(float(response.headers["Retry-After"]))
        seconds = time.perf_counter() - begun
        with self.lock:
            if response.status != 200:
                self.lost += 1
                return
            self.seconds.append(seconds)
            self.check(said["images"][0]["predictions"][0], picture)

    def check(self, answer: dict[str, Any], picture: int) -> None:
        digest = answer["digest"]
        self.by_digest[digest] = self.by_digest.get(digest, 0) + 1
        expected = self.expected[digest][picture]
        told = {one["name"]: one["probability"] for one in answer["top"]}
        if told.keys() != expected.keys() or any(abs(told[name] - expected[name]) > TOLERANCE for name in told):
            self.wrong += 1


def bare(model: Model, pictures: list[bytes], seconds: float) -> float:
    """Images per second, one by one, from the bytes of the file to probabilities."""
    size, done, begun = model.manifest.preprocessing.size, 0, time.perf_counter()
    with torch.inference_mode():
        while time.perf_counter() - begun < seconds:
            pixels = torch.from_numpy(np.array(decode(pictures[done % len(pictures)], size)))
            model.method(normalise(pixels[None])).softmax(dim=1)
            done += 1
    return done / (time.perf_counter() - begun)


def swap(port: int, name: str) -> bool:
    line = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    line.request("PUT", "/api/v1/models/model-1", json.dumps({"file": name}), {"Content-Type": "application/json"})
    return line.getresponse().status == 200


def in_service(port: int) -> str:
    """The digest of the model."""
    line = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    line.request("GET", "/api/v1/models")
    return str(json.loads(line.getresponse().read())["models"][0]["digest"])


class Server:
    """`endocil serve` in a process of its own, which can be started again on its port."""

    def __init__(self, model: Path, log: Path) -> None:
        self.model, self.log, self.port, self.statuses = model, log, 0, list[int]()
        self.start()

    def start(self) -> None:
        folder = self.model.parent
        command = [
            sys.executable,
            "-m",
            "endocil",
            "serve",
            self.model,
            "--models",
            folder,
            "--state",
            folder / "state",
        ]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
        with self.log.open("a") as log:
            self.process = subprocess.Popen(
                [*map(str, command), "--port", str(self.port)],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=environment,
            )
        assert self.process.stdout is not None
        line = next(line for line in self.process.stdout if "http://127.0.0.1:" in line)  # behind notes on the models
        self.port = int(line.split("http://127.0.0.1:")[1].split()[0])

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.statuses.append(self.process.wait(600))

    def answered(self) -> int:
        """Predictions, as the servers have logged them."""
        records = [json.loads(line) for line in self.log.read_text().splitlines() if line.startswith("{")]
        return sum(one.get("route") == "/api/v1/predict" and one.get("status") == 200 for one in records)


def measure(first: Path, second: Path, chosen: argparse.Namespace, errors: Path) -> None:
    models = [Model.load(path) for path in (first, second)]
    pictures = files(models[0].manifest.preprocessing.size)
    paths = [errors.with_name(f"{row}.jpg") for row in range(len(pictures))]
    for path, data in zip(paths, pictures, strict=True):
        path.write_bytes(data)
    expected = {}
    for model in models:
        found = model.predict(paths, batch=1)
        expected[model.digest] = [dict(zip(found.classes, row.tolist(), strict=True)) for row in found.probabilities]
    alone = [bare(models[0], pictures, chosen.bare_seconds)]
    server = Server(first, errors)
    load = Load(server.port, [body_of(data) for data in pictures], expected, chosen.predictions)
    # the first swap puts the second model into service
    files_by_digest = {models[1].digest: second.name, models[0].digest: first.name}
    try:
        swaps, megabytes, seconds = under_load(load, server, chosen, files_by_digest)
    finally:
        load.restarting = False  # nobody waits for a server any more
        server.stop()
    alone.append(bare(models[0], pictures, chosen.bare_seconds))
    report(load, chosen, swaps, megabytes, seconds, statistics.mean(alone), server)


def under_load(
    load: Load, server: Server, chosen: argparse.Namespace, models: dict[str, str]
) -> tuple[int, list[float], float]:
    """Swaps that were done, megabytes after each tenth of the load, seconds of the whole."""
    digests = list(models)
    clients = [threading.Thread(target=load.client) for _ in range(chosen.clients)]
    begun = time.perf_counter()
    for client in clients:
        client.start()
    done, megabytes, total = 0, list[float](), chosen.predictions
    while any(client.is_alive() for client in clients):
        time.sleep(0.05)
        answered = total - load.left
        if answered >= (len(megabytes) + 1) * total / 10:
            megabytes.append(resident(server.process.pid))
        if done < chosen.swaps and answered >= (done + 1) * total / (chosen.swaps + 1):
            assert swap(load.port, models[digests[done % 2]])
            done += 1
        if load.restarts < chosen.restarts and answered >= (load.restarts + 1) * total / (chosen.restarts + 1):
            before = in_service(load.port)
            load.restarting, load.restarts = True, load.restarts + 1
            server.stop()
            server.start()
            assert in_service(load.port) == before
            load.restarting = False
    return done, megabytes, time.perf_counter() - begun


def report(
    load: Load,
    chosen: argparse.Namespace,
    swaps: int,
    megabytes: list[float],
    seconds: float,
    alone: float,
    server: Server,
) -> None:
    ordered = sorted(load.seconds)
    middle, late = (ordered[int(share * (len(ordered) - 1))] for share in (0.5, 0.99))
    rows = {
        "predictions asked for": chosen.predictions,
        "clients": chosen.clients,
        "answered": len(ordered),
        "lost": load.lost,
        "other than the model says, by more than 1e-4": load.wrong,
        "told to come again (429)": load.again,
        "restarts, each with the last model": load.restarts,
        "sent again because of a restart": load.unread,
        "answers in the servers' logs": server.answered(),
        "exchanges of the model": swaps,
        "answered by the first and by the second model": " and ".join(
            str(load.by_digest.get(digest, 0)) for digest in load.expected
        ),
        "exit status after each SIGTERM": ", ".join(map(str, server.statuses)),
        "throughput / bare loop": f"{len(ordered) / seconds / alone:.2f}",
        "p50 latency / one image of the bare loop": f"{middle * alone:.1f}",
        "p99 latency / one image of the bare loop": f"{late * alone:.1f}",
        "p50 latency / clients x one image of the bare loop": f"{middle * alone / chosen.clients:.2f}",
        "p99 latency / clients x one image of the bare loop": f"{late * alone / chosen.clients:.2f}",
        "resident megabytes after each tenth": ", ".join(f"{value:.0f}" for value in megabytes),
    }
    print("| what | figure |\n|---|---:|")
    for what, figure in rows.items():
        print(f"| {what} | {figure} |")
    if load.lost or load.wrong or any(server.statuses) or server.answered() != len(ordered):
        raise SystemExit(1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--predictions", type=int, default=10_000)
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--swaps", type=int, default=20)
    parser.add_argument("--restarts", type=int, default=0)
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--bare-seconds", type=float, default=5.0, help="of the bare loop, before and after")
    parser.add_argument("--models", nargs=2, type=Path)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if chosen.models:
            first, second = (folder / f"{i}.endocil" for i in (1, 2))
            for source, place in zip(chosen.models, (first, second), strict=True):
                place.write_bytes(source.read_bytes())
        else:
            first, second = (
                write_untrained(folder / f"{seed}.endocil", seed=seed, size=chosen.size, width=chosen.width)
                for seed in (1, 2)
            )
        measure(first, second, chosen, folder / "errors")


if __name__ == "__main__":
    main()
