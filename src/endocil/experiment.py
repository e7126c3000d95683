"""READ FIRST. One run, from settings to results.

    settings -> images, scenario, method, memory      (assembly.py)
    for each task: learn -> predict -> write          (learner.py, evaluation.py)
    predictions of all tasks -> metrics               (metrics.py)

Everything a run leaves behind is in its folder; a run that was stopped goes on from its last checkpoint.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from endocil.assembly import Parts, Progress, assemble
from endocil.checkpoint import Checkpoint, Position, load_checkpoint, restore
from endocil.evaluation import predict
from endocil.files import write_csv, write_json
from endocil.images.batch import ImageSet
from endocil.journal import Journal, Show
from endocil.learner import Learner
from endocil.metrics import summarise
from endocil.predictions import read_run_predictions, write_predictions
from endocil.preflight import planned_images, preflight
from endocil.run_folder import RunFolder
from endocil.scenario import TEST, TRAIN, Task
from endocil.settings import Settings, load_settings


@dataclass(frozen=True)
class Result:
    """What a run found; the folder holds everything else."""

    folder: Path
    metrics: Mapping[str, Any]


def run(
    settings: str | Path | Mapping[str, Any] | Settings,
    folder: str | Path,
    *,
    show: Show = lambda record: None,
    progress: Progress | None = None,
) -> Result:
    """Start a run in a new folder. `settings`: a preset's name, a TOML file, a dictionary or Settings."""
    here = RunFolder(Path(folder))
    here.refuse_used()
    parts = assemble(load_settings(settings), progress)
    preflight(parts).refuse_problems()
    here.create(parts)
    return _go(parts, here, None, show)


def resume(
    folder: str | Path, *, show: Show = lambda record: None, progress: Progress | None = None
) -> Result:
    """Go on with a run that was stopped; a finished run is returned as it is."""
    here = RunFolder(Path(folder))
    settings = here.settings()
    if here.finished():
        return Result(here.path, here.metrics())
    here.clear_half_written()
    parts = assemble(settings, progress)
    here.refuse_other_images(parts)
    return _go(parts, here, load_checkpoint(here.path), show)


def _go(parts: Parts, here: RunFolder, checkpoint: Checkpoint | None, show: Show) -> Result:
    from lightning_fabric import Fabric

    settings, tasks = parts.settings, parts.scenario.tasks
    torch.set_num_threads(settings.run.threads or torch.get_num_threads())
    fabric = Fabric(accelerator=settings.run.accelerator, devices=1)
    journal = Journal(here.events, show)
    past = journal.cut_back(checkpoint.events if checkpoint else 0)
    show(
        {
            "event": "plan",
            "images": planned_images(parts),
            "done": sum(event.get("images", 0) for event in past),
        }
    )
    parts.method.to(fabric.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    if checkpoint:
        restore(checkpoint, parts.method, parts.memory, tasks, fabric.device)
    learner = Learner(
        parts.method,
        parts.memory,
        parts.images,
        folder=here.path,
        fabric=fabric,
        journal=journal,
        augmentation=parts.augmentation,
        seed=settings.seed,
        evaluation_batch=settings.run.evaluation_batch,
        checkpoint_seconds=settings.run.checkpoint_seconds,
    )
    start = checkpoint.position.task if checkpoint else 0
    for task in tasks[start:]:
        unfinished = checkpoint if checkpoint and checkpoint.position != Position(task.index) else None
        rows = parts.scenario.rows(TRAIN, task.new)
        learner.learn(task, ImageSet.of(parts.images, rows), unfinished if task.index == start else None)
        _write_task(parts, here, task)
        learner.save(Position(task.index + 1))
    metrics = summarise(read_run_predictions([here.predictions(task.index) for task in tasks]))
    write_json(here.path / "metrics.json", metrics)
    here.write_page()
    return Result(here.path, metrics)


def _write_task(parts: Parts, here: RunFolder, task: Task) -> None:
    """What is left of a task for evaluation: predictions on all seen classes, and who is in the memory."""
    tests = ImageSet.of(parts.images, parts.scenario.rows(TEST, task.seen))
    classes = parts.images.table.classes[task.seen]
    predictions = predict(parts.method, tests, parts.settings.run.evaluation_batch, classes=classes)
    write_predictions(here.predictions(task.index), predictions)
    if parts.memory is not None:
        header = ("image", "class", "order", "task", "group", "source")
        write_csv(here.memory(task.index), header, parts.memory.records(parts.images))
    if parts.settings.run.keep:
        here.keep_weights(parts, task)
