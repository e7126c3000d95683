"""The paper's numbers, as data with their source, and the ledger's runs by the place where they were run.

A place is what experiments share that may be compared: images, split, tasks, network and training. Only a place at
the paper's scale can reproduce its numbers; all others are told apart.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from endocil.reports.ledger import Entry
from endocil.reports.ledger_tables import Entries, ticks
from endocil.runs.experiments import Group, differing, flat, identity, label, split_label, written
from endocil.runs.experiments import groups as grouped
from endocil.runs.records import is_incremental

Json = Mapping[str, Any]
Plain = Callable[[Json], bool]
Ticks = tuple[bool, ...]


@dataclass(frozen=True)
class Row:
    """One row of the paper's main table, or of its ablation."""

    data: str
    method: str
    buffer: int | None  # exemplars per class; None for a method without a memory
    values: Mapping[str, float | None]
    components: Ticks = ()


@cache
def paper() -> Json:
    file = Path(__file__).with_name("data") / "paper.json"
    stored: Json = json.loads(file.read_text("utf-8"))
    return stored


def main_rows() -> list[Row]:
    metrics = paper()["metrics"]
    return [
        Row(data, method, buffer, dict(zip(metrics, values, strict=True)))
        for data, method, buffer, *values in paper()["results"]
    ]


def ablation_rows() -> list[Row]:
    stored, metrics = paper()["ablation"], paper()["metrics"]
    n = len(stored["components"])
    return [
        Row(
            stored["data"],
            stored["method"],
            stored["buffer"],
            dict(zip(metrics, row[n:], strict=True)),
            tuple(row[:n]),
        )
        for row in stored["rows"]
    ]


@dataclass(frozen=True)
class Place:
    """Experiments on the same images, with the same tasks, network and training."""

    name: str
    methods: tuple[Entries, ...]  # each as it comes
    ablation: tuple[Entries, ...]  # with and without the components
    unlike: tuple[str, ...]  # in what it is not the paper's; empty at the paper's scale
    data: str  # the data set's name in settings
    apart: str = ""  # in what it differs from another place of the same data; also at the end of its name

    @property
    def first(self) -> Entry:
        return (self.methods or self.ablation)[0].first

    def method(self, name: str, buffer: int | None) -> Entries | None:
        """The experiment of a method as it comes; without a memory the buffer does not matter."""
        return next(
            (one for one in self.methods if one.label == name and _buffer(one.first) in (buffer, None)), None
        )

    def rivals(self, name: str, buffer: int | None) -> list[Entries]:
        """Every other of the paper's methods that learns task by task."""
        others = paper()["methods"].keys() - {name}
        found = [one for one in self.methods if is_incremental(one.first.metrics) and one.label in others]
        return [one for one in found if _buffer(one.first) in (buffer, None)]

    def components(self, on: Ticks, buffer: int) -> Entries | None:
        return next((one for one in self.ablation if ticks(one) == on and _buffer(one.first) == buffer), None)

    def described(self) -> str:
        """14 classes in 5 tasks, 942 test images of 64 px, width 16, 30 epochs"""
        settings, metrics = flat(self.first.settings), self.first.metrics
        return (
            f"{len(metrics['classes'])} classes in {len(self._sizes())} tasks, {metrics['test_images'][-1]:,} test "
            f"images of {settings.get('data.size')} px, width {settings.get('network.width')}, "
            f"{settings.get('train.epochs')} epochs"
        )

    def _sizes(self) -> Sequence[int]:
        return task_sizes([one.first for one in (*self.methods, *self.ablation)])


def _buffer(entry: Entry) -> Any:
    """Exemplars per class; None without a memory, 0 where the memory has a size in all, as the paper's has not."""
    return entry.settings.get("memory", {}).get("per_class", 0) if entry.exemplars else None


def places(
    entries: Sequence[Entry], plain: Plain, components: Plain, presets: Mapping[str, Json]
) -> list[Place]:
    """The ledger by place, the paper's scale first. `plain`: is a method as it comes? `components`: but for them?
    `presets`: the paper's settings by data set, complete."""
    by_key: dict[str, list[Entry]] = {}
    for entry in entries:
        by_key.setdefault(json.dumps(_where(entry.settings), default=str), []).append(entry)
    found = [_place(members, plain, components, presets) for members in by_key.values()]
    return sorted(
        _told_apart([one for one in found if one.methods or one.ablation]),
        key=lambda one: (bool(one.unlike), one.name),
    )


