"""endocil: class-incremental learning for endoscopic images.

The public names below load on first use, so that importing endocil costs nothing; the components
(selection, losses, gradients) import torch alone.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from endocil.bundle.lifelong import LifelongLearner as LifelongLearner
    from endocil.bundle.model import Bundle as Bundle
    from endocil.errors import EndocilError as EndocilError
    from endocil.experiment import Result as Result
    from endocil.experiment import resume as resume
    from endocil.experiment import run as run
    from endocil.gradients import CalibratedGradient as CalibratedGradient
    from endocil.gradients import GradientRule as GradientRule
    from endocil.gradients import calibrated_gradient as calibrated_gradient
    from endocil.gradients import linear_gradient as linear_gradient
    from endocil.images.table import ImageTable as ImageTable
    from endocil.losses import Outcome as Outcome
    from endocil.losses import PriorRegularizedLoss as PriorRegularizedLoss
    from endocil.losses import class_balanced_weights as class_balanced_weights
    from endocil.losses import distillation as distillation
    from endocil.methods.method import Method as Method
    from endocil.methods.method import Phase as Phase
    from endocil.selection import Selection as Selection
    from endocil.selection import mmd_bound as mmd_bound
    from endocil.selection import select_at_random as select_at_random
    from endocil.selection import select_by_distance as select_by_distance
    from endocil.selection import select_by_entropy as select_by_entropy
    from endocil.selection import select_by_mean as select_by_mean
    from endocil.selection import select_by_mmd as select_by_mmd
    from endocil.selection import squared_mmd as squared_mmd
    from endocil.settings import Settings as Settings
    from endocil.settings import load_settings as load_settings

__version__ = "0.1.0"

_HOMES = {
    "Bundle": "bundle.model",
    "CalibratedGradient": "gradients",
    "EndocilError": "errors",
    "GradientRule": "gradients",
    "ImageTable": "images.table",
    "LifelongLearner": "bundle.lifelong",
    "Method": "methods.method",
    "Outcome": "losses",
    "Phase": "methods.method",
    "PriorRegularizedLoss": "losses",
    "Result": "experiment",
    "Selection": "selection",
    "Settings": "settings",
    "calibrated_gradient": "gradients",
    "class_balanced_weights": "losses",
    "distillation": "losses",
    "linear_gradient": "gradients",
    "load_settings": "settings",
    "mmd_bound": "selection",
    "resume": "experiment",
    "run": "experiment",
    "select_at_random": "selection",
    "select_by_distance": "selection",
    "select_by_entropy": "selection",
    "select_by_mean": "selection",
    "select_by_mmd": "selection",
    "squared_mmd": "selection",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"endocil has no '{name}'; it has: {', '.join(__all__)}")
    return getattr(import_module(f"endocil.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
