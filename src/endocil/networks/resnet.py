"""ResNet-18 and -34 (He et al., CVPR 2016) with torchvision's parameter names, so that public weights load.

A backbone maps images to a feature vector; the classifier is not part of it. `width` and `stem` shrink it for
small images; `stages` names the parts that can be frozen.
"""

from collections.abc import Callable, Mapping
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional


class Shortcut(nn.Conv2d):
    """A 1 x 1 convolution with a stride.

    On several threads the gradient kernel of torch 2.13 for few channels writes past its memory (seen on a processor
    with AVX512, 8 channels in channels-last layout, odd batches). Narrow ones take every other pixel first."""

    def forward(self, x: Tensor) -> Tensor:
        if self.in_channels >= 16 or self.stride == (1, 1):
            return super().forward(x)
        return functional.conv2d(x[:, :, :: self.stride[0], :: self.stride[1]], self.weight, self.bias)


class BasicBlock(nn.Module):
    """Two 3x3 convolutions beside a shortcut."""

    def __init__(self, n_in: int, n_out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(n_in, n_out, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(n_out)
        self.conv2 = nn.Conv2d(n_out, n_out, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(n_out)
        self.downsample: nn.Sequential | None = None
        if stride != 1 or n_in != n_out:
            self.downsample = nn.Sequential(
                Shortcut(n_in, n_out, 1, stride, bias=False), nn.BatchNorm2d(n_out)
            )

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x if self.downsample is None else self.downsample(x)
        x = functional.relu(self.bn1(self.conv1(x)), inplace=True)
        return functional.relu(self.bn2(self.conv2(x)) + shortcut, inplace=True)


# from the name of a stage and its input to the input that it gets instead
BeforeStage = Callable[[str, Tensor], Tensor]


def unchanged(stage: str, x: Tensor) -> Tensor:
    return x


class ResNet(nn.Module):
    """Images (B, 3, H, W) to features (B, 8 width), averaged over the last map."""

    blocks: tuple[int, int, int, int]

    def __init__(self, *, width: int = 64, stem: Literal["standard", "small"] = "standard") -> None:
        super().__init__()
        if stem not in ("standard", "small"):
            raise ValueError(
                f"network.stem is '{stem}'; expected 'standard' (7x7/2, pooled) or 'small' (3x3/1)"
            )
        if width < 8 or width % 8:
            # torch 2.13 corrupts memory in the backward pass of a 1x1 convolution of 4 channels, channels last
            raise ValueError(f"network.width is {width}; expected a multiple of 8 (ResNet-18 has 64)")
        kernel, stride = (7, 2) if stem == "standard" else (3, 1)
        self.pooled = stem == "standard"
        self.conv1 = nn.Conv2d(3, width, kernel, stride, kernel // 2, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        widths = [width, width, 2 * width, 4 * width, 8 * width]
        for i, n_blocks in enumerate(self.blocks):
            stage = _stage(widths[i], widths[i + 1], n_blocks, stride=1 if i == 0 else 2)
            self.add_module(f"layer{i + 1}", stage)
        self.n_features = 8 * width

    @property
    def stages(self) -> Mapping[str, tuple[nn.Module, ...]]:
        """The parts that `network.freeze` can name, in the order of the flow."""
        layers = {f"layer{i}": (self.get_submodule(f"layer{i}"),) for i in range(1, 5)}
        return {"stem": (self.conv1, self.bn1), **layers}

    def forward(self, images: Tensor, before_stage: BeforeStage = unchanged) -> Tensor:
        """`before_stage` may change the inputs of layer1 to layer4."""
        maps = self.general(images, before_stage)
        return self.special(before_stage("layer4", maps), self.last_block)

    def general(self, images: Tensor, before_stage: BeforeStage = unchanged) -> Tensor:
        """The maps before the last block: (B, 4 width, h, w)."""
        x = functional.relu(self.bn1(self.conv1(images)), inplace=True)
        if self.pooled:
            x = functional.max_pool2d(x, 3, 2, 1)
        for name in ("layer1", "layer2", "layer3"):
            x = self.get_submodule(name)(before_stage(name, x))
        return x

    @property
    def last_block(self) -> nn.Module:
        return self.get_submodule("layer4")

    @staticmethod
    def special(maps: Tensor, block: nn.Module) -> Tensor:
        """Features of the general maps through a last block: (B, d)."""
        return block(maps).mean(dim=(2, 3))  # type: ignore[no-any-return]


class ResNet18(ResNet):
    blocks = (2, 2, 2, 2)


class ResNet34(ResNet):
    blocks = (3, 4, 6, 3)


def _stage(n_in: int, n_out: int, n_blocks: int, stride: int) -> nn.Sequential:
    first = BasicBlock(n_in, n_out, stride)
    return nn.Sequential(first, *(BasicBlock(n_out, n_out, 1) for _ in range(n_blocks - 1)))


def initialise(network: nn.Module, generator: torch.Generator) -> None:
    """Kaiming normal (fan out) for convolutions, (1, 0) for batch norm; no zero-init of the residual branch."""
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu", generator=generator)
        elif isinstance(module, nn.BatchNorm2d):
            nn.init.ones_(module.weight)
            nn.init.zeros_(module.bias)
