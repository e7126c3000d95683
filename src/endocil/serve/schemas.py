"""Requests, responses and errors of the API; every response carries the disclaimer."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse

from endocil.model import DISCLAIMER


def escape_invalid(value: Any) -> Any:
    """File names may hold bytes that are not UTF-8, which JSON cannot carry: they become backslash escapes."""
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {escape_invalid(key): escape_invalid(item) for key, item in value.items()}
    return [escape_invalid(item) for item in value] if isinstance(value, list) else value


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, from_attributes=True)

    @model_validator(mode="before")
    @classmethod
    def _valid_text(cls, values: Any) -> Any:
        return escape_invalid(values)


class _Response(_Part):
    disclaimer: str = DISCLAIMER


class Error(_Part):
    code: str = Field(description="For programs; stable between versions.")
    message: str = Field(description="For people.")


class ErrorResponse(_Response):
    error: Error


class Health(_Response):
    status: Literal["ok"] = "ok"


class ModelSummary(_Part):
    """A served model; `digest` changes when another model file replaces it."""

    id: str
    name: str
    version: int = Field(description="1 for a new model, 1 more for each step of learning or forgetting.")
    file: str = Field(description="Name of the model file it was loaded from.")
    digest: str = Field(description="sha256 of the model file, its identity.")
    classes: int
    calibrated: bool
    created: str = Field(description="UTC, ISO 8601.")
    gate: Literal["passed", "refused"] | None = Field(description="Verdict of its release gate; null: none is kept.")
    gradcam: bool = Field(description="Whether its backbone has the feature maps that `/gradcam` needs.")


class RequestLimits(_Part):
    """Limits of one request."""

    upload_bytes: int
    images: int
    pixels: int = Field(description="Of one image.")
    request_pixels: int = Field(description="Of all images together.")


class ModelList(_Response):
    models: list[ModelSummary]
    files: list[str] = Field(description="Model files that can replace a served model.")
    limits: RequestLimits
    runs: bool = Field(description="Whether there are runs to browse.")
    only_gated: bool = Field(description="Whether models are put into service only if their gate has passed.")


class CalibrationSummary(_Part):
    """Fitted on held-out images."""

    images: int
    temperature: float
    error: float = Field(description="Expected calibration error, 0 to 1, cross-validated.")
    error_before: float = Field(description="The same without calibration.")
    ood_threshold: float | None = Field(
        description="Images with a larger `ood_score` are out of distribution; null: too few held-out images."
    )
    ood_rate: float = Field(description="Share of images of learned classes that the threshold flags.")


class ModelCard(_Response):
    """Everything a model file records about itself except its settings."""

    model: ModelSummary
    method: str
    backbone: str
    classes: list[dict[str, Any]]
    tasks: list[int] = Field(description="Number of new classes in each task.")
    exemplars: dict[str, int] = Field(description="Number of exemplars of each class.")
    preprocessing: dict[str, Any]
    calibration: CalibrationSummary | None
    results: dict[str, Any] | None = Field(description="Test results; null where this version was not tested.")
    gate: dict[str, Any] | None = Field(description="The verdict of the release gate, and what it rests on.")
    terms: dict[str, Any]
    history: list[dict[str, Any]]


class ClassProbability(_Part):
    name: str
    probability: float


class NearestExemplar(_Part):
    """An exemplar whose features are close to those of the image."""

    exemplar: int = Field(description="Its row among the exemplars of the model.")
    class_name: str
    url: str = Field(description="Address of its pixels (PNG).")


class Prediction(_Part):
    """Of one model for one image."""

    model: str
    digest: str
    calibrated: bool
    top: list[ClassProbability]
    nearest_mean: list[ClassProbability] | None = Field(
        description="Of the nearest-mean head; null where the model has no class means."
    )
    out_of_distribution: bool | None = Field(
        description="Not like the training images; null where the model has no threshold."
    )
    ood_score: float
    prediction_set: list[str] | None = Field(
        description="Holds the right class with the probability `coverage`, each class by itself, for images like the "
        "held-out ones; null where the model has no held-out images of every class."
    )
    coverage: float = Field(description="Of `prediction_set`.")
    nearest: list[NearestExemplar]


class ImageResult(_Part):
    """In the order of the upload; file names are neither stored nor repeated."""

    index: int = Field(description="Of the uploaded file, from 0 on.")
    frame: int | None = Field(None, description="Of a DICOM file with several frames, from 1 on; null for other files.")
    error: Error | None = None
    predictions: list[Prediction] = []


class PredictResponse(_Response):
    images: list[ImageResult]


class SwapRequest(BaseModel):
    model_config = ConfigDict(extra="forbid")
    file: str = Field(min_length=1, max_length=255, description="One of `files`.")


class SwapResponse(_Response):
    previous: str = Field(description="Digest of the model that was replaced.")
    model: ModelSummary


class RunSummary(_Part):
    id: str
    name: str
    method: str
    classes: int
    tasks: int
    accuracy: float | None = Field(description="After the last task, softmax head, percent.")
    report: str | None = Field(description="Address of its report; null where it has none.")


class RunList(_Response):
    runs: list[RunSummary]
    left_out: int = Field(description="Number of runs beyond the longest list that is returned.")


class ApiError(HTTPException):  # FastAPI lets only these pass while it reads a body
    """An HTTP status, a code for programs and a message for people."""

    def __init__(self, status: int, code: str, message: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(status, message, headers)
        self.status, self.code, self.message = status, code, message

    def response(self) -> JSONResponse:
        body = ErrorResponse(error=Error(code=self.code, message=self.message))
        return JSONResponse(body.model_dump(), self.status, self.headers)


def not_found(thing: str) -> ApiError:
    return ApiError(404, "not-found", f"there is no such {thing}")


def too_large(message: str) -> ApiError:
    return ApiError(413, "too-large", message)


def busy(message: str) -> ApiError:
    return ApiError(429, "busy", message, {"Retry-After": "1"})
