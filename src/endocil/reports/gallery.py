"""Exemplars as small pictures inside the page, with where they come from."""

import base64
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from PIL import Image

from endocil.html.markup import details, escaped, plain_table
from endocil.io.tables import DASH
from endocil.reports.averages import Runs

THUMBNAIL = 64  # pixels
QUALITY = 85  # of the JPEG pictures: 600 of them are about 2 MB of page
MOST_PICTURES = 600  # on one page
PER_CLASS = 5  # pictures of a class, if there is room for them
LONG = ("Image", "Group")  # columns of names, which may be broken anywhere


@dataclass(frozen=True, eq=False)
class Exemplar:
    """One image that a run kept."""

    image: str
    order: int  # 0 was chosen first
    task: str  # that brought it
    group: str
    source: str
    pixels: np.ndarray  # (H, W, 3) uint8


Gallery = Mapping[str, Mapping[str, Sequence[Exemplar]]]  # name of a run -> class -> exemplars


def room_for(n_runs: int, n_classes: int) -> int:
    """How many exemplars of each class of each run may be shown."""
    return max(1, min(PER_CLASS, MOST_PICTURES // max(1, n_runs * n_classes)))


def gallery(groups: Sequence[Runs], pictures: Gallery, *, names: bool) -> str:
    """The first exemplars of each class in each run; `names`: with the names of images and groups."""
    shown = [(group, run.name) for group in groups for run in group.results if pictures.get(run.name)]
    blocks = []
    for group, name in shown:
        body = "".join(_class(c, images, names) for c, images in pictures[name].items())
        body = f'<div class="gallery">{body}</div>'
        told = f"{group.label}, run {name}"
        blocks.append(details(told, body) if len(shown) > 1 else f"<p>{escaped(told)}</p>{body}")
    note = (
        "<p>The first choices of each class, in the order in which they were chosen, as kept at the end.</p>"
    )
    return note + "".join(blocks) if blocks else ""


def _class(name: str, images: Sequence[Exemplar], names: bool) -> str:
    pictures = "".join(_thumbnail(name, image, names) for image in images)
    return (
        f"<figure><figcaption>{escaped(name)}</figcaption><div>{pictures}</div>"
        f"{details(f'Where those of {name} come from', _provenance(name, images, names))}</figure>"
    )


def _provenance(name: str, images: Sequence[Exemplar], names: bool) -> str:
    """Columns that say nothing are left out, a task that all share is told once."""
    tasks = {image.task for image in images}
    columns = {
        "Choice": [str(image.order + 1) for image in images],
        "Image": [_inside(name, image.image) if names else "" for image in images],
        "Task": [image.task if len(tasks) > 1 else "" for image in images],
        "Group": [_inside(name, _group(image)) if names else "" for image in images],
        "Source": [image.source for image in images],
    }
    telling = {title: cells for title, cells in columns.items() if any(cells)}
    rows = [[cell or DASH for cell in row] for row in zip(*telling.values(), strict=True)]
    caption = f"Exemplars of {name}" + (f", from task {images[0].task}" if len(tasks) == 1 else "")
    return plain_table(caption, list(telling), rows, numeric_from=len(telling), names=LONG)


def _group(image: Exemplar) -> str:
    """Empty where a group is called after this very image: near duplicates are called after one of them."""
    return "" if image.group == image.image else image.group


def _inside(class_name: str, path: str) -> str:
    """The path from the class's folder on, which the heading names; whole where it is in no such folder."""
    _, found, after = f"/{path}".rpartition(f"/{class_name}/")
    return after if found else path


def _thumbnail(name: str, image: Exemplar, names: bool) -> str:
    told = escaped(f"{name}, choice {image.order + 1}" + (f": {image.image}" if names else ""))
    return f'<img alt="{told}" title="{told}" src="{_data_uri(image.pixels)}">'


def _data_uri(pixels: np.ndarray) -> str:
    picture = Image.fromarray(pixels)
    picture.thumbnail((THUMBNAIL, THUMBNAIL))
    file = io.BytesIO()
    picture.save(file, "JPEG", quality=QUALITY, optimize=True)
    return "data:image/jpeg;base64," + base64.b64encode(file.getvalue()).decode("ascii")
