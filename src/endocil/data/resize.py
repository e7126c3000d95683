"""Images as the network sees them: the black frame cropped in full size, then stretched or padded to a square."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from PIL import Image

from endocil.data.readers import WrappedReader
from endocil.data.table import ImageTable, Reader, WholeReader
from endocil.errors import DataError

Fit = Literal["stretch", "pad"]  # data.fit
PADDING_RULES = "padding rules 1"  # raise it when the same image is padded differently
FRAME_RULES = "frame rules 1"  # raise it when the same image gets another box
BLACK = 28  # the brightest channel of what is still black: video black is 16, JPEG and noise add to it
SQUARES = 64  # along the longer side
SMALLEST = 0.1  # share of the image that the box of a view has at least
EDGE = 0.1  # share of a row or column that is lit where the view begins

Box = tuple[int, int, int, int]  # left, top, right, bottom, as Pillow has it


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
        return f"{PADDING_RULES}; {self.reader.fingerprint(ids)}"


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


# --- the black frame (`data.crop_frame`)
#
# The image is divided into squares, 64 along its longer side. A square is lit where half its pixels are brighter than
# black; neither text nor specks of noise fill a square. The largest connected area of lit squares is the view. Its box
# grows by one square on each side, and black rows and columns are trimmed off again, so that it is exact to the pixel.
# A view of less than a tenth of the image is not trusted: then nothing is cut.


@dataclass(frozen=True)
class Cropped(WrappedReader):
    """The images of another reader, without the black frame.

    The dimensions stay those of the whole image: only decoding it would find the view."""

    reader: WholeReader

    def read(self, image_id: str, size: int) -> np.ndarray:
        view = self.whole(image_id)  # resize(box=...) of the whole image would mix in some of the frame
        return np.asarray(view.resize((size, size), Image.Resampling.BILINEAR))

    def whole(self, image_id: str) -> Image.Image:
        """The view in its own size."""
        image = self.reader.whole(image_id)
        return image.crop(find_view(np.asarray(image)))

    def fingerprint(self, ids: Sequence[str]) -> str:
        return f"{FRAME_RULES}; {self.reader.fingerprint(ids)}"


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
    starts = [np.arange(0, length, side) for length in lit.shape]
    n_lit = np.add.reduceat(np.add.reduceat(lit, starts[0], axis=0, dtype=np.int64), starts[1], axis=1)
    tall, wide = (np.diff(start, append=length) for start, length in zip(starts, lit.shape, strict=True))
    view = largest_area(np.asarray(2 * n_lit >= np.outer(tall, wide)))  # squares at the right and bottom may be cut off
    if not view.any():
        return 0, 0, width, height
    spans = [np.flatnonzero(view.any(axis=axis))[[0, -1]].tolist() for axis in (1, 0)]  # first and last lit square
    (top, bottom), (left, right) = ((max(0, (first - 1) * side), (last + 2) * side) for first, last in spans)
    rows = _trim(lit[top:bottom, left:right].mean(axis=1), top)
    columns = _trim(lit[rows[0] : rows[1], left:right].mean(axis=0), left)
    if (rows[1] - rows[0]) * (columns[1] - columns[0]) < SMALLEST * height * width:
        return 0, 0, width, height
    return columns[0], rows[0], columns[1], rows[1]


def largest_area(cells: np.ndarray) -> np.ndarray:
    """The largest area of true cells that touch by a side; of those of one size, the one that ends first."""
    from scipy import ndimage  # here: its import takes a while, and few need it

    numbers, n = ndimage.label(cells[::-1, ::-1])  # from the end: the highest number ends first
    sizes = np.bincount(numbers.ravel(), minlength=n + 1)[:0:-1]  # without the background, the highest number first
    return np.asarray(cells & (numbers[::-1, ::-1] == n - sizes.argmax())) if n else cells


def _trim(share: np.ndarray, start: int) -> tuple[int, int]:
    """From the first to behind the last line that is lit; the lines begin at `start`."""
    lines = np.flatnonzero(share >= EDGE)
    return start + int(lines[0]), start + int(lines[-1]) + 1


# --- both


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
