"""Which images to review, on a page and in a CSV list that `endocil learn` takes once its labels are filled in."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from endocil.data.inputs import Inputs
from endocil.data.resize import original_of
from endocil.data.table import UnreadableImageError
from endocil.errors import SettingsError
from endocil.html.markup import jpeg_uri, render_page
from endocil.io.files import csv_text, write_atomically, write_csv
from endocil.model import DISCLAIMER
from endocil.model.model import Model
from endocil.model.predictions import Predictions, top_classes

UNLIKE, UNCERTAIN = "unlike what was learned", "uncertain"
COLUMNS = ("path", "label", "why", "suggestion", "probability", "second", "second_probability", "ood_score", "frame")
SHOWN = 256  # pixels along the longer side of an image on the page


@dataclass(frozen=True)
class Item:
    """An image to review."""

    row: int  # of the predictions
    why: str
    suggestion: str
    probability: float
    second: str
    second_probability: float
    ood_score: float | None


def to_review(predictions: Predictions, *, below: float = 0.7, most: int = 200) -> list[Item]:
    """The images that are out of distribution, most unlike first, then those whose most probable class has a
    probability below `below`, least certain first; at most `most` in all."""
    if not 0 < below <= 1:
        raise SettingsError(f"--below is {below}; expected a probability above 0 and at most 1, such as 0.7")
    flags, scores = predictions.out_of_distribution, predictions.ood_score
    unlike, uncertain = list[Item](), list[Item]()
    for row in np.flatnonzero(predictions.readable).tolist():
        (first, p), (second, q) = (*top_classes(predictions.probabilities[row], predictions.classes, 2), ("", 0.0))[:2]
        flagged = flags is not None and bool(flags[row])
        score = None if scores is None else float(scores[row])
        item = Item(row, UNLIKE if flagged else UNCERTAIN, first, p, second, q, score)
        if flagged:
            unlike.append(item)
        elif p < below:
            uncertain.append(item)
    unlike.sort(key=lambda item: -(item.ood_score or 0.0))
    uncertain.sort(key=lambda item: item.probability)
    return [*unlike, *uncertain][:most]


def list_rows(items: Sequence[Item], inputs: Inputs, top: Path) -> tuple[list[tuple[str, ...]], bool]:
    """The lines of the CSV list, `label` empty, and whether its paths start at `top`; otherwise they are absolute."""
    files = [_file(inputs, item.row) for item in items]
    below = all(file.is_relative_to(top) for file, _ in files)
    rows: list[tuple[str, ...]] = [
        (
            file.relative_to(top).as_posix() if below else str(file),
            "",
            item.why,
            item.suggestion,
            f"{item.probability:.3f}",
            item.second,
            f"{item.second_probability:.3f}",
            "" if item.ood_score is None else f"{item.ood_score:.4g}",
            frame,
        )
        for item, (file, frame) in zip(items, files, strict=True)
    ]
    return rows, below


def _file(inputs: Inputs, row: int) -> tuple[Path, str]:
    """The file of an image, and its frame where it is one of several."""
    name, _, frame = inputs.names[row].rpartition("#")
    numbered = frame if name and frame.isdecimal() and not os.path.exists(inputs.names[row]) else ""
    return inputs.files[row].resolve(), numbered


def review_page(model: Model, items: Sequence[Item], inputs: Inputs, listing: str, lines: Sequence[str]) -> str:
    """The images as one HTML page; its script lets a physician fill in the list and save it.

    `listing`: the name of the list, and `lines` what stands in it, the column names first."""
    names = [inputs.names[item.row] for item in items]
    return render_page(
        "endocil.review",
        title=f"{len(items):,} images to review",
        disclaimer=DISCLAIMER,
        navigation=[],
        model=model.manifest.title,
        digest=model.digest[:8],
        listing=listing,
        classes=model.classes,
        unlike=UNLIKE,
        items=[(item, name, _picture(inputs, inputs.ids[item.row])) for item, name in zip(items, names, strict=True)],
        data={"file": listing, "lines": list(lines)},
    )


def _picture(inputs: Inputs, image_id: str) -> str:
    try:
        image = original_of(inputs.reader, image_id)
    except UnreadableImageError:  # it has changed since it was predicted
        image = None
    if image is None:
        return ""
    image.thumbnail((2 * SHOWN, 2 * SHOWN), Image.Resampling.BILINEAR)
    return jpeg_uri(np.asarray(image), SHOWN, quality=80)


def write_review(
    model: Model, inputs: Inputs, predictions: Predictions, page: Path, listing: Path, *, below: float, most: int
) -> tuple[list[Item], bool]:
    """Write both files; the images on them, and whether the paths of the list start at its folder."""
    items = to_review(predictions, below=below, most=most)
    rows, relative = list_rows(items, inputs, listing.resolve().parent)
    write_csv(listing, COLUMNS, rows)
    lines = [csv_text([row]).removesuffix("\n") for row in (COLUMNS, *rows)]
    write_atomically(page, review_page(model, items, inputs, listing.name, lines))
    return items, relative
