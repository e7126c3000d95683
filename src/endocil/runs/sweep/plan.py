"""A sweep file and its runs: every combination of what varies once, with complete settings and a readable name."""

import itertools
import re
import sys
import tomllib
from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePath
from typing import Annotated, Any, TypeVar

import tomli_w
from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, Tag, ValidationError, model_validator

from endocil.errors import SettingsError
from endocil.io.files import parse_toml
from endocil.learning.build import complete
from endocil.methods import method_class
from endocil.runs.experiments import digest_of, evaluated_part, flatten, format_value, identity
from endocil.runs.parts import with_run_settings
from endocil.settings.settings import Settings, load_settings, presets

SEARCH_KEYS = ("samples", "sampling_seed", "metric")  # of a sweep file, for `endocil tune`
# a section that names a component: `method = ["icarl"]` means method.name
NAME_KEYS = {"data": "name", "network": "backbone", "memory": "select", "method": "name"}
Changes = tuple[tuple[str, Any], ...]
K = TypeVar("K", bound=Hashable)


class Block(BaseModel):
    """Settings (presets, or files beside the sweep file), each with every combination of the values in `vary`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    settings: str | tuple[str, ...] = ()
    set: dict[str, Any] = {}  # for every run
    vary: dict[str, list[Any]] = {}

    @model_validator(mode="before")
    @classmethod
    def _flatten_tables(cls, values: Any) -> Any:
        """`memory.per_class = 30` is a table inside a table in TOML; quoted it is one key. Both mean the same."""
        if not isinstance(values, Mapping):
            return values
        keys_of_values = {"set": set(), "vary": set(), "search": set(Range.model_fields)}
        return {
            key: _flatten(value, keys_of_values[key]) if key in keys_of_values and isinstance(value, Mapping) else value
            for key, value in values.items()
        }

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
    """Numbers from low to high; whole ones where both are. `log`: drawn evenly on a logarithmic scale."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    low: Number
    high: Number
    log: bool = False

    @model_validator(mode="after")
    def _ordered(self) -> "Range":
        if not self.low < self.high or (self.log and self.low <= 0):
            raise ValueError("low must lie below high, and above 0 where log is true")
        return self


# a table is checked as a range alone, so that its error does not mention lists
SearchValues = Annotated[
    Annotated[Range, Tag("[range]")] | Annotated[list[Any], Tag("[list]")],
    Discriminator(lambda value: "[range]" if isinstance(value, Mapping | Range) else "[list]"),
]


class SweepFile(Block):
    """The first block, further ones, and the search of `endocil tune`."""

    also: tuple[Block, ...] = ()
    search: dict[str, SearchValues] = {}
    samples: int | None = Field(None, ge=1)
    sampling_seed: int = Field(0, ge=0)
    metric: str = "softmax.acc_avg"

    @property
    def blocks(self) -> tuple[Block, ...]:
        """A further block takes what it leaves out from the first; `set` of the first block holds in all."""
        common = {"settings": self.settings, "set": self.set}
        further = [
            one.model_copy(update={"settings": one.settings or self.settings, "set": self.set | one.set})
            for one in self.also
        ]
        first = [Block(**common, vary=self.vary)] if self.vary or self.search or not further else []
        return (*first, *further)


def _flatten(table: Mapping[str, Any], keys_of_values: Collection[str]) -> dict[str, Any]:
    """One level of dotted keys; a table with one of these keys is a value itself."""
    flattened: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, Mapping) and not value.keys() & set(keys_of_values):
            flattened |= {f"{key}.{inner}": item for inner, item in _flatten(value, keys_of_values).items()}
        else:
            flattened[key] = value
    return flattened


