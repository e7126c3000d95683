"""The folder of a run: where each file lies, and what may be done with a folder that is there already."""

import itertools
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import save

from endocil.errors import EndocilError
from endocil.io.files import read_csv, write_atomically, write_csv, write_json
from endocil.io.locks import lock
from endocil.runs.environment import environment
from endocil.runs.settings import Settings, load_settings

if TYPE_CHECKING:
    from endocil.data.scenario import Task
    from endocil.reports.gallery import Gallery
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

    def keep_weights(self, parts: "Parts", task: "Task") -> None:
        """For figures: the weights after each task, and the training features of the first."""
        from endocil.data.batches import ImageSet
        from endocil.data.splits import TRAIN
        from endocil.learning.features import view

        state = {name: value.detach().cpu().contiguous() for name, value in parts.method.state_dict().items()}
        write_atomically(self.path / "weights" / f"task-{task.index}.safetensors", save(state))
        if task.index == 0:
            images = ImageSet.of(parts.images, parts.scenario.rows(TRAIN, task.new))
            seen = view(parts.method, images, parts.settings.run.evaluation_batch)
            features = {"features": seen.features, "labels": images.labels, "rows": images.rows}
            write_atomically(self.path / "features" / "task-0.safetensors", save(features))

    def write_page(self) -> None:
        from endocil.reports.page import write_page
        from endocil.runs.records import read_run

        gallery = self.gallery() if self.settings().run.gallery else None
        title = f"endocil run {self.path.name}"
        write_page([read_run(self.path)], self.page, title=title, gallery=gallery)

    def gallery(self, per_class: int = 5) -> "Gallery":
        """The first choices of each class at the end of the run, under the run's name."""
        from endocil.data.cache import load_images
        from endocil.reports.gallery import Exemplar
        from endocil.runs.build import kept_table

        files = sorted(self.path.glob("memory/task-*.csv"), key=lambda path: int(path.stem.partition("-")[2]))
        kept = [row for row in read_csv(files[-1]) if int(row["order"]) < per_class] if files else []
        if not kept:
            return {}
        settings = self.settings()
        images = load_images(
            kept_table(settings), settings.data.size, skip_unreadable=settings.data.skip_unreadable
        )
        row_of = {image: row for row, image in enumerate(images.table.ids)}
        found: dict[str, list[Exemplar]] = {}
        for row in kept:
            if row["image"] not in row_of:
                raise EndocilError(
                    f"the exemplar {row['image']} of {self.path} is not among the images any more"
                )
            pixels = images.gather(torch.tensor([row_of[row["image"]]]))[0].numpy()
            about = (row["image"], int(row["order"]), row["task"], row["group"], row["source"])
            found.setdefault(row["class"], []).append(Exemplar(*about, pixels))
        return {self.path.resolve().name: found}


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
