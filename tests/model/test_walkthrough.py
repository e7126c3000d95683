"""The example of the page about learning on works: every command is typed, in order, in an empty folder."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from endocil.model.file import read_model_file

PAGE = Path(__file__).parents[2] / "docs" / "learn-on.md"


def blocks() -> list[str]:
    return re.findall(r"```sh\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)


@pytest.mark.slow
def test_every_command_of_the_page_works(tmp_path: Path) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "endocil").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m endocil "$@"\n')
    (programs / "endocil").chmod(0o755)
    place = tmp_path / "empty"
    place.mkdir()
    environment = {
        **os.environ,
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "ENDOCIL_CACHE": str(tmp_path / "cache"),
        "OMP_NUM_THREADS": "1",
    }
    script = "set -e\n" + "\n".join(blocks())
    done = subprocess.run(
        ["bash", "-c", script], cwd=place, env=environment, capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "PASS" in done.stdout or "exit status 1" in done.stdout  # the verdict hangs on the draw, an error is 2
    one, two, three = (read_model_file(place / name) for name in (f"model{n}.endocil" for n in ("", "-2", "-3")))
    assert two.classes == (*one.classes, "erosion")
    history, tasks = three.manifest.history, len(one.manifest.increments)
    assert [step.by for step in history] == [*["run"] * tasks, "learn", "forget"]
    assert [step.parent for step in history] == [*[None] * tasks, one.digest, two.digest]
    assert len(three.exemplars) < len(two.exemplars)
    assert (place / "gate.html").exists()
