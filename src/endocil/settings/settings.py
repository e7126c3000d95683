"""Settings of a run: a preset, a TOML file or a dictionary, with `key=value` overrides, into checked, frozen models.

An unknown key is refused with the known ones listed.
"""

import shlex
import tomllib
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal

import tomli_w
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from endocil.errors import EndocilError, SettingsError
from endocil.io.files import parse_toml
from endocil.methods.base import check_milestones, check_warmup
from endocil.registry import is_foreign, trust

# ways to say the same thing, of which one counts: section -> keys that belong together
RIVALS: tuple[tuple[str, tuple[tuple[str, ...], ...]], ...] = (
    ("memory", (("per_class",), ("total",))),
    ("scenario", (("tasks",), ("increments",), ("first", "increment"))),
)


def apply_override(values: dict[str, Any], override: str) -> dict[str, Any]:
    """Set one key, such as `train.epochs=3`; the value is parsed as TOML, and taken as text if that fails."""
    key, equals, text = override.partition("=")
    if not equals or not key.strip():
        raise SettingsError(f"override '{override}' is not of the form key=value, such as train.epochs=3")
    try:
        value = parse_toml(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text
    path = key.strip().split(".")
    return _set(_without_rival(values, path), path, value)


def _without_rival(values: dict[str, Any], path: list[str]) -> dict[str, Any]:
    """Of settings that exclude each other, the one given last counts."""
    for section, ways in RIVALS:
        own = next((keys for keys in ways if path[0] == section and path[1:] in ([key] for key in keys)), None)
        if own is not None:
            others = {key for keys in ways if keys != own for key in keys}
            inner = {key: value for key, value in values.get(section, {}).items() if key not in others}
            values = {**values, section: inner}
    return values


def _set(values: dict[str, Any], path: list[str], value: Any) -> dict[str, Any]:
    if len(path) == 1:
        return {**values, path[0]: value}
    inner = values.get(path[0], {})
    if not isinstance(inner, dict):
        raise SettingsError(f"'{path[0]}' is a value, not a section; it takes no key '{path[1]}'")
    return {**values, path[0]: _set(inner, path[1:], value)}


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class _OpenSection(BaseModel):
    """A section that also takes the options of what it names (a data set, backbone, selector or method)."""

    model_config = ConfigDict(frozen=True, extra="allow")

    @property
    def options(self) -> dict[str, Any]:
        return dict(self.model_extra or {})


class DataSettings(_OpenSection):
    name: str = "folder"
    size: int = Field(256, ge=16, le=8192)  # EndoCIL: images are resized to 256 x 256
    skip_unreadable: bool = False
    crop_frame: bool = False  # cut the black frame around the scope's view away before resizing
    fit: Literal["stretch", "pad"] = "stretch"  # pad: keep the proportions, with black around the image


class ScenarioSettings(_Section):
    increments: tuple[int, ...] | None = None
    tasks: int | Literal["given", "source"] | None = None
    first: int | None = Field(None, ge=1)  # classes of the first task, with `increment`: B50-inc10 is 50 and 10
    increment: int | None = Field(None, ge=1)  # classes of each later task
    order: Literal["alphabetical", "seeded"] | tuple[str, ...] = "alphabetical"
    order_seed: int | None = Field(None, ge=0)  # of the order "seeded"; none: the run's seed
    minimum: int = Field(1, ge=1)
    leave_out: tuple[str, ...] = ()
    split_by: Literal["image", "group", "given"] = "image"
    groups: str = "given"  # or "near-duplicates", or a pattern on the image's path with one bracket
    folds: int | None = None
    fold: int = 0
    split: str | None = None  # a split.csv that a run has recorded
    validation: float = Field(0.0, ge=0.0, lt=1.0)
    split_seed: int = 1993
    blurry: float | None = Field(None, gt=0.0, lt=1.0)  # share of a class's training images that come in later tasks
    shots: int | None = Field(None, ge=1)  # training images of each class of the later tasks
    imbalance: float | None = Field(None, gt=1.0)  # long tail: training images of the largest class over the smallest
    imbalance_order: Literal["ordered", "shuffled"] | None = None  # none: "shuffled"


OLD_STEMS = {"standard": "7x7", "small": "3x3"}  # the names of version 0.1, which results and models still hold


class NetworkSettings(_OpenSection):
    backbone: str = "resnet18"
    weights: str | None = None
    freeze: tuple[str, ...] = ()

    @model_validator(mode="before")
    @classmethod
    def _stem_by_its_name(cls, values: Any) -> Any:
        stem = values.get("stem") if isinstance(values, dict) else None
        return {**values, "stem": OLD_STEMS[stem]} if isinstance(stem, str) and stem in OLD_STEMS else values


class MemorySettings(_OpenSection):
    per_class: int | None = Field(None, ge=1)
    total: int | None = Field(None, ge=1)
    select: str | None = None  # none: the method's own


class MethodSettings(_OpenSection):
    name: str = "endocil"


def _as_text(value: Any) -> Any:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


class TrainSettings(_Section):
    """The paper's experimental setting; augmentation as far as the paper states it."""

    model_config = ConfigDict(allow_inf_nan=False)  # a run would end in its first epoch

    epochs: int = Field(100, ge=1)
    learning_rate: float = Field(0.1, gt=0.0)
    later_factor: float = Field(1.0, gt=0.0)  # learning rate of later tasks over that of the first
    # 50 and 70 of 100 epochs; or whole epochs (methods/base.py)
    milestones: Annotated[tuple[int | float, ...], BeforeValidator(check_milestones)] = (0.5, 0.7)
    decay: float = Field(0.1, gt=0.0)
    schedule: Literal["milestones", "cosine"] = "milestones"  # where the learning rate falls
    warmup: Annotated[int | float, BeforeValidator(check_warmup)] = 0
    optimizer: str = "sgd"  # or "adamw", or "package.module:Class"
    optimizer_options: dict[str, Any] = {}
    backbone_factor: float = Field(1.0, gt=0.0)  # learning rate of the backbone over that of the heads
    clip_gradients: float = Field(0.0, ge=0.0)  # 0: off
    momentum: float = Field(0.9, ge=0.0, lt=1.0)
    first_weight_decay: float = Field(5e-4, ge=0.0)
    weight_decay: float = Field(2e-4, ge=0.0)
    batch_size: int = Field(64, ge=2)
    accumulate: int = Field(1, ge=1)  # pieces in which a batch goes through the network
    precision: Annotated[Literal["32", "bf16", "16"], BeforeValidator(_as_text)] = "32"  # 16 and "16" alike
    compile: bool = False  # torch.compile of the backbone, in training alone
    flip: float = Field(0.5, ge=0.0, le=1.0)
    brightness: float = Field(63 / 255, ge=0.0)
    crop: bool = False
    augment: tuple[str | dict[str, Any], ...] = ()  # further operations: names, or tables of a name and options
    mixup: float = Field(0.0, ge=0.0)  # alpha; 0: off
    label_smoothing: float = Field(0.0, ge=0.0, lt=1.0)


class RunSettings(_Section):
    accelerator: str = "auto"
    threads: int | None = Field(None, ge=1, le=512)  # none: as many as torch takes; recorded when the run starts
    checkpoint_seconds: float = Field(30.0, ge=0.0)
    evaluation_batch: int = Field(256, ge=1)
    held_out: int = Field(20, ge=0)  # images of each class, of the validation part, that the model keeps
    gallery: bool = False  # show exemplars on the page; they are images of patients
    keep: bool = False  # keep the weights after each task and the first task's features, for figures
    evaluate: Literal["test", "validation"] = "test"  # the part that is predicted; validation: for tuning
    first_tasks: str | None = None  # a folder of first tasks that runs share; none: each trains its own
    features: bool = True  # keep the features of a frozen backbone in the cache, for all runs
    tensorboard: bool = False  # write event files for TensorBoard as the run learns
    wandb: bool = False  # log to Weights & Biases as the run learns


class Settings(_Section):
    seed: int = Field(0, ge=0, lt=2**63)
    data: DataSettings = DataSettings()
    scenario: ScenarioSettings = ScenarioSettings()
    network: NetworkSettings = NetworkSettings()
    memory: MemorySettings = MemorySettings()
    method: MethodSettings = MethodSettings()
    train: TrainSettings = TrainSettings()
    run: RunSettings = RunSettings()

    def outside_code(self, *, data: bool = True) -> dict[str, str]:
        """Setting -> name, of the settings that name code from outside; with `data`, that of the data set too."""
        named = {
            "method.name": self.method.name,
            "network.backbone": self.network.backbone,
            "memory.select": self.memory.select or "",
            "train.optimizer": self.train.optimizer,
            **{
                f"train.augment[{i}]": one if isinstance(one, str) else str(one.get("name", ""))
                for i, one in enumerate(self.train.augment)
            },
            **({"data.name": self.data.name} if data else {}),
        }
        return {key: name for key, name in named.items() if is_foreign(name)}

    def trusted(self) -> "Settings":
        """The same settings; the code that they name may be imported from now on."""
        trust(self.outside_code().values())
        return self

    def to_toml(self) -> str:
        return tomli_w.dumps(_without_none(self.model_dump(mode="json")))


def _without_none(value: Any) -> Any:
    pairs = value.items() if isinstance(value, dict) else ()
    return {key: _without_none(item) for key, item in pairs if item is not None} if pairs else value


def presets() -> list[str]:
    """Names of the settings files in the package."""
    folder = resources.files("endocil.settings.presets")
    return sorted(entry.name[:-5] for entry in folder.iterdir() if entry.name.endswith(".toml"))


def load_settings(source: str | Path | Mapping[str, Any] | Settings, overrides: Sequence[str] = ()) -> Settings:
    """Settings from a preset's name, a TOML file, or a dictionary, with `key=value` overrides."""
    if isinstance(source, Settings):
        values = source.model_dump(mode="json", exclude_none=True)
    else:
        values = dict(source) if isinstance(source, Mapping) else _read(source)
    for override in overrides:
        values = apply_override(values, override)
    try:
        return Settings.model_validate(values)
    except ValidationError as error:
        raise SettingsError("; ".join(_problem(details) for details in error.errors()[:3])) from None


def resume_command(run: Path) -> str:
    """What continues a stopped run, for messages; with --trust where its settings name code from outside."""
    try:
        foreign = bool(load_settings(run / "settings.toml").outside_code())
    except (EndocilError, OSError):  # resume will say what is wrong with them
        foreign = False
    return f"endocil resume {shlex.quote(str(run))}{' --trust' if foreign else ''}"


def _read(source: str | Path) -> dict[str, Any]:
    if str(source) in presets():
        text = resources.files("endocil.settings.presets").joinpath(f"{source}.toml").read_text("utf-8")
    elif Path(source).is_file():
        text = _utf8(Path(source))
    else:
        known = ", ".join(presets())
        raise SettingsError(f"no settings called '{source}': expected a TOML file or one of the presets {known}")
    try:
        return parse_toml(text)
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"settings {source} are not valid TOML: {error}") from error


def _utf8(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except UnicodeDecodeError as error:
        raise SettingsError(f"settings {path} are not UTF-8 text, which TOML is; save the file as UTF-8") from error


def _problem(details: Any) -> str:
    place = [str(part) for part in details["loc"] if not str(part).startswith(("literal[", "tuple["))]
    if details["type"] == "extra_forbidden":
        section = Settings if len(place) == 1 else Settings.model_fields[place[0]].annotation
        known = ", ".join(sorted(section.model_fields))  # type: ignore[union-attr]
        kind = "settings" if len(place) == 1 else place[0]
        return f"unknown {kind} key '{place[-1]}'; known: {known}"
    if details["type"] == "tuple_type":
        return f"{'.'.join(place)}: expected a list, such as [{details['input']!r}], got {details['input']!r}"
    message = details["msg"].removeprefix("Value error, ")
    message = message[0].lower() + message[1:]
    return f"{'.'.join(place)}: {message}, got {details['input']!r}"
