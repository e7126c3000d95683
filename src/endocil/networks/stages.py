"""Which stages of a backbone learn: `network.freeze` names those that do not."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from endocil.errors import SettingsError


def freeze_stages(backbone: nn.Module, names: Sequence[str]) -> None:
    """Mark stages as frozen, in the backbone and in all copies made of it."""
    stages: Mapping[str, Any] = getattr(backbone, "stages", {})
    for name in names:
        if name not in stages:
            raise SettingsError(
                f"network.freeze names '{name}'; this backbone has: {', '.join(stages) or 'no stages'}"
            )
    if names and len(set(names)) == len(stages):
        raise SettingsError(
            "network.freeze names every stage: nothing of the backbone would learn; leave one out"
        )
    backbone.frozen_stages = frozenset(names)  # type: ignore[assignment]


def frozen_stages(backbone: nn.Module) -> frozenset[str]:
    return getattr(backbone, "frozen_stages", frozenset())


def trained_parts(backbone: nn.Module) -> tuple[nn.Module, ...]:
    """The modules of a backbone that learn: all of it, or its stages that are not frozen."""
    frozen = frozen_stages(backbone)
    if not frozen:
        return (backbone,)
    stages: Mapping[str, tuple[nn.Module, ...]] = backbone.stages  # type: ignore[assignment]
    return tuple(module for name, modules in stages.items() if name not in frozen for module in modules)
