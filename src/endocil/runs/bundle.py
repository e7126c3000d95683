"""What a run's test images told of its model, with intervals: the metrics of a bundle."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import endocil
from endocil.data.augment import DEVIATION, MEAN
from endocil.data.decode import RULES
from endocil.data.scenario import Scenario
from endocil.data.seeding import generator
from endocil.data.splits import TRAIN, VALIDATION
from endocil.errors import EndocilError
from endocil.learning.checkpoint import load_checkpoint, restore
from endocil.metrics.statistics import LEVEL, Bools, Measure, Resampling, observed, percentile_interval
from endocil.model.calibration import RATE, calibrate, why_uncalibrated, why_unflagged
from endocil.model.file import Content
from endocil.model.manifest import LearnedClass, Manifest, Preprocessing, Terms, Version, terms_of
from endocil.model.out_of_distribution import spread_of
from endocil.model.pictures import Origin, Pictures, no_pictures
from endocil.model.predictions import HEADS, Head
from endocil.runs.build import Parts, Progress, assemble
from endocil.runs.experiments import portable
from endocil.runs.folder import RunFolder
from endocil.runs.paired_predictions import read_paired_predictions
from endocil.runs.records import RunRecord, read_run

SHOWN = ("acc_last", "f1_last", "acc_avg", "f1_avg", "af")
RESAMPLES = 2000


def results_of(run: RunRecord) -> dict[str, Any]:
    """By head: the metrics of the tables and the recall of each class, in percent, each with its interval."""
    heads = [head for head in HEADS if run.metrics[head] is not None]
    return {
        "part": run.settings["run"].get("evaluate", "test"),
        "images": run.metrics["test_images"][-1],
        "level": LEVEL,
        "resamples": RESAMPLES,
        "heads": {head: _of_head(run, head) for head in heads},
    }


def _of_head(run: RunRecord, head: Head) -> dict[str, Any]:
    (predictions,) = read_paired_predictions([run], head)
    tested = predictions.test_set
    shown = SHOWN if len(run.metrics["task_sizes"]) > 1 else SHOWN[:-1]  # one task cannot forget
    numbers: dict[str, Any] = {
        metric: _with_interval(predictions.measure(metric), tested.resampling(metric, RESAMPLES))
        for metric in shown
    }
    by_class = tested.resampling("f1_last", RESAMPLES)
    numbers["recall"] = {
        name: _recall(predictions.accuracy_on(tested.labels == label), by_class, tested.labels == label)
        for label, name in enumerate(tested.classes)
    }
    return numbers


def _with_interval(measure: Measure, resampling: Resampling) -> dict[str, float | None]:
    value = observed(measure)
    if math.isnan(value):  # a class without test images
        return {"value": None, "low": None, "high": None}
    low, high = percentile_interval(resampling.values([measure])[:, 0])
    return {"value": value, "low": low, "high": high}


def _recall(measure: Measure, resampling: Resampling, counted: Bools) -> dict[str, float | None]:
    """Where all or none of a class's images are right, resamples say nothing: the exact binomial bound does."""
    found = _with_interval(measure, resampling)
    if found["value"] in (0.0, 100.0):
        units = len(np.unique(resampling.units[counted]))
        unseen = 100.0 * (1.0 - ((1.0 - LEVEL) / 2) ** (1.0 / units))
        low, high = (0.0, unseen) if found["value"] == 0.0 else (100.0 - unseen, 100.0)
        return {**found, "low": low, "high": high}
    return found


# From a finished run to what its bundle holds.

HELD_OUT = 20  # images of each class


@dataclass(frozen=True)
class Made:
    content: Content
    notes: tuple[str, ...]  # what the bundle cannot do, and how to get it


def make_bundle(
    folder: Path | str,
    *,
    name: str = "",
    held_out: int = HELD_OUT,
    with_exemplars: bool = True,
    licence: str = "",
    consent: str = "",
    unlike_rate: float = RATE,
    progress: Progress | None = None,
) -> Made:
    """The run's last state with its pictures; refuses an unfinished run and images that are not the run's.

    `held_out`: so many images of each class at most, from those that scenario.validation has set aside. Without
    exemplars no picture at all is kept: the held-out ones still serve the calibration."""
    here = RunFolder(Path(folder))
    parts, record = _last_state(here, progress), read_run(here.path)
    terms = terms_of(licence, consent)
    kept = _held_out(parts, held_out, terms)
    method = parts.method.eval()
    classes = parts.images.table.classes
    batch = parts.settings.run.evaluation_batch
    exemplars, none = _exemplars(parts, terms), no_pictures(parts.settings.data.size)
    spread = spread_of(method, exemplars, classes, batch=batch)
    calibration = calibrate(method, kept, classes, spread, rate=unlike_rate, batch=batch)
    manifest = Manifest(
        name=name or here.path.resolve().name,
        settings=portable(parts.settings.model_dump(mode="json", exclude_none=True)),
        classes=_classes(parts),
        increments=tuple(task.n_new for task in parts.scenario.tasks),
        preprocessing=Preprocessing(
            size=parts.settings.data.size,
            crop_frame=parts.settings.data.crop_frame,
            mean=MEAN,
            deviation=DEVIATION,
            rules=RULES,
        ),
        calibration=calibration,
        metrics=results_of(record),
        environment=dict(record.environment),
        terms=terms,
        history=(_first_version(parts),),
        learns=with_exemplars or not method.replay,
        pictures=with_exemplars,
    )
    pictures = (exemplars, kept) if with_exemplars else (none, none)
    content = Content(manifest, method.state_dict(), method.statistics, *pictures, spread=spread)
    return Made(content, tuple(_notes(content, kept, held_out)))


