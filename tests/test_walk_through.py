"""docs/walk-through.md works: every command is typed, in order, from an empty folder to a served, gated version."""

import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
from commands import endocil

pytest.importorskip("fastapi")

from starlette.testclient import TestClient

from endocil.model.file import read_model_file
from endocil.serve import server

PAGE = Path(__file__).parents[1] / "docs" / "walk-through.md"
SMALLER = {
    "--images 400": "--images 196",
    "--images 200": "--images 98",
    "--size 96": "--size 32",
    "--imbalance 2": "--imbalance 1",
}


def commands() -> list[str]:
    """Each command of the page, a here-document with it, with fewer and smaller images."""
    found: list[str] = []
    for block in re.findall(r"```sh\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL):
        found += re.findall(r"cat > .*?\nEND\n|[^\n]+\n", block, re.DOTALL)
    for large, small in SMALLER.items():
        found = [command.replace(large, small) for command in found]
    return found


@pytest.mark.slow
def test_from_an_empty_folder_to_a_served_and_gated_third_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    apps: list[Any] = []
    monkeypatch.setattr(server, "serve", lambda app, *_: apps.append(app))
    for command in commands():
        if command.startswith("endocil"):
            done = endocil(*shlex.split(command)[1:], cwd=tmp_path)
            assert done.returncode == 0, (command, done.stdout, done.stderr)
        else:
            subprocess.run(["bash", "-ec", command], cwd=tmp_path, check=True)
    versions = [read_model_file(tmp_path / f"{name}.endocil") for name in ("v1", "v2", "v3", "released")]
    assert [one.manifest.version for one in versions] == [1, 2, 3, 3]
    assert [len(one.classes) for one in versions] == [12, 13, 14, 14]
    assert versions[2].manifest.history[-1].added.keys() == {"z-line"}
    assert versions[3].manifest.gate is not None
    assert versions[3].manifest.gate.passed
    for page in ("review.html", "gate.html", "card.html"):
        assert "not for clinical use" in (tmp_path / page).read_text()
    with TestClient(apps[0], base_url="http://localhost") as client:
        (model,) = client.get("/api/v1/models").json()["models"]
        assert (model["name"], model["version"], model["gate"]) == ("mine", 3, "passed")
        picture = next((tmp_path / "test" / "z-line").iterdir()).read_bytes()
        (image,) = client.post("/api/v1/predict", files=[("images", ("a.png", picture))]).json()["images"]
        assert image["predictions"][0]["top"]
