"""Settings of runs that end in models."""

import copy
from typing import Any

from pictures import TINY


def tiny(method: str = "icarl", **changes: Any) -> dict[str, Any]:
    """Settings of a run of a few seconds that sets images aside for a model."""
    settings = copy.deepcopy(TINY)
    settings["scenario"]["validation"] = 0.25
    settings["method"] = {"name": method}
    for section, values in changes.items():
        settings[section].update(values)
    return settings
