"""Images on the page: exemplars with where they come from, and test images that a method took for another class."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import softmax

from endocil.errors import EndocilError
from endocil.html.markup import jpeg_uri
from endocil.html.page_tables import PageTable, text_table
from endocil.io.text_tables import DASH
from endocil.model.file import read_model_file
from endocil.reports.averages import Runs
from endocil.runs.paired_predictions import has_predictions, stored_predictions
from endocil.runs.parts import kept_table
from endocil.runs.records import RunRecord
from endocil.settings.settings import load_settings

THUMBNAIL = 64  # pixels of an exemplar
MISTAKE = 96  # pixels of a misclassified image
MOST_PICTURES = 600  # on one page: as JPEG about 2 MB
PER_CLASS = 5  # pictures of a class, if they fit
MISTAKES_PER_CLASS = 3
LONG = ("Image", "Group")  # columns of names, which may be broken anywhere


@dataclass(frozen=True, eq=False)
class Exemplar:
    """One image that a run kept."""

    image: str
    order: int  # 0 was chosen first
    task: str  # that brought it, counted from 0 as in the files
    group: str
    source: str
    pixels: np.ndarray  # (H, W, 3) uint8


Gallery = Mapping[str, Mapping[str, Sequence[Exemplar]]]  # name of a run -> class -> exemplars


def exemplars_per_class(n_runs: int, n_classes: int) -> int:
    """How many exemplars of each class of each run may be shown."""
    return max(1, min(PER_CLASS, MOST_PICTURES // max(1, n_runs * n_classes)))


def run_gallery(folder: Path, per_class: int = PER_CLASS) -> Gallery:
    """The first exemplars of each class at the end of a run, under the run's name."""
    exemplars = read_model_file(folder).exemplars
    by_class: dict[str, list[Exemplar]] = {}
    for one, pixels in zip(exemplars.provenance, exemplars.pixels, strict=True):
        if one.order < per_class:
            exemplar = Exemplar(one.image, one.order, str(one.task), one.group, one.source, pixels.numpy())
            by_class.setdefault(one.class_name, []).append(exemplar)
    return {folder.resolve().name: by_class} if by_class else {}


def exemplar_gallery(groups: Sequence[Runs], pictures: Gallery, *, names: bool) -> list[dict[str, Any]]:
    """The first exemplars of each class in each run; `names`: with the names of images and groups."""
    blocks = []
    for group in groups:
        for run in group.results:
            classes = []
            for name, exemplars in pictures.get(run.name, {}).items():
                texts = [f"{name}, choice {one.order + 1}" + (f": {one.image}" if names else "") for one in exemplars]
                uris = [jpeg_uri(one.pixels, THUMBNAIL) for one in exemplars]
                images = [{"uri": uri, "text": text} for uri, text in zip(uris, texts, strict=True)]
                classes.append({"name": name, "images": images, "provenance": _provenance(name, exemplars, names)})
            if classes:
                blocks.append({"title": f"{group.label}, run {run.name}", "classes": classes})
    return blocks


def _provenance(name: str, images: Sequence[Exemplar], names: bool) -> PageTable:
    """Columns that say nothing are left out; a task that all have in common stands in the caption."""

    def inside(path: str) -> str:
        """The path from the class's folder on, which the heading names; whole where it is in no such folder."""
        _, folder, after = f"/{path}".rpartition(f"/{name}/")
        return after if folder else path

    tasks = [str(int(image.task) + 1) if image.task.isdecimal() else image.task for image in images]
    several = len(set(tasks)) > 1
    columns = {
        "Choice": [str(image.order + 1) for image in images],
        "Image": [inside(image.image) if names else "" for image in images],
        "Task": tasks if several else [""],
        # Near duplicates are called after one of them: for this very image the name of the group says nothing.
        "Group": [inside(image.group) if names and image.group != image.image else "" for image in images],
        "Source": [image.source for image in images],
    }
    filled = {title: cells for title, cells in columns.items() if any(cells)}
    rows = [[cell or DASH for cell in row] for row in zip(*filled.values(), strict=True)]
    caption = f"Exemplars of {name}" + ("" if several else f", from task {tasks[0]}")
    return text_table(caption, list(filled), rows, numeric_from=len(filled), long=LONG)


def mistake_gallery(groups: Sequence[Runs], pictures: Gallery | None, *, names: bool) -> list[dict[str, Any]]:
    """Of the first seed of each experiment whose images may be shown: those of `pictures`, and those whose settings
    allow it (run.gallery). None shows nothing."""
    if pictures is None:
        return []
    allowed = [
        group for group in groups if group.first.name in pictures or group.first.settings.get("run", {}).get("gallery")
    ]
    blocks = []
    for group in allowed:
        room = exemplars_per_class(
            2 * len(allowed), len(group.first.metrics["classes"])
        )  # the exemplars take the other half
        images = read_mistakes(group.first, min(room, MISTAKES_PER_CLASS), names=names)
        if images:
            blocks.append({"title": f"{group.label}, run {group.first.name}", "images": images})
    return blocks


def read_mistakes(run: RunRecord, per_class: int, *, names: bool) -> list[dict[str, str]]:
    """Of each class the test images of which a run was most sure and wrong after the last task; none where the
    predictions or the images are not at hand any more."""
    if not has_predictions(run):
        return []
    try:
        last = stored_predictions(run)[-1]
        reader = kept_table(load_settings(run.settings)).reader
        predicted = last.predicted("softmax")
        probability = softmax(last.scores.astype(np.float64), axis=1).max(axis=1)
        mistakes = []
        for label, true in enumerate(last.classes):
            wrong = np.flatnonzero((last.labels == label) & (predicted != label))
            for i in wrong[np.argsort(-probability[wrong], kind="stable")][:per_class].tolist():
                uri = jpeg_uri(reader.read(last.images[i], 2 * MISTAKE), MISTAKE)
                other, share = last.classes[int(predicted[i])], f"{100 * probability[i]:.0f}\N{NO-BREAK SPACE}%"
                text = f"{true}, taken for {other}, {share}" + (f": {last.images[i]}" if names else "")
                mistakes.append({"uri": uri, "text": text, "true": true, "predicted": other, "share": share})
    except EndocilError:
        return []
    return mistakes
