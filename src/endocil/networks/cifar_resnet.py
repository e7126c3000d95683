"""ResNet-32 for images of 32 pixels (He et al., CVPR 2016, section 4.2), the network of most tables on CIFAR-100.

Three stages of five blocks with 16, 32 and 64 channels. Where a stage halves the map, the shortcut takes every other
pixel and fills the new channels with zeros (option A), so that it has no parameters. 463,504 parameters, 64 features.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional

from endocil.networks.resnet import BasicBlock, BeforeStage, unchanged


class PaddedShortcut(nn.Module):
    """Every other pixel, then as many channels of zeros again: (B, C, H, W) to (B, 2 C, H / 2, W / 2)."""

    def forward(self, x: Tensor) -> Tensor:
        x = x[:, :, ::2, ::2]
        return torch.cat((x, torch.zeros_like(x)), dim=1)


class ResNet32(nn.Module):
    """Images (B, 3, H, W) to features (B, 4 width), averaged over the last map."""

    mean, std = (0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761)  # of CIFAR-100, as in PyCIL
    blocks = (5, 5, 5)

    def __init__(self, *, width: int = 16) -> None:
        super().__init__()
        if width < 8 or width % 8:
            raise ValueError(f"network.width is {width}; expected a multiple of 8 (ResNet-32 has 16)")
        self.conv1 = nn.Conv2d(3, width, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        n_in = width
        for i, n_blocks in enumerate(self.blocks):
            n_out = 2**i * width
            first = BasicBlock(n_in, n_out, 1 if i == 0 else 2)
            if first.downsample is not None:
                first.downsample = nn.Sequential(PaddedShortcut())
            rest = (BasicBlock(n_out, n_out, 1) for _ in range(n_blocks - 1))
            self.add_module(f"layer{i + 1}", nn.Sequential(first, *rest))
            n_in = n_out
        self.n_features = n_in

    @property
    def stages(self) -> Mapping[str, tuple[nn.Module, ...]]:
        """The parts that `network.freeze` can name, in the order of the flow."""
        layers = {f"layer{i}": (self.get_submodule(f"layer{i}"),) for i in range(1, 4)}
        return {"stem": (self.conv1, self.bn1), **layers}

    def forward(self, images: Tensor, before_stage: BeforeStage = unchanged) -> Tensor:
        """`before_stage` may change the inputs of layer1 to layer3."""
        return self.special(before_stage("layer3", self.general(images, before_stage)), self.last_block)

    def general(self, images: Tensor, before_stage: BeforeStage = unchanged) -> Tensor:
        """The maps before the last block: (B, 2 width, h, w)."""
        x = functional.relu(self.bn1(self.conv1(images)), inplace=True)
        for name in ("layer1", "layer2"):
            x = self.get_submodule(name)(before_stage(name, x))
        return x

    def stage_maps(self, images: Tensor) -> list[Tensor]:
        """The maps that layer1 to layer3 give."""
        maps: list[Tensor] = []
        last = self.general(images, lambda stage, x: maps.append(x) or x)  # type: ignore[func-returns-value]
        return [*maps[1:], last, self.last_block(last)]

    @property
    def last_block(self) -> nn.Module:
        return self.get_submodule("layer3")

    @staticmethod
    def special(maps: Tensor, block: nn.Module) -> Tensor:
        """Features of the general maps through a last block: (B, d)."""
        return block(maps).mean(dim=(2, 3))  # type: ignore[no-any-return]
