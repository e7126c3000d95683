"""Whole batches on the device: uint8 pixels in, augmented and normalised network input out.

Flips and brightness as in PyCIL, on which the paper builds; the normalisation is the network's. All random numbers
of a batch are drawn on the CPU, in a fixed order, so that every device gives the same images.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite, log
from typing import Any

import torch
from torch import Tensor

from endocil.data.augment_operations import OPERATIONS, OperationFunction
from endocil.data.seeding import generator as named_generator
from endocil.errors import SettingsError
from endocil.registry import resolve

RATIOS = (3 / 4, 4 / 3)  # of width to height in a crop, as torchvision's RandomResizedCrop
ATTEMPTS = 10  # to find a crop that fits, as torchvision's


@dataclass(frozen=True, kw_only=True)
class Normalisation:
    """What a network expects of its input: (x / 255 - mean) / std, by channel (red, green, blue)."""

    mean: tuple[float, float, float] = (0.485, 0.456, 0.406)  # of ImageNet, as torchvision's
    std: tuple[float, float, float] = (0.229, 0.224, 0.225)

    def __post_init__(self) -> None:
        values = (*self.mean, *self.std)
        if (len(self.mean), len(self.std)) != (3, 3) or not all(map(isfinite, values)) or min(self.std) <= 0:
            raise SettingsError(
                f"the backbone's mean is {self.mean} and its std {self.std}; expected three numbers each, of values "
                f"from 0 to 1, and std above 0"
            )


IMAGENET = Normalisation()


def normalise(pixels: Tensor, normalisation: Normalisation = IMAGENET) -> Tensor:
    """(B, H, W, 3) uint8 -> (B, 3, H, W) float32 in channels-last memory: (x / 255 - mean) / std."""
    return _normalise_in_place(pixels.to(torch.float32, memory_format=torch.contiguous_format), normalisation)


@dataclass(frozen=True)
class Operation:
    """One further step of an augmentation: a function of data/augment_operations.py, or `package.module:function`."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)

    @property
    def function(self) -> OperationFunction:
        return resolve("train.augment", self.name, OPERATIONS)

    def __call__(self, images: Tensor, generator: torch.Generator, piece: slice, whole: int) -> Tensor:
        if not len(images):  # a share that a small batch leaves empty
            return images

        def uniform(columns: int) -> Tensor:
            return torch.rand(whole, columns, generator=generator)[piece].to(images.device)

        changed = self.function(images, uniform, **self.options)
        if not isinstance(changed, Tensor) or changed.shape != images.shape or changed.dtype != images.dtype:
            found = (tuple(changed.shape), changed.dtype) if isinstance(changed, Tensor) else type(changed).__name__
            raise SettingsError(
                f"train.augment '{self.name}' returned {found}; expected images of {tuple(images.shape)}, "
                f"{images.dtype}"
            )
        return changed


@dataclass(frozen=True, kw_only=True)
class Augmentation:
    """Flips, brightness, (optionally) crops and further operations, each image by its own numbers."""

    flip: float = 0.5  # probability of a mirror image
    brightness: float = 63 / 255  # PyCIL, ImageNet: a factor from 1 - this to 1 + this
    crop: bool = False  # RandomResizedCrop
    crop_scale: tuple[float, float] = (0.08, 1.0)  # share of the area in a crop, torchvision's
    operations: tuple[Operation, ...] = ()  # after these, in their order

    def __post_init__(self) -> None:
        if not 0 <= self.flip <= 1:
            raise SettingsError(f"augmentation: flip is {self.flip}; expected a probability from 0 to 1")
        if self.brightness < 0:
            raise SettingsError(f"augmentation: brightness is {self.brightness}; expected 0 (off) or more")
        if not 0 < self.crop_scale[0] <= self.crop_scale[1] <= 1:
            raise SettingsError(f"augmentation: crop_scale is {self.crop_scale}; expected 0 < smallest <= largest <= 1")

    def __call__(
        self,
        pixels: Tensor,
        generator: torch.Generator,
        normalisation: Normalisation = IMAGENET,
        *,
        start: int = 0,
        of: int | None = None,
    ) -> Tensor:
        """(B, H, W, 3) uint8 -> (B, 3, H, W) float32, augmented and normalised.

        `start`, `of`: these images are a share, from `start` on, of a batch of `of` images. Numbers are drawn for
        the whole batch, so that an image looks the same whoever prepares it."""
        n, device, whole = len(pixels), pixels.device, of or len(pixels)
        piece = slice(start, start + n)
        flipped = torch.rand(whole, generator=generator)[piece] < self.flip  # (B,)
        low = max(0.0, 1 - self.brightness)
        factors = low + (1 + self.brightness - low) * torch.rand(whole, generator=generator)[piece]  # (B,)
        values = _flip(pixels, flipped.to(device)).to(torch.float32)  # (B, H, W, 3)
        values.flatten(1).mul_(factors.to(device)[:, None]).clamp_(max=255.0)
        if self.crop:
            height, width = pixels.shape[1:3]
            values = _crop(values, draw_crops(whole, height, width, self.crop_scale, generator)[piece])
        for index, operation in enumerate(self.operations):
            # by its place and name, so that no operation changes the numbers of another
            own = named_generator(generator.initial_seed(), index, operation.name)
            values = operation(values, own, piece, whole)
        return _normalise_in_place(values.contiguous(), normalisation)


