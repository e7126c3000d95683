"""A server can be told to put no model into service but those whose release gate has passed."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from serve.conftest import Client, form
from serve.test_in_service import exchange
from serve.test_swap import MODEL
from untrained import VERDICT

from endocil.errors import EndocilError
from endocil.model.file import read_model_file, write_model_file
from endocil.serve.served_models import ServedModels


def gate(path: Path, *, passed: bool) -> Path:
    """A copy of the model with a verdict inside."""
    content = read_model_file(path)
    verdict = VERDICT.model_copy(update={"passed": passed})
    output = path.with_name(f"{path.stem}-{'passed' if passed else 'refused'}.endocil")
    write_model_file(output, replace(content, manifest=content.manifest.model_copy(update={"gate": verdict})))
    return output


def test_a_model_without_a_passed_gate_is_refused_at_the_start(folder: Path) -> None:
    with pytest.raises(EndocilError, match=r"v1\.endocil holds no verdict .*--only-gated.*endocil compare"):
        ServedModels.load([folder / "v1.endocil"], None, only_gated=True)
    refused = gate(folder / "v1.endocil", passed=False)
    with pytest.raises(EndocilError, match=r"was refused on 2026-02-03 by gate\.toml"):
        ServedModels.load([refused], None, only_gated=True)


def test_it_is_refused_as_a_replacement_and_the_old_model_stays(folder: Path) -> None:
    passed = [gate(folder / name, passed=True) for name in ("v1.endocil", "v2.endocil")]
    models = ServedModels.load(passed[:1], folder, only_gated=True)
    answer = exchange(models, "v2.endocil")
    assert (answer.status_code, answer.json()["error"]["code"]) == (422, "not-gated")
    assert str(folder) not in answer.text
    assert models.get(None).file == passed[0].name
    models = ServedModels.load(passed[:1], folder, only_gated=True)
    assert exchange(models, passed[1].name).json()["model"]["gate"] == "passed"


def test_the_api_tells_the_verdict_and_the_version(
    serving: Callable[..., Client], folder: Path, pictures: list[bytes]
) -> None:
    client = serving(gate(folder / "v1.endocil", passed=True), folder / "v2.endocil")
    first, second = client.get("/api/v1/models").json()["models"]
    assert (first["gate"], second["gate"]) == ("passed", None)
    assert (first["name"], first["version"]) == ("first", 1)
    card = client.get(MODEL).json()
    assert card["gate"]["rules"] == "gate.toml"
    assert card["gate"]["line"] == VERDICT.line
    assert client.post("/api/v1/predict", files=form(pictures[0])).status_code == 200
