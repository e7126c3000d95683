"""The methods by name, their titles, and how one is built with its options."""

from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from endocil.data.scenario import Task
from endocil.data.seeding import torch_seeded
from endocil.errors import SettingsError
from endocil.methods.analytic import Analytic
from endocil.methods.base import Method, Schedule
from endocil.methods.bic import BiC
from endocil.methods.der import DER
from endocil.methods.derpp import DERpp
from endocil.methods.dgr import DGR
from endocil.methods.endocil import EndoCIL
from endocil.methods.er_ace import ERACE
from endocil.methods.ewc import EWC
from endocil.methods.finetune import Finetune
from endocil.methods.foster import FOSTER
from endocil.methods.icarl import ICaRL
from endocil.methods.joint import JointTrain
from endocil.methods.lucir import LUCIR
from endocil.methods.lwf import LwF
from endocil.methods.memo import MEMO
from endocil.methods.mrfa import MRFA
from endocil.methods.multistage import MultiStage
from endocil.methods.multistage_fsa import MultiStageFSA
from endocil.methods.podnet import PODNet
from endocil.methods.ranpac import RanPAC
from endocil.methods.simplecil import SimpleCIL
from endocil.methods.wa import WA
from endocil.registry import check_options, options_of, resolve

__all__ = ["METHODS", "RESERVED_OPTIONS", "Method", "build_method", "method_class", "method_options", "method_title"]

METHODS: dict[str, type[Method]] = {
    "analytic": Analytic,
    "bic": BiC,
    "der": DER,
    "derpp": DERpp,
    "dgr": DGR,
    "endocil": EndoCIL,
    "er_ace": ERACE,
    "ewc": EWC,
    "finetune": Finetune,
    "foster": FOSTER,
    "icarl": ICaRL,
    "joint": JointTrain,
    "lucir": LUCIR,
    "lwf": LwF,
    "memo": MEMO,
    "mrfa": MRFA,
    "multistage": MultiStage,
    "multistage_fsa": MultiStageFSA,
    "podnet": PODNet,
    "ranpac": RanPAC,
    "simplecil": SimpleCIL,
    "wa": WA,
}

OWN_METHOD, BASELINE = "endocil", "icarl"  # what the results are about, and what it changes
PROJECTS_OWN = "multistage"  # of no paper
# the paper's methods that learn task by task: what a whole comparison has
COMPARED = ("finetune", "ewc", "lwf", "icarl", "bic", "wa", "der", "foster", "memo", "mrfa", "dgr", "endocil")
ALIGNING = ("wa", "der", "memo")  # these scale the new classes' rows after a task
RESERVED_OPTIONS = ("schedule", "seed", "label_smoothing")  # constructor arguments that do not come from [method]


def method_class(name: str) -> type[Method]:
    """The method of this name, or one of the user's own."""
    named: object = resolve("method.name", name, METHODS)
    if not (isinstance(named, type) and issubclass(named, Method)):
        raise SettingsError(
            f"method.name '{name}' is not a method: expected a subclass of endocil.Method, got {named!r}"
        )
    return named


def method_title(name: str) -> str:
    """The method as its paper spells it, which is the name of its class: EWC for ewc. Python writes iCaRL as ICaRL."""
    title = METHODS[name].__name__ if name in METHODS else name.rpartition(":")[2]
    return {"DERpp": "DER++", "ERACE": "ER-ACE", "ICaRL": "iCaRL", "MultiStageFSA": "MultiStage-FSA"}.get(title, title)


def method_options(name: str) -> dict[str, Any]:
    """The options of a method with their defaults: the keys that [method] takes beside the name."""
    options = options_of(method_class(name))
    return {key: value for key, value in options.items() if key not in RESERVED_OPTIONS}


def build_method(
    name: str,
    backbone: nn.Module,
    options: Mapping[str, Any],
    *,
    schedule: Callable[[Task], Schedule],
    seed: int,
    label_smoothing: float = 0.0,
    mixup: float = 0.0,
) -> Method:
    """A method by name on a backbone; options that it does not take are refused."""
    maker = method_class(name)
    check_options("method", maker, options, reserved=RESERVED_OPTIONS)
    for key, value, supported in (
        ("label_smoothing", label_smoothing, maker.smooths_labels),
        ("mixup", mixup, maker.mixes_labels),
    ):
        if value and not supported:
            raise SettingsError(f"train.{key} is {value}, but the method '{name}' does not support it; leave it out")
    smoothing: dict[str, Any] = {"label_smoothing": label_smoothing} if label_smoothing else {}
    with torch_seeded(seed, "own method"):  # the source of the initial values of modules of a user's method
        return maker(backbone, schedule=schedule, seed=seed, **smoothing, **options)
