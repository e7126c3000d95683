"""Small sweeps for the tests: files, and what must be the same of two sweeps."""

from pathlib import Path
from typing import Any

import tomli_w
from pictures import TINY

SMALL: dict[str, Any] = {**TINY, "train": {"epochs": 2, "milestones": [1], "batch_size": 16}}


def write_sweep(folder: Path, name: str = "sweep.toml", **content: Any) -> Path:
    """A sweep file beside tiny.toml, a settings file of small runs."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tiny.toml").write_text(tomli_w.dumps(SMALL))
    (folder / name).write_text(tomli_w.dumps({"settings": "tiny.toml", **content}))
    return folder / name


def results(folder: Path) -> dict[str, bytes]:
    """What the runs of a sweep found: metrics, predictions and memories, by run and file."""
    kept = [*folder.glob("*/metrics.json"), *folder.glob("*/predictions/*.csv"), *folder.glob("*/memory/*.csv")]
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(kept)}


def runs_in(folder: Path) -> list[str]:
    return sorted(path.parent.name for path in folder.glob("*/settings.toml"))
