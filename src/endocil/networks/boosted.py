"""FOSTER's boosted network: the old network, frozen, and a new backbone beside it."""

import copy

import torch
from torch import Tensor, nn

from endocil.networks.classifier import GrowingClassifier
from endocil.randomness import generator


class Boosted(nn.Module):
    """One classifier on the features of both backbones, and one on the new features alone."""

    def __init__(self, old: nn.Sequential, backbone: nn.Module, classifier: GrowingClassifier) -> None:
        """`old` is a frozen copy of backbone and classifier; the new parts start as copies of them too."""
        super().__init__()
        self.old = old
        self.new_backbone = copy.deepcopy(backbone)
        self.classifier = copy.deepcopy(classifier)
        self.expansion = GrowingClassifier(
            classifier.in_features
        )  # the new features alone must tell all classes

    def grow(self, n_new: int, seed: int, task: int) -> None:
        each = self.classifier.in_features
        self.classifier.grow(n_new, generator(seed, task, "boosted"), n_features=2 * each)
        self.expansion.grow(self.classifier.out_features, generator(seed, task, "expansion"))

    def features(self, images: Tensor) -> Tensor:
        """(B, 2d): the old backbone's, then the new one's."""
        return torch.cat([self.old[0](images), self.new_backbone(images)], dim=1)
