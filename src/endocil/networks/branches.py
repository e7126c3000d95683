"""Networks of several backbones: a new branch for each task (DER, MEMO), or one new backbone beside the old (FOSTER).

The features of all branches are concatenated, oldest first. The first branch is the method's own backbone, so that its
state has the same names in every method.
"""

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from endocil.data.seeding import generator
from endocil.errors import SettingsError
from endocil.networks.heads import GrowingClassifier
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
                f"it has no {', '.join(missing)} (see networks/staged_backbone.py)"
            )


def concatenate_features(features: list[Tensor]) -> Tensor:
    return features[0] if len(features) == 1 else torch.cat(features, dim=1)  # (B, d * branches)


class Boosted(nn.Module):
    """FOSTER's teacher: the old network, frozen, and a new backbone; one classifier on the features of both, and one on
    the new features alone."""

    def __init__(self, old: nn.Sequential, backbone: nn.Module, classifier: GrowingClassifier) -> None:
        """`old` is a frozen copy of backbone and classifier; the new parts start as copies of them too."""
        super().__init__()
        self.old = old
        self.new_backbone = copy.deepcopy(backbone)
        self.classifier = copy.deepcopy(classifier)
        self.expansion = GrowingClassifier(classifier.in_features)  # the new features alone must separate all classes

    def grow(self, n_new: int, seed: int, task: int) -> None:
        each = self.classifier.in_features
        self.classifier.grow(n_new, generator(seed, task, "boosted"), n_features=2 * each)
        self.expansion.grow(self.classifier.out_features, generator(seed, task, "expansion"))

    def features(self, images: Tensor) -> Tensor:
        """(B, 2d): the old backbone's, then the new one's."""
        return torch.cat([self.old[0](images), self.new_backbone(images)], dim=1)
