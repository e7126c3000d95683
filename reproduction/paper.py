"""The paper's numbers with their source, and the ledger's runs by place.

A place is what experiments must share to be compared: images, split, tasks, network and training. Only a place at the
paper's scale can reproduce its numbers; for all others the deviations from it are listed.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from endocil.io.text_tables import listed
from endocil.methods import method_title
from endocil.reports.ledger import Entry
from endocil.reports.ledger_tables import Entries, chosen_by_method, shared_budget, ticks
from endocil.runs.experiments import Group, data_title, differing, flatten, format_value, identity, label, split_title
from endocil.runs.experiments import groups as grouped
from endocil.runs.records import is_incremental

Json = Mapping[str, Any]
Predicate = Callable[[Json], bool]
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


def component_names(ticks: Ticks) -> str:
    """ "PRCBL + CFG" of (False, True, True)."""
    names = [name for name, on in zip(paper()["ablation"]["components"], ticks, strict=True) if on]
    return "all three" if all(ticks) else " + ".join(names) or "none"


def ablation_rows() -> list[Row]:
    stored, metrics = paper()["ablation"], paper()["metrics"]
    n = len(stored["components"])
    return [
        Row(
            stored["data"], stored["method"], stored["buffer"], dict(zip(metrics, row[n:], strict=True)), tuple(row[:n])
        )
        for row in stored["rows"]
    ]


@dataclass(frozen=True)
class Place:
    """Experiments on the same images, with the same tasks, network and training."""

    name: str
    methods: tuple[Entries, ...]  # each with its default options
    ablation: tuple[Entries, ...]  # with and without the components
    deviations: tuple[str, ...]  # from the paper's scale; empty at the paper's scale
    data: str  # the data set's name in settings
    suffix: str = ""  # in what it differs from another place of the same data; also at the end of its name
    differences: tuple[str, ...] = ()  # from places of the same data and scale

    @property
    def budget(self) -> str:
        """64 px, width 16, 30 epochs per task"""
        return shared_budget(self.first.settings)

    @property
    def part_of(self) -> str | None:
        """The public data set of whose images these are a part, as its name says: "Hyper-Kvasir part"."""
        title = data_title(self.first.settings)
        parts = {data_title({"data": {"name": name}}) + " part": name for name in paper()["data"]}
        return parts.get(title)

    def named_beside(self, budget: str) -> str:
        """Its name where a budget has been named already."""
        texts = [*([] if self.budget == budget else [self.budget]), *self.differences]
        return split_title(self.first.settings) + in_brackets(texts)

    @property
    def first(self) -> Entry:
        return (self.methods or self.ablation)[0].first

    def method(self, name: str, buffer: int | None) -> Entries | None:
        """The experiment of a method with its default options; without a memory the buffer does not matter."""
        own = [one for one in self.methods if one.label == method_title(name)]
        return next((one for one in own if buffer_of(one.first) in (buffer, None)), None)

    def rivals(self, name: str, buffer: int | None) -> list[Entries]:
        """Every other of the paper's methods that learns task by task."""
        others = {method_title(other) for other in paper()["methods"].keys() - {name}}
        rivals = [one for one in self.methods if is_incremental(one.first.metrics) and one.label in others]
        return [one for one in rivals if buffer_of(one.first) in (buffer, None)]

    def components(self, on: Ticks, buffer: int) -> Entries | None:
        return next((one for one in self.ablation if ticks(one) == on and buffer_of(one.first) == buffer), None)

    def described(self) -> str:
        """14 classes in 5 tasks, 942 test images of 64 px, width 16, 30 epochs per task"""
        metrics = self.first.metrics
        return (
            f"{len(metrics['classes'])} classes in {len(self._sizes())} tasks, {metrics['test_images'][-1]:,} test "
            f"images of {self.budget}"
        )

    def _sizes(self) -> Sequence[int]:
        return task_sizes([one.first for one in (*self.methods, *self.ablation)])


def in_brackets(texts: Sequence[str]) -> str:
    return f" ({', '.join(texts)})" if texts else ""


def buffer_of(entry: Entry) -> Any:
    """Exemplars per class; None without a memory, 0 where the memory has a size in all, as the paper's has not."""
    return entry.settings.get("memory", {}).get("per_class", 0) if entry.exemplars else None


def places(
    entries: Sequence[Entry], defaults: Predicate, components: Predicate, presets: Mapping[str, Json]
) -> list[Place]:
    """The ledger by place, the paper's scale first. `defaults`: has a method its default options? `components`: all
    but the components? `presets`: the paper's settings by data set, complete."""
    by_key: dict[str, list[Entry]] = {}
    for entry in entries:
        by_key.setdefault(json.dumps(_where(entry.settings), default=str), []).append(entry)
    every = [_place(members, defaults, components, presets) for members in by_key.values()]
    named = _distinguished([one for one in every if one.methods or one.ablation])
    return sorted(named, key=lambda one: (bool(one.deviations), one.name))


