"""Names in settings become things: a dictionary beside the things named, or `package.module:Class` from outside.

Code from outside is imported only if somebody has trusted its name: settings also come with the runs and models of
other people, and reading those must run nothing of theirs.

`timm:NAME` is neither: an entry "timm:NAME" of the dictionary stands for every model of timm, a known package."""

import importlib
import inspect
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from pydantic import PydanticSchemaGenerationError, TypeAdapter, ValidationError

from endocil.errors import EndocilError

T = TypeVar("T")

FAMILIES = ("timm",)  # what may stand before a colon without being code from outside

_trusted: set[str] = set()  # names, for as long as the process lives: what has run once cannot be undone
_folders: list[str] = []  # working folders that trusted code was imported from


def is_foreign(name: str) -> bool:
    """Whether a name means code from outside, which runs when it is imported."""
    return ":" in name and name.partition(":")[0] not in FAMILIES


def trust(names: Iterable[str]) -> None:
    """From now on these names may be imported."""
    _trusted.update(filter(is_foreign, names))


def code_folders() -> tuple[str, ...]:
    """For processes that must import the same code: the working folders that it came from."""
    return tuple(_folders)


def resolve(kind: str, name: str, table: Mapping[str, T]) -> T:
    """The entry called `name`, or the object that `package.module:Name` points to."""
    if is_foreign(name):
        return _imported(kind, name)  # type: ignore[no-any-return]
    family, colon, member = name.partition(":")
    entry = f"{family}:NAME" if colon else name
    if entry not in table:
        known = ", ".join(sorted(table))
        raise EndocilError(f"unknown {kind} '{name}'; known: {known}; or your own as 'package.module:Name'")
    thing: Any = table[entry]
    made: T = partial(thing, member) if colon else thing  # type: ignore[assignment]
    return made


def _imported(kind: str, name: str) -> Any:
    if name not in _trusted:
        raise EndocilError(
            f"{kind} is {name[:100]!a}, code from outside the package; "
            f"it is run only with --trust (trust=True in Python)"
        )
    module_name, _, attribute = name.partition(":")
    try:
        with _working_folder_on_path():
            module = importlib.import_module(module_name)
        file = getattr(sys.modules[module_name.partition(".")[0]], "__file__", None)
        folder = os.getcwd()
        if file and Path(file).absolute().is_relative_to(folder) and folder not in _folders:
            _folders.append(folder)
        return getattr(module, attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise EndocilError(f"{kind} '{name}' cannot be imported: {error}; expected 'package.module:Name'") from error


@contextmanager
def _working_folder_on_path() -> Iterator[None]:
    """A file of the folder one works in can be named. Only now: torch and others look for packages that are not
    installed, and would run a file of that name which came with somebody's model."""
    folder = os.getcwd()
    sys.path.append(folder)
    try:
        yield
    finally:
        with suppress(ValueError):
            del sys.path[len(sys.path) - 1 - sys.path[::-1].index(folder)]


def options_of(function: Callable[..., Any]) -> dict[str, Any]:
    """The keyword-only arguments of a function or constructor with their defaults: its options in a settings file.

    A constructor that passes `**inherited` on to its base class takes the base class's options too.
    """
    found: dict[str, Any] = {}
    function = function.func if isinstance(function, partial) else function
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
    kind: str,
    function: Callable[..., Any],
    given: Mapping[str, Any],
    *,
    reserved: tuple[str, ...] = (),
    common: Iterable[str] = (),
) -> None:
    """Refuse an unknown option, a value of the wrong type, and a missing option.

    `common`: the keys that the section has whatever it names; the message lists them too."""
    taken = {key: value for key, value in options_of(function).items() if key not in reserved}
    for key in given:
        if key not in taken:
            takes = ", ".join(sorted({*taken, *common})) or "none"
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
    function = function.func if isinstance(function, partial) else function
    steps = reversed(inspect.getmro(function)) if inspect.isclass(function) else ()
    calls = [step.__dict__["__init__"] for step in steps if "__init__" in step.__dict__] or [function]
    found: dict[str, Any] = {}
    for call in calls:
        try:
            found |= get_type_hints(call)
        except (NameError, TypeError):  # names that only a type checker knows
            continue
    return found