def _last_state(here: RunFolder, progress: Progress | None) -> Parts:
    settings = here.settings()
    if not here.finished():
        raise EndocilError(f"the run {here.path} is not finished; go on with 'endocil resume {here.path}'")
    # the checkpoint has the weights: the file that the backbone once started from is not needed
    network = settings.network.model_copy(update={"weights": None})
    parts = assemble(settings.model_copy(update={"network": network}), progress)
    here.refuse_other_images(parts)
    checkpoint = load_checkpoint(here.path)
    if checkpoint is None or checkpoint.position.task != len(parts.scenario.tasks):
        raise EndocilError(
            f"the run {here.path} has no checkpoint of its end (checkpoint.safetensors); run it again"
        )
    restore(checkpoint, parts.method, parts.memory, parts.scenario.tasks, torch.device("cpu"))
    return replace(parts, settings=settings)


def _classes(parts: Parts) -> tuple[LearnedClass, ...]:
    counts = parts.scenario.counts(TRAIN).tolist()
    return tuple(
        LearnedClass(name=parts.images.table.classes[label], task=task.index, images=counts[label])
        for task in parts.scenario.tasks
        for label in range(task.n_old, task.n_seen)
    )


def _held_out(parts: Parts, per_class: int, terms: Terms) -> Pictures:
    """At most so many of the images of each class that were set aside; the same ones every time."""
    found = []
    for task in parts.scenario.tasks:
        for label in range(task.n_old, task.n_seen):
            rows = some_held_out(parts.scenario, label, per_class, parts.settings.seed)
            found += [(row, 0, task.index) for row in rows]
    return _pictures(parts, found, terms)


def some_held_out(scenario: Scenario, label: int, most: int, seed: int) -> list[int]:
    """At most so many rows of the images of a class that were set aside, in their order."""
    rows = scenario.rows(VALIDATION, slice(label, label + 1))
    random = generator(seed, "bundle", scenario.table.classes[label])
    return rows[torch.randperm(len(rows), generator=random)[:most].sort().values].tolist()


def _exemplars(parts: Parts, terms: Terms) -> Pictures:
    memory = parts.memory
    if memory is None:
        return no_pictures(parts.settings.data.size)
    found = [
        (row, order, memory.tasks[label])
        for label, rows in memory.rows.items()
        for order, row in enumerate(rows.tolist())
    ]
    return _pictures(parts, found, terms)


def _pictures(parts: Parts, found: Sequence[tuple[int, int, int]], terms: Terms) -> Pictures:
    """Of (row, order, task)."""
    if not found:
        return no_pictures(parts.settings.data.size)
    table = parts.images.table
    names = _distinct([str(portable(table.ids[row])) for row, _, _ in found])
    origins = tuple(
        Origin(
            image=image,
            class_name=table.classes[int(table.labels[row])],
            order=order,
            task=task,
            group=table.groups[row],
            source=table.sources[row],
            licence=terms.licence,
            consent=terms.consent,
        )
        for image, (row, order, task) in zip(names, found, strict=True)
    )
    pixels: Tensor = parts.images.gather(torch.tensor([row for row, _, _ in found]))
    return Pictures(pixels, origins)


def _distinct(names: Sequence[str]) -> list[str]:
    """Files of one name from different folders, whose folders are not told, stay different images."""
    seen: dict[str, int] = {}
    found = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        found.append(name if seen[name] == 1 else f"{name} ({seen[name]})")
    return found


def _first_version(parts: Parts) -> Version:
    return Version(
        made=datetime.now(UTC).isoformat(timespec="seconds"),
        by="bundle",
        endocil=endocil.__version__,
        parent=None,
        added={learned.name: learned.images for learned in _classes(parts)},
    )


def _notes(content: Content, available: Pictures, wanted: int) -> list[str]:
    notes, fitted = [], content.manifest.calibration
    if fitted is None:
        few = why_uncalibrated(available, content.classes)
        way_out = "--held-out 20" if not wanted else "a run with scenario.validation=0.1 sets images aside"
        notes.append(
            f"{few}: probabilities are not calibrated, and images unlike anything learned are not flagged ({way_out})"
        )
    elif why_unflagged(fitted):
        notes.append(why_unflagged(fitted))
    if not content.manifest.learns:
        notes.append("no pictures inside: the bundle predicts but cannot learn on")
    return notes
