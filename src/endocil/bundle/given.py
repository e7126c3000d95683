"""Images, classes and groups as they are given from Python, into a table and pixels."""

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from endocil.bundle.inputs import Inputs, inputs_of
from endocil.errors import EndocilError
from endocil.images.reading import read_in_chunks
from endocil.images.table import ImageTable
from endocil.settings import DataSettings

Pictures = np.ndarray | Sequence[Any]  # (n, H, W, 3) uint8, or a sequence of arrays, PIL images and paths
Texts = np.ndarray | Sequence[str]


def read_given(
    images: Pictures,
    labels: Texts,
    groups: Texts | None,
    sources: Texts | None,
    task: int,
    data: DataSettings,
) -> tuple[ImageTable, torch.Tensor]:
    """`task`: names the pictures that have no name."""
    things = several(images)
    inputs = inputs_of(things, crop_frame=data.crop_frame) if len(things) else None
    n = len(inputs.ids) if inputs else 0
    for what, given in (("labels", labels), ("groups", groups), ("sources", sources)):
        if given is not None and len(given) != n:
            raise EndocilError(f"{n} images, but {len(given)} {what}; give one for each image")
    if inputs is None:
        raise EndocilError("there are no images to learn from")
    names = _texts(labels, "labels are the names of classes")
    if not all(names):
        raise EndocilError("labels are the names of classes: a text for each image, and none is empty")
    classes = tuple(sorted(set(names)))
    table = ImageTable(
        ids=_ids(things, inputs, task),
        labels=np.array([classes.index(name) for name in names], np.int64),
        classes=classes,
        reader=inputs.reader,
        groups=("",) * n if groups is None else _texts(groups, "groups are names of patients or videos"),
        sources=("",) * n if sources is None else _texts(sources, "sources are names of devices or centres"),
    )
    return table, _pixels(inputs, data.size)


def several(images: Pictures) -> Sequence[Any]:
    """Each on its own; a single array is a stack of pictures."""
    if isinstance(images, np.ndarray):
        if images.ndim != 4 or images.shape[3] != 3 or images.dtype != np.uint8:
            raise EndocilError(
                f"images are {images.dtype} of shape {images.shape}; expected uint8 (n, height, width, 3)"
            )
        return list(images)
    if isinstance(images, str | os.PathLike):
        raise EndocilError(f"images is the path {images}; expected a sequence of paths, pictures or arrays")
    return list(images)


def _ids(things: Sequence[Any], inputs: Inputs, task: int) -> tuple[str, ...]:
    """A path is its own name; a picture is named by the task and its number."""
    if len(things) != len(inputs.names):  # a file of several frames
        return inputs.names
    return tuple(
        name if isinstance(thing, str | os.PathLike) else f"task-{task}/{number:06d}"
        for number, (thing, name) in enumerate(zip(things, inputs.names, strict=True))
    )


def _pixels(inputs: Inputs, size: int) -> torch.Tensor:
    parts = []
    for pixels, failed in read_in_chunks(inputs.reader, inputs.ids, size, workers=os.cpu_count() or 1):
        if failed:
            number, reason = failed[0]
            raise EndocilError(f"the image {inputs.names[int(number)]} cannot be read: {reason}")
        parts.append(torch.from_numpy(np.array(pixels)))
    return torch.cat(parts)


def _texts(given: Texts, meaning: str) -> tuple[str, ...]:
    """Plain texts, also of an array of numpy."""
    for one in given:
        if not isinstance(one, str):
            raise EndocilError(f"{meaning}: a text for each image, but {one!r} is {type(one).__name__}")
    return tuple(str(one) for one in given)
