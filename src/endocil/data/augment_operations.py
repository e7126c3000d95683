"""Operations of `train.augment`: whole batches on the device, each image by its own random numbers.

An operation takes images (B, H, W, 3), float32 from 0 to 255, and `uniform`: `uniform(k)` gives (B, k) numbers from 0
to below 1, and others at each call. It returns images of the same shape and range. Options are keyword-only. An image's
result depends on that image and its numbers alone.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from endocil.errors import SettingsError

Uniform = Callable[[int], Tensor]
OperationFunction = Callable[..., Tensor]  # images, uniform, and options by name
LUMA = (0.299, 0.587, 0.114)  # how bright red, green and blue are to the eye: ITU-R BT.601


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
