"""Text from outside: none of it may steer a terminal or begin a line of its own."""

import re
from collections.abc import Iterator
from typing import Any

from endocil.errors import EndocilError

CONTROL = "\x00-\x1f\x7f-\x9f\u2028\u2029"  # C0, delete, C1, and the separators of lines and paragraphs
_CONTROL = re.compile(f"[{CONTROL}]")
_UNSHOWN = re.compile(f"[{CONTROL}\ud800-\udfff]")  # and bytes of names that are no valid UTF-8


def printable(text: str) -> str:
    r"""The text on one line, with such characters as \n, \x1b or \udcff."""
    return _UNSHOWN.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def refuse_control(place: str, text: str) -> None:
    """Told by the place, which is plain, and without the text around it."""
    found = _CONTROL.search(text)
    if found:
        raise EndocilError(
            f"{place} has the character U+{ord(found[0]):04X}; a bundle takes no control characters and no breaks of "
            f"lines: {printable(text)[:80]}"
        )


def refuse_control_in(place: str, value: Any) -> None:
    """In every key and text of what JSON can hold, however deep."""
    for where, text in _texts(place, value):
        refuse_control(where, text)


def _texts(place: str, value: Any) -> Iterator[tuple[str, str]]:
    left = [(place, value)]
    while left:
        where, one = left.pop()
        if isinstance(one, str):
            yield where, one
        elif isinstance(one, dict):
            yield from ((f"{where}: a name", key) for key in one)
            left += [(f"{where}.{printable(key)[:50]}"[-300:], inner) for key, inner in one.items()]
        elif isinstance(one, list | tuple):
            left += [(f"{where}.{number}"[-300:], inner) for number, inner in enumerate(one)]
