"""The Dockerfile, as far as it can be checked without a container engine: not root, what it copies is there, its
command is one of ours, and its health check tells a server that answers from one that does not."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import typer
from serve.conftest import Running

from endocil.cli.models import serve

ROOT = Path(__file__).parents[2]
LINES = re.sub(r"\\\n", " ", (ROOT / "Dockerfile").read_text("utf-8")).splitlines()


def instruction(name: str) -> list[str]:
    return [line.removeprefix(name).strip() for line in LINES if line.startswith(f"{name} ")]


def test_it_does_not_run_as_root() -> None:
    (user,) = instruction("USER")
    assert user.split(":")[0] not in ("0", "root")


def test_what_it_copies_is_there_and_not_ignored() -> None:
    ignored = (ROOT / ".dockerignore").read_text("utf-8").splitlines()
    copied = [source for line in instruction("COPY") if "--from" not in line for source in line.split()[:-1]]
    assert copied
    for source in copied:
        assert (ROOT / source).exists()
        assert f"!{source}" in ignored


def test_its_command_has_options_that_the_server_has() -> None:
    (entry,) = map(json.loads, instruction("ENTRYPOINT"))
    assert entry[:2] == ["endocil", "serve"]
    known = typer.main.get_command(_alone()).params
    options = {option for parameter in known for option in parameter.opts}
    assert {word for word in entry if word.startswith("--")} <= options


def _alone() -> typer.Typer:
    app = typer.Typer()
    app.command()(serve)
    return app


def test_its_health_check_tells_whether_the_server_answers(running: Callable[..., Running]) -> None:
    (check,) = instruction("HEALTHCHECK")
    command = json.loads(check[check.index("[") :])
    server = running()
    code = command[2].replace(":8000/", f":{server.port}/")
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
    server.stop()
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60).returncode != 0
