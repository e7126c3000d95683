"""What the API says: every answer carries the notice."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from endocil.model.disclaimer import NOTICE


def shown(thing: Any) -> Any:
    """Names of files may hold bytes that are no text, which JSON cannot carry; each is told by its number."""
    if isinstance(thing, str):
        return thing if thing.isascii() else thing.encode("utf-8", "backslashreplace").decode()
    if isinstance(thing, dict):
        return {shown(key): shown(value) for key, value in thing.items()}
    return [shown(one) for one in thing] if isinstance(thing, list) else thing


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _only_text(cls, told: Any) -> Any:
        return shown(told)


class Answer(_Part):
    notice: str = NOTICE


class Problem(_Part):
    code: str = Field(description="Stays the same from version to version.")
    message: str = Field(description="For people.")


class Refused(Answer):
    error: Problem


class Health(Answer):
    status: Literal["ok"] = "ok"


class ModelSummary(_Part):
    """A model that answers; `digest` changes when another bundle takes its place."""

    id: str
    name: str
    bundle: str = Field(description="The name of the file it was loaded from.")
    digest: str = Field(description="sha256 of the bundle, its identity.")
    classes: int
    calibrated: bool
    made: str


class LimitsSaid(_Part):
    """What one request may bring."""

    upload_bytes: int
    images: int
    pixels: int = Field(description="Of one image.")
    request_pixels: int = Field(description="Of all its images together.")


class Models(Answer):
    models: list[ModelSummary]
    bundles: list[str] = Field(description="Files that may take the place of a model.")
    limits: LimitsSaid
    runs: bool = Field(description="Whether there are runs to browse.")


class Card(Answer):
    """All that a bundle says of itself, but for its settings."""

    model: ModelSummary
    method: str
    backbone: str
    classes: list[dict[str, Any]]
    tasks: list[int]
    exemplars: dict[str, int]
    preprocessing: dict[str, Any]
    calibration: dict[str, Any] | None
    results: dict[str, Any] | None
    terms: dict[str, Any]
    history: list[dict[str, Any]]


class Scored(_Part):
    name: str
    probability: float


class Near(_Part):
    """An exemplar that looks alike to the model."""

    exemplar: int
    name: str = Field(description="Its class.")
    picture: str = Field(description="Where its pixels are.")


class Said(_Part):
    """One model on one image."""

    model: str
    digest: str
    calibrated: bool
    top: list[Scored]
    nearest_mean: list[Scored] | None = Field(
        description="By the distance to the class means; null where the model has none."
    )
    unlike: bool | None = Field(
        description="Unlike anything learned; null where the bundle has no threshold for it."
    )
    unlike_score: float
    nearest: list[Near]


class Image(_Part):
    """In the order of the upload; names of files are neither kept nor repeated."""

    index: int
    problem: Problem | None = None
    answers: list[Said] = []


class Predictions(Answer):
    images: list[Image]


class Swap(BaseModel):
    model_config = ConfigDict(extra="forbid")
    bundle: str = Field(min_length=1, max_length=255, description="One of `bundles`.")


class Swapped(Answer):
    before: str = Field(description="Digest of the bundle that answered until now.")
    model: ModelSummary


class RunSummary(_Part):
    id: str
    name: str
    method: str
    classes: int
    tasks: int
    accuracy: float | None = Field(description="After the last task, softmax head, percent.")
    report: str | None = Field(description="Where its report is; null where it has none.")


class Runs(Answer):
    runs: list[RunSummary]
    left_out: int = Field(description="Runs that are not listed: more were found than one answer names.")
