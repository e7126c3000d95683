"""What a bundle says of itself: settings, classes and when they were learned, calibration, results, its ancestors."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

FORMAT = 1
MOST_CLASSES = 100_000  # more are refused before any memory is taken for them

Name = str
Digest = str  # sha256, in hexadecimal digits


class _Facts(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class LearnedClass(_Facts):
    """A class in the order of learning."""

    name: Name
    task: int = Field(ge=0)
    images: int = Field(ge=0)  # training images of it, over all tasks


class Preprocessing(_Facts):
    """From a picture to what the network sees."""

    size: int = Field(ge=16, le=4096)  # pixels: resized to size x size, whatever its shape
    crop_frame: bool  # the black frame around the scope's view is cut away first
    mean: tuple[float, float, float]  # of values from 0 to 1, red, green, blue
    deviation: tuple[float, float, float]
    rules: str  # of decoding; other rules give slightly other pixels


class Calibration(_Facts):
    """Fitted on held-out images, which were never trained on."""

    images: int = Field(ge=1)
    temperature: float = Field(gt=0)  # the softmax head's logits are divided by it
    mean_temperature: float | None = Field(
        None, gt=0
    )  # likewise of minus the squared distances to the class means
    error_before: float  # expected calibration error with temperature 1
    error: float  # and with this one
    unlike_threshold: float  # an image with a larger score is unlike anything learned
    unlike_rate: float = Field(gt=0, lt=1)  # the share of held-out images that the threshold flags


class Version(_Facts):
    """One step in a bundle's life."""

    made: str  # when, UTC, ISO 8601
    by: Literal["bundle", "learn", "forget"]
    endocil: str  # the version that did it
    parent: Digest | None  # the bundle it was made from; none: a run
    added: dict[Name, int] = {}  # images that were learned, by class
    removed: dict[str, int] = {}  # images that were taken out, by what was asked for
    note: str = ""


class Terms(_Facts):
    """Under which the pictures inside may be kept and used; said by whoever made the bundle."""

    licence: str = ""
    consent: str = ""


class Manifest(_Facts):
    format: int = FORMAT
    name: str
    settings: dict[str, Any]  # those of the run, every default written out, no folders
    classes: tuple[LearnedClass, ...] = Field(min_length=1, max_length=MOST_CLASSES)
    increments: tuple[int, ...] = Field(min_length=1)  # how many classes each task has brought
    preprocessing: Preprocessing
    calibration: Calibration | None
    metrics: dict[str, Any] | None  # of the run's test images; none after a step that was not tested
    environment: dict[str, Any]
    terms: Terms = Terms()
    history: tuple[Version, ...] = Field(min_length=1)  # the oldest first
    learns: bool  # holds exemplars, or learns without any
