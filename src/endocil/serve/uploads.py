"""From the bytes of an upload to what the network sees, by the rules that read files."""

import io
from collections.abc import AsyncIterator, Iterator, Sequence
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
from endocil.serve.limits import Limits, Refusal, busy, too_large

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


# Images of a request, taken apart while they arrive. They stay in memory: nothing of a patient touches the disk.

FIELD = b"images"
_MOST_HEADERS = 4096  # bytes in front of an image


class Memory:
    """Bytes of all uploads that are held at once."""

    def __init__(self, limit: int) -> None:
        self.limit, self.held = limit, 0

    @contextmanager
    def share(self) -> "Iterator[Share]":
        share = Share(self)
        try:
            yield share
        finally:
            self.held -= share.held


class Share:
    """Those of one request."""

    def __init__(self, memory: Memory) -> None:
        self.memory, self.held = memory, 0

    def take(self, n: int) -> None:
        if self.memory.held + n > self.memory.limit:
            raise busy("too many uploads at once; try again")
        self.memory.held += n
        self.held += n


async def uploaded(request: Request, limits: Limits, share: Share) -> list[bytes]:
    """The images of a form, in order; a request that is none, or brings too much, is refused at once."""
    kind, options = parse_options_header(request.headers.get("content-type"))
    if kind != b"multipart/form-data" or not options.get(b"boundary"):
        raise Refusal(415, "wrong-type", "send images as multipart/form-data, in fields called 'images'")
    form = _Form(limits)
    try:
        parser = MultipartParser(options[b"boundary"], form.callbacks())  # type: ignore[arg-type]
        async for chunk in _chunks(request):
            share.take(len(chunk))
            parser.write(chunk)
        parser.finalize()
    except FormParserError as error:
        raise Refusal(400, "malformed", "the form is damaged") from error
    if not form.ended:
        raise Refusal(400, "malformed", "the form is cut off")
    if not form.images:
        raise Refusal(400, "no-images", "the form has no field called 'images'")
    return [bytes(image) for image in form.images]


async def _chunks(request: Request) -> AsyncIterator[bytes]:
    async for chunk in request.stream():
        if chunk:
            yield chunk


class _Form:
    """Gathers the parts called 'images'; any other is refused."""

    def __init__(self, limits: Limits) -> None:
        self.limits, self.images, self.ended = limits, list[bytearray](), False
        self._header, self._value, self._seen, self._mine = bytearray(), bytearray(), 0, False

    def callbacks(self) -> dict[str, object]:
        return {
            "on_part_begin": self._begin,
            "on_header_field": self._field,
            "on_header_value": self._text,
            "on_header_end": self._header_end,
            "on_headers_finished": self._headers_finished,
            "on_part_data": self._data,
            "on_end": self._end,
        }

    def _begin(self) -> None:
        self._seen, self._mine = 0, False

    def _field(self, data: bytes, start: int, end: int) -> None:
        self._header += self._counted(data, start, end)

    def _text(self, data: bytes, start: int, end: int) -> None:
        self._value += self._counted(data, start, end)

    def _counted(self, data: bytes, start: int, end: int) -> bytes:
        self._seen += end - start
        if self._seen > _MOST_HEADERS:
            raise Refusal(400, "malformed", "a part of the form has too long a header")
        return data[start:end]

    def _header_end(self) -> None:
        if bytes(self._header).lower() == b"content-disposition":
            _, options = parse_options_header(bytes(self._value))
            self._mine = options.get(b"name") == FIELD
        self._header, self._value = bytearray(), bytearray()

    def _headers_finished(self) -> None:
        if not self._mine:
            raise Refusal(400, "unknown-field", "the form may have fields called 'images' only")
        if len(self.images) >= self.limits.images:
            raise too_large(f"more than {self.limits.images} images; send fewer at a time")
        self.images.append(bytearray())

    def _data(self, data: bytes, start: int, end: int) -> None:
        self.images[-1] += data[start:end]

    def _end(self) -> None:
        self.ended = True
