"""The images of a request: parsed while they arrive, held in memory only, decoded with the model's preprocessing."""

import io
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from math import prod

import numpy as np
from fastapi import Request
from PIL import Image
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from endocil.data.decode import BILINEAR, decode, decode_whole, refuse_large, tile_size
from endocil.data.dicom import DicomFrame
from endocil.data.resize import find_view, pad
from endocil.model.manifest import Preprocessing
from endocil.serve.guard import Limits
from endocil.serve.schemas import ApiError, busy, too_large

FIELD = b"images"
FORMATS = ("BMP", "JPEG", "PNG", "TIFF", "WEBP")  # no others: some formats start external programs
MAX_PART_HEADER = 4096  # bytes


@dataclass
class UploadMemory:
    """Counts the bytes of all uploads held at once."""

    limit: int
    used: int = 0


@dataclass
class Allocation(AbstractContextManager["Allocation"]):
    """The bytes of one request, until the block ends."""

    memory: UploadMemory
    used: int = 0

    def add(self, n: int) -> None:
        if self.memory.used + n > self.memory.limit:
            raise busy("too many uploads at once; try again")
        self.memory.used += n
        self.used += n

    def __exit__(self, *error: object) -> None:
        self.memory.used -= self.used


async def read_images(request: Request, limits: Limits, allocation: Allocation) -> list[bytes]:
    """The images of a form, in order; any other request, or one over the limits, is an error at once."""
    content_type, options = parse_options_header(request.headers.get("content-type"))
    if content_type != b"multipart/form-data" or not options.get(b"boundary"):
        raise ApiError(415, "wrong-type", "send images as multipart/form-data, in fields called 'images'")
    form = _Form(limits)
    try:
        parser = MultipartParser(options[b"boundary"], form.callbacks())  # type: ignore[arg-type]
        async for chunk in request.stream():
            if chunk:
                allocation.add(len(chunk))
                parser.write(chunk)
        parser.finalize()
    except FormParserError as error:
        raise ApiError(400, "malformed", "the form is damaged") from error
    if not form.complete:
        raise ApiError(400, "malformed", "the form is incomplete")
    if not form.images:
        raise ApiError(400, "no-images", "the form has no field called 'images'")
    return [bytes(image) for image in form.images]


class _Form:
    """Collects the parts called 'images'; parts with other names are errors."""

    def __init__(self, limits: Limits) -> None:
        self.limits, self.images, self.complete = limits, list[bytearray](), False
        self._name, self._value, self._header_bytes, self._is_image = bytearray(), bytearray(), 0, False

    def callbacks(self) -> dict[str, object]:
        return {
            "on_part_begin": self._part_begin,
            "on_header_field": partial(self._header, self._name),
            "on_header_value": partial(self._header, self._value),
            "on_header_end": self._header_end,
            "on_headers_finished": self._headers_finished,
            "on_part_data": self._part_data,
            "on_end": self._end,
        }

    def _part_begin(self) -> None:
        self._header_bytes, self._is_image = 0, False

    def _header(self, text: bytearray, data: bytes, start: int, end: int) -> None:
        self._header_bytes += end - start
        if self._header_bytes > MAX_PART_HEADER:
            raise ApiError(400, "malformed", "the header of a part of the form is too long")
        text += data[start:end]

    def _header_end(self) -> None:
        if bytes(self._name).lower() == b"content-disposition":
            _, options = parse_options_header(bytes(self._value))
            self._is_image = options.get(b"name") == FIELD
        self._name.clear()
        self._value.clear()

    def _headers_finished(self) -> None:
        if not self._is_image:
            raise ApiError(400, "unknown-field", "the form may only have fields called 'images'")
        if len(self.images) >= self.limits.images:
            raise too_large(
                f"more than {self.limits.images} image{'s' * (self.limits.images > 1)}; send fewer at a time"
            )
        self.images.append(bytearray())

    def _part_data(self, data: bytes, start: int, end: int) -> None:
        self.images[-1] += data[start:end]

    def _end(self) -> None:
        self.complete = True


def header_size(data: bytes | DicomFrame) -> tuple[int, int]:
    """Width and height by the header alone, of the image or of a larger tile that it is stored in, which is decoded
    whole; (0, 0) where there is no valid header: decoding reports why."""
    try:
        if isinstance(data, DicomFrame):
            return data.dimensions()
        with Image.open(io.BytesIO(data), formats=FORMATS) as image:
            return max(image.size, tile_size(image), key=prod)
    except Exception:
        return 0, 0


def decode_image(data: bytes | DicomFrame, preprocessing: Preprocessing, max_pixels: int) -> np.ndarray:
    """(size, size, 3) uint8; raises UnreadableImageError with a reason that reveals nothing about this machine."""
    refuse_large(header_size(data), max_pixels)  # a small file can claim to be an image that fills the memory
    size, padded = preprocessing.size, preprocessing.fit == "pad"
    if isinstance(data, bytes) and not preprocessing.crop_frame and not padded:
        return decode(data, size)
    image = decode_own_size(data)
    if preprocessing.crop_frame:
        image = image.crop(find_view(np.asarray(image)))
    return pad(image, size) if padded else np.asarray(image.resize((size, size), BILINEAR))


def decode_own_size(data: bytes | DicomFrame) -> Image.Image:
    """The whole image, upright and RGB; of a size that `refuse_large` has passed."""
    return decode_whole(data) if isinstance(data, bytes) else data.decode()
