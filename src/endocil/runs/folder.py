"""The folder of a run: where each file lies, and what may be done with a folder that is there already."""

import itertools
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from endocil.errors import EndocilError
from endocil.io.files import read_csv, write_atomically, write_csv, write_json
from endocil.io.locks import lock
from endocil.learning.environment import environment
from endocil.model.file import RUN_MODEL
from endocil.settings.settings import Settings, load_settings

if TYPE_CHECKING:
    from endocil.runs.build import Parts, Progress

SPLIT_HEADER = ("image", "class", "task", "part", "group", "source")


def new_folder(settings: Settings, name: str = "") -> Path:
    """runs/NAME-METHOD-seedN, or the first of ...-2, ...-3 that is not there yet."""
    method = settings.method.name.rpartition(":")[2]  # 'my.module:Thing' becomes 'Thing'
    return numbered(Path("runs", "-".join([*filter(None, [name]), method, f"seed{settings.seed}"])))


def numbered(path: Path) -> Path:
    """The path, or the first of path-2, path-3 ... that is not there yet."""
    others = (path.with_name(f"{path.name}-{i}") for i in itertools.count(2))
    return next(one for one in itertools.chain([path], others) if not one.exists())


@dataclass(frozen=True)
class RunFolder:
    path: Path

    @contextmanager
    def locked(self) -> Iterator[None]:
        """One process at a time works on a run, where the system can lock files."""
        with (self.path / ".lock").open("ab") as file:
            for rest in (0.2, 0.2, 0.0):  # 'endocil watch' holds it for a moment, to see whether it is free
                if lock(file, wait=False) != "taken":
                    break
                time.sleep(rest)
            else:
                raise EndocilError(f"another process is working on the run {self.path}; let it finish")
            yield

    @property
    def events(self) -> Path:
        return self.path / "events.jsonl"

    @property
    def page(self) -> Path:
        return self.path / "report.html"

    @property
    def model(self) -> Path:
        return self.path / RUN_MODEL

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

    def create(self, parts: "Parts", progress: "Progress | None" = None, processes: int = 1) -> None:
        """The record of what is about to run; settings come last, as they make the folder a run."""
        leaks = _leaks(parts, progress)
        write_csv(self.path / "split.csv", SPLIT_HEADER, _split(parts))
        write_json(self.path / "leaks.json", leaks)
        unreadable = [{"image": name, "reason": reason} for name, reason in parts.images.skipped]
        write_json(self.path / "data.json", {"notes": parts.notes, "unreadable": unreadable})
        write_json(self.path / "environment.json", environment(parts.settings, processes))
        write_atomically(self.path / "settings.toml", parts.settings.to_toml())

    def clear_half_written(self) -> None:
        """A kill in the middle of writing leaves a temporary file, which nobody will miss."""
        for path in self.path.rglob(".*.tmp"):
            path.unlink(missing_ok=True)

    def refuse_other_images(self, parts: "Parts") -> None:
        """Rows of the checkpoint mean the images of the recorded split: another set would be trained wrongly."""
        recorded = [tuple(row.values()) for row in read_csv(self.path / "split.csv")]
        current = [tuple(str(value) for value in row) for row in _split(parts)]
        if recorded != current:
            raise EndocilError(
                f"the images at data.root are not those of the run in {self.path} ({len(current)} rows, split.csv has "
                f"{len(recorded)}); bring the data back or start a new run"
            )


def _leaks(parts: "Parts", progress: "Progress | None") -> dict[str, float | int | None]:
    """How much of the test part the training part has seen; images are measured once, as in an audit."""
    from endocil.data.fingerprints import fingerprints
    from endocil.data.leaks import leak_rate
    from endocil.data.near_duplicates import near_duplicates_of

    table, part = parts.images.table, parts.scenario.part
    prints = fingerprints(table, progress=progress)
    near = near_duplicates_of(table, prints, progress=progress)
    return leak_rate(table, part, digests=prints.digests, near=near)


def _split(parts: "Parts") -> list[tuple[object, ...]]:
    table, part = parts.images.table, parts.scenario.part
    task_of = {label: task.index for task in parts.scenario.tasks for label in range(task.n_old, task.n_seen)}
    return [
        (table.ids[i], table.classes[label], task_of[label], part[i], table.groups[i], table.sources[i])
        for i, label in enumerate(table.labels.tolist())
    ]
