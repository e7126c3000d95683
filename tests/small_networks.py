"""Backbones for tests of numbers: one without convolutions, which every processor computes rightly with 16 bits, and
some that are wrong on purpose."""

import itertools
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional


class Pooled(nn.Module):
    """A hidden layer on an image of 8 x 8 averages."""

    n_features = 16

    def __init__(self) -> None:
        super().__init__()
        self.pool = nn.AdaptiveAvgPool2d(8)
        self.hidden = nn.Linear(3 * 8 * 8, 16)
        self.norm = nn.BatchNorm1d(16)

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.norm(self.hidden(self.pool(images).flatten(1)))
        return features.relu()


class Dropping(Pooled):
    """With dropout, which draws from torch's own generator."""

    def forward(self, images: Tensor) -> Tensor:
        return functional.dropout(super().forward(images), 0.5, self.training)


class _WrongBackward(torch.autograd.Function):
    """Passes numbers on; backward multiplies them by `factor`."""

    @staticmethod
    def forward(ctx: Any, features: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return features.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient * ctx.factor, None


class WrongIn16Bits(Pooled):
    """Like torch's bf16 convolutions on AVX512-BF16: now and then garbage in a gradient, with 16 bits alone."""

    def __init__(self, factor: float = 1e25, every: int = 1) -> None:
        super().__init__()
        self.factor, self.every, self.calls = factor, every, itertools.count(1)

    def forward(self, images: Tensor) -> Tensor:
        features = super().forward(images)
        wrong = torch.is_autocast_enabled(images.device.type) and next(self.calls) % self.every == 0
        result: Tensor = _WrongBackward.apply(features, self.factor if wrong else 1.0)  # type: ignore[no-untyped-call]
        return result


def _free_memory() -> list[Tensor]:
    return [torch.empty(16 * 1024) for _ in range(96)]


class _ReadsUnwritten(torch.autograd.Function):
    """Passes numbers on; backward is wrong where memory that it takes, and does not write, holds NaN."""

    @staticmethod
    def forward(ctx: Any, features: Tensor) -> Tensor:
        return features.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * (torch.nan if any(block.isnan().all() for block in _free_memory()) else 1.0)


class ReadsUnwritten(Pooled):
    """Wrong with 16 bits where memory is not zero by chance; without them it leaves zeros in free memory."""

    def forward(self, images: Tensor) -> Tensor:
        features = super().forward(images)
        if not torch.is_autocast_enabled(images.device.type):
            blocks = _free_memory()
            for block in blocks:
                block.zero_()
            self.anchor = blocks.pop()  # lies behind them, so that they stay the process's own
            return features
        result: Tensor = _ReadsUnwritten.apply(features)  # type: ignore[no-untyped-call]
        return result


class WrongLater(Pooled):
    """Right before training and wrong in one of its steps, whatever the precision."""

    def __init__(self, factor: float = 1e25, call: int = 12) -> None:
        super().__init__()
        self.factor, self.call, self.calls = factor, call, itertools.count(1)

    def forward(self, images: Tensor) -> Tensor:
        features = super().forward(images)
        wrong = self.training and next(self.calls) == self.call
        result: Tensor = _WrongBackward.apply(features, self.factor if wrong else 1.0)  # type: ignore[no-untyped-call]
        return result


class Convolution(nn.Module):
    """A backbone that torch.compile translates in seconds."""

    n_features = 4

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, images: Tensor) -> Tensor:
        maps: Tensor = self.conv(images)
        return maps.relu().mean((2, 3))
