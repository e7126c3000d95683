"""How much a server accepts: limits of one request and of all requests together."""

import math
from dataclasses import dataclass, fields

from endocil.data.decode import MAX_PIXELS
from endocil.errors import SettingsError


@dataclass(frozen=True, kw_only=True)
class Limits:
    upload_megabytes: float = 32.0  # of one request, counted while it arrives
    images: int = 64  # of one request
    megapixels: float = 50.0  # of one image, by its header, before it is decoded
    request_megapixels: float = 400.0  # of all images of one request, likewise
    upload_seconds: float = 30.0  # until a request has arrived completely
    answer_seconds: float = 60.0  # from then until it is answered
    header_seconds: float = 10.0  # until a connection has sent the headers of a request
    connections: int = 256  # open at once
    queue: int = 256  # images being decoded or waiting for a model; further requests get status 429
    memory_megabytes: float = 512.0  # of all uploads held at once
    batch: int = 32  # images of one forward pass

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not (value > 0 and math.isfinite(value)):
                raise SettingsError(f"the limit {field.name} is {value}; expected a number above 0")
        if self.pixels > MAX_PIXELS:
            raise SettingsError(
                f"the limit megapixels is {self.megapixels}; expected at most {MAX_PIXELS / 1e6:.1f}, the largest "
                f"image that can be decoded"
            )
        if 2 * self.images > self.queue:
            raise SettingsError(
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
