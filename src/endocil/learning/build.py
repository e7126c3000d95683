"""From settings to what learns: a method on its backbone, an exemplar memory, an augmentation, a learner."""

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from endocil.data.augment import OPERATIONS, Augmentation, Operation
from endocil.data.cache import FEATURES
from endocil.data.scenario import Task
from endocil.datasets import DATASETS, RESERVED
from endocil.errors import SettingsError
from endocil.io.files import cache_folder
from endocil.learning.events import Journal, processor
from endocil.learning.features import FeatureStore
from endocil.learning.first_task import FirstTasks, digest_of
from endocil.learning.learner import Learner
from endocil.learning.memory import SELECTORS, ExemplarMemory, build_selector
from endocil.learning.optimizers import build_optimizer, optimizer_class
from endocil.learning.parallel import Processes
from endocil.methods import METHODS, RESERVED_OPTIONS, Method, build_method, method_class
from endocil.methods.base import shared_schedule
from endocil.networks import BACKBONES, build_backbone, is_frozen
from endocil.networks import RESERVED_OPTIONS as RESERVED_BY_NETWORK
from endocil.registry import check_options, options_of, resolve
from endocil.settings.settings import Settings, TrainSettings


def complete(settings: Settings, *, data: bool = True) -> Settings:
    """Fill in every default of the data set, backbone, selector and method, so that the recorded settings are complete.

    `data`: also those of the data set, which a loaded model does not need."""
    values = settings.model_dump(mode="json", exclude_none=True)
    values["memory"].setdefault("select", method_class(settings.method.name).default_selector)
    if settings.memory.per_class is None and settings.memory.total is None:
        values["memory"]["per_class"] = 30  # the smallest buffer of EndoCIL's tables
    scenario = settings.scenario
    if scenario.increments is None and scenario.tasks is None and scenario.first is scenario.increment is None:
        values["scenario"]["tasks"] = 5  # EndoCIL, Experimental Setting
    values["run"].setdefault("threads", torch.get_num_threads())
    values["train"]["augment"] = [_complete_operation(one) for one in settings.train.augment]
    named: list[tuple[str, str, Mapping[str, Callable[..., Any]]]] = [
        ("data", "name", DATASETS),
        ("network", "backbone", BACKBONES),
        ("memory", "select", SELECTORS),
        ("method", "name", METHODS),
    ]
    for section, key, table in named if data else named[1:]:
        thing = resolve(f"{section}.{key}", values[section][key], table)
        reserved = {"method": RESERVED_OPTIONS, "data": RESERVED, "network": RESERVED_BY_NETWORK}.get(section, ())
        given = getattr(settings, section)
        check_options(section, thing, given.options, reserved=reserved, common=type(given).model_fields)
        for option, default in options_of(thing).items():
            if option not in reserved and isinstance(default, str | int | float | bool | tuple | list):
                values[section].setdefault(option, default)
    return Settings.model_validate(values)


def build_learning(settings: Settings) -> tuple[Method, list[str]]:
    """A new method on a new backbone, and notes on its weights file."""
    backbone, notes = build_backbone(
        settings.network.backbone,
        seed=settings.seed,
        weights=settings.network.weights,
        freeze=settings.network.freeze,
        size=settings.data.size,
        options=settings.network.options,
    )
    train = settings.train
    refuse_without_effect(settings, backbone)
    schedule = shared_schedule(
        epochs=train.epochs,
        learning_rate=train.learning_rate,
        later_factor=train.later_factor,
        milestones=train.milestones,
        decay=train.decay,
        momentum=train.momentum,
        batch_size=train.batch_size,
        weight_decay=train.weight_decay,
        first_weight_decay=train.first_weight_decay,
        cosine=train.schedule == "cosine",
        warmup=train.warmup,
        optimizer=train.optimizer,
        optimizer_options=train.optimizer_options,
        backbone_factor=train.backbone_factor,
        clip_gradients=train.clip_gradients,
    )
    first_task = schedule(Task(0, 0, 1))  # what cannot work is refused before anything runs
    # The usual optimiser takes all that the settings allow: it is not tried, as torch's first optimiser imports torch's
    # compiler, which takes most of a second.
    if train.optimizer != TrainSettings().optimizer or train.optimizer_options:
        build_optimizer(first_task, [{"params": [nn.Parameter(torch.zeros(1))]}])
    options = settings.method.options
    method = build_method(
        settings.method.name,
        backbone,
        options,
        schedule=schedule,
        seed=settings.seed,
        label_smoothing=train.label_smoothing,
        mixup=train.mixup,
    )
    return method, notes


