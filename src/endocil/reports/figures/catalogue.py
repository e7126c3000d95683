"""Every figure: its name, what it shows, its number in the paper, what it needs, and the function that draws it."""

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from endocil.reports.figures import (
    counts,
    embedding,
    epochs,
    exemplars,
    features,
    lines,
    losses,
    matrices,
    reliability,
)
from endocil.reports.figures.material import Drawings, Material, NotDrawnError
from endocil.reports.figures.style import fit, styled, write_figure

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
    Kind("accuracy", "accuracy on seen classes after each task", "runs of tasks", lines.draw, "Fig. 4"),
    Kind("umap", "a fixed network's features with exemplars", KEPT, embedding.draw_plane, "Fig. 5"),
    Kind("density", "the same on a line, with densities", KEPT, embedding.draw_densities, "Fig. 6"),
    Kind("loss-map", "loss of each class in each epoch, CE and PRCBL", PAIR, losses.draw, "Fig. 7"),
    Kind(
        "gradient-norm",
        "norm of the classifier's gradient in each epoch, CFG alone and with PRCBL",
        f"{PAIR}, both with method.gradients=calibrated",
        losses.draw_gradients,
        "Fig. 8",
    ),
    Kind("confusion", "confusion after each task", "any run", matrices.draw_confusions),
    Kind("forgetting", "accuracy on each task after each task", "runs of tasks", matrices.draw_forgetting),
    Kind("recall", "recall of each class after each task", "runs of tasks", matrices.draw_recalls),
    Kind("mmd", "MMD² of each selector's first n choices, with the bound", KEPT, features.draw),
    Kind("gallery", "first exemplars of each class", "a run with exemplars, and its images", exemplars.draw),
    Kind(
        "gamma", "the factor on the distillation's gradient", "a run that measures gamma", losses.draw_gamma
    ),
    Kind("weight-norms", "norms of the classifier's rows", "runs that record them", losses.draw_weight_norms),
    Kind("calibration", "reliability and its error after the last task", "any run", reliability.draw),
    Kind("growth", "seconds, exemplars, parameters and memory by task", "runs of tasks", epochs.draw),
)
NAMES = tuple(kind.name for kind in KINDS)


@dataclass(frozen=True)
class Drawn:
    """The files of one kind of figure, and why some were not drawn."""

    kind: Kind
    files: tuple[Path, ...]
    reason: str = ""


def draw_all(
    material: Material, folder: Path, names: Collection[str], formats: Sequence[str], dpi: int
) -> Iterator[Drawn]:
    """Each kind with one of these names, one after the other."""
    for kind in KINDS:
        if kind.name in names:
            yield _drawn(kind, material, folder, formats, dpi)


def _drawn(kind: Kind, material: Material, folder: Path, formats: Sequence[str], dpi: int) -> Drawn:
    files: dict[Path, None] = {}
    try:
        with styled():
            for suffix, figure in kind.draw(material):
                stem = _free(file_stem(kind.name, suffix), {file.stem for file in files})
                fit(figure, dpi)
                for form in formats:
                    path = folder / f"{stem}.{form}"
                    write_figure(figure, path, dpi)
                    files[path] = None
    except NotDrawnError as error:
        return Drawn(kind, tuple(files), str(error))
    return Drawn(kind, tuple(files))


def file_stem(name: str, suffix: str) -> str:
    """A name that every system takes: `confusion`, `endocil (loss=cross_entropy)` -> confusion-endocil-loss-..."""
    plain = re.sub(r"[^a-z0-9]+", "-", suffix.lower()).strip("-")
    return "-".join(filter(None, [name, plain]))[:120].rstrip("-")


def _free(stem: str, taken: Collection[str]) -> str:
    """Other labels may leave the same letters."""
    number, free = 2, stem
    while free in taken:
        free, number = f"{stem}-{number}", number + 1
    return free
