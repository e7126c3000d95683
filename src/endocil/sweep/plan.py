"""From a sweep file to its runs: every combination once, with complete settings and a name that says what it is."""

import hashlib
import itertools
import json
import re
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePath
from typing import Any, TypeVar

import tomli_w

from endocil.assembly import complete
from endocil.errors import EndocilError
from endocil.methods import method_class
from endocil.report.grouping import evaluated_part, flat, identity
from endocil.report.names import written
from endocil.settings import Settings, load_settings, presets
from endocil.sweep.file import Block, SweepFile

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
