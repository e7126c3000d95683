"""Image files into square pixels. Large JPEGs go through libjpeg-turbo, everything else through Pillow.

The image is resized to size x size directly, whatever its shape, as the paper does. Of a file with several
pages or an animation the first one counts.
"""

import hashlib
import io
import os
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
from PIL import ExifTags, Image

from endocil.errors import EndocilError
from endocil.images.jpeg import BILINEAR, shrink_jpeg
from endocil.images.modes import to_rgb
from endocil.images.table import Reader, UnreadableImageError
from endocil.opening import UnfitFileError, read_whole, refuse_special

IMAGE_SUFFIXES = frozenset({".bmp", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp"})
MAX_PIXELS = 89_478_485  # Pillow's own limit; a small file can claim to be larger and fill the memory
RULES = "decode rules 3"  # raise it when the pixels of the same file come out differently

_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_DAMAGED = (OSError, SyntaxError, ValueError, KeyError, EOFError, MemoryError, struct.error)
_FORMATS = ("BMP", "JPEG", "PNG", "TIFF", "WEBP")  # no others: some formats start outside programs


@dataclass(frozen=True)
class FileReader:
    """Reads image files below a folder; an image's id is its path there."""

    root: Path

    def read(self, image_id: str, size: int) -> np.ndarray:
        """(size, size, 3) uint8 RGB; raises UnreadableImageError with a reason."""
        return decode(self._bytes(image_id), size)

    def whole(self, image_id: str) -> Image.Image:
        """The image in its own size, RGB and upright; raises UnreadableImageError with a reason."""
        return decode_whole(self._bytes(image_id))

    def _bytes(self, image_id: str) -> bytes:
        return read_file(self.root / image_id)

    def dimensions(self, image_id: str) -> tuple[int, int]:
        """Width and height as the file's header has them; raises UnreadableImageError with a reason."""
        return read_dimensions(self.root / image_id)

    def path(self, image_id: str) -> Path:
        return self.root / image_id

    def fingerprint(self, ids: Sequence[str]) -> str:
        """Folder, sizes and times of the files, so that a changed file is decoded again."""
        digest = hashlib.sha256(f"{RULES}\0{self.root.resolve()}".encode(errors="surrogateescape"))
        for image_id in ids:
            digest.update(stamp(os.path.join(self.root, image_id)).encode())
        return digest.hexdigest()


def file_of(reader: Reader, image_id: str) -> Path | None:
    """The file of an image, where the reader reads files and tells them by a method `path`."""
    path = getattr(reader, "path", None)
    return path(image_id) if callable(path) else None


def dimensions_of(reader: Reader, image_id: str) -> tuple[int, int]:
    """Width and height of an image, told by a method `dimensions` or by its file; (0, 0) where neither tells."""
    told = getattr(reader, "dimensions", None)
    path = None if callable(told) else file_of(reader, image_id)
    try:
        return told(image_id) if callable(told) else read_dimensions(path) if path else (0, 0)
    except UnreadableImageError:  # no picture, or removed since it was read
        return 0, 0


def decode(data: bytes, size: int) -> np.ndarray:
    """The bytes of an image file as (size, size, 3) uint8 RGB; raises UnreadableImageError with a reason."""
    image = _open(io.BytesIO(data))
    try:
        pixels = shrink_jpeg(data, image, size)
        if pixels is None:
            pixels = np.asarray(to_rgb(image).resize((size, size), BILINEAR))
        turn = _turn_of(image)
        return pixels if turn is None else np.asarray(Image.fromarray(pixels).transpose(turn))
    except _DAMAGED as error:
        raise UnreadableImageError(one_line(error)) from error


def decode_whole(data: bytes) -> Image.Image:
    """The bytes of an image file as RGB in its own size, upright; raises UnreadableImageError with a reason."""
    image = _open(io.BytesIO(data))
    try:
        picture, turn = to_rgb(image), _turn_of(image)
        return picture if turn is None else picture.transpose(turn)
    except _DAMAGED as error:
        raise UnreadableImageError(one_line(error)) from error


def read_file(path: Path) -> bytes:
    """The bytes of a file; one that is not there, or may not be read, is an unreadable image."""
    with _unreadable(path):
        return read_whole(path)


def read_dimensions(path: Path) -> tuple[int, int]:
    """Width and height of an image file, from its header alone."""
    with _unreadable(path):
        refuse_special(path)
        with open(path, "rb") as file:
            return _open(file).size


@contextmanager
def _unreadable(path: Path) -> Iterator[None]:
    try:
        yield
    except (FileNotFoundError, PermissionError, IsADirectoryError, UnfitFileError) as error:
        raise UnreadableImageError(error.strerror or str(error)) from error
    except OSError as error:  # the disk or the network fails, not this image: nothing to remember
        raise EndocilError(f"cannot read {path}: {error.strerror or error}; try again") from error


def _open(file: IO[bytes]) -> Image.Image:
    """Reads the header alone."""
    if not file.read(1):
        raise UnreadableImageError("the file is empty")
    file.seek(0)
    try:
        image = Image.open(file, formats=_FORMATS)
    except Image.DecompressionBombError as error:
        raise UnreadableImageError(one_line(error)) from error
    except _DAMAGED as error:
        raise UnreadableImageError("not a BMP, JPEG, PNG, TIFF or WebP image, or damaged") from error
    if image.width * image.height > MAX_PIXELS:
        raise UnreadableImageError(
            f"{image.width} x {image.height} pixels; at most {MAX_PIXELS:,} are accepted"
        )
    return image


def _turn_of(header: Image.Image) -> Image.Transpose | None:
    """What makes the picture upright, by the orientation that the camera noted in the file."""
    try:
        return _TURNS.get(header.getexif().get(ExifTags.Base.Orientation, 1))
    except _DAMAGED:  # damaged notes of the camera do not make the picture unreadable
        return None


def stamp(path: str) -> str:
    """Size, time and mode of a file, as a text."""
    try:
        status = os.stat(path)
    except OSError:
        return "missing;"
    return f"{status.st_size},{status.st_mtime_ns},{status.st_mode};"  # the mode: whether it may be read


def one_line(error: BaseException) -> str:
    """What an exception says, or else its name."""
    return " ".join(str(error).split()) or type(error).__name__