def _where(settings: Json) -> dict[str, Any]:
    own = ("seed", "method.", "memory.", *chosen_by_method(settings))
    return {k: v for k, v in sorted(identity(settings).items()) if not k.startswith(own)}


def _distinguished(places: Sequence[Place]) -> list[Place]:
    """Places that would have one name, such as two splits of the same images, are named by their differences."""
    namesakes: dict[str, list[Place]] = {}
    for one in places:
        namesakes.setdefault(one.name if one.deviations else one.data, []).append(one)
    named = []
    for members in namesakes.values():
        scales = [one.budget for one in members]
        for one, scale in zip(members, scales, strict=True):
            alike = [other for other, own in zip(members, scales, strict=True) if own == scale]
            keys = sorted(differing([_where(other.first.settings) for other in alike]))
            own = _where(one.first.settings)
            settings = tuple(f"{key}={format_value(own.get(key))}" for key in keys)  # where the scale does not tell
            suffix = in_brackets([*([scale] if len(set(scales)) > 1 else []), *settings])
            named.append(replace(one, name=one.name + suffix, suffix=suffix, differences=settings))
    return named


def _place(members: Sequence[Entry], defaults: Predicate, components: Predicate, presets: Mapping[str, Json]) -> Place:
    with_defaults = [entry for entry in members if defaults(entry.settings)]
    ablated = [one for one in grouped([e for e in members if components(e.settings)]) if None not in ticks(one)]
    settings = members[0].settings
    return Place(
        split_title(settings),
        # one experiment for each method and buffer, under the method's title alone
        tuple(Group(label(one.first.settings), one.results) for one in grouped(with_defaults)),
        tuple(ablated),
        tuple(deviations(members, paper()["data"].get(settings["data"]["name"]), presets)),
        settings["data"]["name"],
    )


SECTIONS = ("data.", "scenario.", "network.", "train.")
# Not compared: where images are stored, the seed of the split (the paper gives none), settings that do not change
# results, and the increments, of which the resulting task sizes are compared.
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


def deviations(members: Sequence[Entry], facts: Json | None, presets: Mapping[str, Json]) -> list[str]:
    """Settings other than the preset's, other tasks, other test images. `facts`: the paper's data set, None for data
    of one's own; `presets`: its settings by data set, complete. A setting that an entry does not have is one that
    came later, and had its present default."""
    settings = members[0].settings
    texts = [] if facts else ["not one of the paper's data sets"]
    by_method = chosen_by_method(settings)
    for key, ours, theirs in _beside(settings, presets):
        values = sorted({flatten(one.settings)[key] for one in members}) if key in by_method else [ours]
        if values != [theirs]:
            own = f"{listed([*map(_text, values)])} by method" if len(values) > 1 else _text(values[0])
            texts.append(f"{key} {own} instead of {_text(theirs)}")
    return texts + (_other_images(facts, members) if facts else [])


def _text(value: Any) -> str:
    return "none" if value is None or value == [] else format_value(value)


def _beside(settings: Json, presets: Mapping[str, Json]) -> list[tuple[str, Any, Any]]:
    """Each setting that may change a result, ours and the paper's."""
    ours = _compared(settings)
    name = settings["data"]["name"]
    if name in presets:
        preset = _compared(presets[name])
        return [(key, value, preset.get(key)) for key, value in ours.items()]
    theirs = [_compared(each) for each in presets.values()]  # of other data what all of the paper's share
    own = differing(theirs) | {key for key in ours if key.startswith("data.") and key not in theirs[0]}
    return [(key, value, theirs[0].get(key)) for key, value in ours.items() if key not in own]


def _compared(settings: Json) -> dict[str, Any]:
    values = {k: v for k, v in flatten(settings).items() if k.startswith(SECTIONS) and k not in FREE}
    if values.get("scenario.tasks") != "given":
        values.pop("scenario.tasks", None)  # a number of tasks, which their sizes contain
    return values


def _other_images(facts: Json, members: Sequence[Entry]) -> list[str]:
    texts = []
    sizes, tested = task_sizes(members), members[0].metrics["test_images"][-1]
    if list(sizes) != facts["increments"]:
        texts.append(f"tasks of {format_value(list(sizes))} classes instead of {format_value(facts['increments'])}")
    if tested != facts["test_images"]:
        texts.append(f"{tested:,} test images instead of {facts['test_images']:,}")
    return texts


def task_sizes(entries: Sequence[Entry]) -> Sequence[int]:
    """Of the methods that learn task by task, where there is one."""
    sizes: list[Sequence[int]] = [entry.metrics["task_sizes"] for entry in entries]
    return max(sizes, key=len)
