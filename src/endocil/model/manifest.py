"""The manifest of a model file: settings, classes and when they were learned, calibration, results, history."""

from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import version
from itertools import accumulate
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from endocil.data.scenario import Task
from endocil.errors import EndocilError
from endocil.io.terminal import refuse_control

FORMAT = 3
MOST_CLASSES = 10_000  # more are refused before any memory is taken for them
MOST_TASKS = 1_000
LONGEST_NAME = 1024  # characters
LONGEST_CELL = 4096  # characters, in the table of the images
LONGEST_TERMS = 4_000  # characters: they stand beside every image
LARGEST_SIZE = 2048  # pixels along a side of what the network sees


def _between(least: int, most: int) -> AfterValidator:
    """A text of this length. Field(max_length) would refuse file names that are not valid UTF-8."""

    def checked(text: str) -> str:
        if not least <= len(text) <= most:
            raise ValueError(f"a text of {len(text):,} characters; expected {least} to {most:,}")
        return text

    return AfterValidator(checked)


Name = Annotated[str, _between(1, LONGEST_NAME)]
Digest = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]  # sha256
Text = Annotated[str, _between(0, 10_000)]
Count = Annotated[int, Field(ge=0, lt=2**53)]
Share = Annotated[float, Field(ge=0, le=1)]
Temperature = Annotated[float, Field(ge=1e-6, le=1e6)]
Triple = tuple[float, float, float]


