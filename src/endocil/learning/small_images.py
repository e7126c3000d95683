"""A few generated images in memory, without a file or a cache: for checks of methods."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from endocil.data.cache import Images
from endocil.data.table import ImageTable
from endocil.datasets.synthetic import CLASSES, render
from endocil.errors import EndocilError


class NoReader:
    """The pixels are drawn: there is nothing to read."""

    def read(self, image_id: str, size: int) -> Any:
        raise EndocilError(f"{image_id} is not in a file")

    def fingerprint(self, ids: Any) -> str:
        return ""


def small_images(counts: Sequence[int], size: int) -> Images:
    """So many images of each class, of size x size pixels."""
    labels = np.repeat(np.arange(len(counts)), counts)
    kinds = sorted(CLASSES)[: len(counts)]
    pixels = np.stack([render(0, kinds[label], i, size) for i, label in enumerate(labels)])
    ids = tuple(f"{kinds[label]}/{i:03d}" for i, label in enumerate(labels))
    unknown = ("",) * len(labels)
    table = ImageTable(ids=ids, labels=labels, classes=tuple(kinds), reader=NoReader(), groups=unknown, sources=unknown)
    return Images(table, torch.from_numpy(pixels), torch.arange(len(labels)), ())
