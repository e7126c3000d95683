"""Experiments: runs that differ in the seed alone, and what experiments, methods and data sets are called."""

import hashlib
import json
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Generic, Protocol, TypeVar

from endocil.datasets.public.facts import PUBLIC
from endocil.errors import EndocilError
from endocil.io.files import last_name, portable
from endocil.io.text_tables import DASH, listed
from endocil.methods import Method, method_class, method_options, method_title
from endocil.methods.base import milestone_epochs, warmup_epochs
from endocil.runs.records import is_imported, is_incremental
from endocil.settings.settings import load_settings, presets

OWN_SECTIONS = ("method.", "memory.")  # their keys are shown without the section

UNKNOWN = "unknown"  # of a budget
Budget = Mapping[str, int | str | None]


def data_title(settings: Mapping[str, Any]) -> str:
    """What people call the data: "GastroVision", "Hyper-Kvasir part" of $HYPER_KVASIR_PART, or a folder's last name;
    and where other classes are left out than in the paper, which: "Capsule Vision 2024 with Normal"."""
    name = str(settings["data"]["name"])
    title, left_out = _data_name(settings), settings.get("scenario", {}).get("leave_out")
    if name not in PUBLIC or left_out is None:
        return title
    paper, own = _left_out_in_the_paper(name), frozenset(left_out)
    changes = {"with": sorted(paper - own), "without": sorted(own - paper)}
    return " ".join([title, *(f"{word} {listed(classes)}" for word, classes in changes.items() if classes)])


@cache
def _left_out_in_the_paper(name: str) -> frozenset[str]:
    return frozenset(load_settings(name).scenario.leave_out) if name in presets() else frozenset()


def _data_name(settings: Mapping[str, Any]) -> str:
    name, root = str(settings["data"]["name"]), settings["data"].get("root")
    titles = {public: facts.title.partition(",")[0] for public, facts in PUBLIC.items()}
    if name in titles:
        return titles[name]
    if name == "synthetic":
        return "synthetic endoscopy"
    if name not in ("folder", "csv", "dicom") or not root:
        return name.rpartition(":")[2]
    file = str(settings["data"].get("file") or "")
    folder = last_name(file if file.startswith("$") else root)  # a list with a name may show a part of a folder
    words = re.sub(r"[\W_]+", " ", folder).strip().lower()
    for public, title in titles.items():
        if f"{words} ".startswith(f"{public.replace('-', ' ')} "):
            return title + words[len(public) :]
    return words.capitalize() if folder.startswith("$") else folder


def split_title(settings: Mapping[str, Any]) -> str:
    """The data and, where it is not split by image, how it is: "mine, split by group (near-duplicates)"."""
    split = split_description(settings)
    return data_title(settings) + ("" if split == "by image" else f", split {split}")


def split_description(settings: Mapping[str, Any]) -> str:
    """How training and test images were separated: "by image", "by group (near-duplicates)", "as given"."""
    if is_imported(settings) and not settings.get("scenario"):
        return "in a way that is not known"
    scenario = settings.get("scenario", {})
    split_by, groups = scenario.get("split_by", "image"), scenario.get("groups", "given")
    if scenario.get("split"):
        split_by, groups = "file", last_name(scenario["split"])
    if split_by == "given":
        return "as given"
    return f"by {split_by}" if groups == "given" else f"by {split_by} ({last_name(groups)})"


def format_value(value: Any, between: str = ", ") -> str:
    """A setting's value for people: true as in TOML, a list by its items, a dash for none."""
    if isinstance(value, list):
        return between.join(format_value(item) for item in value)
    if isinstance(value, bool):
        return str(value).lower()
    return DASH if value is None else str(value)


class Result(Protocol):
    """A record of a run or an entry of the ledger."""

    @property
    def settings(self) -> Mapping[str, Any]: ...

    @property
    def metrics(self) -> Mapping[str, Any]: ...


R = TypeVar("R", bound=Result)


@dataclass(frozen=True)
class Group(Generic[R]):
    """One experiment: its label and one result per seed."""

    label: str
    results: tuple[R, ...]

    @property
    def first(self) -> R:
        return self.results[0]

    @property
    def seeds(self) -> tuple[int, ...]:
        return tuple(result.settings["seed"] for result in self.results)

    @property
    def incremental(self) -> bool:
        return is_incremental(self.first.metrics)


def flatten(settings: Mapping[str, Any]) -> dict[str, Any]:
    """{"memory": {"select": "mmd"}} as {"memory.select": "mmd"}; None means absent, as TOML has no null. Milestones and
    warm-up are in epochs, however they were given: [0.5, 0.7] of 100 epochs and [50, 70] are the same experiment."""
    values = _flat(settings, "")
    if {"train.epochs", "train.milestones"} <= values.keys():
        values["train.milestones"] = [*milestone_epochs(values["train.milestones"], values["train.epochs"])]
    if {"train.epochs", "train.warmup"} <= values.keys():
        values["train.warmup"] = warmup_epochs(values["train.warmup"], values["train.epochs"])
    return values


