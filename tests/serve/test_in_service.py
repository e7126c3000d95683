"""A model that was put into service survives a restart, or one line says why it cannot."""

import json
import os
import signal
import stat
from pathlib import Path

import httpx
import pytest
from serve.conftest import Client
from serve.test_connections import start
from serve.test_swap import MODEL, swap

from endocil.cli.models import serve
from endocil.errors import EndocilError
from endocil.model.file import read_model_file
from endocil.serve.app import create_app
from endocil.serve.guard import Limits
from endocil.serve.in_service import InService
from endocil.serve.served_models import ServedModels
from endocil.serve.served_runs import Runs
from endocil.serve.service import Service


def load(folder: Path, given: str = "v1.endocil") -> ServedModels:
    return ServedModels.load([folder / given], folder, kept=InService(folder / "state" / "serving.json"))


def exchange(models: ServedModels, name: str) -> httpx.Response:
    with Client(create_app(Service(models, Runs(None), Limits())), base_url="http://localhost") as client:
        answer: httpx.Response = swap(client, name)  # type: ignore[assignment]
        return answer


def test_the_exchanged_model_is_served_after_a_restart(folder: Path) -> None:
    models = load(folder)
    assert models.get(None).file == "v1.endocil"
    assert exchange(models, "v2.endocil").status_code == 200
    again = load(folder)
    assert (again.get(None).file, again.get(None).digest) == ("v2.endocil", models.get(None).digest)
    assert again.notes[0].startswith("model-1 was replaced by v2.endocil (")
    assert exchange(again, "v1.endocil").status_code == 200  # and back
    assert load(folder).get(None).file == "v1.endocil"


def test_the_file_is_private_and_holds_no_more_than_it_must(folder: Path) -> None:
    before = os.umask(0)
    try:
        exchange(load(folder), "v2.endocil")
    finally:
        os.umask(before)
    (file,) = (folder / "state").iterdir()  # nothing temporary is left
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    entry = json.loads(file.read_text())["exchanges"]["model-1"]
    assert set(entry) == {"given", "file", "digest", "since"}
    assert entry["digest"] == read_model_file(folder / "v2.endocil").digest


def test_where_the_command_names_another_model_the_command_counts(folder: Path) -> None:
    exchange(load(folder), "v2.endocil")
    (folder / "v3.endocil").write_bytes((folder / "v1.endocil").read_bytes())
    models = load(folder, "v3.endocil")
    assert (models.get(None).file, models.notes) == ("v3.endocil", [])


def test_a_missing_or_changed_model_and_a_damaged_file_are_told_in_one_line(folder: Path) -> None:
    exchange(load(folder), "v2.endocil")
    kept = folder / "state" / "serving.json"
    sound = kept.read_text()
    new = (folder / "v2.endocil").read_bytes()
    (folder / "v2.endocil").write_bytes((folder / "v1.endocil").read_bytes())
    with pytest.raises(EndocilError, match=r"v2\.endocil .*, but that file has changed since; put it back, or delete"):
        load(folder)
    (folder / "v2.endocil").unlink()
    with pytest.raises(EndocilError, match=r"v2\.endocil .*, but .* has no such file now; put it back, or delete"):
        load(folder)
    (folder / "v2.endocil").write_bytes(new)
    for damage in (
        "",
        sound[:-20],
        "[]",
        '{"exchanges": 1}',
        sound.replace("v2.endocil", "../v2.endocil"),
        sound.replace('"since"', '"sinse"'),
    ):
        kept.write_text(damage)
        with pytest.raises(
            EndocilError, match=r"serving\.json, which says which models are in service, is damaged"
        ) as e:
            load(folder)
        assert "\n" not in str(e.value)
    kept.write_text(sound)
    assert load(folder).get(None).file == "v2.endocil"


def test_an_exchange_that_cannot_be_kept_is_not_made(folder: Path) -> None:
    models = load(folder)
    (folder / "state").write_text("no folder")
    answer = exchange(models, "v2.endocil")
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "not-kept")
    assert "v1.endocil stays in use" in answer.json()["error"]["message"]
    assert str(folder) not in answer.text
    assert models.get(None).file == "v1.endocil"


def test_a_state_without_models_to_exchange_is_refused(folder: Path) -> None:
    with pytest.raises(EndocilError, match="--state keeps replaced models, which come from the folder --models"):
        serve([folder / "v1.endocil"], state=folder / "state.json")


@pytest.mark.slow
def test_the_command_serves_it_again(folder: Path) -> None:
    command = [str(folder / "v1.endocil"), "--models", str(folder), "--port", "0"]
    files = list[str]()
    for stop in (signal.SIGTERM, signal.SIGUSR1):  # the latter is what Slurm may send before a job's time is over
        process, address = start(command)
        files.append(httpx.get(f"{address}/api/v1/models", timeout=60).json()["models"][0]["file"])
        httpx.put(f"{address}{MODEL}", json={"file": "v2.endocil"}, timeout=60).raise_for_status()
        process.send_signal(stop)
        process.communicate(timeout=30)
        assert process.returncode == 0
    assert files == ["v1.endocil", "v2.endocil"]
    assert (folder / ".serving-0.json").exists()
