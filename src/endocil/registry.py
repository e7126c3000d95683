"""Names in settings become things: a dictionary beside the things named, or `package.module:Class` from outside."""

import importlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from endocil.errors import EndocilError

T = TypeVar("T")


def resolve(kind: str, name: str, table: Mapping[str, T]) -> T:
    """The entry called `name`, or the object that `package.module:Name` points to."""
    if ":" in name:
        return _imported(kind, name)  # type: ignore[no-any-return]
    if name not in table:
        known = ", ".join(sorted(table))
        raise EndocilError(f"unknown {kind} '{name}'; known: {known}; or your own as 'package.module:Class'")
    return table[name]


def _imported(kind: str, name: str) -> Any:
    module_name, _, attribute = name.partition(":")
    try:
        return getattr(importlib.import_module(module_name), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise EndocilError(
            f"{kind} '{name}' cannot be imported: {error}; expected 'package.module:Class'"
        ) from error


def options_of(function: Callable[..., Any]) -> dict[str, Any]:
    """The keyword-only arguments of a function or constructor with their defaults: its options in a settings file.

    A constructor that passes `**shared` on to its base class takes the base class's options too.
    """
    found: dict[str, Any] = {}
    for step in inspect.getmro(function) if inspect.isclass(function) else (function,):
        call = step.__dict__.get("__init__") if inspect.isclass(step) else step
        if call is None:
            continue
        parameters = inspect.signature(call).parameters.values()
        for one in parameters:
            if one.kind is one.KEYWORD_ONLY:
                found.setdefault(one.name, one.default)
        if not any(one.kind is one.VAR_KEYWORD for one in parameters):
            break
    return found


def check_options(
    kind: str, function: Callable[..., Any], given: Mapping[str, Any], *, reserved: tuple[str, ...] = ()
) -> None:
    """Refuse an option that the thing does not take, naming those it does."""
    known = sorted(set(options_of(function)) - set(reserved))
    for key in given:
        if key not in known:
            takes = ", ".join(known) if known else "none"
            raise EndocilError(f"unknown {kind} key '{key}'; known: {takes}")
