"""Images of any shape as squares: stretched, or padded with black (`data.fit`)."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from PIL import Image

from endocil.data.black_frame import Box, Cropped, cropped
from endocil.data.readers import WrappedReader
from endocil.data.table import ImageTable, Reader, WholeReader
from endocil.errors import DataError

Fit = Literal["stretch", "pad"]
RULES = "padding rules 1"  # raise it when the same image is padded differently


@dataclass(frozen=True)
class Padded(WrappedReader):
    """The images of another reader in their own proportions, in the middle of a black square."""

    reader: WholeReader

    def read(self, image_id: str, size: int) -> np.ndarray:
        return pad(self.reader.whole(image_id), size)

    def whole(self, image_id: str) -> Image.Image:
        """In its own size, without padding."""
        return self.reader.whole(image_id)

    def fingerprint(self, ids: Sequence[str]) -> str:
        return f"{RULES}; {self.reader.fingerprint(ids)}"


def pad(image: Image.Image, size: int) -> np.ndarray:
    """The longer side becomes `size` pixels, the shorter one as many as its share, rounded; the rest is black.

    Where an odd number of rows or columns is left over, the last side has one more."""
    left, top, right, bottom = padded_box(image.size, size)
    pixels = np.zeros((size, size, 3), np.uint8)
    small = image.resize((right - left, bottom - top), Image.Resampling.BILINEAR)
    pixels[top:bottom, left:right] = np.asarray(small)
    return pixels


def padded_box(dimensions: tuple[int, int], size: int) -> Box:
    """Where an image of this width and height lies in the padded square."""
    longer = max(dimensions)
    width, height = (max(1, (2 * size * side + longer) // (2 * longer)) for side in dimensions)
    left, top = (size - width) // 2, (size - height) // 2
    return left, top, left + width, top + height


def original_of(reader: Reader, image_id: str) -> Image.Image | None:
    """The image as it was before it was cropped or padded; None where the reader gives none in its own size."""
    while isinstance(reader, Padded | Cropped):
        reader = reader.reader
    return reader.whole(image_id) if isinstance(reader, WholeReader) else None


def prepared(table: ImageTable, *, crop_frame: bool, fit: Fit) -> ImageTable:
    """The same images, cropped and padded as `data.crop_frame` and `data.fit` say."""
    table = cropped(table) if crop_frame else table
    if fit == "stretch":
        return table
    if not isinstance(table.reader, WholeReader):
        raise DataError(
            f"data.fit is 'pad', but {type(table.reader).__name__} gives no image in its own size; "
            f"leave data.fit out, or give the reader a method whole(image_id)"
        )
    return replace(table, reader=Padded(table.reader))


def prepared_reader(reader: WholeReader, *, crop_frame: bool, fit: Fit) -> Reader:
    """The same for a reader without a table."""
    seen: WholeReader = Cropped(reader) if crop_frame else reader
    return Padded(seen) if fit == "pad" else seen
