"""From the bytes of an upload to what the network sees, by the rules that read files."""

import io
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from PIL import Image

from endocil.bundle.manifest import Preprocessing
from endocil.images.decode import decode, decode_whole
from endocil.images.frame import Cropped
from endocil.images.table import UnreadableImageError

FORMATS = ("BMP", "JPEG", "PNG", "TIFF", "WEBP")  # no others: some formats start outside programs


@dataclass(frozen=True)
class Uploaded:
    """A reader of one image, which is in memory."""

    data: bytes

    def read(self, image_id: str, size: int) -> np.ndarray:
        return decode(self.data, size)

    def whole(self, image_id: str) -> Image.Image:
        return decode_whole(self.data)

    def fingerprint(self, ids: Sequence[str]) -> str:
        return ""  # nothing of it is kept


def pixels_of(data: bytes, rules: Preprocessing, most_pixels: int) -> np.ndarray:
    """(size, size, 3) uint8; raises UnreadableImageError with a reason that tells nothing of this machine."""
    refuse_large(data, most_pixels)
    reader = Uploaded(data)
    return (Cropped(reader) if rules.crop_frame else reader).read("", rules.size)


def claimed(data: bytes) -> tuple[int, int]:
    """Width and height by the header alone; (0, 0) of what is no picture: the decoder says it better."""
    try:
        with Image.open(io.BytesIO(data), formats=FORMATS) as header:
            return header.size
    except Exception:
        return 0, 0


def refuse_large(data: bytes, most_pixels: int) -> None:
    """A small file can claim to be a picture that fills the memory."""
    width, height = claimed(data)
    if width * height > most_pixels:
        raise UnreadableImageError(f"{width} x {height} pixels; at most {most_pixels:,} are accepted")