REPLACED = ("schedule", "warmup", "optimizer", "optimizer_options", "later_factor", "backbone_factor", "clip_gradients")


def refuse_without_effect(settings: Settings, backbone: nn.Module) -> None:
    """Settings of training that would do nothing beside others."""
    train, usual = settings.train, TrainSettings()
    changed = [f"train.{key}" for key in REPLACED if getattr(train, key) != getattr(usual, key)]
    if settings.method.options.get("native_schedule") and changed:
        raise SettingsError(
            f"method.native_schedule takes the authors' schedule with SGD, so that {', '.join(changed)} would do "
            f"nothing; leave out one of them"
        )
    takes = inspect.signature(optimizer_class(train.optimizer)).parameters
    if train.momentum != usual.momentum and "momentum" not in takes:
        raise SettingsError(
            f"train.momentum is {train.momentum}, but train.optimizer '{train.optimizer}' has no momentum; leave it "
            f"out, or set what it has in train.optimizer_options"
        )
    if train.backbone_factor != 1.0 and is_frozen(backbone):
        raise SettingsError(
            f"train.backbone_factor is {train.backbone_factor}, but network.freeze lets nothing of the backbone learn; "
            f"leave out one of them"
        )


def build_augmentation(train: TrainSettings) -> Augmentation:
    operations = tuple(
        Operation(one["name"], {key: value for key, value in one.items() if key != "name"})
        for one in map(_named, train.augment)
    )
    return Augmentation(flip=train.flip, brightness=train.brightness, crop=train.crop, operations=operations)


def _named(operation: str | Mapping[str, Any]) -> dict[str, Any]:
    return {"name": operation} if isinstance(operation, str) else dict(operation)


def _complete_operation(operation: str | Mapping[str, Any]) -> dict[str, Any]:
    """An operation of train.augment with every option written out; one that cannot work is refused."""
    given = _named(operation)
    name = given.pop("name", None)
    if not isinstance(name, str):
        raise SettingsError(f"train.augment has {operation!r}; expected a name, or a table with a name and options")
    if name in ("flip", "brightness", "crop"):
        raise SettingsError(f"train.augment names '{name}', which has a setting of its own: train.{name}")
    function = resolve("train.augment", name, OPERATIONS)
    check_options(f"train.augment '{name}'", function, given)
    usual = {key: value for key, value in options_of(function).items() if isinstance(value, str | int | float)}
    Operation(name, given)(torch.zeros(2, 16, 16, 3), torch.Generator(), slice(0, 2), 2)  # it refuses what it cannot do
    return {"name": name, **usual, **given}


def build_memory(settings: Settings) -> ExemplarMemory:
    """An empty memory."""
    memory = settings.memory
    select = build_selector(memory.select or "mean", memory.options)
    return ExemplarMemory(
        per_class=memory.per_class, total=memory.total, select=select, size=settings.data.size, seed=settings.seed
    )


# settings that leave the first task as it is; where it learns is told by the device
NO_BITS = {
    "run": {
        "accelerator",
        "checkpoint_seconds",
        "evaluate",
        "evaluation_batch",
        "features",
        "first_tasks",
        "gallery",
        "held_out",
        "keep",
        "tensorboard",
        "wandb",
    },
    "network": {"weights"},  # its values count, not where they lie
    "train": {"weight_decay", "later_factor", "milestones"},  # the first task's schedule has its own
}


def build_learner(
    settings: Settings, method: Method, memory: ExemplarMemory | None, folder: Path, fabric: Processes, journal: Journal
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
        features=feature_store(settings),
        bits=settings.train.precision,
        accumulate=settings.train.accumulate,
        mixup=settings.train.mixup,
        compiled=settings.train.compile,
        recorded=settings.model_dump(mode="json", exclude_none=True),
    )


def feature_store(settings: Settings) -> FeatureStore | None:
    """Where features of a frozen backbone are kept."""
    return FeatureStore(cache_folder() / FEATURES) if settings.run.features else None


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
