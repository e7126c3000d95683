"""A model is replaced while requests arrive: none is lost, and an invalid model file changes nothing."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from serve.conftest import Client, Response, Running, damaged_tiff, form, until
from torch import Tensor
from untrained import untrained, write_untrained

from endocil.model.file import ModelFile, read_model_file, write_model_file
from endocil.model.predictions import Predictions
from endocil.serve import served_models as models
from endocil.serve.served_models import ServedModel

PREDICT, MODEL = "/api/v1/predict", "/api/v1/models/model-1"
Serving = Callable[..., Client]


def swap(client: Client, name: str) -> Response:
    answer: Response = client.put(MODEL, json={"file": name})
    return answer


def test_a_model_file_of_the_folder_replaces_a_model(serving: Serving, folder: Path, pictures: list[bytes]) -> None:
    client = serving(folder / "v1.endocil", models=folder)
    assert client.get("/api/v1/models").json()["files"] == ["v1.endocil", "v2.endocil"]
    old, new = (read_model_file(folder / name).digest for name in ("v1.endocil", "v2.endocil"))
    body = swap(client, "v2.endocil").json()
    assert (body["previous"], body["model"]["digest"], body["model"]["id"]) == (old, new, "model-1")
    (image,) = client.post(PREDICT, files=form(pictures[0])).json()["images"]
    assert image["predictions"][0]["digest"] == new


def resettled(content: ModelFile, **changes: object) -> ModelFile:
    manifest = content.manifest.model_copy(update={"settings": {**content.manifest.settings, **changes}})
    return replace(content, manifest=manifest)


def write_invalid_models(folder: Path) -> None:
    sound = (folder / "v2.endocil").read_bytes()
    (folder / "cut.endocil").write_bytes(sound[:-1000])
    (folder / "flipped.endocil").write_bytes(sound[:5000] + bytes([sound[5000] ^ 1]) + sound[5001:])
    (folder / "pickle.endocil").write_bytes(b"\x80\x04cos\nsystem\n(S'touch planted'\ntR.")
    (folder / "empty.endocil").write_bytes(b"")
    write_model_file(folder / "code.endocil", resettled(untrained(), method={"name": "planted:Thing"}))
    write_model_file(folder / "huge.endocil", resettled(untrained(), network={"width": 10**9}))


@pytest.mark.parametrize("name", ["cut", "flipped", "pickle", "empty", "code", "huge"])
def test_a_malicious_or_damaged_model_file_is_refused_and_the_old_model_stays(
    serving: Serving, folder: Path, pictures: list[bytes], name: str
) -> None:
    write_invalid_models(folder)
    client = serving(folder / "v1.endocil", models=folder)
    before = client.post(PREDICT, files=form(pictures[0])).json()
    answer = swap(client, f"{name}.endocil")
    assert (answer.status_code, answer.json()["error"]["code"]) == (422, "invalid-model")
    assert "v1.endocil stays in use" in answer.json()["error"]["message"]
    assert str(folder) not in answer.text  # clients must not learn the folder
    assert client.post(PREDICT, files=form(pictures[0])).json() == before
    assert 'endocil_swaps_total{outcome="refused"} 1' in client.get("/api/v1/metrics").text
    assert "planted" not in sys.modules
    assert not list(folder.parent.rglob("planted"))


@pytest.mark.parametrize(
    "name",
    [
        "none.endocil",
        "../secret.endocil",
        "/etc/passwd",
        "..",
        "link.endocil",
        "v2",
        "V2.ENDOCIL",
        "notes.txt",
        "sub/v3.endocil",
        "a\0b.endocil",
    ],
)
def test_only_files_of_the_folder_itself_can_be_named(serving: Serving, folder: Path, name: str) -> None:
    write_untrained(folder.parent / "secret.endocil", seed=7)
    (folder / "link.endocil").symlink_to(folder.parent / "secret.endocil")
    (folder / "notes.txt").write_text("notes")
    (folder / "sub").mkdir()
    client = serving(folder / "v1.endocil", models=folder)
    digest = client.service.models.get("model-1").digest
    answer = swap(client, name)
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not-found")
    assert client.service.models.get("model-1").digest == digest


def test_without_a_folder_there_is_nothing_to_swap_to(client: Client) -> None:
    assert swap(client, "v1.endocil").status_code == 404


def test_a_request_that_has_begun_ends_with_the_model_it_began_with(
    serving: Serving, folder: Path, pictures: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    client = serving(folder / "v1.endocil", models=folder)
    held, begun, right = threading.Event(), threading.Event(), client.service.engine.predict
    old = client.service.models.get("model-1").digest

    def slow(loaded: ServedModel, pixels: Tensor) -> Predictions:
        begun.set()
        assert held.wait(30)
        return right(loaded, pixels)

    monkeypatch.setattr(client.service.engine, "predict", slow)
    with ThreadPoolExecutor(3) as pool:
        first = pool.submit(client.post, PREDICT, files=form(pictures[0]))
        assert begun.wait(30)
        second = pool.submit(client.post, PREDICT, files=form(pictures[1]))
        until(lambda: client.service.engine.waiting == 1)
        new = swap(client, "v2.endocil").json()["model"]["digest"]
        third = pool.submit(client.post, PREDICT, files=form(pictures[2]))
        until(lambda: client.service.engine.waiting == 2)
        held.set()
        digests = [one.result().json()["images"][0]["predictions"][0]["digest"] for one in (first, second, third)]
    assert digests == [old, old, new]


def test_one_swap_at_a_time(serving: Serving, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    client = serving(folder / "v1.endocil", models=folder)
    held, begun, right = threading.Event(), threading.Event(), models.load

    def slow(*args: Any, **how: Any) -> ServedModel:
        begun.set()
        assert held.wait(30)
        return right(*args, **how)

    monkeypatch.setattr(client.service.models, "_load", slow)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(swap, client, "v2.endocil")
        assert begun.wait(30)
        second = swap(client, "v1.endocil")
        assert (second.status_code, second.json()["error"]["code"]) == (409, "swapping")
        held.set()
        assert first.result().status_code == 200


def test_swaps_under_load_lose_no_request(running: Callable[..., Running], folder: Path, pictures: list[bytes]) -> None:
    server = running(folder / "v1.endocil", models=folder)
    known = {read_model_file(folder / name).digest for name in ("v1.endocil", "v2.endocil")}
    answered: list[str] = []

    def client(number: int) -> None:
        with httpx.Client(base_url=server.address, timeout=60) as http:
            for row in range(12):
                response = http.post(PREDICT, files=form(pictures[(number + row) % len(pictures)]))
                answered.append(response.json()["images"][0]["predictions"][0]["digest"])

    with ThreadPoolExecutor(9) as pool:
        asking = [pool.submit(client, number) for number in range(8)]
        for turn in range(6):
            name = ("v2.endocil", "v1.endocil")[turn % 2]
            swapped = httpx.put(f"{server.address}{MODEL}", json={"file": name}, timeout=60)
            assert swapped.status_code == 200
        for one in asking:
            one.result()
    assert len(answered) == 96
    assert set(answered) <= known


def test_a_stop_finishes_the_requests_under_way(running: Callable[..., Running], pictures: list[bytes]) -> None:
    server = running()
    held, begun, right = threading.Event(), threading.Event(), server.service.engine.predict

    def slow(loaded: ServedModel, pixels: Tensor) -> Predictions:
        begun.set()
        assert held.wait(60)
        return right(loaded, pixels)

    server.service.engine.predict = slow
    with ThreadPoolExecutor(6) as pool:
        address = f"{server.address}{PREDICT}"
        asking = [pool.submit(httpx.post, address, files=form(pictures[0]), timeout=60)]
        assert begun.wait(60)
        asking += [pool.submit(httpx.post, address, files=form(pictures[0]), timeout=60) for _ in range(5)]
        until(lambda: server.service.engine.waiting == 5)
        server.server.should_exit = True
        until(lambda: not server.server.servers[0].is_serving())  # nobody new is let in
        held.set()
        assert [one.result().status_code for one in asking] == [200] * 6
        server.stop()
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{server.address}/api/v1/health")


def test_the_command_serves_and_ends_well_by_a_signal(folder: Path, pictures: list[bytes]) -> None:
    command = [sys.executable, "-m", "endocil", "serve", str(folder / "v1.endocil"), "--port", "0"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    environment.pop("ENDOCIL_TOKEN", None)
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("Research software, not for clinical use. Listening on http://127.0.0.1:")
        address = line.split("Listening on ")[1].split()[0]
        files = form(pictures[0], damaged_tiff("Jane Doe"))
        response = httpx.post(f"{address}{PREDICT}", files=files, timeout=60)
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=60)
    assert [bool(image["error"]) for image in response.json()["images"]] == [False, True]
    assert process.returncode == 0
    assert "Jane" not in errors  # nor anything else that libtiff has to say
    events = [json.loads(line) for line in errors.splitlines()]
    assert [one["event"] for one in events] == ["started", "request", "stopped"]
