"""`key=value` on the command line, laid over the values of a settings file."""

import tomllib
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal

import tomli_w
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from endocil.errors import EndocilError
from endocil.methods.base import check_milestones

RIVALS = (("memory", "per_class", "total"), ("scenario", "tasks", "increments"))


def overridden(values: dict[str, Any], override: str) -> dict[str, Any]:
    """`train.epochs=3`: the value is TOML where it can be read as such, text otherwise."""
    key, equals, text = override.partition("=")
    if not equals or not key.strip():
        raise EndocilError(f"override '{override}' is not of the form key=value, such as train.epochs=3")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text
    path = key.strip().split(".")
    return _set(_without_rival(values, path), path, value)


def _without_rival(values: dict[str, Any], path: list[str]) -> dict[str, Any]:
    """Of two settings that exclude each other, the one given last counts."""
    for section, one, other in RIVALS:
        for rival in (one,) if path == [section, other] else (other,) if path == [section, one] else ():
            inner = {key: value for key, value in values.get(section, {}).items() if key != rival}
            values = {**values, section: inner}
    return values


def _set(values: dict[str, Any], path: list[str], value: Any) -> dict[str, Any]:
    if len(path) == 1:
        return {**values, path[0]: value}
    inner = values.get(path[0], {})
    if not isinstance(inner, dict):
        raise EndocilError(f"'{path[0]}' is a value, not a section; it takes no key '{path[1]}'")
    return {**values, path[0]: _set(inner, path[1:], value)}


# Settings of a run: TOML with overrides into frozen models; an unknown key is refused with the known ones listed.


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class _OpenSection(BaseModel):
    """A section that also takes the keywords of the thing it names."""

    model_config = ConfigDict(frozen=True, extra="allow")

    @property
    def options(self) -> dict[str, Any]:
        return dict(self.model_extra or {})


class DataSettings(_OpenSection):
    name: str = "folder"
    size: int = Field(256, ge=16)  # EndoCIL: images are resized to 256 x 256
    skip_unreadable: bool = False
    crop_frame: bool = False  # cut the black frame around the scope's view away before resizing


class ScenarioSettings(_Section):
    increments: tuple[int, ...] | None = None
    tasks: int | Literal["given"] | None = None
    order: Literal["alphabetical", "seeded"] | tuple[str, ...] = "alphabetical"
    minimum: int = Field(1, ge=1)
    leave_out: tuple[str, ...] = ()
    split_by: Literal["image", "group", "given"] = "image"
    groups: str = "given"  # or "near-duplicates", or a pattern on the image's path with one bracket
    folds: int | None = None
    fold: int = 0
    split: str | None = None  # a split.csv that a run has recorded
    validation: float = Field(0.0, ge=0.0, lt=1.0)
    split_seed: int = 1993


class NetworkSettings(_OpenSection):
    backbone: str = "resnet18"
    weights: str | None = None
    freeze: tuple[str, ...] = ()


class MemorySettings(_OpenSection):
    per_class: int | None = Field(None, ge=1)
    total: int | None = Field(None, ge=1)
    select: str | None = None  # none: the method's own


class MethodSettings(_OpenSection):
    name: str = "endocil"


def _as_text(value: Any) -> Any:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


class TrainSettings(_Section):
    """EndoCIL, Experimental Setting; augmentation as far as the paper tells."""

    model_config = ConfigDict(allow_inf_nan=False)  # a run would end in its first epoch

    epochs: int = Field(100, ge=1)
    learning_rate: float = Field(0.1, gt=0.0)
    # 50 and 70 of 100 epochs; or whole epochs (milestones.py)
    milestones: Annotated[tuple[int | float, ...], BeforeValidator(check_milestones)] = (0.5, 0.7)
    decay: float = Field(0.1, gt=0.0)
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


class RunSettings(_Section):
    accelerator: str = "auto"
    threads: int | None = Field(None, ge=1)  # none: as many as torch takes; recorded when the run starts
    checkpoint_seconds: float = Field(30.0, ge=0.0)
    evaluation_batch: int = Field(256, ge=1)
    held_out: int = Field(20, ge=0)  # images of each class, of the validation part, that the model keeps
    gallery: bool = False  # show exemplars on the page; they are images of patients
    keep: bool = False  # keep the weights after each task and the first task's features, for figures
    evaluate: Literal["test", "validation"] = "test"  # the part that is predicted; validation: for tuning
    first_tasks: str | None = None  # a folder of first tasks that runs share; none: each trains its own
    tensorboard: bool = False  # write event files for TensorBoard as the run learns


class Settings(_Section):
    seed: int = Field(0, ge=0)
    data: DataSettings = DataSettings()
    scenario: ScenarioSettings = ScenarioSettings()
    network: NetworkSettings = NetworkSettings()
    memory: MemorySettings = MemorySettings()
    method: MethodSettings = MethodSettings()
    train: TrainSettings = TrainSettings()
    run: RunSettings = RunSettings()

    def to_toml(self) -> str:
        return tomli_w.dumps(_without_none(self.model_dump(mode="json")))


def _without_none(value: Any) -> Any:
    pairs = value.items() if isinstance(value, dict) else ()
    return {key: _without_none(item) for key, item in pairs if item is not None} if pairs else value


def presets() -> list[str]:
    """Names of the settings that come with the package."""
    folder = resources.files("endocil.settings.presets")
    return sorted(entry.name[:-5] for entry in folder.iterdir() if entry.name.endswith(".toml"))


def load_settings(
    source: str | Path | Mapping[str, Any] | Settings, overrides: Sequence[str] = ()
) -> Settings:
    """Settings from a preset's name, a TOML file, or a dictionary, with `key=value` overrides."""
    if isinstance(source, Settings):
        values = source.model_dump(mode="json", exclude_none=True)
    else:
        values = dict(source) if isinstance(source, Mapping) else _read(source)
    for override in overrides:
        values = overridden(values, override)
    return _validated(values)


def _read(source: str | Path) -> dict[str, Any]:
    if str(source) in presets():
        text = resources.files("endocil.settings.presets").joinpath(f"{source}.toml").read_text("utf-8")
    elif Path(source).is_file():
        text = Path(source).read_text("utf-8", "replace")  # what is not UTF-8 is not TOML either
    else:
        known = ", ".join(presets())
        raise EndocilError(
            f"no settings called '{source}': expected a TOML file or one of the presets {known}"
        )
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise EndocilError(f"settings {source} are not valid TOML: {error}") from error


def _validated(values: Mapping[str, Any]) -> Settings:
    try:
        return Settings.model_validate(values)
    except ValidationError as error:
        raise EndocilError("; ".join(_problem(found) for found in error.errors()[:3])) from None


def _problem(found: Any) -> str:
    place = [str(part) for part in found["loc"] if not str(part).startswith(("literal[", "tuple["))]
    if found["type"] == "extra_forbidden":
        section = Settings if len(place) == 1 else Settings.model_fields[place[0]].annotation
        known = ", ".join(sorted(section.model_fields))  # type: ignore[union-attr]
        kind = "settings" if len(place) == 1 else place[0]
        return f"unknown {kind} key '{place[-1]}'; known: {known}"
    message = found["msg"].removeprefix("Value error, ")
    message = message[0].lower() + message[1:]
    return f"{'.'.join(place)}: {message}, got {found['input']!r}"
