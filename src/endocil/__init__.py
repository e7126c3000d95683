"""endocil: class-incremental learning for endoscopic images.

The public names below load on first use, so that importing endocil costs nothing; the components
(selection, losses, gradients) import torch alone.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from endocil.components.gradients import CalibratedGradient as CalibratedGradient
    from endocil.components.gradients import GradientRule as GradientRule
    from endocil.components.gradients import calibrated_gradient as calibrated_gradient
    from endocil.components.gradients import linear_gradient as linear_gradient
    from endocil.components.losses import Outcome as Outcome
    from endocil.components.losses import PriorRegularizedLoss as PriorRegularizedLoss
    from endocil.components.losses import class_balanced_weights as class_balanced_weights
    from endocil.components.losses import distillation as distillation
    from endocil.components.selection import Selection as Selection
    from endocil.components.selection import mmd_bound as mmd_bound
    from endocil.components.selection import select_at_random as select_at_random
    from endocil.components.selection import select_by_distance as select_by_distance
    from endocil.components.selection import select_by_entropy as select_by_entropy
    from endocil.components.selection import select_by_mean as select_by_mean
    from endocil.components.selection import select_by_mmd as select_by_mmd
    from endocil.components.selection import squared_mmd as squared_mmd
    from endocil.data.table import ImageTable as ImageTable
    from endocil.errors import EndocilError as EndocilError
    from endocil.methods.base import Method as Method
    from endocil.methods.base import Phase as Phase
    from endocil.model.model import Model as Model
    from endocil.model.predictions import Predictions as Predictions
    from endocil.release.compare import learning_cost as learning_cost
    from endocil.reports.frames import results_frame as results_frame
    from endocil.runs.run import Result as Result
    from endocil.runs.run import resume as resume
    from endocil.runs.run import run as run
    from endocil.settings.settings import Settings as Settings
    from endocil.settings.settings import load_settings as load_settings

__version__ = "0.1.0"

_HOMES = {
    "CalibratedGradient": "components.gradients",
    "EndocilError": "errors",
    "GradientRule": "components.gradients",
    "ImageTable": "data.table",
    "Model": "model.model",
    "Method": "methods.base",
    "Outcome": "components.losses",
    "Phase": "methods.base",
    "Predictions": "model.predictions",
    "PriorRegularizedLoss": "components.losses",
    "Result": "runs.run",
    "Selection": "components.selection",
    "Settings": "settings.settings",
    "calibrated_gradient": "components.gradients",
    "class_balanced_weights": "components.losses",
    "distillation": "components.losses",
    "learning_cost": "release.compare",
    "linear_gradient": "components.gradients",
    "load_settings": "settings.settings",
    "mmd_bound": "components.selection",
    "results_frame": "reports.frames",
    "resume": "runs.run",
    "run": "runs.run",
    "select_at_random": "components.selection",
    "select_by_distance": "components.selection",
    "select_by_entropy": "components.selection",
    "select_by_mean": "components.selection",
    "select_by_mmd": "components.selection",
    "squared_mmd": "components.selection",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"endocil has no '{name}'; it has: {', '.join(__all__)}")
    return getattr(import_module(f"endocil.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
