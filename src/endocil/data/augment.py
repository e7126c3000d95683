"""Whole batches on the device: uint8 pixels in, augmented and normalised network input out.

Flips and brightness as in PyCIL, on which the paper builds; the normalisation is the network's. All random numbers
of a batch are drawn on the CPU, in a fixed order, so that every device gives the same images.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import isfinite, log
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from endocil.data.seeding import generator as named_generator
from endocil.errors import SettingsError
from endocil.registry import resolve

RATIOS = (3 / 4, 4 / 3)  # of width to height in a crop, as torchvision's RandomResizedCrop
ATTEMPTS = 10  # to find a crop that fits, as torchvision's
LUMA = (0.299, 0.587, 0.114)  # how bright red, green and blue are to the eye: ITU-R BT.601
Uniform = Callable[[int], Tensor]
OperationFunction = Callable[..., Tensor]  # images, uniform, and options by name


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
    """One further step of an augmentation: one of OPERATIONS, or `package.module:function`."""

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

    @property
    def mirrors_alone(self) -> bool:
        """Whether an image always looks as it is, or as its mirror image."""
        return not (self.brightness or self.crop or self.operations)

    def draw_flips(self, n: int, generator: torch.Generator) -> Tensor:
        """(n,) bool: the first that is drawn."""
        return torch.rand(n, generator=generator) < self.flip

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
        flipped = self.draw_flips(whole, generator)[piece]  # (B,)
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


# --- operations of train.augment: whole batches on the device, each image by its own random numbers
#
# An operation takes images (B, H, W, 3), float32 from 0 to 255, and `uniform`: `uniform(k)` gives (B, k) numbers from 0
# to below 1, and others at each call. It returns images of the same shape and range. Options are keyword-only. An
# image's result depends on that image and its numbers alone.


def vertical_flip(images: Tensor, uniform: Uniform, *, p: float = 0.5) -> Tensor:
    """Upside down, with probability p: a scope has no upright position."""
    _check("vertical_flip", "p", p, 0 <= p <= 1, "a probability from 0 to 1")
    return torch.where((uniform(1) < p)[:, :, None, None], images.flip(1), images)


def rotate(images: Tensor, uniform: Uniform, *, degrees: float = 15.0) -> Tensor:
    """By an angle from -degrees to degrees about the centre, bilinearly; black where nothing was."""
    _check("rotate", "degrees", degrees, 0 < degrees <= 180, "above 0, at most 180")
    angle = (2 * uniform(1)[:, 0] - 1) * math.radians(degrees)  # (B,)
    cos, sin, (height, width) = angle.cos(), angle.sin(), images.shape[1:3]
    zero = torch.zeros_like(cos)
    # coordinates of affine_grid run from -1 to 1 along both sides: a rotation of pixels needs their ratio
    rows = [torch.stack([cos, -sin * height / width, zero], 1), torch.stack([sin * width / height, cos, zero], 1)]
    grid = functional.affine_grid(torch.stack(rows, 1), [len(images), 3, height, width], align_corners=False)
    turned = functional.grid_sample(images.permute(0, 3, 1, 2), grid, padding_mode="zeros", align_corners=False)
    return turned.permute(0, 2, 3, 1)


def color(
    images: Tensor, uniform: Uniform, *, contrast: float = 0.2, saturation: float = 0.2, hue: float = 0.02
) -> Tensor:
    """Contrast and saturation times a factor from 1 - this to 1 + this, hue turned by up to this part of a circle."""
    for name, value in (("contrast", contrast), ("saturation", saturation)):
        _check("color", name, value, 0 <= value <= 1, "from 0 to 1")
    _check("color", "hue", hue, 0 <= hue <= 0.5, "from 0 to 0.5")
    strength = torch.tensor([contrast, saturation, 2 * math.pi * hue], device=images.device)
    change = (2 * uniform(3) - 1) * strength  # (B, 3)
    factor, colourful, turn = (change + torch.tensor([1.0, 1.0, 0.0], device=images.device)).T[:, :, None, None]
    red, green, blue = images.unbind(3)  # (B, H, W) each
    grey = LUMA[0] * red + LUMA[1] * green + LUMA[2] * blue
    middle = grey.mean(dim=(1, 2), keepdim=True)  # (B, 1, 1)
    # two colour differences, turned against each other and stretched: brightness stays
    first, second = red - grey, blue - grey
    cos, sin = turn.cos() * colourful, turn.sin() * colourful
    first, second = cos * first - sin * second, sin * first + cos * second
    level = middle + factor * (grey - middle)
    first, second = factor * first, factor * second
    third = -(LUMA[0] * first + LUMA[2] * second) / LUMA[1]  # of green, so that the brightness is `level`
    return torch.stack([level + first, level + third, level + second], dim=3).clamp_(0.0, 255.0)


def blur(images: Tensor, uniform: Uniform, *, p: float = 0.5, sigma: float = 1.0) -> Tensor:
    """By a Gaussian of a deviation from 0.1 to sigma pixels, with probability p; edges are repeated outwards."""
    _check("blur", "p", p, 0 <= p <= 1, "a probability from 0 to 1")
    _check("blur", "sigma", sigma, 0.1 <= sigma <= 10, "from 0.1 to 10")
    drawn = uniform(2)
    deviation = 0.1 + (sigma - 0.1) * drawn[:, 1]  # (B,)
    radius = math.ceil(3 * sigma)
    offsets = torch.arange(-radius, radius + 1, device=images.device)
    weights = torch.exp(-0.5 * (offsets / deviation[:, None]) ** 2)  # (B, 2r + 1)
    weights = weights / weights.sum(dim=1, keepdim=True)
    blurred = images
    for dimension in (1, 2):
        n, total = images.shape[dimension], torch.zeros_like(images)
        place = torch.arange(n, device=images.device)
        for i in range(2 * radius + 1):  # one after the other: a sum by torch may round by the size of the batch
            line = blurred.index_select(dimension, (place + i - radius).clamp(0, n - 1))
            total.addcmul_(weights[:, i, None, None, None], line)
        blurred = total
    return torch.where((drawn[:, :1] < p)[:, :, None, None], blurred, images)


def cutout(images: Tensor, uniform: Uniform, *, p: float = 0.5, size: float = 0.25) -> Tensor:
    """A square of this share of the shorter side becomes the image's mean colour, with probability p (DeVries and
    Taylor, 2017). Its centre is anywhere in the image, so that it may stand out over an edge."""
    _check("cutout", "p", p, 0 <= p <= 1, "a probability from 0 to 1")
    _check("cutout", "size", size, 0 < size <= 1, "above 0, at most 1")
    drawn, (height, width) = uniform(3), images.shape[1:3]
    half = size * min(height, width) / 2
    inside = [
        ((torch.arange(n, device=images.device) + 0.5) - drawn[:, i, None] * n).abs() < half  # (B, n)
        for i, n in enumerate((height, width))
    ]
    hidden = inside[0][:, :, None] & inside[1][:, None, :] & (drawn[:, 2] < p)[:, None, None]  # (B, H, W)
    return torch.where(hidden[..., None], images.mean(dim=(1, 2), keepdim=True), images)


def shift(images: Tensor, uniform: Uniform, *, pixels: int = 4) -> Tensor:
    """By up to so many pixels along each side, black where nothing was: a crop of the padded image, as CIFAR's."""
    _check("shift", "pixels", pixels, 1 <= pixels <= 64, "from 1 to 64")
    height, width = images.shape[1:3]
    offsets = (uniform(2) * (2 * pixels + 1)).long().clamp(max=2 * pixels)  # (B, 2) of the crop in the padded image
    padded = functional.pad(images, (0, 0, pixels, pixels, pixels, pixels))
    rows, columns = (
        offsets[:, i, None] + torch.arange(n, device=images.device) for i, n in enumerate((height, width))
    )  # (B, n)
    return padded[torch.arange(len(images), device=images.device)[:, None, None], rows[:, :, None], columns[:, None, :]]


OPERATIONS: dict[str, OperationFunction] = {
    "blur": blur,
    "color": color,
    "cutout": cutout,
    "rotate": rotate,
    "shift": shift,
    "vertical_flip": vertical_flip,
}


def _check(name: str, option: str, value: float, valid: bool, expected: str) -> None:
    if not valid:
        raise SettingsError(f"train.augment '{name}': {option} is {value}; expected {expected}")
