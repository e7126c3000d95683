"""READ FIRST. One run, from settings to results.

    settings -> images, scenario, method, memory      (assembly.py)
    for each task: learn -> predict -> write          (learner.py, evaluation.py)
    predictions of all tasks -> metrics               (metrics.py)

Everything a run leaves behind is in its folder; a run that was stopped goes on from its last checkpoint.
"""

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from endocil.data.batches import ImageSet
from endocil.data.scenario import Task
from endocil.data.splits import TRAIN
from endocil.io.files import write_csv, write_json
from endocil.learning.checkpoint import Checkpoint, Position, load_checkpoint, restore
from endocil.learning.events import Journal, Show
from endocil.learning.parallel import by_one, learning_on
from endocil.metrics.metrics import summarise
from endocil.model.predictions import predict, read_run_predictions, write_predictions
from endocil.runs.build import Parts, Progress, assemble, build_learner, remarks, sharing_cores
from endocil.runs.folder import RunFolder, new_folder
from endocil.runs.preflight import examined, planned_images
from endocil.runs.settings import Settings, load_settings
from endocil.runs.tensorboard import for_tensorboard

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
    devices: int = 1,
    nodes: int = 1,
) -> Result:
    """Start a run in a new folder (runs/METHOD-seedN if none is given).

    `settings`: a preset's name, a TOML file, a dictionary or Settings. `devices` on each of `nodes` machines: one
    process for each of them; started here, the script is run again in every other process, up to this call.
    """
    chosen = load_settings(settings)
    here = RunFolder(Path(folder) if folder else new_folder(chosen))
    here.refuse_used()
    parts, found = examined(sharing_cores(chosen, devices), progress)
    found.refuse_problems()
    with learning_on(parts.settings.run.accelerator, devices, nodes) as fabric:
        by_one(fabric, lambda: here.create(parts, progress, fabric.world_size))
        with here.locked() if fabric.global_rank == 0 else nullcontext():
            show({"event": "remarks", "remarks": [*found.remarks, *remarks(parts, fabric)]})
            return _go(parts, here, fabric, None, show)


def resume(
    folder: str | Path,
    *,
    show: Show = lambda record: None,
    progress: Progress | None = None,
    devices: int = 1,
    nodes: int = 1,
) -> Result:
    """Go on with a run that was stopped, on as many devices as are given; a finished run is returned as it is."""
    here = RunFolder(Path(folder))
    settings = here.settings()
    if here.finished():
        if not here.page.exists():  # stopped between the last number and the page
            here.write_page()
        return Result(here.path, here.metrics())
    parts = assemble(settings, progress)
    here.refuse_other_images(parts)
    with learning_on(settings.run.accelerator, devices, nodes) as fabric:
        first = fabric.global_rank == 0
        with here.locked() if first else nullcontext():
            if first:
                here.clear_half_written()
            return _go(parts, here, fabric, load_checkpoint(here.path), show)


def _go(parts: Parts, here: RunFolder, fabric: "Fabric", checkpoint: Checkpoint | None, show: Show) -> Result:
    """From the checkpoint, or from the beginning, to the end."""
    first = fabric.global_rank == 0
    with for_tensorboard(here, show, enabled=first and parts.settings.run.tensorboard) as shown:
        _learn(parts, here, fabric, checkpoint, Journal(here.events, shown, silent=not first))
    return by_one(fabric, lambda: _finish(here, len(parts.scenario.tasks)))


def _learn(
    parts: Parts, here: RunFolder, fabric: "Fabric", checkpoint: Checkpoint | None, journal: Journal
) -> None:
    """Every task that is not learned yet."""
    past = journal.cut_back(checkpoint.events if checkpoint else 0)
    journal.show(
        {
            "event": "plan",
            "images": planned_images(parts),
            "done": sum(event.get("images", 0) for event in past),
        }
    )
    learner = build_learner(parts, here.path, fabric, journal)
    tasks = parts.scenario.tasks
    if checkpoint:
        restore(checkpoint, parts.method, parts.memory, tasks, learner.fabric.device)
    start = checkpoint.position if checkpoint else Position()
    for task in tasks[start.task :]:
        new = ImageSet.of(parts.images, parts.scenario.rows(TRAIN, task.new))
        halfway = task.index == start.task and start != Position(task.index)
        learner.learn(task, new, checkpoint if halfway else None)
        _write_task(parts, here, task, fabric)
        learner.save(Position(task.index + 1))


def _finish(here: RunFolder, tasks: int) -> Result:
    metrics = summarise(read_run_predictions([here.predictions(task) for task in range(tasks)]))
    write_json(here.path / "metrics.json", metrics)
    here.write_page()
    return Result(here.path, metrics)


def _write_task(parts: Parts, here: RunFolder, task: Task, fabric: "Fabric") -> None:
    """What is left of a task for evaluation: predictions on all seen classes, and who is in the memory."""
    shown = ImageSet.of(parts.images, parts.scenario.rows(parts.settings.run.evaluate, task.seen))
    classes = parts.images.table.classes[task.seen]
    batch = parts.settings.run.evaluation_batch
    predictions = predict(parts.method, shown, batch, classes=classes, fabric=fabric)
    if fabric.global_rank > 0:
        return
    write_predictions(here.predictions(task.index), predictions)
    if parts.memory is not None:
        header = ("image", "class", "order", "task", "group", "source")
        write_csv(here.memory(task.index), header, parts.memory.records(parts.images))
    if parts.settings.run.keep:
        here.keep_weights(parts, task)
