"""Every kind of figure: its name, what it shows and needs, its number in the paper, and the function that draws it."""

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from endocil.errors import EndocilError
from endocil.reports.figures import class_images, curves, fixed_features, matrices
from endocil.reports.figures.material import Drawings, Material
from endocil.reports.figures.style import fit, styled, write_figure

TASKS = "a run of more than one task"
KEPT = "a run that keeps its features: --set run.keep=true"
GALLERY = "gallery"  # images of patients: for those who draw it alone
PAIR = "alike but for the loss: --set method.loss=cross_entropy and prior_regularized"


@dataclass(frozen=True)
class Kind:
    name: str
    shows: str
    needs: str
    draw: Callable[[Material], Drawings]  # yields nothing where it lacks what it needs
    paper: str = ""  # its number in the paper


KINDS = (
    Kind("class-counts", "images of each class, in the order of learning", "nothing", class_images.draw, "Fig. 3"),
    Kind("accuracy", "accuracy on seen classes after each task", TASKS, curves.draw_accuracy, "Fig. 4"),
    Kind("umap", "a fixed network's features with exemplars", KEPT, fixed_features.draw_plane, "Fig. 5"),
    Kind("density", "the same on a line, with densities", KEPT, fixed_features.draw_densities, "Fig. 6"),
    Kind(
        "loss-map", "loss of each class in each epoch, CE and PRCBL", f"two runs {PAIR}", matrices.draw_losses, "Fig. 7"
    ),
    Kind(
        "gradient-norm",
        "norm of the classifier's gradient in each epoch, CFG alone and with PRCBL",
        f"two runs with --set method.gradients=calibrated, {PAIR}",
        curves.draw_gradients,
        "Fig. 8",
    ),
    Kind("confusion", "confusion after each task", "any run", matrices.draw_confusions),
    Kind("forgetting", "accuracy on each task after each task", TASKS, matrices.draw_forgetting),
    Kind("recall", "recall of each class after each task", TASKS, matrices.draw_recalls),
    Kind("mmd", "MMD² of each selector's first n choices, with the bound", KEPT, fixed_features.draw_mmd),
    Kind(
        GALLERY,
        "first exemplars of each class",
        "a run of a method that keeps exemplars, and its images",
        class_images.draw_gallery,
    ),
    Kind(
        "gamma",
        "the factor on the distillation's gradient",
        "a run of a method that measures gamma, such as --set method.name=endocil",
        curves.draw_gamma,
    ),
    Kind(
        "weight-norms",
        "norms of the classifier's rows",
        "runs of this version: earlier ones did not record weight_norms",
        curves.draw_weight_norms,
    ),
    Kind(
        "calibration",
        "reliability and its error after the last task",
        "runs with their predictions/ folder",
        curves.draw_calibration,
    ),
    Kind("growth", "seconds, exemplars, parameters and memory by task", TASKS, curves.draw_growth),
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
            yield _draw(kind, material, folder, formats, dpi)


def _draw(kind: Kind, material: Material, folder: Path, formats: Sequence[str], dpi: int) -> Drawn:
    files: list[Path] = []
    try:
        with styled():
            for suffix, figure in kind.draw(material):
                stem = file_stem(kind.name, suffix, {file.stem for file in files})
                fit(figure, dpi)
                for form in formats:
                    files.append(folder / f"{stem}.{form}")
                    write_figure(figure, files[-1], dpi, public=kind.name != GALLERY)
    except EndocilError as error:  # also where its images or predictions are gone or damaged
        return Drawn(kind, tuple(files), str(error))
    return Drawn(kind, tuple(files), "" if files else f"needs {kind.needs}")


def file_stem(name: str, suffix: str, taken: Collection[str] = ()) -> str:
    """A name that every system takes: `confusion`, `EndoCIL (loss=cross_entropy)` -> confusion-endocil-loss-...; with
    a number where another label has left the same letters."""
    plain = re.sub(r"[^a-z0-9]+", "-", suffix.lower()).strip("-")
    stem = free = "-".join(filter(None, [name, plain]))[:120].rstrip("-")
    number = 2
    while free in taken:
        free, number = f"{stem}-{number}", number + 1
    return free