def draw_crops(n: int, height: int, width: int, scale: tuple[float, float], generator: torch.Generator) -> Tensor:
    """Boxes (top, left, height, width) of n crops; torchvision's distribution of areas and ratios.

    The first of ten attempts that fits inside the image is taken; where none does, the whole image."""
    draws = torch.rand(n, ATTEMPTS, 2, generator=generator, dtype=torch.float64)
    place = torch.rand(n, 2, generator=generator, dtype=torch.float64)
    area = (scale[0] + (scale[1] - scale[0]) * draws[..., 0]) * (height * width)  # (B, 10)
    ratio = torch.exp(log(RATIOS[0]) + (log(RATIOS[1]) - log(RATIOS[0])) * draws[..., 1])  # (B, 10)
    sizes = torch.stack([(area / ratio).sqrt().round(), (area * ratio).sqrt().round()], dim=2)  # (B, 10, 2)
    limit = torch.tensor([height, width], dtype=torch.float64)
    fits = ((sizes > 0) & (sizes <= limit)).all(dim=2)  # (B, 10)
    first = fits.int().argmax(dim=1)  # (B,) the first that fits, 0 where none does
    size = torch.where(fits.any(dim=1)[:, None], sizes[torch.arange(n), first], limit)  # (B, 2)
    corner = (place * (limit - size + 1)).floor()  # (B, 2) every whole-pixel place is equally likely
    return torch.cat([corner, size], dim=1)  # (B, 4)


def _flip(pixels: Tensor, flipped: Tensor) -> Tensor:
    """Copying whole images out of both versions is several times faster than a mask or an indexed write."""
    both = torch.cat([pixels, pixels.flip(2)])  # (2B, H, W, 3)
    n = len(pixels)
    return both.index_select(0, torch.arange(n, device=pixels.device) + n * flipped)


def _crop(values: Tensor, boxes: Tensor) -> Tensor:
    """Each box, enlarged bilinearly to the whole image; pixels outside the box have no part in it."""
    tall = _stretch(values, boxes[:, 0], boxes[:, 2]).transpose(1, 2).contiguous()  # (B, W, H, 3)
    return _stretch(tall, boxes[:, 1], boxes[:, 3]).transpose(1, 2).contiguous()  # (B, H, W, 3)


def _stretch(values: Tensor, start: Tensor, length: Tensor) -> Tensor:
    """Along dimension 1, `length` lines from `start` become all n, blended from the two nearest.

    Copying whole lines twice is about three times faster than grid_sample, and exact where nothing moves."""
    n_images, n = values.shape[:2]
    inside = (torch.arange(n) + 0.5) * (length / n)[:, None] - 0.5  # (B, n)
    position = inside.clamp(min=0).minimum(length[:, None] - 1) + start[:, None]
    line = position.floor().clamp(max=n - 2).long()
    share = (position - line).float().view(-1, 1).to(values.device)  # of the next line
    index = (line + n * torch.arange(n_images)[:, None]).view(-1).to(values.device)
    lines = values.flatten(2).flatten(0, 1)  # also of no images, a share that a small batch leaves
    blended = torch.lerp(lines.index_select(0, index), lines.index_select(0, index + 1), share)
    return blended.view(values.shape)


def _normalise_in_place(values: Tensor, normalisation: Normalisation) -> Tensor:
    """(B, H, W, 3) float32 from 0 to 255, contiguous -> (B, 3, H, W) seen through channels-last strides."""
    n, height, width, _ = values.shape
    std = torch.tensor(normalisation.std, device=values.device)
    mean = torch.tensor(normalisation.mean, device=values.device)
    rows = values.view(n * height, width * 3)  # constants as long as a row: three at a time would be slow
    rows.mul_((1 / (255 * std)).repeat(width)).add_((-mean / std).repeat(width))
    return values.permute(0, 3, 1, 2)
