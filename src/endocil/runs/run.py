"""READ FIRST. One run, from settings to results.

    settings -> images, scenario, method, memory                   (parts.py)
    for each task: model.learn_task, model.predict, write         (model/model.py, learning/learner.py)
    predictions of all tasks -> metrics                            (metrics/metrics.py)
    the model -> model.endocil                                     (model/file.py)

Everything a run leaves behind is in its folder; a stopped run resumes from its last checkpoint.
"""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save

from endocil.data.cache import Progress
from endocil.data.scenario import Task
from endocil.data.splits import TRAIN, VALIDATION
from endocil.io.files import make_private_folder, write_atomically, write_csv, write_json
from endocil.learning.build import build_learner, complete
from endocil.learning.checkpoint import Checkpoint, Position, load_checkpoint, restore
from endocil.learning.events import Journal, Show
from endocil.learning.features import outputs_of
from endocil.learning.parallel import Processes, learning_on, on_rank_zero
from endocil.metrics.metrics import summarise
from endocil.model.model import Model
from endocil.model.new_images import NewTask
from endocil.model.prediction_files import read_run_predictions, write_predictions
from endocil.model.predictions import Predictions
from endocil.runs.folder import RunFolder, new_folder
from endocil.runs.parts import RunParts, assemble, with_run_settings
from endocil.runs.preflight import check_run, image_passes, refuse_wrong_numbers
from endocil.runs.trackers import tracked
from endocil.settings.settings import Settings, load_settings


@dataclass(frozen=True)
class Result:
    """The metrics of a run; the folder holds everything else."""

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

    The folder is that of `endocil run`, without its report.html: reports/ imports runs/, not the other way round.
    `endocil report FOLDER` writes the page.
    """
    settings = settings if isinstance(settings, Settings) else load_settings(settings)
    run_folder = RunFolder(Path(folder) if folder else new_folder(settings))
    run_folder.refuse_used()  # before an image is read; again when the folder is ours
    if devices > 1 and settings.run.threads is None:  # processes on one machine share its cores
        settings = with_run_settings(settings, threads=max(1, torch.get_num_threads() // devices))
    parts, preflight = check_run(settings, progress)
    preflight.refuse_problems()
    if not settings.train.compile:  # a trial would fill torch's cache of compiled code, which has a limit
        refuse_wrong_numbers(parts)  # of a task in the middle; each phase is compared again before it trains
    with learning_on(settings.run.accelerator, devices, nodes) as fabric, ExitStack() as stack:

        def begin() -> None:
            make_private_folder(run_folder.path)
            stack.enter_context(run_folder.locked())
            run_folder.refuse_used()  # by a process that was faster
            run_folder.remove_temporary_files(settings.run.first_tasks)
            run_folder.create(parts, progress, fabric.world_size)

        on_rank_zero(fabric, begin)
        remarks = list(preflight.remarks)
        if fabric.world_size > 1 and settings.run.first_tasks is not None:
            remarks.append(
                "run.first_tasks works for a run of one process alone, as several processes round differently: "
                "the first task is trained here"
            )
        show({"event": "remarks", "remarks": remarks})
        return _learn_tasks(parts, run_folder, fabric, None, show)


def resume(
    folder: str | Path | RunFolder,
    *,
    show: Show = lambda record: None,
    progress: Progress | None = None,
    devices: int = 1,
    nodes: int = 1,
    trust: bool = False,
    changes: Sequence[str] = (),
) -> Result:
    """Resume a stopped run on this number of devices; a finished run is returned as it is.

    `changes`: key=value of what decides no result, such as data.root where the images have been moved; settings.toml
    records them. `trust` lets settings.toml of the run name code from outside, which is run then: the folder may be
    another's."""
    run_folder = folder if isinstance(folder, RunFolder) else RunFolder(Path(folder))
    run_folder.refuse_other_folder()
    if run_folder.finished():
        run_folder.tidy_up()
        return Result(run_folder.path, run_folder.metrics())
    settings = run_folder.resumed_settings(changes)
    settings = complete(settings.trusted() if trust else settings)
    _refuse_other_checkpoint(run_folder, settings)  # before an image is read; again when the folder is ours
    parts = assemble(settings, progress)
    run_folder.refuse_other_images(parts)
    with learning_on(settings.run.accelerator, devices, nodes) as fabric, ExitStack() as stack:

        def begin() -> None:
            stack.enter_context(run_folder.locked())
            run_folder.remove_temporary_files(settings.run.first_tasks)
            _refuse_other_checkpoint(run_folder, parts.settings)
            if changes:
                run_folder.record(parts.settings)

        on_rank_zero(fabric, begin)
        return _learn_tasks(parts, run_folder, fabric, load_checkpoint(run_folder.path), show)


