"""Features pooled from the maps of several stages of a backbone, in place of its last features."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from endocil.errors import SettingsError

PROBE = 64  # pixels of the black image that shows which maps there are


@dataclass(frozen=True)
class PooledStages:
    """Mean and standard deviation over places of the map of each stage from a stride on, each made length 1."""

    sites: tuple[int, ...]  # places among the maps of `stage_maps`
    n_features: int

    @classmethod
    @torch.no_grad()
    def of(cls, backbone: nn.Module, stride: int = 8) -> "PooledStages":
        """Of every map of at least this stride, and of the last, by one black image."""
        if not hasattr(backbone, "stage_maps"):
            raise SettingsError(
                f"network.backbone {type(backbone).__name__} does not show the maps of its stages: it has no "
                f'stage_maps (see networks/resnet.py); take a ResNet or EfficientNet-Lite, or method.features="last"'
            )
        training, like = backbone.training, next(backbone.parameters())
        backbone.eval()  # batch norm learns nothing from it
        maps = backbone.stage_maps(like.new_zeros(1, 3, PROBE, PROBE))  # type: ignore[operator]
        backbone.train(training)
        # the last always: a network for very small images has no large stride
        sites = [i for i, x in enumerate(maps) if x.shape[2] * stride <= PROBE or i == len(maps) - 1]
        return cls(tuple(sites), 2 * sum(maps[i].shape[1] for i in sites))

    def __call__(self, backbone: nn.Module, images: Tensor) -> Tensor:
        """(B, n_features)"""
        maps = backbone.stage_maps(images)  # type: ignore[operator]
        parts = []
        for x in (maps[i] for i in self.sites):
            parts += [x.mean(dim=(2, 3)), x.std(dim=(2, 3), correction=0)]
        return torch.cat([functional.normalize(part) for part in parts], dim=1)