def _flat(settings: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for key, value in settings.items():
        if isinstance(value, Mapping):
            values |= _flat(value, f"{prefix}{key}.")
        elif value is not None:
            values[prefix + key] = list(value) if isinstance(value, tuple) else value
    return values


def identity(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that determine the result: all but [run], unless another part than the test part is evaluated.
    Of data.root the last folder name stays, because a data set named "folder" says nothing about which images were
    in it."""
    values = flatten(portable(settings))
    if "data.root" in values:
        values["data.root"] = last_name(values["data.root"])
    part = {} if evaluated_part(settings) == "test" else {"run.evaluate": evaluated_part(settings)}
    return {key: value for key, value in values.items() if not key.startswith("run.")} | part


def budget(result: Result) -> Budget:
    """What a run was allowed to use: runs that differ here are no fair comparison of their methods.

    None where an item does not apply: exemplars of a method that keeps none, tasks where all classes come at once.
    UNKNOWN where nobody said it of imported predictions."""
    settings, sizes = result.settings, result.metrics["task_sizes"]
    memory = settings.get("memory", {})
    unknown = UNKNOWN if is_imported(settings) else None
    exemplars = f"{memory['total']} in all" if memory.get("total") else memory.get("per_class", unknown)
    method = _method(settings)
    return {
        "epochs": settings.get("train", {}).get("epochs", unknown),
        "size": settings["data"].get("size", unknown),
        "width": settings.get("network", {}).get("width", unknown),
        "exemplars": exemplars if exemplars != 0 and (method is None or method.replay) else None,
        "tasks": format_value(list(sizes), "+") if is_incremental(result.metrics) else None,
    }


def _method(settings: Mapping[str, Any]) -> type[Method] | None:
    """None for a method from outside that is not installed here, or of another toolbox."""
    if is_imported(settings):
        return None
    try:
        return method_class(settings["method"]["name"])
    except EndocilError:
        return None


def evaluated_part(settings: Mapping[str, Any]) -> str:
    """The part that was predicted: runs from before the setting was there predicted the test part."""
    return str(settings.get("run", {}).get("evaluate", "test"))


def digest(settings: Mapping[str, Any]) -> str:
    """Eight hexadecimal digits that change with every setting that determines the result."""
    return digest_of(identity(settings))


def digest_of(values: Mapping[str, Any]) -> str:
    return hashlib.sha256(_canonical(values).encode()).hexdigest()[:8]


def _canonical(settings: Mapping[str, Any]) -> str:
    return json.dumps(settings, sort_keys=True, default=str)


def groups(
    results: Iterable[R], shown_elsewhere: Callable[[Mapping[str, Any]], str] = lambda settings: ""
) -> list[Group[R]]:
    """Results that differ in the seed alone together, in order of appearance; a repeated seed counts once.

    `shown_elsewhere`: what is shown beside the label, such as the data set, so that the label need not repeat it."""
    by_experiment: dict[str, dict[int, R]] = {}
    for result in results:
        key = _canonical(_without_seed(result.settings))
        by_experiment.setdefault(key, {}).setdefault(result.settings["seed"], result)
    members = [tuple(by_seed[seed] for seed in sorted(by_seed)) for by_seed in by_experiment.values()]
    names = labels([results[0].settings for results in members], shown_elsewhere)
    return [Group(name, results) for name, results in zip(names, members, strict=True)]


def _without_seed(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in identity(settings).items() if key != "seed"}


def labels(
    settings: Sequence[Mapping[str, Any]], shown_elsewhere: Callable[[Mapping[str, Any]], str] = lambda settings: ""
) -> list[str]:
    """A label for each; those of the same method name the settings in which they differ."""
    same_method = defaultdict(list)
    for each in settings:
        same_method[shown_elsewhere(each), label(each)].append(each)
    keys = {name: _distinguishing_keys(members) for name, members in same_method.items()}
    return [label(each, keys[shown_elsewhere(each), label(each)]) for each in settings]


def _distinguishing_keys(members: Sequence[Mapping[str, Any]]) -> set[str]:
    """The keys by which these settings can be distinguished. Options that come and go with another key, such as those
    of a selector, are left out as long as the rest is enough."""
    values = [_without_seed(member) for member in members]
    enough = varying(values)
    names = {label(member, enough) for member in members}
    return enough if len(names) == len(members) else differing(values)


def label(settings: Mapping[str, Any], keys: Collection[str] = ()) -> str:
    """The method's title and these settings: "EndoCIL (loss=cross_entropy, select=mean)"."""
    chosen, method = settings["method"], _method(settings)
    title = method_title(str(chosen["name"]))
    values = identity(settings)
    keys = {*keys, "run.evaluate"}
    if method is not None:  # results of an unusual evaluation must not pass as the usual ones
        defaults = method_options(chosen["name"])
        evaluation = method.evaluation_options
        keys |= {f"method.{key}" for key in evaluation if chosen.get(key, defaults[key]) != defaults[key]}
    shown = [str(settings["imported"]["toolbox"])] if is_imported(settings) else []
    shown += [f"{_short(key)}={format_value(values[key], '+')}" for key in sorted(keys, key=_short) if key in values]
    return f"{title} ({', '.join(shown)})" if shown else title


def varying(members: Sequence[Mapping[str, Any]]) -> set[str]:
    """The keys that have more than one value among the flat settings that have them at all."""
    keys = {key for member in members for key in member}
    return {key for key in keys if differing([{key: member[key]} for member in members if key in member])}


def differing(members: Sequence[Mapping[str, Any]]) -> set[str]:
    """The keys whose values are not the same in all of these flat settings, or missing in some."""
    keys = {key for member in members for key in member}
    return {key for key in keys if any(member.get(key) != members[0].get(key) for member in members)}


def _short(key: str) -> str:
    return next((key.removeprefix(section) for section in OWN_SECTIONS if key.startswith(section)), key)
