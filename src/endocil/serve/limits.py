"""How much a server takes on: of one request, and of all at once."""

from dataclasses import dataclass, fields

from endocil.errors import EndocilError


@dataclass(frozen=True, kw_only=True)
class Limits:
    upload_megabytes: float = 32.0  # of one request, counted while it arrives
    images: int = 64  # of one request
    megapixels: float = 50.0  # of one image, by its header, before it is decoded
    upload_seconds: float = 30.0  # until a request has arrived whole
    answer_seconds: float = 60.0  # from then on until it is answered
    header_seconds: float = 10.0  # until a connection has said what it wants
    queue: int = 256  # images that wait for the model; more are told to come again
    memory_megabytes: float = 512.0  # of all uploads that are held at once
    batch: int = 32  # images of one forward pass

    def __post_init__(self) -> None:
        for field in fields(self):
            if not getattr(self, field.name) > 0:
                raise EndocilError(
                    f"the limit {field.name} is {getattr(self, field.name)}; expected more than 0"
                )
        if self.images > self.queue:
            raise EndocilError(
                f"a request may have {self.images} images, but only {self.queue} can wait; raise --queue or "
                f"lower --images"
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
