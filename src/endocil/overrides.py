"""`key=value` on the command line, laid over the values of a settings file."""

import tomllib
from typing import Any

from endocil.errors import EndocilError

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
