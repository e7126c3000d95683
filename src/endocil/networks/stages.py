"""Which stages of a backbone learn: `network.freeze` names those that do not, or "all" of it."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from torch import nn

from endocil.errors import SettingsError

ALL = "all"  # in network.freeze: the whole backbone, whatever its stages


def freeze_stages(backbone: nn.Module, names: Sequence[str]) -> None:
    """Mark stages as frozen, in the backbone and in all copies made of it."""
    stages: Mapping[str, Any] = getattr(backbone, "stages", {})
    for name in names:
        if name not in (*stages, ALL):
            known = ", ".join(stages) or "no stages"
            raise SettingsError(f"network.freeze names '{name}'; this backbone has: {known}; or '{ALL}' of it")
    if names and ALL not in names and len(set(names)) == len(stages):
        raise SettingsError(
            f"network.freeze names every stage: nothing of the backbone would learn; leave one out, or write ['{ALL}']"
        )
    backbone.frozen_stages = frozenset([ALL] if ALL in names else names)  # type: ignore[assignment]


@contextmanager
def frozen_for_now(network: nn.Module) -> Iterator[None]:
    """No backbone of a network learns, nor do copies that are made of them meanwhile."""
    before = {backbone: frozen_stages(backbone) for backbone in backbones_of(network)}
    try:
        for backbone in before:
            backbone.frozen_stages = frozenset([ALL])  # type: ignore[assignment]
        yield
    finally:
        made_from = next(iter(before.values()), frozenset())
        for backbone in backbones_of(network):
            backbone.frozen_stages = before.get(backbone, made_from)  # type: ignore[assignment]


def backbones_of(network: nn.Module) -> list[nn.Module]:
    return [module for module in network.modules() if hasattr(module, "n_features")]


def is_frozen(backbone: nn.Module) -> bool:
    """Whether nothing of a backbone learns: its features of an image never change."""
    return ALL in frozen_stages(backbone)


def frozen_stages(backbone: nn.Module) -> frozenset[str]:
    return getattr(backbone, "frozen_stages", frozenset())


def trained_parts(backbone: nn.Module) -> tuple[nn.Module, ...]:
    """The modules of a backbone that learn: all of it, its stages that are not frozen, or none."""
    frozen = frozen_stages(backbone)
    if is_frozen(backbone):
        return ()
    if not frozen:
        return (backbone,)
    stages: Mapping[str, tuple[nn.Module, ...]] = backbone.stages  # type: ignore[assignment]
    return tuple(module for name, modules in stages.items() if name not in frozen for module in modules)
