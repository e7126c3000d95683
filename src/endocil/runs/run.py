"""READ FIRST. One run, from settings to results.

    settings -> images, scenario, method, memory                (build.py)
    for each task: model.learn_task(...), then its predictions  (model/model.py, learning/learner.py)
    predictions of all tasks -> metrics                         (metrics/metrics.py)
    the model -> model.endocil                                  (model/file.py)

Everything a run leaves behind is in its folder; a run that was stopped goes on from its last checkpoint.
"""

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors.torch import save

from endocil.data.batches import ImageSet
from endocil.data.scenario import Task
from endocil.data.splits import TRAIN, VALIDATION
from endocil.io.files import write_atomically, write_csv, write_json
from endocil.learning.build import build_learner
from endocil.learning.checkpoint import Checkpoint, Position, load_checkpoint, restore
from endocil.learning.events import Journal, Show
from endocil.learning.features import view
from endocil.learning.parallel import by_one, learning_on
from endocil.metrics.metrics import summarise
from endocil.model.model import Model
from endocil.model.new_images import NewTask
from endocil.model.predictions import predict, read_run_predictions, write_predictions
from endocil.runs.build import Parts, Progress, assemble, remarks, sharing_cores
from endocil.runs.folder import RunFolder, new_folder
from endocil.runs.preflight import examined, planned_images
from endocil.runs.tensorboard import for_tensorboard
from endocil.settings.settings import Settings, load_settings

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
        model = _learn(parts, here, fabric, checkpoint, Journal(here.events, shown, silent=not first))
    return by_one(fabric, lambda: _finish(here, model, len(parts.scenario.tasks)))


def _learn(
    parts: Parts, here: RunFolder, fabric: "Fabric", checkpoint: Checkpoint | None, journal: Journal
) -> Model:
    """Every task that is not learned yet."""
    past = journal.cut_back(checkpoint.events if checkpoint else 0)
    done = sum(event.get("images", 0) for event in past)
    journal.show({"event": "plan", "images": planned_images(parts), "done": done})
    model = Model(parts.settings, parts.method, parts.memory, name=here.path.resolve().name)
    learner = build_learner(parts.settings, parts.method, parts.memory, here.path, fabric, journal)
    classes, tasks = parts.images.table.classes, parts.scenario.tasks
    if checkpoint:
        restore(checkpoint, parts.method, parts.memory, tasks, classes, fabric.device)
    start = checkpoint.position if checkpoint else Position()
    for task in tasks:
        train, held_out = (
            ImageSet.of(parts.images, parts.scenario.rows(part, task.new)) for part in (TRAIN, VALIDATION)
        )
        step = NewTask(task, classes[task.seen], train, held_out)
        halfway = task.index == start.task and start != Position(task.index)
        learned = task.index < start.task
        model.learn_task(learner, step, checkpoint if halfway else None, by="run", done=learned)
        if not learned:
            _write_task(parts, here, task, fabric)
            learner.save(Position(task.index + 1))
    return model


def _finish(here: RunFolder, model: Model, tasks: int) -> Result:
    model.calibrate()
    model.save(here.model)
    metrics = summarise(read_run_predictions([here.predictions(task) for task in range(tasks)]))
    write_json(here.path / "metrics.json", metrics)
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
        write_csv(here.memory(task.index), header, parts.memory.records())
    if parts.settings.run.keep:
        _keep_weights(parts, here, task)


def _keep_weights(parts: Parts, here: RunFolder, task: Task) -> None:
    """For figures: the weights after each task, and the training features of the first."""
    state = {name: value.detach().cpu().contiguous() for name, value in parts.method.state_dict().items()}
    write_atomically(here.path / "weights" / f"task-{task.index}.safetensors", save(state))
    if task.index == 0:
        images = ImageSet.of(parts.images, parts.scenario.rows(TRAIN, task.new))
        seen = view(parts.method, images, parts.settings.run.evaluation_batch)
        features = {"features": seen.features, "labels": images.labels, "rows": images.rows}
        write_atomically(here.path / "features" / "task-0.safetensors", save(features))
