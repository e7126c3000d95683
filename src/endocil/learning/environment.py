"""The versions and the machine of a run, for its environment.json."""

import importlib.metadata
import platform
import subprocess
from pathlib import Path
from typing import Any

import torch

from endocil.networks import instruction_set
from endocil.settings.settings import Settings


def environment(settings: Settings, processes: int = 1) -> dict[str, Any]:
    """Without host names and paths, so that it can be published."""
    names = ("endocil", "torch", "numpy", "lightning-fabric", "pillow", "simplejpeg", "safetensors")
    return {
        "python": platform.python_version(),
        **{name: importlib.metadata.version(name) for name in names},
        "system": platform.system(),
        "machine": platform.machine(),
        "processor": processor(),
        "instructions": instruction_set(),
        "accelerator": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "processes": processes,
        "threads": settings.run.threads,
        "commit": _commit(),
    }


def processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown")


def _commit() -> str | None:
    """The commit of a source checkout, with '+' when files were changed; none for an installed package."""
    here = Path(__file__).parents[1]
    if not (here.parents[1] / "pyproject.toml").is_file():
        return None
    try:
        commit = _git(here, "rev-parse", "--short=12", "HEAD")
        return commit + ("+" if _git(here, "status", "--porcelain", "--", str(here)) else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def _git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(folder), *arguments], check=True, capture_output=True, text=True)
    return done.stdout.strip()
