"""The folder of a run: where each file lies, and what may be done with a folder that is there already."""

import importlib.metadata
import json
import platform
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import save

from endocil.errors import EndocilError
from endocil.files import write_atomically, write_csv, write_json
from endocil.settings import Settings, load_settings

if TYPE_CHECKING:
    from endocil.assembly import Parts
    from endocil.scenario import Task

SPLIT_HEADER = ("image", "class", "task", "part", "group", "source")


@dataclass(frozen=True)
class RunFolder:
    path: Path

    @property
    def events(self) -> Path:
        return self.path / "events.jsonl"

    def predictions(self, task: int) -> Path:
        return self.path / "predictions" / f"task-{task}.csv"

    def memory(self, task: int) -> Path:
        return self.path / "memory" / f"task-{task}.csv"

    def finished(self) -> bool:
        return (self.path / "metrics.json").exists()

    def metrics(self) -> Any:
        return json.loads((self.path / "metrics.json").read_text("utf-8"))

    def settings(self) -> Settings:
        file = self.path / "settings.toml"
        if not file.is_file():
            raise EndocilError(
                f"{self.path} is not a run: it has no settings.toml; start one with 'endocil run'"
            )
        return load_settings(file)

    def refuse_used(self) -> None:
        """A run starts in a new or empty folder, so that nothing is written over."""
        if self.path.is_file():
            raise EndocilError(f"{self.path} is a file; choose another folder with -o")
        if (self.path / "settings.toml").exists():
            way_out = "it is finished" if self.finished() else f"go on with 'endocil resume {self.path}'"
            raise EndocilError(
                f"{self.path} holds a run already: {way_out}, or choose another folder with -o"
            )
        if self.path.exists() and any(self.path.iterdir()):
            raise EndocilError(f"{self.path} is not empty; choose another folder with -o")

    def create(self, parts: "Parts") -> None:
        """The record of what is about to run; settings come last, as they make the folder a run."""
        write_csv(self.path / "split.csv", SPLIT_HEADER, _split(parts))
        write_json(self.path / "environment.json", environment(parts.settings))
        write_atomically(self.path / "settings.toml", parts.settings.to_toml())

    def refuse_other_images(self, parts: "Parts") -> None:
        """Rows of the checkpoint mean the images of the recorded split: another set would be trained wrongly."""
        import csv

        with (self.path / "split.csv").open(encoding="utf-8", errors="surrogateescape", newline="") as file:
            recorded = [tuple(row) for row in csv.reader(file)][1:]
        current = [tuple(str(value) for value in row) for row in _split(parts)]
        if recorded != current:
            raise EndocilError(
                f"the images at data.root are not those of the run in {self.path} ({len(current)} rows, split.csv has "
                f"{len(recorded)}); bring the data back or start a new run"
            )

    def keep_weights(self, parts: "Parts", task: "Task") -> None:
        """For figures: the weights after each task, and the training features of the first."""
        from endocil.evaluation import view
        from endocil.images.batch import ImageSet
        from endocil.scenario import TRAIN

        state = {name: value.detach().cpu().contiguous() for name, value in parts.method.state_dict().items()}
        write_atomically(self.path / "weights" / f"task-{task.index}.safetensors", save(state))
        if task.index == 0:
            images = ImageSet.of(parts.images, parts.scenario.rows(TRAIN, task.new))
            seen = view(parts.method, images, parts.settings.run.evaluation_batch)
            features = {"features": seen.features, "labels": images.labels, "rows": images.rows}
            write_atomically(self.path / "features" / "task-0.safetensors", save(features))

    def write_page(self) -> None:
        from endocil.report import read_run, write_page

        record = read_run(self.path)
        write_page([record], self.path / "report.html", title=f"endocil run {self.path.name}")


def _split(parts: "Parts") -> list[tuple[object, ...]]:
    table, part = parts.images.table, parts.scenario.part
    task_of = {label: task.index for task in parts.scenario.tasks for label in range(task.n_old, task.n_seen)}
    return [
        (table.ids[i], table.classes[label], task_of[label], part[i], table.groups[i], table.sources[i])
        for i, label in enumerate(table.labels.tolist())
    ]


def environment(settings: Settings) -> dict[str, Any]:
    """Versions and machine that the numbers come from; no host name, no path."""
    names = ("endocil", "torch", "numpy", "lightning-fabric", "pillow", "simplejpeg", "safetensors")
    return {
        "python": platform.python_version(),
        **{name: importlib.metadata.version(name) for name in names},
        "system": platform.system(),
        "machine": platform.machine(),
        "processor": _processor(),
        "accelerator": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "threads": settings.run.threads,
        "commit": _commit(),
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown")


def _commit() -> str | None:
    """The commit of a source checkout, with '+' when files were changed; none for an installed package."""
    here = Path(__file__).parent
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
