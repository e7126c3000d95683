"""New images for a bundle: read as its own were, and parted into those to learn from and those held out."""

import copy
import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

import endocil
from endocil.data.augment import DEVIATION, MEAN, Augmentation
from endocil.data.batches import ImageSet
from endocil.data.cache import Images, Progress, load_images
from endocil.data.decode import RULES
from endocil.data.frame import cropped
from endocil.data.inputs import folder_or_list
from endocil.data.near_duplicates import near_duplicate_groups
from endocil.data.scenario import Scenario, Task
from endocil.data.splits import (
    TEST,
    TRAIN,
    VALIDATION,
    Folds,
    Split,
    by_given,
    grouped_by_file,
    grouped_by_pattern,
    with_validation,
)
from endocil.data.table import ImageTable
from endocil.datasets import load_table
from endocil.errors import EndocilError
from endocil.io.files import temporaries_beside, write_json
from endocil.io.locks import lock
from endocil.io.terminal import refuse_control
from endocil.learning.checkpoint import FILE, Checkpoint, Position, load_checkpoint, restore
from endocil.learning.events import Journal, Show
from endocil.learning.memory import ExemplarMemory
from endocil.learning.parallel import learning_on
from endocil.methods import Method, method_class
from endocil.methods.base import Phase, TaskData
from endocil.model.calibration import NAMED, RATE, calibrate, why_uncalibrated, why_unflagged
from endocil.model.file import Content, read_content, write_content
from endocil.model.manifest import LONGEST_NAME, LearnedClass, Manifest, Preprocessing, Terms, Version
from endocil.model.out_of_distribution import spread_of
from endocil.model.pictures import LONGEST_CELL, Origin, Pictures, no_pictures
from endocil.model.restore import restored, settings_of
from endocil.runs.build import Parts, build_learner, build_learning, build_memory
from endocil.runs.bundle import HELD_OUT, some_held_out
from endocil.runs.environment import environment
from endocil.runs.experiments import portable
from endocil.runs.preflight import Preflight, schedule_problems, speed, trained
from endocil.runs.settings import DataSettings, Settings, load_settings

if TYPE_CHECKING:
    from lightning_fabric import Fabric


@dataclass(frozen=True, eq=False)
class Newcomers:
    images: Images
    part: np.ndarray  # (N,) str: train, validation (held out) or test (left alone)
    notes: tuple[str, ...] = ()


def read_newcomers(
    path: Path,
    preprocessing: Preprocessing,
    settings: Settings,
    *,
    changes: Sequence[str] = (),
    validation: float | None = None,
    groups: str | None = None,
    progress: Progress | None = None,
) -> Newcomers:
    """The images of a folder, one folder for each class, or of a CSV list; `changes` are of [data], for reading them.

    `validation`: the share that is held out; by default that of the settings, or what a split column says.
    `groups`: as `scenario.groups` of a run, but told by whoever learns."""
    data = _data(path, settings, changes)
    table = load_table(data.name, data.options, progress)
    if preprocessing.crop_frame:
        table = cropped(table)
    images = load_images(table, preprocessing.size, skip_unreadable=data.skip_unreadable, progress=progress)
    skipped = (f"left out {name}: {reason}" for name, reason in images.skipped)
    names, told = _groups(images.table, groups, settings.scenario.groups, progress)
    images = replace(images, table=replace(images.table, groups=names))
    return parted(images, settings, validation, notes=(*table.notes, *skipped, *told))


def parted(
    images: Images, settings: Settings, validation: float | None = None, *, notes: tuple[str, ...] = ()
) -> Newcomers:
    """Which of the new images train and which are held out; depends on ids and groups, not on their order."""
    table, seed = images.table, settings.scenario.split_seed
    share = _share(table, settings, validation)
    if any(table.parts):
        _refuse_strange_parts(table)
        split = by_given(table, validation=share, folds=Folds(), seed=seed)
        unused = int((split.part == TEST).sum())
        notes += (f"{unused:,} images of the test part are left alone",) if unused else ()
    else:
        whole = np.full(len(table), TRAIN, dtype="U10")
        split = Split(with_validation(table, whole, share, seed))
    if share:
        split = split.telling_what_lacks_validation(table)
    return Newcomers(images, split.part, (*notes, *split.notes))


