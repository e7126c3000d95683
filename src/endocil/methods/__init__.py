"""Methods by name."""

from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from endocil.methods.endocil import EndoCIL
from endocil.methods.finetune import Finetune
from endocil.methods.icarl import ICaRL
from endocil.methods.joint import JointTrain
from endocil.methods.method import Method, Schedule, Task
from endocil.registry import check_options, options_of, resolve

__all__ = ["METHODS", "Method", "build_method", "method_options"]

METHODS: dict[str, type[Method]] = {
    "endocil": EndoCIL,
    "finetune": Finetune,
    "icarl": ICaRL,
    "joint": JointTrain,
}

SHARED = ("schedule", "seed")  # given by the house, not by [method]


def method_options(name: str) -> dict[str, Any]:
    """The options of a method with their defaults: the keys that [method] takes beside the name."""
    options = options_of(resolve("method.name", name, METHODS))
    return {key: value for key, value in options.items() if key not in SHARED}


def build_method(
    name: str,
    backbone: nn.Module,
    options: Mapping[str, Any],
    *,
    schedule: Callable[[Task], Schedule],
    seed: int,
) -> Method:
    maker = resolve("method.name", name, METHODS)
    check_options("method", maker, options, reserved=SHARED)
    return maker(backbone, schedule=schedule, seed=seed, **options)
