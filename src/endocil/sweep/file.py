"""A sweep file: which settings are run, what all runs have in common, what varies, and what is searched."""

import sys
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    ValidationError,
    model_validator,
)

from endocil.errors import EndocilError

TUNING = ("samples", "sampling_seed", "metric")  # keys that say how a search is made


class Block(BaseModel):
    """Settings, each with every combination of what varies. `settings` are presets, or files beside the sweep file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    settings: str | tuple[str, ...] = ()
    set: dict[str, Any] = {}  # for every run
    vary: dict[str, list[Any]] = {}

    @model_validator(mode="before")
    @classmethod
    def _dotted(cls, values: Any) -> Any:
        """`memory.per_class = 30` is a table inside a table in TOML; quoted it is one key. Both mean the same."""
        if not isinstance(values, Mapping):
            return values
        ends: dict[str, Callable[[Mapping[str, Any]], bool]] = {
            "set": lambda table: False,
            "vary": lambda table: False,
            "search": lambda table: bool(Range.model_fields.keys() & table.keys()),
        }
        tables = {key: value for key, value in values.items() if key in ends and isinstance(value, Mapping)}
        return {**values, **{key: _flat(value, ends[key]) for key, value in tables.items()}}

    @property
    def sources(self) -> tuple[str, ...]:
        return (self.settings,) if isinstance(self.settings, str) else self.settings


def _finite(value: Any) -> Any:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not abs(value) <= sys.float_info.max:  # which NaN is not either
        raise ValueError("must be a finite number")
    return value


Number = Annotated[int | float, BeforeValidator(_finite)]


class Range(BaseModel):
    """Numbers from low to high; whole ones where both are. `log`: as many between 0.01 and 0.1 as up to 1."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    low: Number
    high: Number
    log: bool = False

    @model_validator(mode="after")
    def _ordered(self) -> "Range":
        if not self.low < self.high or (self.log and self.low <= 0):
            raise ValueError("low must lie below high, and above 0 where log is true")
        return self


def _kind(value: Any) -> str:
    return "[range]" if isinstance(value, Mapping | Range) else "[list]"


# a table is checked as a range alone: what keeps it from being a list is no help to anyone
Searched = Annotated[
    Annotated[Range, Tag("[range]")] | Annotated[list[Any], Tag("[list]")], Discriminator(_kind)
]


class SweepFile(Block):
    """The first block, further ones, and for `endocil tune` what is searched and how."""

    also: tuple[Block, ...] = ()
    search: dict[str, Searched] = {}
    samples: int | None = Field(None, ge=1)
    sampling_seed: int = Field(0, ge=0)
    metric: str = "softmax.acc_avg"

    @property
    def blocks(self) -> tuple[Block, ...]:
        """What is left out in a further block is that of the first; what all runs have in common holds there too."""
        common = {"settings": self.settings, "set": self.set}
        further = [
            one.model_copy(update={"settings": one.settings or self.settings, "set": self.set | one.set})
            for one in self.also
        ]
        first = [Block(**common, vary=self.vary)] if self.vary or self.search or not further else []
        return (*first, *further)


def _flat(table: Mapping[str, Any], is_value: Callable[[Mapping[str, Any]], bool]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, Mapping) and not is_value(value):
            found |= {f"{key}.{inner}": item for inner, item in _flat(value, is_value).items()}
        else:
            found[key] = value
    return found


def read_sweep(path: Path) -> SweepFile:
    """The file's content; an unknown key is refused with the known ones."""
    if not path.is_file():
        raise EndocilError(f"there is no sweep file {path}; see docs/sweeps.md for its form")
    try:
        found = SweepFile.model_validate(tomllib.loads(path.read_text("utf-8", "replace")))
    except tomllib.TOMLDecodeError as error:
        raise EndocilError(f"sweep file {path} is not valid TOML: {error}") from error
    except ValidationError as error:
        problems = "; ".join(_problem(one) for one in error.errors()[:3])
        raise EndocilError(f"sweep file {path}: {problems}") from None
    if not all(block.sources for block in found.blocks):
        raise EndocilError(f'sweep file {path} names no settings; give one, such as settings = "smoke"')
    _refuse_empty_lists(path, found)
    _refuse_tuning_without_search(path, found)
    return found


def _refuse_empty_lists(path: Path, found: SweepFile) -> None:
    lists = [(f"vary.{key}", values) for block in found.blocks for key, values in block.vary.items()]
    for name, values in [*lists, *((f"search.{key}", values) for key, values in found.search.items())]:
        if values == []:
            raise EndocilError(f"sweep file {path}: {name} is an empty list; give at least one value")


def _refuse_tuning_without_search(path: Path, found: SweepFile) -> None:
    """They would do nothing: a sweep draws and ranks nothing, and it refuses files with a search."""
    for key in TUNING:
        if key in found.model_fields_set and not found.search:
            raise EndocilError(
                f"sweep file {path}: {key} is for 'endocil tune', and there is no [search] table to tune by; "
                f"give one, or leave {key} out"
            )


def _problem(found: Any) -> str:
    first, *inner = map(str, found["loc"])
    place = [first, *(part for part in inner if "[" not in part)]  # without pydantic's names of types
    if found["type"] == "extra_forbidden":
        known = Block if place[0] == "also" else Range if place[0] == "search" else SweepFile
        return f"unknown key '{'.'.join(place)}'; known: {', '.join(sorted(known.model_fields))}"
    message = found["msg"].removeprefix("Value error, ")
    form = "; give a list, or { low = .., high = .. }" if place[0] == "search" and len(place) > 1 else ""
    return f"{'.'.join(place)}: {message[0].lower()}{message[1:]}, got {found['input']!r}{form}"
