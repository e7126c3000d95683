"""Optimisers by name, the parameters that learn at a lower rate, and what a checkpoint keeps of an optimiser."""

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from endocil.errors import FileFormatError, SettingsError
from endocil.methods.base import Phase, Schedule
from endocil.registry import resolve

OPTIMIZERS: dict[str, type[Optimizer]] = {"adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}
FACTOR = "rate_factor"  # in a group of parameters: its learning rate over the schedule's
Number = int | float | None  # also a truth value


def optimizer_class(name: str) -> type[Optimizer]:
    found: object = resolve("train.optimizer", name, OPTIMIZERS)
    if not (isinstance(found, type) and issubclass(found, Optimizer)):
        raise SettingsError(
            f"train.optimizer '{name}' is not an optimiser: expected a subclass of torch.optim.Optimizer, got {found!r}"
        )
    closure = inspect.signature(found.step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise SettingsError(
            f"train.optimizer '{name}' evaluates the loss several times a step, which cannot be done; take "
            f"one without a closure, such as sgd or adamw"
        )
    return found


def build_optimizer(schedule: Schedule, groups: list[dict[str, Any]]) -> Optimizer:
    """The schedule's optimiser; learning rate, weight decay and, where it takes it, momentum are the schedule's."""
    maker = optimizer_class(schedule.optimizer)
    takes = inspect.signature(maker).parameters
    given: dict[str, Any] = {"lr": schedule.learning_rate, "weight_decay": schedule.weight_decay}
    if "momentum" in takes:
        given["momentum"] = schedule.momentum
    for key in schedule.optimizer_options:
        if key in ("lr", "weight_decay", "momentum"):
            name = {"lr": "learning_rate"}.get(key, key)
            raise SettingsError(f"train.optimizer_options has '{key}'; set train.{name} instead")
        if key not in takes and not any(one.kind is one.VAR_KEYWORD for one in takes.values()):
            known = ", ".join(name for name in takes if name not in ("params", *given))
            raise SettingsError(f"unknown train.optimizer_options key '{key}'; '{schedule.optimizer}' takes: {known}")
    try:
        return maker(groups, **given, **schedule.optimizer_options)
    except (TypeError, ValueError, RuntimeError) as error:
        raise SettingsError(
            f"train.optimizer '{schedule.optimizer}' refuses its options: {error}; expected a constructor that takes "
            f"lr and weight_decay, and options that fit it in train.optimizer_options"
        ) from error


def optimizer_of(phase: Phase) -> Optimizer:
    """For everything that a phase trains; a backbone may learn more slowly than the heads."""
    parameters = [parameter for module in phase.train for parameter in module.parameters()]
    factor = phase.schedule.backbone_factor
    if factor == 1.0:
        return build_optimizer(phase.schedule, [{"params": parameters}])
    parts = [part for module in phase.train for part in module.modules() if getattr(part, "is_head", False)]
    heads = {parameter for part in parts for parameter in part.parameters()}
    groups: list[dict[str, Any]] = [
        {"params": [parameter for parameter in parameters if parameter not in heads], FACTOR: factor},
        {"params": [parameter for parameter in parameters if parameter in heads]},
    ]
    optimizer = build_optimizer(phase.schedule, [group for group in groups if group["params"]])
    set_rate(optimizer, phase.schedule.learning_rate)
    return optimizer


def set_rate(optimizer: Optimizer, rate: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = rate * group.get(FACTOR, 1.0)


@dataclass(frozen=True)
class OptimizerState:
    """What an optimiser has gathered: "3/exp_avg" of its fourth parameter, "group 0/d" of its first group."""

    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    numbers: Mapping[str, Number] = field(default_factory=dict)


def state_of(optimizer: Optimizer) -> OptimizerState:
    """Empty before the first step, and for optimisers that gather nothing."""
    tensors, numbers = dict[str, Tensor](), dict[str, Number]()
    for place, values in _places(optimizer).items():
        for name, value in values.items():
            if isinstance(value, Tensor):
                tensors[f"{place}/{name}"] = value
            elif value is None or isinstance(value, int | float):
                numbers[f"{place}/{name}"] = value
            elif isinstance(place, int):  # what else a group has is what it was made with
                raise SettingsError(
                    f"the optimiser {type(optimizer).__name__} keeps a {type(value).__name__} as '{name}'; a "
                    f"checkpoint holds tensors and numbers alone: choose another train.optimizer"
                )
    return OptimizerState(tensors, numbers)


def restore_state(optimizer: Optimizer, state: OptimizerState) -> None:
    """Go on from a stored state, to the same bits."""
    places = {str(place): values for place, values in _places(optimizer).items()}
    owners = {
        str(i): (group, parameter)
        for i, (group, parameter) in enumerate(
            (group, parameter) for group in optimizer.param_groups for parameter in group["params"]
        )
    }
    for key, stored in {**state.tensors, **state.numbers}.items():
        place, _, name = key.partition("/")
        if place not in places:
            raise FileFormatError("the checkpoint's optimiser does not fit the run's settings.toml; was that changed?")
        value: Any = stored
        if isinstance(stored, Tensor) and place in owners:
            group, parameter = owners[place]
            if name == "step" and not (group.get("capturable") or group.get("fused")):
                value = stored  # torch counts steps on the CPU, wherever the parameter is
            elif stored.shape == parameter.shape:
                # empty_like keeps the memory layout of an uninterrupted run, and with it every bit
                value = torch.empty_like(parameter, dtype=stored.dtype, requires_grad=False).copy_(stored)
            else:
                value = stored.to(parameter.device)
        places[place][name] = value


def _places(optimizer: Optimizer) -> dict[int | str, dict[str, Any]]:
    """What is gathered for each parameter, by its number, and for each group of them."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    return {
        **{i: optimizer.state[parameter] for i, parameter in enumerate(parameters)},
        **{f"group {i}": group for i, group in enumerate(optimizer.param_groups)},
    }
