"""Names in settings become things: a dictionary beside the things named, or `package.module:Class` from outside."""

import importlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, get_type_hints

from pydantic import PydanticSchemaGenerationError, TypeAdapter, ValidationError

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

    A constructor that passes `**inherited` on to its base class takes the base class's options too.
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
    """Refuse an option that the thing does not take, a value of the wrong kind, and a missing one."""
    taken = {key: value for key, value in options_of(function).items() if key not in reserved}
    for key in given:
        if key not in taken:
            takes = ", ".join(sorted(taken)) if taken else "none"
            raise EndocilError(f"unknown {kind} key '{key}'; known: {takes}")
        _check_value(f"{kind}.{key}", function, key, given[key])
    for key, default in taken.items():
        if default is inspect.Parameter.empty and key not in given:
            raise EndocilError(f"{kind}.{key} is not set; set it in the file, or by --set {kind}.{key}=VALUE")


def _check_value(setting: str, function: Callable[..., Any], key: str, value: Any) -> None:
    hint = _hints(function).get(key, Any)
    # strict: "no" is not false, "2" is not 2 and true is not 1; a list of TOML is the tuple of Python
    given = tuple(value) if isinstance(value, list) else value
    try:
        TypeAdapter(hint).validate_python(given, strict=True)
    except ValidationError as error:
        message = error.errors()[0]["msg"]
        raise EndocilError(f"{setting}: {message[0].lower()}{message[1:]}, got {value!r}") from None
    except PydanticSchemaGenerationError:  # an annotation that says nothing about plain values
        return


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    """Annotations of the options, those of base classes included."""
    steps = reversed(inspect.getmro(function)) if inspect.isclass(function) else ()
    calls = [step.__dict__["__init__"] for step in steps if "__init__" in step.__dict__] or [function]
    found: dict[str, Any] = {}
    for call in calls:
        try:
            found |= get_type_hints(call)
        except (NameError, TypeError):  # names that only a type checker knows
            continue
    return found