def _where(settings: Json) -> dict[str, Any]:
    own = ("seed", "method.", "memory.")
    return {k: v for k, v in sorted(identity(settings).items()) if not k.startswith(own)}


def _told_apart(found: Sequence[Place]) -> list[Place]:
    """Places that would have one name, such as two splits of the same images, get what differs between them."""
    alike: dict[str, list[Place]] = {}
    for one in found:
        alike.setdefault(one.name if one.unlike else one.data, []).append(one)
    return [named for those in alike.values() for named in _named_apart(those)]


def _named_apart(those: Sequence[Place]) -> list[Place]:
    values = [_where(one.first.settings) for one in those]
    keys = sorted(differing(values))
    told = [", ".join(f"{key}={written(each.get(key))}" for key in keys) for each in values]
    return [
        replace(one, name=f"{one.name} ({what})", apart=f" ({what})") if what else one
        for one, what in zip(those, told, strict=True)
    ]


def _place(members: Sequence[Entry], plain: Plain, components: Plain, presets: Mapping[str, Json]) -> Place:
    as_they_come = [entry for entry in members if plain(entry.settings)]
    ablated = [
        one for one in grouped([e for e in members if components(e.settings)]) if None not in ticks(one)
    ]
    settings = members[0].settings
    return Place(
        split_label(settings),
        tuple(_by_method(as_they_come)),
        tuple(ablated),
        tuple(unlike(members, paper()["data"].get(settings["data"]["name"]), presets)),
        settings["data"]["name"],
    )


def _by_method(entries: Sequence[Entry]) -> list[Entries]:
    """One experiment for each method and buffer, under the method's name alone."""
    return [Group(label(one.first.settings), one.results) for one in grouped(entries)]


# In what runs are not at the paper's scale: other settings than its preset's, other tasks, other test images.

SECTIONS = ("data.", "scenario.", "network.", "train.")
# Where images lie, which the paper's split took (it tells no seed), what changes no result by intent, and what is
# compared by what came of it.
FREE = frozenset(
    {
        "data.name",
        "data.root",
        "data.skip_unreadable",
        "scenario.split_seed",
        "scenario.increments",
        "train.compile",
        "train.accumulate",
    }
)


def unlike(members: Sequence[Entry], facts: Json | None, presets: Mapping[str, Json]) -> list[str]:
    """What is not the paper's. `facts`: its data set, None for data of one's own; `presets`: its settings by data set,
    complete. A setting that an entry does not have is one that came later, and was as it is now."""
    settings = members[0].settings
    said = [] if facts else ["not one of the paper's data sets"]
    said += [
        f"{key} {_told(value)} instead of {_told(wanted)}"
        for key, value, wanted in _beside(settings, presets)
        if value != wanted
    ]
    return said + (_other_images(facts, members) if facts else [])


def _told(value: Any) -> str:
    return "none" if value is None or value == [] else written(value)


def _beside(settings: Json, presets: Mapping[str, Json]) -> list[tuple[str, Any, Any]]:
    """Each setting that may change a result, ours and the paper's."""
    ours = _compared(settings)
    name = settings["data"]["name"]
    if name in presets:
        wanted = _compared(presets[name])
        return [(key, value, wanted.get(key)) for key, value in ours.items()]
    theirs = [_compared(each) for each in presets.values()]  # of other data what all of the paper's share
    own = differing(theirs) | {key for key in ours if key.startswith("data.") and key not in theirs[0]}
    return [(key, value, theirs[0].get(key)) for key, value in ours.items() if key not in own]


def _compared(settings: Json) -> dict[str, Any]:
    values = {k: v for k, v in flat(settings).items() if k.startswith(SECTIONS) and k not in FREE}
    if values.get("scenario.tasks") != "given":
        values.pop("scenario.tasks", None)  # a number of tasks: the sizes of the tasks tell it
    return values


def _other_images(facts: Json, members: Sequence[Entry]) -> list[str]:
    said = []
    sizes, tested = task_sizes(members), members[0].metrics["test_images"][-1]
    if list(sizes) != facts["increments"]:
        said.append(f"tasks of {written(list(sizes))} classes instead of {written(facts['increments'])}")
    if tested != facts["test_images"]:
        said.append(f"{tested:,} test images instead of {facts['test_images']:,}")
    return said


def task_sizes(entries: Sequence[Entry]) -> Sequence[int]:
    """Of the methods that learn task by task, where there is one."""
    sizes: list[Sequence[int]] = [entry.metrics["task_sizes"] for entry in entries]
    return max(sizes, key=len)
