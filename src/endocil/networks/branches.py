"""Networks that get a new branch for each task: the features of all branches are concatenated, oldest first.

The first branch is the method's own backbone, so that its state has the same names in every method.
"""

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from endocil.errors import SettingsError
from endocil.networks.stages import frozen_stages, is_frozen, trained_parts


class WholeBranches(nn.ModuleList):
    """DER's network: every branch is a backbone of its own."""

    def features(self, backbone: nn.Module, images: Tensor) -> list[Tensor]:
        """(B, d) of each branch."""
        return [branch(images) for branch in (backbone, *self)]

    def add(self, backbone: nn.Module) -> None:
        """A new branch, starting as a copy of the latest."""
        self.append(copy.deepcopy(self[-1] if len(self) else backbone))

    def trained(self, backbone: nn.Module) -> tuple[nn.Module, ...]:
        """The modules that a task trains: the newest branch alone."""
        return trained_parts(self[-1] if len(self) else backbone)


class LastBlocks(nn.ModuleList):
    """MEMO's network: one general part of stem and first stages, and a last block of its own for each task."""

    def __init__(self, *, train_general: bool = True) -> None:
        super().__init__()
        self.train_general = train_general

    def features(self, backbone: nn.Module, images: Tensor) -> list[Tensor]:
        """(B, d) of each branch; the general part runs once."""
        maps = backbone.general(images)  # type: ignore[operator]
        blocks = (backbone.last_block, *self)
        return [backbone.special(maps, block) for block in blocks]  # type: ignore[operator]

    def add(self, backbone: nn.Module) -> None:
        """A new last block, starting as a copy of the latest."""
        latest: Any = self[-1] if len(self) else backbone.last_block
        self.append(copy.deepcopy(latest))

    def trained(self, backbone: nn.Module) -> tuple[nn.Module, ...]:
        """The modules that a task trains: the newest last block and, if chosen, the general part."""
        if not len(self) or is_frozen(backbone):
            return trained_parts(backbone)
        stages: Mapping[str, tuple[nn.Module, ...]] = backbone.stages  # type: ignore[assignment]
        frozen, (*first, last) = frozen_stages(backbone), stages
        general = [part for name in first if name not in frozen for part in stages[name]]
        newest = [] if last in frozen else [self[-1]]
        return (*(general if self.train_general else ()), *newest)

    @staticmethod
    def check_divisible(backbone: nn.Module) -> None:
        missing = [name for name in ("general", "last_block", "special", "stages") if not hasattr(backbone, name)]
        if missing:
            raise SettingsError(
                f"network.backbone {type(backbone).__name__} cannot be divided into a general part and a last block: "
                f"it has no {', '.join(missing)} (see ResNet in networks/resnet.py)"
            )


def concatenate_features(features: list[Tensor]) -> Tensor:
    return features[0] if len(features) == 1 else torch.cat(features, dim=1)  # (B, d * branches)