def _data(path: Path, settings: Settings, changes: Sequence[str]) -> DataSettings:
    """How the new images are read: folders named as the bundle's own were, or a list."""
    values = folder_or_list(path, "new")
    if values["name"] == settings.data.name == "folder":
        values["class_from"] = settings.data.options.get("class_from", "first")
    values["skip_unreadable"] = settings.data.skip_unreadable
    return load_settings({"data": values}, changes).data


def _groups(
    table: ImageTable, wanted: str | None, rule: str, progress: Progress | None
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What belongs together among the new images: as it is asked for, by the data, or by the rule of the bundle's run.

    A pattern of the bundle is never run: one can be written that does not come to an end."""
    if wanted is None and (any(table.groups) or rule == "given"):
        return table.groups, ()
    chosen = rule if wanted is None else wanted
    if chosen == "given":
        return table.groups, ()
    if chosen == "near-duplicates":
        return near_duplicate_groups(table, progress=progress), ()
    if wanted is not None:
        by_file = wanted.endswith(".csv")
        return (grouped_by_file(table, Path(wanted)) if by_file else grouped_by_pattern(table, wanted)), ()
    if rule.endswith(".csv"):
        note = "the run's file of groups is not in the bundle: no new image has a group (--groups FILE.csv tells them)"
        return table.groups, (note,)
    raise EndocilError(
        f"the bundle's images were grouped by the pattern {rule[:200]!r}, and the new ones have no groups; give "
        f"--groups with a pattern for them, or --groups given to learn them without"
    )


def _share(table: ImageTable, settings: Settings, validation: float | None) -> float:
    if validation is None:
        return 0.0 if VALIDATION in table.parts else settings.scenario.validation
    if not 0.0 <= validation < 1.0:
        raise EndocilError(f"--validation is {validation}; expected a share from 0 to below 1, such as 0.1")
    return validation


def _refuse_strange_parts(table: ImageTable) -> None:
    strange = sorted(set(table.parts) - {TRAIN, VALIDATION, TEST})
    if strange:
        told = f"'{strange[0]}'" if strange[0] else "nothing for some images"
        raise EndocilError(
            f"the split column of the new images says {told}; expected train, validation or test for each"
        )


# The exemplars of a bundle and new images as one set to learn from; the memory map of the new ones is not copied.

KEPT = "memory"  # the part of exemplars, beside train, validation and test


@dataclass(frozen=True, eq=False)
class Joined(Images):
    """`pixels` are those of the exemplars; rows from their number on are rows of `new`."""

    new: Tensor  # (m, size, size, 3) uint8, memory-mapped
    part: np.ndarray  # (N,) str: memory, or train, validation or test of the new images

    def gather(self, index: Tensor) -> Tensor:
        rows, n = self.rows[index], len(self.pixels)
        fresh = rows >= n
        found = torch.empty((len(rows), *self.new.shape[1:]), dtype=torch.uint8)
        found[~fresh] = self.pixels.index_select(0, rows[~fresh])
        found[fresh] = self.new.index_select(0, rows[fresh] - n)
        return found


def join(
    classes: Sequence[str], exemplars: Pictures, held_out: Pictures, newcomers: Newcomers
) -> tuple[Joined, tuple[str, ...]]:
    """All of them in one table, classes that are new behind the others in alphabetical order; and what to say.

    A new image with the id and the pixels of an exemplar is that exemplar, and is left out. So is one with the pixels
    of a held-out image, whatever its id: that one must never be trained on; and one to be held out with the pixels of
    an exemplar, which was."""
    images, table, origins = newcomers.images, newcomers.images.table, exemplars.origins
    ids = [str(portable(name)) for name in table.ids]
    held = _held(images, ids, held_out)
    aside = np.flatnonzero(newcomers.part != TRAIN).tolist()
    trained = _same_pixels(images, aside, exemplars)
    repeated = {*_repeated(images, ids, exemplars), *held, *trained}
    rows = np.array([row for row in range(len(table)) if row not in repeated], np.int64)
    names, labels = _labels(classes, origins, table.take(rows))
    taken = [origin.image for origin in (*origins, *held_out.origins)]
    distinct, renamed = _distinct([ids[row] for row in rows], taken)
    joined = ImageTable(
        ids=(*(origin.image for origin in origins), *distinct),
        labels=labels,
        classes=names,
        reader=table.reader,
        groups=(*(origin.group for origin in origins), *(table.groups[row] for row in rows)),
        sources=(*(origin.source for origin in origins), *(table.sources[row] for row in rows)),
    )
    n = len(exemplars)
    part = np.array([*[KEPT] * n, *newcomers.part[rows]], dtype="U10")
    places = torch.cat([torch.arange(n), n + images.rows[torch.from_numpy(rows)]])
    found = Joined(joined, exemplars.pixels, places, images.skipped, images.pixels, part)
    return found, _told(len(repeated), sum(held.values()), renamed)


def _labels(
    classes: Sequence[str], origins: Sequence[Origin], new: ImageTable
) -> tuple[tuple[str, ...], np.ndarray]:
    """The names of all classes, and the label of every image."""
    mine = [new.classes[label] for label in new.labels.tolist()]
    names = (*classes, *sorted(set(mine) - set(classes)))
    label = {name: number for number, name in enumerate(names)}
    told = [label[name] for name in (*(origin.class_name for origin in origins), *mine)]
    return names, np.array(told, np.int64)


def _repeated(images: Images, ids: Sequence[str], pictures: Pictures) -> list[int]:
    """Rows of new images that are among the exemplars already."""
    table, place = images.table, {origin.image: row for row, origin in enumerate(pictures.origins)}
    found = []
    for row, name in enumerate(ids):
        if name not in place or not torch.equal(
            images.gather(torch.tensor([row]))[0], pictures.pixels[place[name]]
        ):
            continue
        _refuse_other_class(pictures.origins[place[name]], name, table.classes[table.labels[row]])
        found.append(row)
    return found


def _held(images: Images, ids: Sequence[str], held_out: Pictures) -> dict[int, bool]:
    """Rows of new images that are held out already, and whether by another name."""
    table, found = images.table, {}
    for row, origin in _same_pixels(images, range(len(table)), held_out).items():
        _refuse_other_class(origin, ids[row], table.classes[table.labels[row]])
        found[row] = origin.image != ids[row]
    return found


def _same_pixels(images: Images, rows: Sequence[int], pictures: Pictures) -> dict[int, Origin]:
    """Of some rows those with the pixels of a picture, and where it came from."""
    if not len(pictures):
        return {}
    origin_of = {
        _print(pixels): origin for pixels, origin in zip(pictures.pixels, pictures.origins, strict=True)
    }
    found = {}
    for part in torch.split(torch.tensor(rows, dtype=torch.int64), 256):
        for row, pixels in zip(part.tolist(), images.gather(part), strict=True):
            if (origin := origin_of.get(_print(pixels))) is not None:
                found[row] = origin
    return found


def _print(pixels: Tensor) -> bytes:
    return hashlib.sha256(pixels.numpy().tobytes()).digest()


def _refuse_other_class(origin: Origin, image: str, name: str) -> None:
    if origin.class_name != name:
        inside = "" if origin.image == image else f" {origin.image},"
        raise EndocilError(
            f"the image {image} is '{name}' among the new images, but the bundle holds it as{inside} "
            f"'{origin.class_name}'; take it off the new images, or out of the bundle with 'endocil forget --image'"
        )


def _distinct(ids: Sequence[str], taken: Sequence[str]) -> tuple[list[str], int]:
    """The ids, with a number behind those that stand for another image already; how many have one."""
    used, found = set(taken), []
    for name in ids:
        chosen, number = name, 1
        while chosen in used:
            number += 1
            chosen = f"{name} ({number})"
        used.add(chosen)
        found.append(chosen)
    return found, sum(new != old for new, old in zip(found, ids, strict=True))


def _told(repeated: int, elsewhere: int, renamed: int) -> tuple[str, ...]:
    said = []
    if repeated:
        other = f" ({elsewhere:,} as held-out images of another name)" if elsewhere else ""
        said.append(f"{repeated:,} new images are left out: the bundle holds them already{other}")
    if renamed:
        said.append(f"{renamed:,} new images have the name of another image; a number is put behind it")
    return tuple(said)


# One more task in the life of a bundle: what it has kept, the new images, and the parts that learn them.

CHANGEABLE = ("train", "run", "memory", "method", "data")
# what the network was made for, and what learning on has no use for
FIXED = (
    "method.name",
    "data.name",
    "data.size",
    "data.crop_frame",
    "run.first_tasks",
    "run.keep",
    "run.gallery",
)


@dataclass(frozen=True)
class Step:
    """What was learned before (none: nothing yet), and what there is to learn now."""

    before: Content | None
    settings: Settings  # complete
    images: Joined
    tasks: tuple[Task, ...]  # the last is the one to learn
    notes: tuple[str, ...]

    @property
    def task(self) -> Task:
        return self.tasks[-1]

    def scenario(self) -> Scenario:
        return Scenario(self.images.table, self.tasks, self.images.part, self.notes)

    def new(self) -> ImageSet:
        """The new images to learn from, of new classes and of known ones."""
        return ImageSet.of(self.images, self.scenario().rows(TRAIN, self.task.seen))

    def data(self, parts: Parts) -> TaskData:
        kept = (
            parts.memory.images(self.images) if parts.memory is not None else self.new().take(torch.arange(0))
        )
        return TaskData(self.new(), kept, parts.augmentation)


def step_of(before: Content | None, settings: Settings, newcomers: Newcomers) -> Step:
    none = no_pictures(settings.data.size)
    classes = before.classes if before else ()
    exemplars, held_out = (before.exemplars, before.held_out) if before else (none, none)
    _refuse_unfit_names(newcomers.images.table)
    images, notes = join(classes, _in_order(exemplars, classes), held_out, newcomers)
    tasks = before.tasks if before else ()
    task = Task(len(tasks), len(classes), len(images.table.classes) - len(classes))
    return Step(before, settings, images, (*tasks, task), (*newcomers.notes, *notes))


def _refuse_unfit_names(table: ImageTable) -> None:
    """What no bundle could hold is told before anything is learned."""
    for what, texts, most in (
        ("the name of a class", table.classes, LONGEST_NAME),
        ("the name of an image", [str(portable(name)) for name in table.ids], LONGEST_CELL),
        ("a group", table.groups, LONGEST_CELL),
        ("a source", table.sources, LONGEST_CELL),
    ):
        for text in sorted(set(texts)):
            refuse_control(what, text)
            if len(text) > most:
                raise EndocilError(
                    f"{what} has {len(text):,} characters; expected at most {most:,}: {text[:80]}..."
                )


def fresh_parts(step: Step) -> Parts:
    """A method that has learned nothing and an empty memory, for a checkpoint to be put into."""
    method, _ = build_learning(step.settings)
    return _parts(step, method)


def restored_parts(step: Step, device: torch.device, *, trust: bool = False) -> Parts:
    """The method and its memory as they were after the last task."""
    if step.before is None:
        return fresh_parts(step)
    parts = _parts(step, restored(step.before, device, trust=trust))
    if parts.memory is not None:
        _fill(parts.memory, step)
    return parts


def changed(content: Content, changes: Sequence[str]) -> tuple[Content, list[str]]:
    """The bundle with changed settings, and those changes that are about reading the new images."""
    for change in changes:
        key = change.partition("=")[0].strip()
        section = key.partition(".")[0]
        if key in FIXED or section not in CHANGEABLE:
            raise EndocilError(
                f"'{key}' cannot be changed in a bundle that has learned; --set takes train.*, run.*, memory.*, "
                f"options of the method, and data.* for reading the new images"
            )
    reading = [change for change in changes if change.strip().startswith("data.")]
    others = [change for change in changes if change not in reading]
    values = load_settings(content.settings, others).model_dump(mode="json", exclude_none=True)
    return replace(content, manifest=content.manifest.model_copy(update={"settings": values})), reading


def _parts(step: Step, method: Method) -> Parts:
    train = step.settings.train
    return Parts(
        settings=step.settings,
        images=step.images,
        scenario=step.scenario(),
        method=method,
        memory=build_memory(step.settings) if method.replay else None,
        augmentation=Augmentation(flip=train.flip, brightness=train.brightness, crop=train.crop),
        notes=step.notes,
    )


def _fill(memory: ExemplarMemory, step: Step) -> None:
    """Exemplars are the first rows of the step's images, class by class in the order of choice."""
    assert step.before is not None
    labels = torch.from_numpy(step.images.table.labels[: len(step.before.exemplars)].copy())
    tasks = torch.tensor([learned.task for learned in step.before.manifest.classes])
    memory.load_state({"rows": torch.arange(len(labels)), "labels": labels, "tasks": tasks[labels]})


def _in_order(exemplars: Pictures, classes: Sequence[str]) -> Pictures:
    def place(row: int) -> tuple[int, int]:
        origin = exemplars.origins[row]
        return classes.index(origin.class_name), origin.order

    return exemplars.take(sorted(range(len(exemplars)), key=place)) if len(exemplars) else exemplars


# Before a bundle learns: what will be done, what it will cost, and what cannot work, with the way out.


def refuse_what_never_learns(content: Content, settings: Settings) -> None:
    """Known before any image is read."""
    method, name = method_class(settings.method.name), settings.method.name
    if method.joint:
        raise EndocilError(
            f"the bundle's method {name} learns all classes at once and cannot add one; "
            f"start a run with all images, or bundle a run of another method"
        )
    if method.replay and not content.manifest.learns:
        raise EndocilError(
            f"the bundle holds no exemplars (it was made without them), and {name} cannot learn on without; "
            f"make it again with 'endocil bundle RUN', without --without-exemplars"
        )


def check_step(step: Step, parts: Parts) -> Preflight:
    problems = _problems(step, parts)
    if problems:
        return Preflight(_facts(step), (), tuple(problems))
    _, phases = next_phases(step, parts)
    facts = (*_facts(step), *_plan(step, parts, phases))
    return Preflight(facts, tuple(_remarks(step, parts)), tuple(schedule_problems(phases)))


def next_phases(step: Step, parts: Parts) -> tuple[Method, tuple[Phase, ...]]:
    """A copy of the method that has made room for the new classes, and what it will train."""
    method = copy.deepcopy(parts.method)
    method.grow(step.task)
    return method, method.phases(step.task, step.data(parts))


def planned_images(phases: tuple[Phase, ...]) -> int:
    return sum(phase.schedule.epochs * len(phase.images) for phase in phases)


def cost(step: Step, parts: Parts, seconds: float = 1.0) -> str:
    """From a few real steps of a copy."""
    method, phases = next_phases(step, parts)
    minutes = sum(
        phase.schedule.epochs * len(phase.images) / speed(parts, method, phase, seconds) for phase in phases
    )
    return f"about {minutes / 60:,.1f} minutes of training ({planned_images(phases):,} image passes)"


def _facts(step: Step) -> tuple[str, ...]:
    before, names = step.before, step.images.table.classes
    known = len(before.classes) if before else 0
    trained = Counter(names[label] for label in step.new().labels.tolist())
    held = step.scenario().counts(VALIDATION)
    told = [
        f"{name} {trained[name]}+{held[label]}{' (known)' if label < known else ''}"
        for label, name in enumerate(names)
        if trained[name] or held[label]
    ]
    exemplars = len(before.exemplars) if before else 0
    return (
        f"the bundle: {known} classes in {len(step.tasks) - 1} tasks, {exemplars:,} exemplars",
        f"task {step.task.index}: {', '.join(told) or 'no images'} (to learn + held out)",
    )


def _plan(step: Step, parts: Parts, phases: tuple[Phase, ...]) -> list[str]:
    facts = [f"method {step.settings.method.name} trains: {trained(phases)}"]
    if parts.memory is not None:
        available = {label: len(rows) for label, rows in parts.memory.rows.items()}
        available.update(Counter(available) + Counter(step.new().labels.tolist()))
        quota = parts.memory.quota(list(available.values()))
        kept = sum(min(quota, n) for n in available.values())
        megabytes = kept * step.settings.data.size**2 * 3 / 1e6
        facts.append(f"{kept:,} exemplars afterwards, at most {quota} of a class ({megabytes:,.1f} MB)")
    return facts


def _remarks(step: Step, parts: Parts) -> list[str]:
    remarks = list(step.notes)
    remarks += _uncalibrated(step)
    if parts.memory is None:
        remarks.append(
            f"method {step.settings.method.name} keeps no exemplars: what it knows of old classes may be lost"
        )
    known = step.before.classes if step.before else ()
    for name in step.images.table.classes[step.task.new]:
        alike = get_close_matches(name.lower(), [old.lower() for old in known], 1, 0.85)
        if alike:
            meant = next(old for old in known if old.lower() == alike[0])
            remarks.append(
                f"'{name}' is learned as a new class, beside '{meant}'; is it meant to be the same?"
            )
    if step.before and step.before.manifest.preprocessing.rules != RULES:
        remarks.append(
            f"the bundle's pictures were decoded by '{step.before.manifest.preprocessing.rules}', the new ones by "
            f"'{RULES}': their pixels differ a little"
        )
    return remarks


def _uncalibrated(step: Step) -> list[str]:
    """Told before an hour of training, as the way out is another share or another list."""
    if step.before is None:
        return []
    names = step.images.table.classes
    have = {origin.class_name for origin in step.before.held_out.origins}
    have |= {name for name, n in zip(names, step.scenario().counts(VALIDATION), strict=True) if n}
    lacking = [name for name in names if name not in have]
    if not lacking or not have or not step.before.manifest.pictures:
        return []
    more = " and others" if len(lacking) > NAMED else ""
    return [
        f"the new bundle will not be calibrated: no held-out images of {', '.join(lacking[:NAMED])}{more} "
        f"(--validation, or a column split, holds some of the new images out)"
    ]


def _problems(step: Step, parts: Parts) -> list[str]:
    names, task = step.images.table.classes, step.task
    new = step.new().counts(task.n_seen).tolist()
    if not sum(new):
        return ["there are no new images to learn from"]
    if not task.n_new:
        known = ", ".join(name for name, n in zip(names, new, strict=True) if n)
        return [
            f"all new images are of known classes ({known}); "
            f"learning needs at least one new class, and more images of known ones may come with it"
        ]
    if task.index == 0 and task.n_new == 1:
        return ["one class alone cannot be learned first; give at least two"]
    found = [
        f"class '{names[label]}' has {new[label]} images to learn from; expected at least 2"
        for label in range(task.n_old, task.n_seen)
        if new[label] < 2
    ]
    if parts.memory is not None:
        empty = [
            names[label] for label in range(task.n_old) if not new[label] and label not in parts.memory.rows
        ]
        found += [
            f"the bundle holds no exemplars of {', '.join(empty)} any more; add images of it to the new ones"
        ] * bool(empty)
    return found


# From a step that was learned to the bundle that holds it.

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


# A bundle learns: the same step as in a run, without the old training data, killed and resumed to the same bits.

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Learned:
    content: Content
    digest: str  # of the new bundle's file
    notes: tuple[str, ...] = ()  # what the new bundle cannot do


def learn(
    bundle: Path | str,
    new: Path | str,
    output: Path | str,
    *,
    changes: Sequence[str] = (),
    validation: float | None = None,
    terms: Terms | None = None,
    held_out: int = HELD_OUT,
    groups: str | None = None,
    work: Path | None = None,
    trust: bool = False,
    show: Show = lambda record: None,
    tell: Tell = lambda line: None,
    progress: Progress | None = None,
) -> Learned:
    """Learn the images of a folder or a CSV list into a new bundle; the old one is not touched.

    `held_out`: so many held-out images of each class at most. `groups`: what belongs together among the new images,
    as `scenario.groups` of a run; by default as the data or the bundle's run says it.
    Stopped, the same call goes on in the folder `work` (default: OUTPUT.learning), which is removed at the end."""
    place, terms = Path(output), terms or Terms()
    refuse_existing(place)
    before, reading = changed(read_content(bundle), changes)
    settings = settings_of(before, trust=trust)
    refuse_what_never_learns(before, settings)
    newcomers = read_newcomers(
        Path(new),
        before.manifest.preprocessing,
        before.settings,
        changes=reading,
        validation=validation,
        groups=groups,
        progress=progress,
    )
    step = step_of(before, settings, newcomers)
    folder = WorkFolder(work or work_folder_of(place))
    with folder.open(facts_of(step, terms)):
        parts = take_step(step, folder.path, trust=trust, show=show, tell=tell)
        content = content_after(step, parts, terms, most_held_out=held_out)
        refuse_existing(place)  # another process may have been first
        digest = write_content(place, content)
        folder.remove()
    return Learned(content, digest, notes_on(content))


def work_folder_of(output: Path) -> Path:
    return output.with_name(f"{output.name}.learning")


def refuse_existing(output: Path) -> None:
    if output.exists():
        raise EndocilError(f"{output} is there already; choose another file with -o")


def take_step(
    step: Step,
    folder: Path,
    *,
    trust: bool = False,
    show: Show = lambda record: None,
    tell: Tell | None = None,
) -> Parts:
    """Train in this folder, from its checkpoint where there is one; the method and its memory afterwards.

    `tell` gets the lines of the preflight, with what it will cost."""
    checkpoint = load_checkpoint(folder)
    with learning_on(step.settings.run.accelerator) as fabric:
        parts = restored_parts(step, fabric.device, trust=trust)
        found = check_step(step, parts)
        found.refuse_problems()
        if tell is not None:
            lines = [*found.facts, *(f"note: {remark}" for remark in found.remarks)]
            for line in lines if checkpoint else [*lines, cost(step, parts)]:
                tell(line)
        return _train(step, parts, folder, fabric, checkpoint, show)


def _train(
    step: Step, parts: Parts, folder: Path, fabric: "Fabric", checkpoint: Checkpoint | None, show: Show
) -> Parts:
    journal = Journal(folder / "events.jsonl", show)
    past = journal.cut_back(checkpoint.events if checkpoint else 0)
    done = sum(event.get("images", 0) for event in past)
    show({"event": "plan", "images": planned_images(next_phases(step, parts)[1]), "done": done})
    if checkpoint is not None:
        parts = fresh_parts(step)
    learner = build_learner(parts, folder, fabric, journal)
    if checkpoint is not None:
        restore(checkpoint, parts.method, parts.memory, step.tasks, fabric.device)
    if checkpoint is None or checkpoint.position.task == step.task.index:
        learner.learn(step.task, step.new(), checkpoint)
        learner.save(Position(step.task.index + 1))
    return parts


# The folder of a bundle that is learning: a killed command goes on from here, and the folder goes at the end.

FACTS, EVENTS, LOCK = "learning.json", "events.jsonl", ".lock"
MADE = "made_folder"  # by us; a folder of the user's stays
WHAT = {
    "parent": "bundle",
    "images": "new images",
    "settings": "settings",
    "terms": "--licence and --consent",
}


@dataclass(frozen=True)
class WorkFolder:
    path: Path

    @contextmanager
    def open(self, facts: dict[str, str]) -> Iterator[None]:
        """One process at a time; what lies here must be of the same bundle, images and settings."""
        if self.path.is_file():
            raise EndocilError(f"{self.path} is a file; choose another folder with --work")
        made = not self.path.exists()
        if not made and not self._only_ours():
            raise EndocilError(f"{self.path} holds other files; choose another folder with --work")
        self.path.mkdir(parents=True, exist_ok=True)
        with (self.path / LOCK).open("ab") as file:
            if lock(file, wait=False) == "taken":
                raise EndocilError(f"another process is learning in {self.path}; let it finish")
            for left in self._temporary():  # a kill in the middle of writing
                left.unlink(missing_ok=True)
            made = made or self._recorded().get(MADE) == "yes"
            self._compare({**facts, MADE: "yes" if made else "no"})
            try:
                yield
            except EndocilError:
                if not self._begun():
                    self.remove()
                raise

    def _only_ours(self) -> bool:
        """Nothing, a step that was begun, or what a kill leaves before its first record was written."""
        names = {entry.name for entry in self.path.iterdir()} - {file.name for file in self._temporary()}
        if LOCK in names and (self.path / LOCK).stat().st_size > 0:  # ours is empty
            return False
        begun = set(WHAT) <= set(self._recorded())
        return names <= ({LOCK, FACTS, EVENTS, FILE} if begun else {LOCK})

    def _temporary(self) -> list[Path]:
        return [left for name in (FACTS, EVENTS, FILE) for left in temporaries_beside(self.path / name)]

    def _recorded(self) -> dict[str, str]:
        file = self.path / FACTS
        if not file.is_file():
            return {}
        try:
            found = json.loads(file.read_text("utf-8"))
        except ValueError:  # somebody else's: ours are whole or not there
            return {}
        return found if isinstance(found, dict) else {}

    def _begun(self) -> bool:
        """Whether anything is learned that would be lost."""
        return (self.path / FILE).exists()

    def _compare(self, facts: dict[str, str]) -> None:
        if not self._begun():
            write_json(self.path / FACTS, facts)
            return
        recorded = self._recorded()
        for key in WHAT:
            if recorded.get(key) != facts[key]:
                raise EndocilError(
                    f"{self.path} is of a step with other {WHAT[key]}; go on with the same command as then, "
                    f"remove it to begin anew, or choose another folder with --work"
                )

    def remove(self) -> None:
        """What we have written, and the folder if we made it and nothing else lies in it."""
        made = self._recorded().get(MADE) == "yes"
        with suppress(OSError):
            for file in (*self._temporary(), *(self.path / name for name in (FILE, EVENTS, FACTS, LOCK))):
                file.unlink(missing_ok=True)
            if made:
                self.path.rmdir()


def facts_of(step: Step, terms: Terms) -> dict[str, str]:
    """What decides the outcome, as digests and settings; threads and devices may differ."""
    settings = step.settings.model_dump(mode="json", exclude={"run"})
    return {
        "parent": step.before.digest if step.before else "",
        "images": _digest_of_images(step),
        "settings": json.dumps(settings, sort_keys=True),
        "terms": terms.model_dump_json(),
    }


def _digest_of_images(step: Step) -> str:
    """Names, classes, groups, sources, parts and pixels of the new images."""
    images, table = step.images, step.images.table
    text = "\0".join((*table.ids, *table.classes, *table.groups, *table.sources, *images.part.tolist()))
    total = hashlib.sha256(text.encode(errors="surrogateescape") + table.labels.tobytes())
    for rows in torch.split(torch.arange(len(table)), 256):
        total.update(images.gather(rows).numpy().tobytes())
    return total.hexdigest()
