"""PyCIL as a library: imported from a checkout, on the CPU, with our backbone inside.

Nothing of it is stored here; what is patched, and why, stands in README.md.
"""

import importlib
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from endocil.data.seeding import generator
from endocil.networks.resnet import ResNet18, initialise

LEARNERS = {  # our name: (module of PyCIL, class)
    "bic": ("bic", "BiC"),
    "der": ("der", "DER"),
    "ewc": ("ewc", "EWC"),
    "foster": ("foster", "FOSTER"),
    "icarl": ("icarl", "iCaRL"),
    "lwf": ("lwf", "LwF"),
    "wa": ("wa", "WA"),
}

ARGUMENTS: Mapping[str, Any] = {  # what PyCIL reads from its JSON files; FOSTER's are those of exps/foster.json
    "convnet_type": "resnet18",
    "dataset": "imagenet-like",
    "memory_size": 2000,
    "device": [torch.device("cpu")],
    "beta1": 0.96,
    "beta2": 0.97,
    "is_teacher_wa": False,
    "is_student_wa": False,
    "lambda_okd": 1,
    "wa_value": 1,
    "oofc": "ft",
    "T": 2,
}


class Convnet(ResNet18):
    """Our backbone with PyCIL's face: the same parameter names, and features in a dictionary."""

    @property
    def out_dim(self) -> int:
        return self.n_features

    def forward(self, images: Tensor) -> dict[str, Tensor]:  # type: ignore[override]
        return {"features": super().forward(images)}


def seeded_convnet(width: int, seed: int) -> Convnet:
    """The same first weights as our runs of this seed."""
    convnet = Convnet(width=width)
    initialise(convnet, generator(seed, "backbone"))
    return convnet


def open_pycil(checkout: Path) -> None:
    """Make PyCIL's modules importable."""
    sys.path.insert(0, str(checkout.expanduser().resolve(strict=True)))
    _import_torchvision()


def use_convnet(make: Callable[[], Convnet]) -> None:
    """Let every backbone that PyCIL builds be one of ours."""
    networks = importlib.import_module("utils.inc_net")
    networks.get_convnet = lambda args, pretrained=False: make()  # type: ignore[attr-defined]


def _import_torchvision() -> None:
    """A torchvision built for another torch misses two operators, which nobody here calls."""
    try:
        importlib.import_module("torchvision")
    except RuntimeError:
        for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
        torch.library.define("torchvision::nms", "(Tensor boxes, Tensor scores, float threshold) -> Tensor")
        torch.library.define("torchvision::qnms", "(Tensor boxes, Tensor scores, float threshold) -> Tensor")
        importlib.import_module("torchvision")


def learner(name: str, constants: Mapping[str, Any], **arguments: Any) -> tuple[Any, ModuleType]:
    """A learner of PyCIL and its module, whose constants (epochs, rates, ...) are set first."""
    module_name, class_name = LEARNERS[name]
    module = importlib.import_module(f"models.{module_name}")
    for key, value in constants.items():
        if not hasattr(module, key):
            raise AttributeError(f"PyCIL's models/{module_name}.py has no constant '{key}'")
        setattr(module, key, value)
    return getattr(module, class_name)({**ARGUMENTS, **arguments}), module
