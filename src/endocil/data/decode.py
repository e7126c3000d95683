"""Image files as square 8-bit RGB pixels. Large JPEGs go through libjpeg-turbo, everything else through Pillow.

The rules do not depend on what else is in the image. Transparent areas become black. Gray with 16 bits is scaled by
the full range of 16 bits. Gray with 32 bits and floats have no fixed range, so the largest value decides: integers up
to 255 are 8 bits and up to 65535 are 16 bits; floats up to 1 are fractions, up to 255 are 8 bits and up to 65535 are
16 bits. Other values are refused.
"""

import errno
import hashlib
import io
import os
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
import simplejpeg
from PIL import ExifTags, Image, TiffImagePlugin

from endocil.data.table import Reader, UnreadableImageError
from endocil.errors import ResourceError
from endocil.io.files import UnfitFileError, read_whole, refuse_special
from endocil.io.terminal import one_line

BILINEAR = Image.Resampling.BILINEAR  # Pillow averages over all the pixels that shrink into one
MAX_PIXELS = 89_478_485  # Pillow's own limit; a small file can claim a larger size and fill the memory
MAX_SCANS = 100  # of a JPEG; ten are usual, and a small file can hold thousands, each a pass over all pixels
RULES = "decode rules 3"  # raise it when the pixels of the same file come out differently
_STRIP = 2**20  # pixels that are converted at a time, so that a large image is not held in several forms

_ORIENTATIONS = {
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
class FolderReader:
    """The files of images below a folder; an image's id is its path there."""

    root: Path

    def path(self, image_id: str) -> Path:
        return self.root / image_id

    def rules(self) -> str:
        return RULES

    def fingerprint(self, ids: Sequence[str]) -> str:
        """Rules, folder, sizes and times of the files, so that a changed file is decoded again."""
        digest = hashlib.sha256(f"{self.rules()}\0{self.root.resolve()}".encode(errors="surrogateescape"))
        for image_id in ids:
            digest.update(stamp(str(self.path(image_id))).encode())
        return digest.hexdigest()


@dataclass(frozen=True)
class FileReader(FolderReader):
    """Reads image files, upright."""

    def read(self, image_id: str, size: int) -> np.ndarray:
        return decode(read_file(self.path(image_id)), size)

    def whole(self, image_id: str) -> Image.Image:
        return decode_whole(read_file(self.path(image_id)))

    def dimensions(self, image_id: str) -> tuple[int, int]:
        return read_dimensions(self.path(image_id))


def file_of(reader: Reader, image_id: str) -> Path | None:
    """The file of an image, where the reader has a method `path`."""
    path = getattr(reader, "path", None)
    return path(image_id) if callable(path) else None


def dimensions_of(reader: Reader, image_id: str) -> tuple[int, int]:
    """Width and height, by the reader's method `dimensions` or the image's file; (0, 0) where there is neither."""
    dimensions = getattr(reader, "dimensions", None)
    path = file_of(reader, image_id)
    try:
        return dimensions(image_id) if callable(dimensions) else read_dimensions(path) if path else (0, 0)
    except UnreadableImageError:  # not an image, or removed since it was read
        return 0, 0


def decode(data: bytes, size: int) -> np.ndarray:
    """The bytes of an image file as (size, size, 3) uint8 RGB; raises UnreadableImageError with a reason."""
    image = _open(io.BytesIO(data))
    _refuse_scans(data, image)
    try:
        pixels = shrink_jpeg(data, image, size)
        if pixels is None:
            pixels = np.asarray(to_rgb(image).resize((size, size), BILINEAR))
        turn = _orientation(image)
        return pixels if turn is None else np.asarray(Image.fromarray(pixels).transpose(turn))
    except _DAMAGED as error:
        raise UnreadableImageError(one_line(error)) from error


def decode_whole(data: bytes) -> Image.Image:
    """The bytes of an image file as RGB in its own size, upright; raises UnreadableImageError with a reason."""
    image = _open(io.BytesIO(data))
    _refuse_scans(data, image)
    try:
        rgb, turn = to_rgb(image), _orientation(image)
        return rgb if turn is None else rgb.transpose(turn)
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
    except (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError, UnfitFileError) as error:
        raise UnreadableImageError(error.strerror or str(error)) from error
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENAMETOOLONG):
            raise UnreadableImageError(error.strerror) from error
        # the disk or the network fails, not this image: not recorded as unreadable
        raise ResourceError(f"cannot read {path}: {error.strerror or error}; try again") from error


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
    refuse_large(image.size, MAX_PIXELS)
    refuse_large(tile_size(image), MAX_PIXELS)
    return image


def tile_size(header: Image.Image) -> tuple[int, int]:
    """Width and height of the pieces that a TIFF is stored in, which are decoded whole; (0, 0) for other images."""
    tags = header.tag_v2 if isinstance(header, TiffImagePlugin.TiffImageFile) else {}
    sizes = (tags.get(tag) for tag in (TiffImagePlugin.TILEWIDTH, TiffImagePlugin.TILELENGTH))
    width, height = (size if isinstance(size, int) else 0 for size in sizes)
    return width, height


