"""What a server says when it does not do what it was asked for: a status, a short code, a sentence."""

import math
from dataclasses import dataclass, fields

from fastapi import HTTPException

from endocil.data.decode import MAX_PIXELS
from endocil.errors import EndocilError

BUSY_SECONDS = 1  # after which a client may ask again


class Refusal(HTTPException):
    """Known to every client by its code; the message is for people."""

    def __init__(self, status: int, code: str, message: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(status, message, headers)
        self.code = code


def too_large(message: str) -> Refusal:
    return Refusal(413, "too-large", message)


def too_slow(message: str) -> Refusal:
    return Refusal(408, "too-slow", message, {"Connection": "close"})


def busy(message: str) -> Refusal:
    return Refusal(429, "busy", message, {"Retry-After": str(BUSY_SECONDS)})


def no_answer(message: str) -> Refusal:
    return Refusal(503, "no-answer", message, {"Retry-After": "5"})


def full(message: str) -> Refusal:
    return Refusal(503, "full", message, {"Retry-After": "5"})


def unknown(thing: str) -> Refusal:
    return Refusal(404, "unknown", f"there is no such {thing}")


# How much a server takes on: of one request, and of all at once.


@dataclass(frozen=True, kw_only=True)
class Limits:
    upload_megabytes: float = 32.0  # of one request, counted while it arrives
    images: int = 64  # of one request
    megapixels: float = 50.0  # of one image, by its header, before it is decoded
    request_megapixels: float = 400.0  # of all images of one request, likewise
    upload_seconds: float = 30.0  # until a request has arrived whole
    answer_seconds: float = 60.0  # from then on until it is answered
    header_seconds: float = 10.0  # until a connection has said what it wants
    connections: int = 256  # that are open at once
    queue: int = 256  # images that are decoded or wait for a model; more are told to come again
    memory_megabytes: float = 512.0  # of all uploads that are held at once
    batch: int = 32  # images of one forward pass

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not (value > 0 and math.isfinite(value)):
                raise EndocilError(f"the limit {field.name} is {value}; expected a number above 0")
        if self.pixels > MAX_PIXELS:
            raise EndocilError(
                f"the limit megapixels is {self.megapixels}; no image of more than {MAX_PIXELS / 1e6:.1f} is decoded"
            )
        if 2 * self.images > self.queue:
            raise EndocilError(
                f"a request may have {self.images} images for two models, but only {self.queue} can wait; raise "
                f"--queue or lower --images"
            )

    @property
    def upload_bytes(self) -> int:
        return int(self.upload_megabytes * 1e6)

    @property
    def memory_bytes(self) -> int:
        return int(self.memory_megabytes * 1e6)

    @property
    def pixels(self) -> int:
        return int(self.megapixels * 1e6)

    @property
    def request_pixels(self) -> int:
        return int(self.request_megapixels * 1e6)
