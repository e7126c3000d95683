"""Small sweeps for the tests: files, commands, and what must be the same of two sweeps."""

import io
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest
import tomli_w
from pictures import TINY

from endocil.cli import main

SMALL = {**TINY, "train": {"epochs": 2, "milestones": [1], "batch_size": 16}}


def write_sweep(folder: Path, name: str = "sweep.toml", **content: object) -> Path:
    """A sweep file beside tiny.toml, a settings file of small runs."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tiny.toml").write_text(tomli_w.dumps(SMALL))
    (folder / name).write_text(tomli_w.dumps({"settings": "tiny.toml", **content}))
    return folder / name


def command(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-m", "endocil", *map(str, arguments)]


def endocil(*arguments: str | Path) -> tuple[int, str, str]:
    """Type a command in this process, which has all libraries loaded: its status, what it said, and its errors."""
    said, errors = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(said), redirect_stderr(errors):
        patch.setattr(sys, "argv", ["endocil", *map(str, arguments)])
        patch.setattr(sys, "path", [*sys.path])
        try:
            main()
            status = 0
        except SystemExit as end:
            status = int(end.code or 0)
    return status, said.getvalue(), errors.getvalue()


def results(folder: Path) -> dict[str, bytes]:
    """What the runs of a sweep found: metrics, predictions and memories, by run and file."""
    kept = [
        *folder.glob("*/metrics.json"),
        *folder.glob("*/predictions/*.csv"),
        *folder.glob("*/memory/*.csv"),
    ]
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(kept)}


def runs_in(folder: Path) -> list[str]:
    return sorted(path.parent.name for path in folder.glob("*/settings.toml"))
