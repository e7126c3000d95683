"""Lists in words."""

from collections.abc import Iterable, Sequence
from typing import Any


def either(values: Iterable[Any]) -> str:
    """The different values, joined by "or"; empty when there are none."""
    return " or ".join(dict.fromkeys(str(value) for value in values if value is not None))


def listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
