"""The images of a request: parsed while they arrive, held in memory only, decoded with the model's preprocessing."""

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
from fastapi import Request
from PIL import Image
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from endocil.data.decode import decode, decode_whole
from endocil.data.frame import Cropped
from endocil.data.table import UnreadableImageError
from endocil.model.manifest import Preprocessing
from endocil.serve.errors import ApiError, busy, too_large
from endocil.serve.limits import Limits

FIELD = b"images"
FORMATS = ("BMP", "JPEG", "PNG", "TIFF", "WEBP")  # no others: some formats start external programs
MAX_PART_HEADER = 4096  # bytes


class UploadMemory:
    """Counts the bytes of all uploads held at once."""

    def __init__(self, limit: int) -> None:
        self.limit, self.used = limit, 0

    @contextmanager
    def allocation(self) -> "Iterator[Allocation]":
        allocation = Allocation(self)
        try:
            yield allocation
        finally:
            self.used -= allocation.used


class Allocation:
    """The bytes of one request."""

    def __init__(self, memory: UploadMemory) -> None:
        self.memory, self.used = memory, 0

    def add(self, n: int) -> None:
        if self.memory.used + n > self.memory.limit:
            raise busy("too many uploads at once; try again")
        self.memory.used += n
        self.used += n


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
        self._header, self._value, self._header_bytes, self._is_image = bytearray(), bytearray(), 0, False

    def callbacks(self) -> dict[str, object]:
        return {
            "on_part_begin": self._part_begin,
            "on_header_field": self._header_field,
            "on_header_value": self._header_value,
            "on_header_end": self._header_end,
            "on_headers_finished": self._headers_finished,
            "on_part_data": self._part_data,
            "on_end": self._end,
        }

    def _part_begin(self) -> None:
        self._header_bytes, self._is_image = 0, False

    def _header_field(self, data: bytes, start: int, end: int) -> None:
        self._count_header(end - start)
        self._header += data[start:end]

    def _header_value(self, data: bytes, start: int, end: int) -> None:
        self._count_header(end - start)
        self._value += data[start:end]

    def _count_header(self, n: int) -> None:
        self._header_bytes += n
        if self._header_bytes > MAX_PART_HEADER:
            raise ApiError(400, "malformed", "the header of a part of the form is too long")

    def _header_end(self) -> None:
        if bytes(self._header).lower() == b"content-disposition":
            _, options = parse_options_header(bytes(self._value))
            self._is_image = options.get(b"name") == FIELD
        self._header, self._value = bytearray(), bytearray()

    def _headers_finished(self) -> None:
        if not self._is_image:
            raise ApiError(400, "unknown-field", "the form may only have fields called 'images'")
        if len(self.images) >= self.limits.images:
            raise too_large(f"more than {self.limits.images} images; send fewer at a time")
        self.images.append(bytearray())

    def _part_data(self, data: bytes, start: int, end: int) -> None:
        self.images[-1] += data[start:end]

    def _end(self) -> None:
        self.complete = True


@dataclass(frozen=True)
class _BytesReader:
    """Reads one image from memory."""

    data: bytes

    def read(self, image_id: str, size: int) -> np.ndarray:
        return decode(self.data, size)

    def whole(self, image_id: str) -> Image.Image:
        return decode_whole(self.data)

    def fingerprint(self, ids: Sequence[str]) -> str:
        return ""  # nothing is cached


def header_size(data: bytes) -> tuple[int, int]:
    """Width and height by the header alone; (0, 0) where there is no valid one: decoding reports why."""
    try:
        with Image.open(io.BytesIO(data), formats=FORMATS) as image:
            return image.size
    except Exception:
        return 0, 0


def decode_image(data: bytes, preprocessing: Preprocessing, max_pixels: int) -> np.ndarray:
    """(size, size, 3) uint8; raises UnreadableImageError with a reason that reveals nothing about this machine."""
    width, height = header_size(data)
    if width * height > max_pixels:  # a small file can claim to be an image that fills the memory
        raise UnreadableImageError(f"{width} x {height} pixels; at most {max_pixels:,} are accepted")
    reader = _BytesReader(data)
    return (Cropped(reader) if preprocessing.crop_frame else reader).read("", preprocessing.size)
