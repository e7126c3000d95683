"""Images on the page: exemplars with where they come from, and test images that a method took for another class."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from endocil.errors import EndocilError
from endocil.html.markup import jpeg_uri
from endocil.html.tables import PageTable, text_table
from endocil.io.tables import DASH
from endocil.model.predictions import read_run_predictions
from endocil.reports.averages import Runs
from endocil.runs.build import kept_table
from endocil.runs.paired_predictions import has_predictions
from endocil.runs.records import RunRecord
from endocil.settings.settings import load_settings

THUMBNAIL = 64  # pixels of an exemplar
MISTAKE = 96  # pixels of a misclassified image
MOST_PICTURES = 600  # on one page: as JPEG about 2 MB
PER_CLASS = 5  # pictures of a class, if there is room for them
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


@dataclass(frozen=True, eq=False)
class Mistake:
    """A test image that was given to another class after the last task."""

    image: str
    true: str
    predicted: str
    probability: float
    pixels: np.ndarray  # (H, W, 3) uint8


def room_for(n_runs: int, n_classes: int) -> int:
    """How many exemplars of each class of each run may be shown."""
    return max(1, min(PER_CLASS, MOST_PICTURES // max(1, n_runs * n_classes)))


def exemplar_gallery(groups: Sequence[Runs], pictures: Gallery, *, names: bool) -> list[dict[str, Any]]:
    """The first exemplars of each class in each run; `names`: with the names of images and groups."""
    return [
        {
            "title": f"{group.label}, run {run.name}",
            "classes": [
                {
                    "name": name,
                    "images": [_thumbnail(name, image, names) for image in images],
                    "provenance": _provenance(name, images, names),
                }
                for name, images in pictures[run.name].items()
            ],
        }
        for group in groups
        for run in group.results
        if pictures.get(run.name)
    ]


def _thumbnail(name: str, image: Exemplar, names: bool) -> dict[str, str]:
    text = f"{name}, choice {image.order + 1}" + (f": {image.image}" if names else "")
    return {"uri": jpeg_uri(image.pixels, THUMBNAIL), "text": text}


def _provenance(name: str, images: Sequence[Exemplar], names: bool) -> PageTable:
    """Columns that say nothing are left out; a task that all have in common stands in the caption."""
    tasks = [_counted_from_one(image.task) for image in images]
    several = len(set(tasks)) > 1
    columns = {
        "Choice": [str(image.order + 1) for image in images],
        "Image": [_inside(name, image.image) if names else "" for image in images],
        "Task": tasks if several else [""],
        "Group": [_inside(name, _group(image)) if names else "" for image in images],
        "Source": [image.source for image in images],
    }
    filled = {title: cells for title, cells in columns.items() if any(cells)}
    rows = [[cell or DASH for cell in row] for row in zip(*filled.values(), strict=True)]
    caption = f"Exemplars of {name}" + ("" if several else f", from task {tasks[0]}")
    return text_table(caption, list(filled), rows, numeric_from=len(filled), long=LONG)


def _counted_from_one(task: str) -> str:
    return str(int(task) + 1) if task.isdecimal() else task


def _group(image: Exemplar) -> str:
    """Empty where a group is called after this very image: near duplicates are called after one of them."""
    return "" if image.group == image.image else image.group


def _inside(class_name: str, path: str) -> str:
    """The path from the class's folder on, which the heading names; whole where it is in no such folder."""
    _, folder, after = f"/{path}".rpartition(f"/{class_name}/")
    return after if folder else path


def mistake_gallery(groups: Sequence[Runs], pictures: Gallery | None, *, names: bool) -> list[dict[str, Any]]:
    """Of the first seed of each experiment whose images may be shown: those of `pictures`, and those whose settings
    allow it (run.gallery). None shows nothing."""
    if pictures is None:
        return []
    shown = [
        group
        for group in groups
        if group.first.name in pictures or group.first.settings.get("run", {}).get("gallery")
    ]
    blocks = []
    for group in shown:
        room = room_for(
            2 * len(shown), len(group.first.metrics["classes"])
        )  # the exemplars take the other half
        mistakes = read_mistakes(group.first, min(room, MISTAKES_PER_CLASS))
        images = [_mistake(mistake, names) for mistake in mistakes]
        if images:
            blocks.append({"title": f"{group.label}, run {group.first.name}", "images": images})
    return blocks


def _mistake(mistake: Mistake, names: bool) -> dict[str, str]:
    share = f"{100 * mistake.probability:.0f}\N{NO-BREAK SPACE}%"
    text = f"{mistake.true}, taken for {mistake.predicted}, {share}" + (f": {mistake.image}" if names else "")
    uri = jpeg_uri(mistake.pixels, MISTAKE)
    return {"uri": uri, "text": text, "true": mistake.true, "predicted": mistake.predicted, "share": share}


def read_mistakes(run: RunRecord, per_class: int) -> list[Mistake]:
    """Of each class the test images of which a run was most sure and wrong after the last task; none where the
    predictions or the images are not at hand any more."""
    if not has_predictions(run):
        return []
    assert run.folder is not None
    files = [run.folder / "predictions" / f"task-{t}.csv" for t in range(len(run.metrics["task_sizes"]))]
    try:
        last = read_run_predictions(files)[-1]
        reader = kept_table(load_settings(run.settings)).reader
        predicted = last.predicted("softmax")
        scores = last.scores.astype(np.float64)
        exponents = np.exp(scores - scores.max(axis=1, keepdims=True))
        probability = exponents.max(axis=1) / exponents.sum(axis=1)
        wrong = np.flatnonzero(predicted != last.labels)
        taken: Counter[int] = Counter()
        mistakes = []
        for i in wrong[np.argsort(-probability[wrong], kind="stable")].tolist():
            label = int(last.labels[i])
            taken[label] += 1
            if taken[label] <= per_class:
                pixels = reader.read(last.images[i], 2 * MISTAKE)
                names = (last.images[i], last.classes[label], last.classes[int(predicted[i])])
                mistakes.append(Mistake(*names, float(probability[i]), pixels))
    except EndocilError:
        return []
    return sorted(mistakes, key=lambda mistake: last.classes.index(mistake.true))
