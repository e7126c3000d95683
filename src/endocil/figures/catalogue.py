"""Every figure there is: its name, what it shows, which of the paper's it is, what it needs, and who draws it."""

from collections.abc import Callable
from dataclasses import dataclass

from endocil.figures import (
    accuracy,
    calibration,
    counts,
    discrepancy,
    embedding,
    gallery,
    growth,
    losses,
    matrices,
    traces,
)
from endocil.figures.material import Drawings, Material

PAIR = "two runs alike but for method.loss"
KEPT = "a run with run.keep=true"


@dataclass(frozen=True)
class Kind:
    name: str
    shows: str
    needs: str
    draw: Callable[[Material], Drawings]
    paper: str = ""  # its number in the paper


KINDS = (
    Kind("class-counts", "images of each class, in the order of learning", "nothing", counts.draw, "Fig. 3"),
    Kind("accuracy", "accuracy on seen classes after each task", "runs of tasks", accuracy.draw, "Fig. 4"),
    Kind("umap", "a fixed network's features with exemplars", KEPT, embedding.draw_plane, "Fig. 5"),
    Kind("density", "the same on a line, with densities", KEPT, embedding.draw_densities, "Fig. 6"),
    Kind("loss-map", "loss of each class in each epoch, CE and PRCBL", PAIR, losses.draw, "Fig. 7"),
    Kind(
        "gradient-norm",
        "norm of the classifier's gradient in each epoch, CFG alone and with PRCBL",
        f"{PAIR}, both with method.gradients=calibrated",
        traces.draw_gradients,
        "Fig. 8",
    ),
    Kind("confusion", "confusion after each task", "any run", matrices.draw_confusions),
    Kind("forgetting", "accuracy on each task after each task", "runs of tasks", matrices.draw_forgetting),
    Kind("recall", "recall of each class after each task", "runs of tasks", matrices.draw_recalls),
    Kind("mmd", "MMD² of each selector's first n choices, with the bound", KEPT, discrepancy.draw),
    Kind("gallery", "first exemplars of each class", "a run with exemplars, and its images", gallery.draw),
    Kind(
        "gamma", "the factor on the distillation's gradient", "a run that measures gamma", traces.draw_gamma
    ),
    Kind("weight-norms", "norms of the classifier's rows", "runs that record them", traces.draw_weight_norms),
    Kind("calibration", "reliability and its error after the last task", "any run", calibration.draw),
    Kind("growth", "seconds, exemplars, parameters and memory by task", "runs of tasks", growth.draw),
)
NAMES = tuple(kind.name for kind in KINDS)
