"""From settings to what learns: a method on its backbone, an exemplar memory, an augmentation, a learner."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from endocil.data.augment import Augmentation
from endocil.datasets import DATASETS, RESERVED
from endocil.learning.environment import processor
from endocil.learning.events import Journal
from endocil.learning.first_task import FirstTasks, digest_of
from endocil.learning.learner import Learner
from endocil.learning.memory import SELECTORS, ExemplarMemory, build_selector
from endocil.methods import METHODS, RESERVED_OPTIONS, Method, build_method, method_class
from endocil.methods.base import shared_schedule
from endocil.networks import BACKBONES, build_backbone
from endocil.registry import check_options, options_of, resolve
from endocil.settings.settings import Settings, TrainSettings

if TYPE_CHECKING:
    from lightning_fabric import Fabric


def complete(settings: Settings, *, data: bool = True) -> Settings:
    """Write out every default that the named things bring, so that the recorded settings say it all.

    `data`: of the data set too; a model that has learned does not need it any more."""
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
    for section, key, table in named if data else named[1:]:
        thing = resolve(f"{section}.{key}", values[section][key], table)
        reserved = {"method": RESERVED_OPTIONS, "data": RESERVED}.get(section, ())
        check_options(section, thing, getattr(settings, section).options, reserved=reserved)
        for option, default in options_of(thing).items():
            if option not in reserved and isinstance(default, str | int | float | bool | tuple | list):
                values[section].setdefault(option, default)
    return Settings.model_validate(values)


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


def build_augmentation(train: TrainSettings) -> Augmentation:
    return Augmentation(flip=train.flip, brightness=train.brightness, crop=train.crop)


def build_memory(settings: Settings) -> ExemplarMemory:
    """An empty memory."""
    memory = settings.memory
    select = build_selector(memory.select or "mean", memory.options)
    return ExemplarMemory(
        per_class=memory.per_class,
        total=memory.total,
        select=select,
        size=settings.data.size,
        seed=settings.seed,
    )


# settings that leave the first task as it is; where it learns is told by the device
NO_BITS = {
    "run": {
        "accelerator",
        "checkpoint_seconds",
        "evaluate",
        "evaluation_batch",
        "first_tasks",
        "gallery",
        "held_out",
        "keep",
        "tensorboard",
    },
    "network": {"weights"},  # its values count, not where they lie
    "train": {"weight_decay", "milestones"},  # the first task's schedule has its own
}


def build_learner(
    settings: Settings,
    method: Method,
    memory: ExemplarMemory | None,
    folder: Path,
    fabric: "Fabric",
    journal: Journal,
) -> Learner:
    chosen = settings.run
    torch.set_num_threads(chosen.threads or torch.get_num_threads())
    method.to(fabric.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    return Learner(
        method,
        memory,
        folder=folder,
        fabric=fabric,
        journal=journal,
        augmentation=build_augmentation(settings.train),
        seed=settings.seed,
        evaluation_batch=chosen.evaluation_batch,
        checkpoint_seconds=chosen.checkpoint_seconds,
        first_tasks=_first_tasks(settings, method),
        bits=settings.train.precision,
        accumulate=settings.train.accumulate,
        compiled=settings.train.compile,
    )


def _first_tasks(settings: Settings, method: Method) -> FirstTasks | None:
    """The store of first tasks; of [train] and [run] all counts as deciding bits but what is known not to."""
    folder = settings.run.first_tasks
    if folder is None:
        return None
    facts = settings.model_dump(include={"network", "train", "run"}, exclude=NO_BITS)
    if ":" in settings.method.name:  # of a method from outside nothing is known: all its options count
        facts["method"] = settings.method.model_dump()
    facts["processor"] = processor()
    start = digest_of(method.backbone.state_dict())
    return FirstTasks(Path(folder).expanduser(), start, facts)