def refuse_large(size: tuple[int, int], most: int) -> None:
    """Raises UnreadableImageError where width x height is more than `most` pixels."""
    if size[0] * size[1] > most:
        raise UnreadableImageError(f"{size[0]} x {size[1]} pixels; at most {most:,} are accepted")


def _refuse_scans(data: bytes, header: Image.Image) -> None:
    scans = data.count(b"\xff\xda") if header.format in ("JPEG", "MPO") else 0  # pixels never hold this marker
    if scans > MAX_SCANS:
        raise UnreadableImageError(f"a JPEG of {scans:,} scans; at most {MAX_SCANS} are accepted")


def _orientation(header: Image.Image) -> Image.Transpose | None:
    """What makes the image upright, by the EXIF orientation."""
    try:
        return _ORIENTATIONS.get(header.getexif().get(ExifTags.Base.Orientation, 1))
    except _DAMAGED:  # damaged EXIF data does not make the image unreadable
        return None


def stamp(path: str) -> str:
    """Size, time and mode of a file, as a text."""
    try:
        status = os.stat(path)
    except OSError:
        return "missing;"
    return f"{status.st_size},{status.st_mtime_ns},{status.st_mode};"  # the mode: whether it may be read


def to_rgb(image: Image.Image) -> Image.Image:
    """Raises ValueError with the reason where the range of the values is not known."""
    image.load()
    if image.mode.startswith("I") or image.mode == "F":
        scale = _scale_of(image)
        return _by_strips(image, lambda strip: Image.fromarray(scale(np.asarray(strip))))
    if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
        return _by_strips(image, _over_black)
    return image if image.mode == "RGB" else image.convert("RGB")


def _by_strips(image: Image.Image, convert: Callable[[Image.Image], Image.Image]) -> Image.Image:
    """The whole image in RGB; a pixel's colour depends on no other pixel."""
    width, height = image.size
    rows = max(1, _STRIP // width)
    rgb = Image.new("RGB", image.size)
    for top in range(0, height, rows):
        rgb.paste(convert(image.crop((0, top, width, min(height, top + rows)))).convert("RGB"), (0, top))
    return rgb


def _over_black(image: Image.Image) -> Image.Image:
    over = image.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", over.size, (0, 0, 0, 255)), over)


def _scale_of(image: Image.Image) -> Callable[[np.ndarray], np.ndarray]:
    """What makes uint8 of gray values of more than 8 bits, or floats, by the range of the whole image."""
    values = np.asarray(image)  # (H, W)
    lowest, highest = values.min(), values.max()
    if not (lowest >= 0 and highest <= 65535):  # not a number is neither
        raise ValueError(
            f"gray values from {lowest} to {highest}; save it with 8 or 16 bits, values from 0 to 255 or 65535"
        )
    if values.dtype.kind == "f":
        scale = 255.0 if highest <= 1 else 1.0 if highest <= 255 else 1 / 257
        return lambda part: np.rint(part.astype(np.float64) * scale).astype(np.uint8)
    if values.dtype.itemsize > 2 and highest <= 255:
        return lambda part: part.astype(np.uint8)
    return lambda part: (part.astype(np.uint32) // 257).astype(np.uint8)


def shrink_jpeg(data: bytes, header: Image.Image, size: int) -> np.ndarray | None:
    """libjpeg-turbo decodes at 1/8, 1/4 or 1/2 where that leaves at least 9/8 of the size; that is shrunk on.

    None where Pillow has to decide: other formats, small images, CMYK, and files that libjpeg complains about."""
    if header.format not in ("JPEG", "MPO") or header.mode not in ("RGB", "L"):
        return None
    width, height = header.size
    part = next((part for part in (8, 4, 2) if 8 * min(width, height) >= 9 * size * part), 1)
    if part == 1:
        return None
    try:
        pixels = simplejpeg.decode_jpeg(data, "RGB", min_height=-(-height // part), min_width=-(-width // part))
    except ValueError:
        return None
    if width % part or height % part:
        # sizes were rounded up: without the box, 531 pixels at 1/4 would be squeezed as if they were 532
        box = (0, 0, width / part, height / part)
        return np.asarray(Image.fromarray(pixels).resize((size, size), BILINEAR, box=box))
    import torch  # here: a process that draws synthetic images would start slowly with it

    # Pillow's bilinear filter as torch computes it: three times as fast, some values differ by 1
    planes = torch.from_numpy(pixels)[None].permute(0, 3, 1, 2)  # (1, 3, H, W), channels last in memory
    small = torch.nn.functional.interpolate(planes, (size, size), mode="bilinear", antialias=True)
    return np.ascontiguousarray(small.permute(0, 2, 3, 1).numpy()[0])  # (size, size, 3)
