"""Settings in words: values, paths without the folders of a machine, the name of a data set and of its split."""

from collections.abc import Mapping
from pathlib import PurePosixPath, PureWindowsPath
from typing import Any

DASH = "\N{EN DASH}"


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