class _Facts(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class LearnedClass(_Facts):
    """A class in the order of learning."""

    name: Name
    task: Count
    images: Count  # training images of it, over all tasks


class Preprocessing(_Facts):
    """From an image to what the network sees."""

    size: int = Field(ge=16, le=LARGEST_SIZE)  # pixels along a side of the square that the network sees
    crop_frame: bool  # the black frame around the scope's view is cut away first
    fit: Literal["stretch", "pad"] = "stretch"  # to the square, whatever its shape; or in proportion, on black
    mean: Triple  # of values from 0 to 1, red, green, blue
    deviation: Triple
    rules: Text  # of decoding; other rules give slightly other pixels


class HeldOutScores(_Facts):
    """The softmax probability, without a temperature, that each held-out image has for its own class."""

    of_class: dict[Name, tuple[Share, ...]]


class Calibration(_Facts):
    """Fitted on held-out images, which were never trained on."""

    images: int = Field(ge=2, lt=2**53)
    temperature: Temperature  # the softmax head's logits are divided by it; 1 where a fitted one is no improvement
    mean_temperature: Temperature | None = None  # likewise minus the squared distances to the class means
    error_before: Share  # expected calibration error with temperature 1
    error: Share  # and with temperatures fitted on the other folds' images
    folds: int = Field(ge=2, le=100)
    ood_threshold: float | None  # an image with a larger score is flagged; none: too few images
    ood_rate: float = Field(gt=0, lt=1)  # the share of images of learned classes that the threshold flags
    scores: HeldOutScores | None = None  # for prediction sets and thresholds: operating_points.py

    @property
    def improved(self) -> bool:
        """Whether a fitted temperature is better than 1 on images that it was not fitted on."""
        return self.error <= self.error_before


class Step(_Facts):
    """One step in a model's history."""

    made: Text  # when, UTC, ISO 8601
    by: Literal["run", "learn", "forget"]
    endocil: Text  # the version that did it
    parent: Digest | None  # the model file it was made from; none: a model that was never saved
    added: dict[Name, Count] = {}  # images that were learned, by class
    changes: tuple[Text, ...] = ()  # settings that were changed for this step
    removed: dict[Text, Count] = {}  # number of removed images, by field: group, image or source
    note: Text = ""


def step_now(by: Literal["run", "learn", "forget"], parent: str, **facts: Any) -> Step:
    """A step made now by this version; `parent`: the digest of the model file, or ""."""
    made = datetime.now(UTC).isoformat(timespec="seconds")
    return Step(made=made, by=by, endocil=version("endocil"), parent=parent or None, **facts)


class Terms(_Facts):
    """Licence and consent of the images inside, as stated by the model's author."""

    licence: Text = ""
    consent: Text = ""


def terms_of(licence: str, consent: str) -> Terms:
    """Terms from options, checked."""
    for name, text in (("--licence", licence), ("--consent", consent)):
        refuse_control(name, text)
        if len(text) > LONGEST_TERMS:
            raise EndocilError(
                f"{name} has {len(text):,} characters; expected at most {LONGEST_TERMS:,}, such as where to find it"
            )
    return Terms(licence=licence, consent=consent)


class GateVerdict(_Facts):
    """What the rules of a release said of this version, compared with another (`endocil compare --keep`)."""

    passed: bool
    line: Text  # the verdict in words
    made: Text  # when, UTC, ISO 8601
    judged: Digest  # the model file as it was judged, before the verdict was written into it
    old: Digest  # the version that it was compared with
    old_title: Text
    rules: Text  # the file of the rules
    rules_digest: Digest
    test: Text  # the test images
    images: Count  # of them that were compared

    @property
    def words(self) -> str:
        """One line for people."""
        verdict = "passed" if self.passed else "refused"
        return (
            f"{verdict} on {self.made[:10]} by {self.rules} ({self.rules_digest[:8]}), on {self.images:,} images of "
            f"{self.test}, in place of {self.old_title} ({self.old[:8]})"
        )


UNTESTED = "not tested: the metrics of its parent do not apply to this version"
NOT_GATED = "not compared with another version by rules"


class Manifest(_Facts):
    format: Literal[3] = 3
    name: Name
    settings: dict[str, Any]  # those of the run, every default written out, no folders
    classes: tuple[LearnedClass, ...] = Field(min_length=1, max_length=MOST_CLASSES)
    increments: tuple[Count, ...] = Field(min_length=1, max_length=MOST_TASKS)  # classes of each task
    preprocessing: Preprocessing
    calibration: Calibration | None
    metrics: dict[str, Any] | None  # of the run's test images; none after a step that was not tested
    environment: dict[str, Any]
    terms: Terms = Terms()
    history: tuple[Step, ...] = Field(min_length=1, max_length=100_000)  # the oldest first
    learns: bool  # holds exemplars, or learns without any
    keeps_images: bool = True  # false: holds no images of patients, and keeps none when it learns
    gate: GateVerdict | None = None  # of this version; learning and forgetting make another one

    @property
    def version(self) -> int:
        """1 for the model of a run or of the first images, and 1 more for each step of learning or forgetting."""
        steps = [step.by for step in self.history]
        return len(steps) - steps.count("run") + ("run" in steps)

    @property
    def title(self) -> str:
        """The name with the version: those of one model differ in it."""
        return f"{self.name}, version {self.version}"

    @property
    def class_names(self) -> tuple[str, ...]:
        """In the order of learning."""
        return tuple(learned.name for learned in self.classes)

    @property
    def tasks(self) -> tuple[Task, ...]:
        starts = (0, *accumulate(self.increments))
        return tuple(Task(i, starts[i], size) for i, size in enumerate(self.increments))

    @model_validator(mode="after")
    def _refuse_contradictions(self) -> "Manifest":
        names, sizes = self.class_names, self.increments
        if len(set(names)) < len(names):
            raise ValueError("a class occurs twice")
        if sum(sizes) != len(names):
            raise ValueError(f"{len(names)} classes, but tasks of {list(sizes)[:10]}")
        if [learned.task for learned in self.classes] != [task for task, n in enumerate(sizes) for _ in range(n)]:
            raise ValueError("the classes do not stand in the order of their tasks")
        return self


def after_learning(
    before: Manifest | None,
    task: Task,
    counts: Mapping[str, int],
    *,
    name: str,
    settings: dict[str, Any],
    preprocessing: Preprocessing,
    environment: dict[str, Any],
    terms: Terms,
    by: Literal["run", "learn"],
    parent: str,
    changes: tuple[str, ...],
) -> Manifest:
    """What a model says of itself once it has learned a task; `counts`: the images that it learned, of all classes.

    What was measured before does not hold any more. Preprocessing and terms stay those of the first task."""
    added = {name: n for name, n in sorted(counts.items()) if n}
    step = step_now(by, parent, added=added, changes=changes, note=UNTESTED if by == "learn" else "")
    known = {one.name: one for one in before.classes} if before else {}
    started = before.settings.get("network", {}).get("weights") if before else None
    if started:  # what its backbone once started from stays recorded, though a loaded model needs no such file
        settings = {**settings, "network": {**settings["network"], "weights": started}}
    first = {"preprocessing": preprocessing, "calibration": None, "terms": terms}
    return Manifest.model_validate(
        {
            **(dict(before) if before else first),
            "name": name,
            "settings": settings,
            "classes": [
                known[name].model_copy(update={"images": known[name].images + n})
                if name in known
                else LearnedClass(name=name, task=task.index, images=n)
                for name, n in counts.items()
            ],
            "increments": (*(before.increments if before else ()), task.n_new),
            "metrics": None,
            "gate": None,
            "environment": environment,
            "history": (*(before.history if before else ()), step),
            "learns": True,
        }
    )
