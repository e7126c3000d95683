"""Which model files were put into service while a server ran: kept in a file, so that a restart serves them again."""

from datetime import UTC, datetime
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from endocil.errors import FileFormatError, ResourceError
from endocil.io.files import read_whole, write_atomically


class Exchange(BaseModel):
    """The last exchange of a model."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    given: str  # the model that the command named; where it names another now, the command counts
    file: str = Field(pattern=r"^[^/\\\x00]+$")  # of the folder of models
    digest: str = Field(pattern="^[0-9a-f]{64}$")
    since: str


class _Content(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)
    exchanges: dict[str, Exchange]  # by the id of the model


class InService:
    """The file; it is complete or absent, and only its owner may read it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> dict[str, Exchange]:
        """Empty where there is no file yet."""
        try:
            return dict(_Content.model_validate_json(read_whole(self.path)).exchanges)
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise ResourceError(
                f"cannot read {self.path}, which says which models are in service: {error.strerror or error}"
            ) from error
        except ValidationError as error:
            raise FileFormatError(
                f"{self.path}, which says which models are in service, is damaged; restore it, or delete it to serve "
                f"the models that the command names"
            ) from error

    def keep(self, id: str, exchange: Exchange) -> None:
        content = _Content(exchanges={**self.read(), id: exchange}).model_dump_json(indent=2).encode() + b"\n"
        write_atomically(self.path, content)


def exchange_of(given: Path, file: str, digest: str) -> Exchange:
    now = datetime.now(UTC).isoformat(timespec="seconds")
    return Exchange(given=str(given.resolve()), file=file, digest=digest, since=now)