def read_sweep(path: Path) -> SweepFile:
    """The file's content; an unknown key is refused with the known ones."""
    if not path.is_file():
        raise SettingsError(f"there is no sweep file {path}; see docs/run.md for its form")
    try:
        sweep = SweepFile.model_validate(parse_toml(path.read_text("utf-8", "replace")))
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"sweep file {path} is not valid TOML: {error}") from error
    except ValidationError as error:
        problems = "; ".join(_validation_message(one) for one in error.errors()[:3])
        raise SettingsError(f"sweep file {path}: {problems}") from None
    if not all(block.sources for block in sweep.blocks):
        raise SettingsError(f'sweep file {path} names no settings; give one, such as settings = "smoke"')
    lists = [(f"vary.{key}", values) for block in sweep.blocks for key, values in block.vary.items()]
    for name, values in [*lists, *((f"search.{key}", values) for key, values in sweep.search.items())]:
        if values == []:
            raise SettingsError(f"sweep file {path}: {name} is an empty list; give at least one value")
    for key in SEARCH_KEYS:
        if key in sweep.model_fields_set and not sweep.search:  # it would have no effect
            raise SettingsError(
                f"sweep file {path}: {key} is for 'endocil tune', and there is no [search] table to tune by; "
                f"give one, or leave {key} out"
            )
    return sweep


def _validation_message(error: Any) -> str:
    first, *inner = map(str, error["loc"])
    place = [first, *(part for part in inner if "[" not in part)]  # without pydantic's names of types
    if error["type"] == "extra_forbidden":
        known = Block if place[0] == "also" else Range if place[0] == "search" else SweepFile
        return f"unknown key '{'.'.join(place)}'; known: {', '.join(sorted(known.model_fields))}"
    message = error["msg"].removeprefix("Value error, ")
    form = "; give a list, or { low = .., high = .. }" if place[0] == "search" and len(place) > 1 else ""
    return f"{'.'.join(place)}: {message[0].lower()}{message[1:]}, got {error['input']!r}{form}"


@dataclass(frozen=True)
class PlannedRun:
    """One run of a sweep."""

    source: str  # the settings it comes from, by their short name
    settings: Settings  # complete
    varied: Changes  # its values of `vary` and `search`
    threads_chosen: bool  # by the user; otherwise one, because many runs share a machine

    @cached_property
    def name(self) -> str:
        """Readable, and unique by a digest of all settings that decide the result."""
        parts = [self.source, self.settings.method.name.rpartition(":")[2]]
        for key, value in dict(self.varied).items():
            if key not in ("seed", "method.name"):  # which the name has anyway
                parts.append(f"{key.rpartition('.')[2]}-{format_value(value, '-')}")
        parts.append(f"seed{self.settings.seed}")
        return "-".join([*map(_file_name_part, parts)])[:100] + f"-{self.digest}"

    @cached_property
    def digest(self) -> str:
        return digest_of(result_settings(self.settings))

    @property
    def candidate_key(self) -> str:
        """The same for runs that differ in the seed alone."""
        return digest_of({key: value for key, value in result_settings(self.settings).items() if key != "seed"})

    @property
    def first_task_key(self) -> str:
        """The same for runs that may share a first task."""
        values = result_settings(self.settings)
        return digest_of({key: value for key, value in values.items() if not key.startswith(("method.", "memory."))})


def result_settings(settings: Settings) -> dict[str, Any]:
    """The settings that decide the result: none of [run] but the part that is evaluated, and of [memory] nothing
    for a method that keeps no exemplars. Paths count whole: two folders of one name are two data sets here."""
    values = settings.model_dump(mode="json", exclude_none=True)
    left_out = ("run.",) if method_class(settings.method.name).replay else ("run.", "memory.")
    decisive = {key: value for key, value in flatten(values).items() if not key.startswith(left_out)}
    return decisive | {"run.evaluate": evaluated_part(values)}


def _file_name_part(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.]+", "-", text).strip("-.")


def plan(
    file: SweepFile, here: Path, overrides: Sequence[str] = (), points: Sequence[Mapping[str, Any]] = ({},)
) -> list[PlannedRun]:
    """The runs of a sweep file that lies in the folder `here`, each experiment once; `overrides` hold for all.

    `points` are settings to search, beside what varies. A run takes one thread unless the settings say otherwise."""
    runs: dict[str, PlannedRun] = {}
    sources = [source for block in file.blocks for source in block.sources]
    names = distinct_names({source: (*Path(source).parent.parts, Path(source).stem) for source in sources})
    searched = [[one for key, value in point.items() for one in assignments(key, value)] for point in points]
    for block in file.blocks:
        common = [one for key, value in block.set.items() for one in assignments(key, value)]
        choices = [[assignments(key, value) for value in values] for key, values in block.vary.items()]
        combinations = [(*itertools.chain(*c), *point) for point in searched for c in itertools.product(*choices)]
        for source, varied in itertools.product(block.sources, combinations):
            changes = [override(key, value) for key, value in (*common, *varied)]
            located = source if source in presets() else str(here / source)
            settings = load_settings(located, [*changes, *overrides]).trusted()
            threads_chosen = settings.run.threads is not None
            if not threads_chosen:
                settings = with_run_settings(settings, threads=1)
            one = PlannedRun(names[source], complete(settings), varied, threads_chosen)
            runs.setdefault(one.digest, one)
    # the first run of each first task, then the second of each, and so on: runs that begin together seldom wait for the
    # same first task
    turns = itertools.zip_longest(*runs_by(runs.values(), lambda one: one.first_task_key))
    return [one for turn in turns for one in turn if one is not None]