def _refuse_other_checkpoint(run_folder: RunFolder, settings: Settings) -> None:
    """Refuse a checkpoint that cannot be read, or that settings and results of the folder do not belong to."""
    checkpoint = load_checkpoint(run_folder.path)
    if checkpoint is not None:
        run_folder.refuse_other_settings(settings, checkpoint.settings)
        run_folder.refuse_other_results(checkpoint.results)


def _learn_tasks(
    parts: RunParts, run_folder: RunFolder, fabric: Processes, checkpoint: Checkpoint | None, show: Show
) -> Result:
    """From the checkpoint, or from the beginning, to the end."""
    settings, scenario, classes = parts.settings, parts.scenario, parts.images.table.classes
    first = fabric.global_rank == 0
    model = Model(settings, parts.method, parts.memory, name=run_folder.path.resolve().name)
    start = checkpoint.position if checkpoint else Position()
    chosen = settings.run
    trackers = {"tensorboard": first and chosen.tensorboard, "wandb": first and chosen.wandb}
    with tracked(run_folder, show, **trackers) as shown:
        journal = Journal(run_folder.events, shown, silent=not first)
        past = journal.cut_back(checkpoint.events if checkpoint else 0)
        done = sum(event.get("images", 0) for event in past)
        journal.show({"event": "plan", "images": image_passes(parts).total(), "done": done})
        learner = build_learner(settings, parts.method, parts.memory, run_folder.path, fabric, journal)
        if checkpoint:
            learner.results.update(checkpoint.results)
            size = parts.images.pixels.shape[1]
            restore(checkpoint, parts.method, parts.memory, scenario.tasks, classes, fabric.device, size=size)

        for task in scenario.tasks:
            train, held_out = (parts.arriving(part, task) for part in (TRAIN, VALIDATION))
            new = NewTask(task, classes[task.seen], train, held_out)
            if task.index < start.task:
                model.learn_task(learner, new, by="run", done=True)
                continue
            begun = task.index == start.task and start != Position(task.index)
            model.learn_task(learner, new, checkpoint if begun else None, by="run")
            test = parts.image_set(settings.run.evaluate, task.seen)
            batch, store = settings.run.evaluation_batch, learner.features
            predictions = model.predict(test, batch=batch, fabric=fabric, store=store)
            if first:
                _write_task(parts, run_folder, task, predictions)
                learner.results.update(run_folder.results_of(task.index))
            learner.save(Position(task.index + 1))

    return on_rank_zero(fabric, lambda: _write_results(model, run_folder, len(scenario.tasks)))


def _write_task(parts: RunParts, run_folder: RunFolder, task: Task, predictions: Predictions) -> None:
    """The files of a task: predictions on all seen classes, the memory and, for figures, the weights."""
    write_predictions(run_folder.predictions(task.index), predictions)
    if parts.memory is not None:
        header = ("image", "class", "order", "task", "group", "source")
        write_csv(run_folder.memory(task.index), header, parts.memory.records())
    if not parts.settings.run.keep:
        return
    state = {name: value.detach().cpu().contiguous() for name, value in parts.method.state_dict().items()}
    write_atomically(run_folder.path / "weights" / f"task-{task.index}.safetensors", save(state))
    if task.index == 0:
        images = parts.arriving(TRAIN, task)
        features = outputs_of(parts.method, images, parts.settings.run.evaluation_batch).features
        tensors = {"features": features, "labels": images.labels, "rows": images.rows}
        write_atomically(run_folder.path / "features" / "task-0.safetensors", save(tensors))


def _write_results(model: Model, run_folder: RunFolder, n_tasks: int) -> Result:
    """The model, then metrics.json, which marks the run as finished; the checkpoint is removed last."""
    model.calibrate()
    model.save(run_folder.model)
    metrics = summarise(read_run_predictions(map(run_folder.predictions, range(n_tasks)), of_run=True))
    write_json(run_folder.path / "metrics.json", metrics)
    run_folder.remove_checkpoint()
    return Result(run_folder.path, metrics)
