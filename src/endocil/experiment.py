"""READ FIRST. One run, from settings to results.

    settings -> images, scenario, method, memory      (assembly.py)
    for each task: learn -> predict -> write          (learner.py, evaluation.py)
    predictions of all tasks -> metrics               (metrics.py)

Everything a run leaves behind is in its folder; a run that was stopped goes on from its last checkpoint.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from endocil.assembly import Parts, Progress, assemble
from endocil.checkpoint import Checkpoint, Position, load_checkpoint, restore
from endocil.errors import EndocilError
from endocil.estimate import planned_images
from endocil.evaluation import predict
from endocil.files import write_csv, write_json
from endocil.images.batch import ImageSet
from endocil.journal import Journal, Show
from endocil.learner import Learner
from endocil.metrics import summarise
from endocil.predictions import read_run_predictions, write_predictions
from endocil.preflight import preflight
from endocil.run_folder import RunFolder, new_folder
from endocil.scenario import TEST, TRAIN, Task
from endocil.settings import Settings, load_settings

if TYPE_CHECKING:
    from lightning_fabric import Fabric


@dataclass(frozen=True)
class Result:
    """What a run found; the folder holds everything else."""

    folder: Path
    metrics: Mapping[str, Any]


def run(
    settings: str | Path | Mapping[str, Any] | Settings,
    folder: str | Path | None = None,
    *,
    show: Show = lambda record: None,
    progress: Progress | None = None,
) -> Result:
    """Start a run in a new folder (runs/METHOD-seedN if none is given).

    `settings`: a preset's name, a TOML file, a dictionary or Settings.
    """
    chosen = load_settings(settings)
    here = RunFolder(Path(folder) if folder else new_folder(chosen))
    here.refuse_used()
    parts = assemble(chosen, progress)
    fabric = _fabric(parts.settings)
    found = preflight(parts)
    found.refuse_problems()
    here.create(parts, progress)
    with here.locked():
        show({"event": "remarks", "remarks": found.remarks})
        return _go(parts, here, fabric, None, show)


def resume(
    folder: str | Path, *, show: Show = lambda record: None, progress: Progress | None = None
) -> Result:
    """Go on with a run that was stopped; a finished run is returned as it is."""
    here = RunFolder(Path(folder))
    settings = here.settings()
    if here.finished():
        if not here.page.exists():  # stopped between the last number and the page
            here.write_page()
        return Result(here.path, here.metrics())
    with here.locked():
        here.clear_half_written()
        parts = assemble(settings, progress)
        here.refuse_other_images(parts)
        return _go(parts, here, _fabric(parts.settings), load_checkpoint(here.path), show)


def _fabric(settings: Settings) -> "Fabric":
    """The device that learns."""
    from lightning_fabric import Fabric

    try:
        return Fabric(accelerator=settings.run.accelerator, devices=1)
    except (ValueError, RuntimeError) as error:
        raise EndocilError(f"run.accelerator '{settings.run.accelerator}' cannot be used: {error}") from error


def _go(parts: Parts, here: RunFolder, fabric: "Fabric", checkpoint: Checkpoint | None, show: Show) -> Result:
    """From the checkpoint, or from the beginning, to the end."""
    journal = Journal(here.events, show)
    past = journal.cut_back(checkpoint.events if checkpoint else 0)
    show(
        {
            "event": "plan",
            "images": planned_images(parts),
            "done": sum(event.get("images", 0) for event in past),
        }
    )
    learner = _learner(parts, here, fabric, journal)
    tasks = parts.scenario.tasks
    if checkpoint:
        restore(checkpoint, parts.method, parts.memory, tasks, learner.fabric.device)
    start = checkpoint.position if checkpoint else Position()
    for task in tasks[start.task :]:
        new = ImageSet.of(parts.images, parts.scenario.rows(TRAIN, task.new))
        halfway = task.index == start.task and start != Position(task.index)
        learner.learn(task, new, checkpoint if halfway else None)
        _write_task(parts, here, task)
        learner.save(Position(task.index + 1))
    metrics = summarise(read_run_predictions([here.predictions(task.index) for task in tasks]))
    write_json(here.path / "metrics.json", metrics)
    here.write_page()
    return Result(here.path, metrics)


def _learner(parts: Parts, here: RunFolder, fabric: "Fabric", journal: Journal) -> Learner:
    chosen = parts.settings.run
    torch.set_num_threads(chosen.threads or torch.get_num_threads())
    parts.method.to(fabric.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    return Learner(
        parts.method,
        parts.memory,
        parts.images,
        folder=here.path,
        fabric=fabric,
        journal=journal,
        augmentation=parts.augmentation,
        seed=parts.settings.seed,
        evaluation_batch=chosen.evaluation_batch,
        checkpoint_seconds=chosen.checkpoint_seconds,
    )


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