def runs_by(runs: Iterable[PlannedRun], key: Callable[[PlannedRun], str]) -> list[list[PlannedRun]]:
    """The runs with the same key together, in order of appearance."""
    groups: dict[str, list[PlannedRun]] = defaultdict(list)
    for one in runs:
        groups[key(one)].append(one)
    return list(groups.values())


def distinct_names(parts: Mapping[K, Sequence[str]]) -> dict[K, str]:
    """A name for each path: its last part, and as many folders before it as distinguish it from the others."""
    names = {}
    for key, path in parts.items():
        same_end = {tuple(other) for other in parts.values() if other[-1:] == path[-1:]}
        depth = next(n for n in itertools.count(1) if len({other[-n:] for other in same_end}) == len(same_end))
        names[key] = "-".join([*map(_file_name_part, path[-depth:-1]), *path[-1:]])
    return _numbered(names)


def _numbered(names: Mapping[K, str]) -> dict[K, str]:
    """The same names, and -2, -3 ... behind those that are taken."""
    unique: dict[K, str] = {}
    for key, name in names.items():
        others = (f"{name}-{number}" for number in itertools.count(2))
        unique[key] = next(one for one in itertools.chain([name], others) if one not in unique.values())
    return unique


def table_names(runs: Sequence[PlannedRun]) -> dict[str, str]:
    """By the digest of each run, the name of its table: one for each data set of each settings file.

    Reports show the last name of a path alone, so runs that differ in the rest of a path get tables of their own."""
    decisive = [result_settings(one.settings) for one in runs]
    keys = [*_ambiguous_keys(runs), "data.root"]  # the name of a table ends with its data
    keyed = {
        one.digest: (one.source, tuple(str(values.get(key, "")) for key in keys))
        for one, values in zip(runs, decisive, strict=True)
    }
    places: dict[str, dict[tuple[str, ...], tuple[str, ...]]] = defaultdict(dict)
    for source, paths in keyed.values():
        places[source][paths] = tuple(part for path in paths for part in PurePath(path).parts)
    wanted = {
        (source, paths): source if len(by_path) == 1 else f"{source}-{_file_name_part(name)}".strip("-")
        for source, by_path in places.items()
        for paths, name in distinct_names(by_path).items()
    }
    names = _numbered(wanted)
    return {digest: names[key] for digest, key in keyed.items()}


def _ambiguous_keys(runs: Sequence[PlannedRun]) -> list[str]:
    """The settings, data.root apart, of which several values look the same in a report."""
    values: dict[str, set[str]] = defaultdict(set)
    shown: dict[str, set[str]] = defaultdict(set)
    for one in runs:
        short = identity(one.settings.model_dump(mode="json", exclude_none=True))
        for key, value in result_settings(one.settings).items():
            values[key].add(str(value))
            shown[key].add(str(short.get(key)))
    return sorted(key for key in values if key != "data.root" and len(shown[key]) < len(values[key]))


def assignments(key: str, value: Any) -> Changes:
    """One entry as settings: a table sets several keys of its section, a text names the component of its section."""
    if isinstance(value, Mapping):
        return tuple((f"{key}.{inner}", item) for inner, item in value.items())
    if key in NAME_KEYS:
        if not isinstance(value, str):
            raise SettingsError(f"'{key}' takes a name or a table of settings, got {value!r}")
        return ((f"{key}.{NAME_KEYS[key]}", value),)
    return ((key, value),)


def override(key: str, value: Any) -> str:
    """As `--set` takes it."""
    return f"{key}={tomli_w.dumps({'value': value}).removeprefix('value = ').strip()}"
