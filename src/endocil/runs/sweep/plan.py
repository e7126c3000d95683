"""A sweep file: which settings are run, what all runs have in common, what varies, and what is searched."""

import hashlib
import itertools
import json
import re
import sys
import tomllib
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePath
from typing import Annotated, Any, TypeVar

import tomli_w
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
from endocil.learning.build import complete
from endocil.methods import method_class
from endocil.runs.experiments import evaluated_part, flat, identity, written
from endocil.settings.settings import Settings, load_settings, presets

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


# From a sweep file to its runs: every combination once, with complete settings and a name that says what it is.

# a section that names a thing: `method = ["icarl"]` means method.name
NAMING = {"data": "name", "network": "backbone", "memory": "select", "method": "name"}
Changes = tuple[tuple[str, Any], ...]
K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True)
class Planned:
    """One run of a sweep."""

    source: str  # the settings it comes from, by their short name
    settings: Settings  # complete
    varied: Changes  # what sets it apart in its block
    threads_chosen: bool  # by the user; otherwise one, because many runs share a machine

    @cached_property
    def name(self) -> str:
        """Readable, and unique by a digest of all settings that decide the result."""
        told = dict(self.varied)
        method = self.settings.method.name.rpartition(":")[2]
        own = {"seed", "method.name"}
        extras = [
            f"{key.rpartition('.')[2]}-{written(value, '-')}" for key, value in told.items() if key not in own
        ]
        parts = [self.source, method, *extras, f"seed{self.settings.seed}"]
        return "-".join([*map(_plain, parts)])[:100] + f"-{self.digest}"

    @cached_property
    def digest(self) -> str:
        return _digest(decisive(self.settings))

    @property
    def candidate(self) -> str:
        """The same for runs that differ in the seed alone."""
        return _digest({key: value for key, value in decisive(self.settings).items() if key != "seed"})

    @property
    def start(self) -> str:
        """The same for runs that may share a first task."""
        told = decisive(self.settings)
        return _digest(
            {key: value for key, value in told.items() if not key.startswith(("method.", "memory."))}
        )


def decisive(settings: Settings) -> dict[str, Any]:
    """The settings that decide the result: none of [run] but the part that is evaluated, and of [memory] nothing
    for a method that keeps no exemplars. Paths count whole: two folders of one name are two data sets here."""
    values = settings.model_dump(mode="json", exclude_none=True)
    left_out = ("run.",) if method_class(settings.method.name).replay else ("run.", "memory.")
    told = {key: value for key, value in flat(values).items() if not key.startswith(left_out)}
    return told | {"run.evaluate": evaluated_part(values)}


def _digest(values: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True, default=str).encode()).hexdigest()[:8]


def _plain(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.]+", "-", text).strip("-.")


def plan(
    file: SweepFile,
    here: Path,
    overrides: Sequence[str] = (),
    points: Sequence[Mapping[str, Any]] = ({},),
) -> list[Planned]:
    """The runs of a sweep file that lies in the folder `here`, each experiment once; `overrides` hold for all.

    `points` are settings to search, beside what varies. A run takes one thread unless the settings say otherwise."""
    found: dict[str, Planned] = {}
    sources = [source for block in file.blocks for source in block.sources]
    named = told_apart({source: (*Path(source).parent.parts, Path(source).stem) for source in sources})
    for block in file.blocks:
        for source, varied in itertools.product(block.sources, _combinations(block, points)):
            common = [one for key, value in block.set.items() for one in assigned(key, value)]
            given = [override(key, value) for key, value in (*common, *varied)]
            settings = load_settings(_located(source, here), [*given, *overrides])
            chosen = settings.run.threads is not None
            settings = settings if chosen else load_settings(settings, ["run.threads=1"])
            one = Planned(named[source], complete(settings), varied, chosen)
            found.setdefault(one.digest, one)
    return list(_taking_turns(found.values()))


