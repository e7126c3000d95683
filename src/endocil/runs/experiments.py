"""Settings in words: values, paths without the folders of a machine, the name of a data set and of its split."""

import hashlib
import json
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath, PureWindowsPath
from typing import Any, Generic, Protocol, TypeVar

from endocil.errors import EndocilError
from endocil.methods import method_class, method_options
from endocil.methods.base import milestone_epochs
from endocil.runs.records import is_incremental

DASH = "\N{EN DASH}"
METHOD_TITLES = {
    "finetune": "Finetune",
    "joint": "JointTrain",
    "ewc": "EWC",
    "lwf": "LwF",
    "icarl": "iCaRL",
    "bic": "BiC",
    "wa": "WA",
    "der": "DER",
    "foster": "FOSTER",
    "memo": "MEMO",
    "mrfa": "MRFA",
    "dgr": "DGR",
    "endocil": "EndoCIL",
}


def method_title(name: str) -> str:
    """A method as the paper spells it; other methods are called by their own name."""
    return METHOD_TITLES.get(name, name)


def portable(value: Any) -> Any:
    """The same value with each absolute path cut to its last name: a path says where, not what."""
    if isinstance(value, Mapping):
        return {key: portable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [portable(item) for item in value]
    return last_name(value) if isinstance(value, str) and _is_absolute(value) else value


def last_name(path: str) -> str:
    return PureWindowsPath(path).name or path  # a Windows path understands both slashes


def _is_absolute(text: str) -> bool:
    # Runs come from other systems too, so both kinds of paths count on each of them.
    return PurePosixPath(text).is_absolute() or PureWindowsPath(text).is_absolute() or text.startswith("~/")


def data_label(settings: Mapping[str, Any]) -> str:
    """The data set's name and, where one is given, its folder's: "folder hyper-kvasir-part"."""
    name, root = settings["data"]["name"].rpartition(":")[2], settings["data"].get("root")
    folder = last_name(root) if root else name
    return name if folder == name else f"{name} {folder}"


def split_label(settings: Mapping[str, Any]) -> str:
    """The data and, where it is not split by image, how it is: "folder mine by group (near-duplicates)"."""
    told = split_told(settings)
    return data_label(settings) + ("" if told == "by image" else f" {told}")


def split_told(settings: Mapping[str, Any]) -> str:
    """How training and test images were told apart: "by image", "by group (near-duplicates)", "as given"."""
    scenario = settings.get("scenario", {})
    how, groups = scenario.get("split_by", "image"), scenario.get("groups", "given")
    if scenario.get("split"):
        how, groups = "file", last_name(scenario["split"])
    if how == "given":
        return "as given"
    return f"by {how}" if groups == "given" else f"by {how} ({last_name(groups)})"


def written(value: Any, between: str = ", ") -> str:
    """A setting's value for people: true as in TOML, a list by its items, a dash for none."""
    if isinstance(value, list):
        return between.join(written(item) for item in value)
    if isinstance(value, bool):
        return str(value).lower()
    return DASH if value is None else str(value)


# Which runs are the same experiment with another seed, and what an experiment is called.

OWN_SECTIONS = ("method.", "memory.")  # their keys are shown without the section


class Result(Protocol):
    """A run record or an entry of the ledger."""

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


def flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """{"memory": {"select": "mmd"}} as {"memory.select": "mmd"}; None means absent, as TOML has no null. Milestones are
    whole epochs, however they were given: [0.5, 0.7] of 100 epochs and [50, 70] are the same experiment."""
    found: dict[str, Any] = {}
    for key, value in settings.items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{prefix}{key}.")
        elif value is not None:
            found[prefix + key] = list(value) if isinstance(value, tuple) else value
    if {"train.epochs", "train.milestones"} <= found.keys():
        found["train.milestones"] = [*milestone_epochs(found["train.milestones"], found["train.epochs"])]
    return found


def identity(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that determine the result: all but [run], unless another part than the test part is evaluated.
    Of data.root the last folder name stays, because a data set named "folder" says nothing about which images were
    in it."""
    settled = flat(portable(settings))
    if "data.root" in settled:
        settled["data.root"] = last_name(settled["data.root"])
    part = {} if evaluated_part(settings) == "test" else {"run.evaluate": evaluated_part(settings)}
    return {key: value for key, value in settled.items() if not key.startswith("run.")} | part


def evaluated_part(settings: Mapping[str, Any]) -> str:
    """The part that was predicted: runs from before the setting was there predicted the test part."""
    return str(settings.get("run", {}).get("evaluate", "test"))


def digest(settings: Mapping[str, Any]) -> str:
    """Eight hexadecimal digits that change with every setting that determines the result."""
    return hashlib.sha256(_canonical(identity(settings)).encode()).hexdigest()[:8]


def _canonical(settings: Mapping[str, Any]) -> str:
    return json.dumps(settings, sort_keys=True, default=str)


def groups(
    results: Iterable[R], apart: Callable[[Mapping[str, Any]], str] = lambda settings: ""
) -> list[Group[R]]:
    """Results that differ in the seed alone together, in order of appearance; a repeated seed counts once.

    `apart`: what is told beside the label, in a column of its own, so that the label need not tell it."""
    found: dict[str, dict[int, R]] = {}
    for result in results:
        key = _canonical(_without_seed(result.settings))
        found.setdefault(key, {}).setdefault(result.settings["seed"], result)
    members = [tuple(by_seed[seed] for seed in sorted(by_seed)) for by_seed in found.values()]
    names = labels([results[0].settings for results in members], apart)
    return [Group(name, results) for name, results in zip(names, members, strict=True)]


def _without_seed(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in identity(settings).items() if key != "seed"}


def labels(
    settings: Sequence[Mapping[str, Any]], apart: Callable[[Mapping[str, Any]], str] = lambda settings: ""
) -> list[str]:
    """A label for each; those of the same method are told apart by the keys in which they differ."""
    same_method = defaultdict(list)
    for each in settings:
        same_method[apart(each), label(each)].append(each)
    keys = {name: _telling(members) for name, members in same_method.items()}
    return [label(each, keys[apart(each), label(each)]) for each in settings]


def _telling(members: Sequence[Mapping[str, Any]]) -> set[str]:
    """The keys that tell these settings apart. Options that come and go with another key, such as those of a
    selector, are left out as long as the rest is enough."""
    values = [_without_seed(member) for member in members]
    enough = varying(values)
    names = {label(member, enough) for member in members}
    return enough if len(names) == len(members) else differing(values)


def label(settings: Mapping[str, Any], keys: Collection[str] = ()) -> str:
    """The method's name and these settings: "endocil (loss=cross_entropy, select=mean)"."""
    name = str(settings["method"]["name"]).rpartition(":")[2]
    values = identity(settings)
    keys = {*keys, *_evaluated_otherwise(settings), "run.evaluate"}
    shown = [
        f"{_short(key)}={written(values[key], '+')}" for key in sorted(keys, key=_short) if key in values
    ]
    return f"{name} ({', '.join(shown)})" if shown else name


def _evaluated_otherwise(settings: Mapping[str, Any]) -> set[str]:
    """Options by which a method is evaluated in another way than usual: its results must not pass as the usual ones."""
    chosen = settings["method"]
    try:
        shows, defaults = method_class(chosen["name"]).shows, method_options(chosen["name"])
    except EndocilError:  # a method from outside that is not here
        return set()
    return {f"method.{key}" for key in shows if chosen.get(key, defaults[key]) != defaults[key]}


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
