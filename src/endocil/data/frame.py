"""The scope's view without the black frame around it, cut out at full resolution before the image is resized.

The image is divided into squares, 64 along its longer side. A square is lit where half its pixels are brighter than
black; neither text nor specks of noise fill a square. The largest connected area of lit squares is the view. Its box
grows by one square on each side, and black rows and columns are trimmed off again, so that it is exact to the pixel.
A view of less than a tenth of the image is not trusted: then nothing is cut.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from PIL import Image

from endocil.data.decode import dimensions_of, file_of
from endocil.data.table import ImageTable, WholeReader
from endocil.errors import DataError

RULES = "frame rules 1"  # raise it when the same image gets another box
BLACK = 28  # the brightest channel of what is still black: video black is 16, JPEG and noise add to it
SQUARES = 64  # along the longer side
SMALLEST = 0.1  # share of the image that the box of a view has at least
EDGE = 0.1  # share of a row or column that is lit where the view begins

Box = tuple[int, int, int, int]  # left, top, right, bottom, as Pillow has it


@dataclass(frozen=True)
class Cropped:
    """The images of another reader, without the black frame."""

    reader: WholeReader

    @property
    def in_processes(self) -> bool:
        return bool(getattr(self.reader, "in_processes", False))

    def read(self, image_id: str, size: int) -> np.ndarray:
        """(size, size, 3) uint8 RGB; raises UnreadableImageError with a reason."""
        view = self.whole(image_id)  # resize(box=...) of the whole image would mix in some of the frame
        return np.asarray(view.resize((size, size), Image.Resampling.BILINEAR))

    def whole(self, image_id: str) -> Image.Image:
        """The view in its own size."""
        image = self.reader.whole(image_id)
        return image.crop(find_view(np.asarray(image)))

    def dimensions(self, image_id: str) -> tuple[int, int]:
        """Of the whole image: only decoding it would find the view."""
        return dimensions_of(self.reader, image_id)

    def fingerprint(self, ids: Sequence[str]) -> str:
        return f"{RULES}; {self.reader.fingerprint(ids)}"

    def path(self, image_id: str) -> Path | None:
        return file_of(self.reader, image_id)


def cropped(table: ImageTable) -> ImageTable:
    """The same images without their black frames (data.crop_frame)."""
    if not isinstance(table.reader, WholeReader):
        raise DataError(
            f"data.crop_frame is set, but {type(table.reader).__name__} gives no image in its own size; "
            f"leave data.crop_frame out, or give the reader a method whole(image_id)"
        )
    return replace(table, reader=Cropped(table.reader))


def find_view(pixels: np.ndarray) -> Box:
    """The box of the scope's view in an (H, W, 3) uint8 image; the whole image where none is found."""
    height, width = pixels.shape[:2]
    lit = pixels.max(axis=2) > BLACK  # (H, W)
    side = -(-max(height, width) // SQUARES)
    view = largest_area(_lit_squares(lit, side))
    if not view.any():
        return 0, 0, width, height
    (top, bottom), (left, right) = (_span(np.asarray(view.any(axis=axis)), side) for axis in (1, 0))
    rows = _trim(lit[top:bottom, left:right].mean(axis=1), top)
    columns = _trim(lit[rows[0] : rows[1], left:right].mean(axis=0), left)
    if (rows[1] - rows[0]) * (columns[1] - columns[0]) < SMALLEST * height * width:
        return 0, 0, width, height
    return columns[0], rows[0], columns[1], rows[1]


def largest_area(cells: np.ndarray) -> np.ndarray:
    """The largest area of true cells that touch by a side."""
    names = np.where(cells, np.arange(1, cells.size + 1).reshape(cells.shape), 0)
    while True:  # every cell takes the greatest name around it until nothing changes
        padded = np.pad(names, 1)
        around = np.maximum.reduce(
            [names, padded[:-2, 1:-1], padded[2:, 1:-1], padded[1:-1, :-2], padded[1:-1, 2:]]
        )
        spread = np.where(cells, around, 0)
        if (spread == names).all():
            break
        names = spread
    sizes = np.bincount(names.ravel())
    sizes[0] = 0
    return np.asarray(cells & (names == sizes.argmax()))


def _lit_squares(lit: np.ndarray, side: int) -> np.ndarray:
    """Which squares of side x side pixels are lit; those at the right and the bottom may be cut off."""
    height, width = lit.shape
    starts = np.arange(0, height, side), np.arange(0, width, side)
    sums = np.add.reduceat(np.add.reduceat(lit.astype(np.int64), starts[0], axis=0), starts[1], axis=1)
    tall, wide = (np.diff(np.append(edge, end)) for edge, end in zip(starts, (height, width), strict=True))
    return np.asarray(2 * sums >= tall[:, None] * wide[None, :])


def _span(lit: np.ndarray, side: int) -> tuple[int, int]:
    """First and last pixel of the lit squares of a line, and one square more on each side."""
    squares = np.flatnonzero(lit)
    return max(0, (int(squares[0]) - 1) * side), (int(squares[-1]) + 2) * side


def _trim(share: np.ndarray, start: int) -> tuple[int, int]:
    """From the first to behind the last line that is lit; the lines begin at `start`."""
    lines = np.flatnonzero(share >= EDGE)
    return start + int(lines[0]), start + int(lines[-1]) + 1