def told_apart(parts: Mapping[K, Sequence[str]]) -> dict[K, str]:
    """A name for each path: its last part, and as many folders before it as tell it from others that end alike."""
    wanted = {}
    for key, path in parts.items():
        alike = {tuple(other) for other in parts.values() if other[-1:] == path[-1:]}
        deep = next(n for n in itertools.count(1) if len({other[-n:] for other in alike}) == len(alike))
        wanted[key] = "-".join([*map(_plain, path[-deep:-1]), *path[-1:]])
    return _numbered(wanted)


def _numbered(names: Mapping[K, str]) -> dict[K, str]:
    """The same names, and -2, -3 ... behind those that are taken."""
    found: dict[K, str] = {}
    for key, name in names.items():
        others = (f"{name}-{number}" for number in itertools.count(2))
        found[key] = next(one for one in itertools.chain([name], others) if one not in found.values())
    return found


def tables(runs: Sequence[Planned]) -> dict[str, str]:
    """By its digest, the table in which a run belongs: one for each data set of each settings file.

    Reports know a path by its last name. Here nothing is reported as one row that differs in a whole path: such runs
    are in tables of their own."""
    decide = [decisive(one.settings) for one in runs]
    keys = [*_told_alike(runs), "data.root"]  # the name of a table ends with its data
    keyed = {
        one.digest: (one.source, tuple(str(values.get(key, "")) for key in keys))
        for one, values in zip(runs, decide, strict=True)
    }
    places: dict[str, dict[tuple[str, ...], tuple[str, ...]]] = defaultdict(dict)
    for source, paths in keyed.values():
        places[source][paths] = tuple(part for path in paths for part in PurePath(path).parts)
    named = {
        (source, paths): source if len(several) == 1 else f"{source}-{_plain(name)}".strip("-")
        for source, several in places.items()
        for paths, name in told_apart(several).items()
    }
    names = _numbered(named)
    return {digest: names[key] for digest, key in keyed.items()}


def _told_alike(runs: Sequence[Planned]) -> list[str]:
    """The settings, data.root apart, of which several values have the same name in a report."""
    whole: dict[str, set[str]] = defaultdict(set)
    told: dict[str, set[str]] = defaultdict(set)
    for one in runs:
        short = identity(one.settings.model_dump(mode="json", exclude_none=True))
        for key, value in decisive(one.settings).items():
            whole[key].add(str(value))
            told[key].add(str(short.get(key)))
    return sorted(key for key in whole if key != "data.root" and len(told[key]) < len(whole[key]))


def _combinations(block: Block, points: Sequence[Mapping[str, Any]]) -> Iterator[Changes]:
    choices = [[assigned(key, value) for value in values] for key, values in block.vary.items()]
    for point in points:
        searched = [one for key, value in point.items() for one in assigned(key, value)]
        for combination in itertools.product(*choices):
            yield (*itertools.chain(*combination), *searched)


def assigned(key: str, value: Any) -> Changes:
    """One entry as settings: a table sets several keys of its section, a text on a section names its thing."""
    if isinstance(value, Mapping):
        return tuple((f"{key}.{inner}", item) for inner, item in value.items())
    if key in NAMING:
        if not isinstance(value, str):
            raise EndocilError(f"'{key}' takes a name or a table of settings, got {value!r}")
        return ((f"{key}.{NAMING[key]}", value),)
    return ((key, value),)


def override(key: str, value: Any) -> str:
    """As `--set` takes it."""
    return f"{key}={tomli_w.dumps({'value': value}).removeprefix('value = ').strip()}"


def _located(source: str, here: Path) -> str:
    return source if source in presets() else str(here / source)


def _taking_turns(runs: Iterable[Planned]) -> Iterator[Planned]:
    """One run of each start, then the second of each, and so on: those that begin at once seldom wait for the same
    first task."""
    starts: dict[str, list[Planned]] = defaultdict(list)
    for one in runs:
        starts[one.start].append(one)
    for turn in itertools.zip_longest(*starts.values()):
        yield from (one for one in turn if one is not None)
