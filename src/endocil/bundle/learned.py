"""From a step that was learned to the bundle that holds it."""

from collections import Counter
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import torch

import endocil
from endocil.assembly import Parts
from endocil.bundle.calibration import RATE, calibrate, why_uncalibrated, why_unflagged
from endocil.bundle.content import Content
from endocil.bundle.joined import KEPT
from endocil.bundle.making import HELD_OUT, some_held_out
from endocil.bundle.manifest import LearnedClass, Manifest, Preprocessing, Terms, Version
from endocil.bundle.pictures import Origin, Pictures, no_pictures
from endocil.bundle.step import Step
from endocil.bundle.unlike import spread_of
from endocil.environment import environment
from endocil.images.augment import DEVIATION, MEAN
from endocil.images.decode import RULES
from endocil.scenario import TRAIN

UNTESTED = "not tested: the metrics of the version before say nothing of this one"


@dataclass(frozen=True)
class Beginning:
    """What is said of a bundle without a parent."""

    name: str
    settings: dict[str, Any]


def content_after(
    step: Step,
    parts: Parts,
    terms: Terms,
    beginning: Beginning | None = None,
    *,
    most_held_out: int = HELD_OUT,
) -> Content:
    """The method, its memory, its held-out images and its history once the step is learned.

    `terms` are of the new pictures; those of the bundle stay as they are."""
    method, before = parts.method.eval(), step.before
    exemplars = _exemplars(step, parts, terms)
    pictures = before.manifest.pictures if before else True
    held_out = _joined_pictures(
        before.held_out if before else None, _held_out(step, terms, most_held_out if pictures else 0)
    )
    old = before.manifest.calibration if before else None
    classes, batch = step.images.table.classes, step.settings.run.evaluation_batch
    spread = spread_of(method, exemplars, classes, batch=batch)
    rate = old.unlike_rate if old else RATE
    calibration = calibrate(method, held_out, classes, spread, rate=rate, batch=batch)
    started = before.manifest if before else beginning
    assert started is not None
    manifest = Manifest(
        name=started.name,
        settings=started.settings,
        classes=_classes(step),
        increments=tuple(task.n_new for task in step.tasks),
        preprocessing=before.manifest.preprocessing if before else preprocessing_of(step),
        calibration=calibration,
        metrics=None,
        environment=environment(step.settings),
        terms=before.manifest.terms if before else terms,
        history=(*(before.manifest.history if before else ()), _version(step)),
        learns=True,
        pictures=pictures,
    )
    state = {name: value.detach().cpu() for name, value in method.state_dict().items()}
    statistics = {name: value.detach().cpu() for name, value in method.statistics.items()}
    return Content(manifest, state, statistics, exemplars, held_out, spread=spread)


def notes_on(content: Content) -> tuple[str, ...]:
    """What the new bundle cannot do."""
    fitted = content.manifest.calibration
    if fitted is not None:
        return (why_unflagged(fitted),) if why_unflagged(fitted) else ()
    why = (
        why_uncalibrated(content.held_out, content.classes)
        if content.manifest.pictures
        else "the bundle is kept without pictures, and so without held-out images"
    )
    return (f"{why}: probabilities are not calibrated, and images unlike anything learned are not flagged",)


def preprocessing_of(step: Step) -> Preprocessing:
    data = step.settings.data
    return Preprocessing(
        size=data.size, crop_frame=data.crop_frame, mean=MEAN, deviation=DEVIATION, rules=RULES
    )


def _classes(step: Step) -> tuple[LearnedClass, ...]:
    known = {learned.name: learned for learned in step.before.manifest.classes} if step.before else {}
    counts = step.scenario().counts(TRAIN).tolist()
    return tuple(
        known[name].model_copy(update={"images": known[name].images + n})
        if name in known
        else LearnedClass(name=name, task=step.task.index, images=n)
        for name, n in zip(step.images.table.classes, counts, strict=True)
    )


def _version(step: Step) -> Version:
    labels = step.new().labels.tolist()
    added = Counter(step.images.table.classes[label] for label in labels)
    return Version(
        made=datetime.now(UTC).isoformat(timespec="seconds"),
        by="learn",
        endocil=endocil.__version__,
        parent=step.before.digest or None if step.before else None,
        added=dict(sorted(added.items())),
        note=UNTESTED,
    )


def _exemplars(step: Step, parts: Parts, terms: Terms) -> Pictures:
    """As the memory has them; an old one keeps what was known of it."""
    memory = parts.memory
    if memory is None:
        return no_pictures(step.settings.data.size)
    old = {origin.image: origin for origin in (step.before.exemplars.origins if step.before else ())}
    rows, origins = [], []
    for mine in memory.rows.values():
        for order, row in enumerate(mine.tolist()):
            origin = _origin(step, row, terms)
            if step.images.part[row] == KEPT:
                origin = old[origin.image]
            rows.append(row)
            origins.append(replace(origin, order=order))
    return Pictures(step.images.gather(torch.tensor(rows, dtype=torch.int64)), tuple(origins))


def _held_out(step: Step, terms: Terms, most: int) -> Pictures:
    """Of the new images that were set aside, so many of each class that it has at most so many in all."""
    had = Counter(origin.class_name for origin in (step.before.held_out.origins if step.before else ()))
    scenario, rows = step.scenario(), []
    for label, name in enumerate(step.images.table.classes):
        rows += some_held_out(scenario, label, max(0, most - had[name]), step.settings.seed)
    origins = tuple(_origin(step, row, terms) for row in rows)
    return Pictures(step.images.gather(torch.tensor(rows, dtype=torch.int64)), origins)


def _origin(step: Step, row: int, terms: Terms) -> Origin:
    table = step.images.table
    return Origin(
        image=table.ids[row],
        class_name=table.classes[int(table.labels[row])],
        order=0,
        task=step.task.index,
        group=table.groups[row],
        source=table.sources[row],
        licence=terms.licence,
        consent=terms.consent,
    )


def _joined_pictures(old: Pictures | None, new: Pictures) -> Pictures:
    if old is None or not len(old):
        return new
    return Pictures(torch.cat([old.pixels, new.pixels]), (*old.origins, *new.origins))
