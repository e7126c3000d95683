"""From settings to the parts of a run: images, scenario, method, memory."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from endocil.data.augment import Augmentation
from endocil.data.cache import Images, load_images
from endocil.data.frame import cropped
from endocil.data.near_duplicates import near_duplicate_groups
from endocil.data.scenario import Scenario, arrival_order, build_scenario, keep_classes
from endocil.data.splits import (
    Folds,
    Split,
    by_file,
    by_given,
    by_group,
    by_image,
    grouped_by_file,
    grouped_by_pattern,
)
from endocil.data.table import ImageTable
from endocil.datasets import DATASETS, RESERVED, load_table
from endocil.errors import EndocilError
from endocil.io.files import expand
from endocil.learning.events import Journal
from endocil.learning.first_task import FirstTasks, digest_of
from endocil.learning.learner import Learner
from endocil.learning.memory import SELECTORS, ExemplarMemory, build_selector
from endocil.methods import METHODS, RESERVED_OPTIONS, Method, build_method, method_class
from endocil.methods.base import shared_schedule
from endocil.networks import BACKBONES, build_backbone
from endocil.registry import check_options, options_of, resolve
from endocil.runs.environment import processor
from endocil.runs.settings import ScenarioSettings, Settings

if TYPE_CHECKING:
    from lightning_fabric import Fabric

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Parts:
    """What a run works with; the settings are complete, every default written out."""

    settings: Settings
    images: Images
    scenario: Scenario
    method: Method
    memory: ExemplarMemory | None
    augmentation: Augmentation
    notes: tuple[str, ...]


def assemble(
    settings: Settings, progress: Progress | None = None, data: tuple[Images, Scenario] | None = None
) -> Parts:
    """`data`: the images and tasks of these settings, where they are known already."""
    settings = complete(settings)
    images, scenario = data or images_and_scenario(settings, progress)
    method, notes = build_learning(settings)
    return Parts(
        settings=settings,
        images=images,
        scenario=scenario.joined() if method.joint else scenario,
        method=method,
        memory=build_memory(settings) if method.replay else None,
        augmentation=Augmentation(
            flip=settings.train.flip, brightness=settings.train.brightness, crop=settings.train.crop
        ),
        notes=(
            *images.table.notes,
            *scenario.notes,
            *(f"left out {name}: {reason}" for name, reason in images.skipped),
            *notes,
        ),
    )


def complete(settings: Settings) -> Settings:
    """Write out every default that the named things bring, so that the recorded settings say it all."""
    values = settings.model_dump(mode="json", exclude_none=True)
    values["memory"].setdefault("select", method_class(settings.method.name).selects)
    if settings.memory.per_class is None and settings.memory.total is None:
        values["memory"]["per_class"] = 30  # the smallest buffer of EndoCIL's tables
    if settings.scenario.increments is None and settings.scenario.tasks is None:
        values["scenario"]["tasks"] = 5  # EndoCIL, Experimental Setting
    values["run"].setdefault("threads", torch.get_num_threads())
    named: list[tuple[str, str, Mapping[str, Callable[..., Any]]]] = [
        ("data", "name", DATASETS),
        ("network", "backbone", BACKBONES),
        ("memory", "select", SELECTORS),
        ("method", "name", METHODS),
    ]
    for section, key, table in named:
        thing = resolve(f"{section}.{key}", values[section][key], table)
        reserved = {"method": RESERVED_OPTIONS, "data": RESERVED}.get(section, ())
        check_options(section, thing, getattr(settings, section).options, reserved=reserved)
        for option, default in options_of(thing).items():
            if option not in reserved and isinstance(default, str | int | float | bool | tuple | list):
                values[section].setdefault(option, default)
    return Settings.model_validate(values)


def kept_table(settings: Settings, progress: Progress | None = None) -> ImageTable:
    """The images of the kept classes, before any is read."""
    chosen = settings.scenario
    kept = keep_classes(
        load_table(settings.data.name, settings.data.options, progress),
        minimum=chosen.minimum,
        leave_out=chosen.leave_out,
        order=chosen.order,
        seed=settings.seed,
    )
    if chosen.tasks == "given":
        kept = kept.keep_classes(arrival_order(kept)[0])
    return cropped(kept) if settings.data.crop_frame else kept


def images_and_scenario(settings: Settings, progress: Progress | None = None) -> tuple[Images, Scenario]:
    """Classes are chosen before their images are decoded, and again should unreadable ones be left out."""
    chosen = settings.scenario
    skip = settings.data.skip_unreadable
    table = kept_table(settings, progress)
    images = load_images(table, settings.data.size, skip_unreadable=skip, progress=progress)
    if images.skipped:
        images = _still_large_enough(images, chosen.minimum)
    scenario = scenario_of(images.table, settings, progress)
    return replace(images, table=scenario.table), scenario  # its groups are those of the split


def scenario_of(table: ImageTable, settings: Settings, progress: Progress | None = None) -> Scenario:
    """The split and the tasks of a table of kept classes."""
    chosen = settings.scenario
    table = _grouped(table, chosen, progress)
    split = split_of(table, settings)
    if chosen.tasks == "given":
        return build_scenario(table, increments=arrival_order(table)[1], split=split)
    return build_scenario(table, increments=chosen.increments, tasks=chosen.tasks, split=split)


def split_of(table: ImageTable, settings: Settings) -> Split:
    """Which images train and which test, as the settings ask for it."""
    chosen = settings.scenario
    folds = Folds(chosen.folds, chosen.fold)
    how: dict[str, Any] = {"validation": chosen.validation, "folds": folds, "seed": chosen.split_seed}
    if chosen.split is not None:
        if chosen.split_by != "image" or folds != Folds() or chosen.validation:
            raise EndocilError(
                "scenario.split gives the split as a file; leave out split_by, folds, fold and validation"
            )
        return by_file(table, expand(chosen.split, "scenario.split"))
    split = {"given": by_given, "group": by_group, "image": by_image}[chosen.split_by](table, **how)
    return split.telling_what_lacks_validation(table) if chosen.validation else split


def _grouped(table: ImageTable, chosen: ScenarioSettings, progress: Progress | None) -> ImageTable:
    """What belongs together: by the data, a file, near duplicates, or a pattern on the path."""
    if chosen.groups == "given":
        return table
    if chosen.split_by != "group":
        raise EndocilError("scenario.groups is set, but scenario.split_by is not 'group'; set both or none")
    if chosen.groups == "near-duplicates":
        return replace(table, groups=near_duplicate_groups(table, progress=progress))
    if chosen.groups.endswith(".csv"):
        return replace(table, groups=grouped_by_file(table, expand(chosen.groups, "scenario.groups")))
    return replace(table, groups=grouped_by_pattern(table, chosen.groups))


def _still_large_enough(images: Images, minimum: int) -> Images:
    """Without the classes that are too small now that unreadable images are left out."""
    table = images.table
    names = [name for name, count in zip(table.classes, table.counts(), strict=True) if count >= minimum]
    wanted = torch.from_numpy(np.isin(table.labels, [table.classes.index(name) for name in names]))
    return replace(images, table=table.keep_classes(names), rows=images.rows[wanted])


def build_learning(settings: Settings) -> tuple[Method, list[str]]:
    """A fresh method on a fresh backbone."""
    backbone, notes = build_backbone(
        settings.network.backbone,
        seed=settings.seed,
        weights=settings.network.weights,
        freeze=settings.network.freeze,
        options=settings.network.options,
    )
    train = settings.train
    schedule = shared_schedule(
        epochs=train.epochs,
        learning_rate=train.learning_rate,
        milestones=train.milestones,
        decay=train.decay,
        momentum=train.momentum,
        batch_size=train.batch_size,
        weight_decay=train.weight_decay,
        first_weight_decay=train.first_weight_decay,
    )
    options = settings.method.options
    method = build_method(settings.method.name, backbone, options, schedule=schedule, seed=settings.seed)
    return method, notes


def build_memory(settings: Settings) -> ExemplarMemory:
    """An empty memory."""
    memory = settings.memory
    select = build_selector(memory.select or "mean", memory.options)
    return ExemplarMemory(per_class=memory.per_class, total=memory.total, select=select, seed=settings.seed)


# The learner of a run: a method, a memory and images, and all that the settings say about how it learns.

# settings that leave the first task as it is; where it learns is told by the device
NO_BITS = {
    "run": {
        "accelerator",
        "checkpoint_seconds",
        "evaluate",
        "evaluation_batch",
        "first_tasks",
        "gallery",
        "keep",
        "tensorboard",
    },
    "network": {"weights"},  # its values count, not where they lie
    "train": {"weight_decay", "milestones"},  # the first task's schedule has its own
}


def build_learner(parts: Parts, folder: Path, fabric: "Fabric", journal: Journal) -> Learner:
    chosen = parts.settings.run
    torch.set_num_threads(chosen.threads or torch.get_num_threads())
    parts.method.to(fabric.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    return Learner(
        parts.method,
        parts.memory,
        parts.images,
        folder=folder,
        fabric=fabric,
        journal=journal,
        augmentation=parts.augmentation,
        seed=parts.settings.seed,
        evaluation_batch=chosen.evaluation_batch,
        checkpoint_seconds=chosen.checkpoint_seconds,
        first_tasks=_first_tasks(parts),
        bits=parts.settings.train.precision,
        accumulate=parts.settings.train.accumulate,
        compiled=parts.settings.train.compile,
    )


def _first_tasks(parts: Parts) -> FirstTasks | None:
    """The store of first tasks; of [train] and [run] all counts as deciding bits but what is known not to."""
    folder = parts.settings.run.first_tasks
    if folder is None:
        return None
    facts = parts.settings.model_dump(include={"network", "train", "run"}, exclude=NO_BITS)
    if ":" in parts.settings.method.name:  # of a method from outside nothing is known: all its options count
        facts["method"] = parts.settings.method.model_dump()
    facts["processor"] = processor()
    start = digest_of(parts.method.backbone.state_dict())
    return FirstTasks(Path(folder).expanduser(), start, facts)


def remarks(parts: Parts, fabric: "Fabric") -> list[str]:
    """What the settings ask for and these devices do otherwise."""
    if fabric.world_size == 1 or parts.settings.run.first_tasks is None:
        return []
    return [
        "run.first_tasks is for runs of one process, as several round otherwise: the first task is trained here"
    ]


def sharing_cores(settings: Settings, devices: int) -> Settings:
    """Processes on one machine share its cores, unless the settings say how many threads each has."""
    if devices == 1 or settings.run.threads is not None:
        return settings
    threads = max(1, torch.get_num_threads() // devices)
    return settings.model_copy(update={"run": settings.run.model_copy(update={"threads": threads})})
