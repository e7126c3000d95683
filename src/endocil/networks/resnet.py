"""ResNet-18, -34 and -50 with torchvision's parameter names, so that public weights load, and -32 for small images.

He et al., CVPR 2016. A backbone maps images to a feature vector; the classifier is not part of it. `width` and `stem`
shrink it for small images; `stages` names the parts that can be frozen.
"""

from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from endocil.networks.staged_backbone import StagedBackbone

WIDEST = 512  # channels; a ResNet-18 of this width has 700 million weights


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

    last_relu = True

    def __init__(self, n_in: int, n_out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(n_in, n_out, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(n_out)
        self.conv2 = nn.Conv2d(n_out, n_out, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(n_out)
        self.downsample: nn.Sequential | None = None
        if stride != 1 or n_in != n_out:
            self.downsample = nn.Sequential(Shortcut(n_in, n_out, 1, stride, bias=False), nn.BatchNorm2d(n_out))

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x if self.downsample is None else self.downsample(x)
        x = functional.relu(self.bn1(self.conv1(x)), inplace=True)
        x = self.bn2(self.conv2(x)) + shortcut
        return functional.relu(x, inplace=True) if self.last_relu else x

    def extra_repr(self) -> str:
        return "" if self.last_relu else "without the last ReLU"


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions beside a shortcut; as torchvision's, the 3x3 one has the stride (ResNet v1.5)."""

    last_relu = True

    def __init__(self, n_in: int, n_out: int, stride: int) -> None:
        super().__init__()
        n = n_out // 4
        self.conv1 = nn.Conv2d(n_in, n, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(n)
        self.conv2 = nn.Conv2d(n, n, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(n)
        self.conv3 = nn.Conv2d(n, n_out, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(n_out)
        self.downsample: nn.Sequential | None = None
        if stride != 1 or n_in != n_out:
            self.downsample = nn.Sequential(Shortcut(n_in, n_out, 1, stride, bias=False), nn.BatchNorm2d(n_out))

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x if self.downsample is None else self.downsample(x)
        x = functional.relu(self.bn1(self.conv1(x)), inplace=True)
        x = functional.relu(self.bn2(self.conv2(x)), inplace=True)
        x = self.bn3(self.conv3(x)) + shortcut
        return functional.relu(x, inplace=True) if self.last_relu else x

    def extra_repr(self) -> str:
        return "" if self.last_relu else "without the last ReLU"


class StagedResNet(StagedBackbone):
    """A stem, then stages layer1, layer2, ... of blocks; each but the first halves the map and doubles the channels."""

    blocks: tuple[int, ...]  # of each stage
    block: type[BasicBlock] | type[Bottleneck] = BasicBlock
    conv1: nn.Conv2d
    pooled = False

    def add_stages(self, width: int) -> None:
        self.bn1 = nn.BatchNorm2d(width)
        n_in, expansion = width, 4 if self.block is Bottleneck else 1
        for i, n_blocks in enumerate(self.blocks):
            n_out = expansion * 2**i * width
            first = self.block(n_in, n_out, 1 if i == 0 else 2)
            rest = (self.block(n_out, n_out, 1) for _ in range(n_blocks - 1))
            self.add_module(f"layer{i + 1}", nn.Sequential(first, *rest))
            n_in = n_out
        self.n_features = n_in

    @property
    def stages(self) -> Mapping[str, tuple[nn.Module, ...]]:
        layers = {f"layer{i + 1}": (self.get_submodule(f"layer{i + 1}"),) for i in range(len(self.blocks))}
        return {"stem": (self.conv1, self.bn1), **layers}

    def extra_repr(self) -> str:
        return "max pooling in the stem" if self.pooled else ""

    def stem_maps(self, images: Tensor) -> Tensor:
        x = functional.relu(self.bn1(self.conv1(images)), inplace=True)
        return functional.max_pool2d(x, 3, 2, 1) if self.pooled else x

    def stage_maps(self, images: Tensor) -> list[Tensor]:
        """The maps that the stem and each layer give."""
        maps: list[Tensor] = []
        last = self.general(images, lambda stage, x: maps.append(x) or x)  # type: ignore[func-returns-value]
        return [*maps, last, self.last_block(last)]


class ResNet(StagedResNet):
    """Images (B, 3, H, W) to features (B, 8 width) or, with bottlenecks, (B, 32 width), averaged over the last map.

    `stem`, the first convolution: "7x7" with stride 2 and max pooling; "3x3" with stride 1 and no pooling, for CIFAR;
    "3x3-pool" with stride 1 and max pooling, which PyCIL builds for ImageNet unless the first task is as large as
    the others."""

    def __init__(self, *, width: int = 64, stem: Literal["7x7", "3x3", "3x3-pool"] = "7x7") -> None:
        super().__init__()
        if not 8 <= width <= WIDEST or width % 8:
            # torch 2.13 corrupts memory in the backward pass of a 1x1 convolution of 4 channels, channels last
            raise ValueError(f"network.width is {width}; expected a multiple of 8 up to {WIDEST} (ResNet-18 has 64)")
        kernel, stride = (7, 2) if stem == "7x7" else (3, 1)
        self.pooled = stem != "3x3"
        self.conv1 = nn.Conv2d(3, width, kernel, stride, kernel // 2, bias=False)
        self.add_stages(width)

    def drop_last_relu(self) -> None:
        """Features may be negative from now on: a cosine then has the whole sphere."""
        self.last_block[-1].last_relu = False  # type: ignore[index]


class ResNet18(ResNet):
    blocks = (2, 2, 2, 2)


class ResNet34(ResNet):
    blocks = (3, 4, 6, 3)


class ResNet50(ResNet):
    blocks, block = (3, 4, 6, 3), Bottleneck


class PaddedShortcut(nn.Module):
    """Every other pixel, then as many channels of zeros again: (B, C, H, W) to (B, 2 C, H / 2, W / 2)."""

    def forward(self, x: Tensor) -> Tensor:
        x = x[:, :, ::2, ::2]
        return torch.cat((x, torch.zeros_like(x)), dim=1)


class ResNet32(StagedResNet):
    """Images (B, 3, H, W) to features (B, 4 width), averaged over the last map.

    For images of 32 pixels (He et al., section 4.2), the network of most tables on CIFAR-100. Three stages of five
    blocks with 16, 32 and 64 channels. Where a stage halves the map, the shortcut takes every other pixel and fills the
    new channels with zeros (option A), so that it has no parameters. 463,504 parameters, 64 features."""

    mean, std = (0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761)  # of CIFAR-100, as in PyCIL
    blocks = (5, 5, 5)

    def __init__(self, *, width: int = 16) -> None:
        super().__init__()
        if width < 8 or width % 8:
            raise ValueError(f"network.width is {width}; expected a multiple of 8 (ResNet-32 has 16)")
        self.conv1 = nn.Conv2d(3, width, 3, 1, 1, bias=False)
        self.add_stages(width)
        for block in (self.get_submodule("layer2.0"), self.get_submodule("layer3.0")):
            block.downsample = nn.Sequential(PaddedShortcut())


@torch.no_grad()
def initialise(network: nn.Module, generator: torch.Generator) -> None:
    """Kaiming normal (fan out) for convolutions, (1, 0) for batch norm; no zero-init of the residual branch."""
    for module in network.modules():
        if isinstance(module, nn.Conv2d) and module.groups > 1:  # torch's fan out forgets that channels do not meet
            fan_out = module.out_channels * module.kernel_size[0] * module.kernel_size[1] / module.groups
            module.weight.normal_(0.0, (2.0 / fan_out) ** 0.5, generator=generator)
        elif isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu", generator=generator)
        elif isinstance(module, nn.BatchNorm2d):
            nn.init.ones_(module.weight)
            nn.init.zeros_(module.bias)
