"""The three devices: how each one colours, sharpens, frames and disturbs what it sees."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from endocil.datasets.synthetic.fields import Field, blur, grid, smoothstep

Colour = tuple[float, float, float]


@dataclass(frozen=True)
class Device:
    """What a device does to a scene; exposure, veil and softness are the middles of ranges drawn per image."""

    mucosa: Colour  # how healthy mucosa looks in its light
    tint: Colour  # gain of each channel
    haze: Colour  # colour of the veil over the picture
    veil: float  # share of the veil
    exposure: float
    contrast: float
    softness: float  # sigma of the blur, relative to the width
    vignette: float  # share of the light that the corners lose
    grain: float  # sigma of the sensor noise
    window: Callable[[int], Field]  # 1 where there is a picture, 0 in the black frame


@lru_cache(maxsize=8)
def _circle(size: int) -> Field:
    x, y = grid(size)
    return smoothstep(np.hypot(x, y), 0.99 + 1.5 / size, 0.99 - 1.5 / size)


@lru_cache(maxsize=8)
def _octagon(size: int) -> Field:
    x, y = grid(size)
    return smoothstep(np.abs(x) + np.abs(y), 1.68 + 2.0 / size, 1.68 - 2.0 / size)


@lru_cache(maxsize=8)
def _rounded_square(size: int) -> Field:
    x, y = grid(size)
    return smoothstep((x**4 + y**4) ** np.float32(0.25), 1.05 + 1.5 / size, 1.05 - 1.5 / size)


@lru_cache(maxsize=8)
def _corners(size: int) -> Field:
    return smoothstep(np.hypot(*grid(size)), 0.35, 1.35)


DEVICES: dict[str, Device] = {
    "capsule": Device(
        mucosa=(0.86, 0.575, 0.46),
        tint=(0.98, 1.01, 0.93),
        haze=(0.52, 0.48, 0.34),
        veil=0.08,
        exposure=1.08,
        contrast=1.05,
        softness=0.005,
        vignette=0.55,
        grain=0.02,
        window=_circle,
    ),
    "colonoscope": Device(
        mucosa=(0.87, 0.545, 0.46),
        tint=(1.03, 0.98, 0.95),
        haze=(0.45, 0.25, 0.15),
        veil=0.03,
        exposure=1.05,
        contrast=1.12,
        softness=0.003,
        vignette=0.42,
        grain=0.01,
        window=_rounded_square,
    ),
    "gastroscope": Device(
        mucosa=(0.86, 0.555, 0.51),
        tint=(1.0, 0.98, 1.02),
        haze=(0.72, 0.52, 0.58),
        veil=0.06,
        exposure=1.12,
        contrast=1.0,
        softness=0.004,
        vignette=0.20,
        grain=0.01,
        window=_octagon,
    ),
}


def photograph(light: Field, device: Device, random: np.random.Generator) -> npt.NDArray[np.uint8]:
    """The picture (size, size, 3) that the device takes of the light coming from a scene."""
    size = len(light)
    softness = device.softness * random.uniform(0.7, 1.4)
    shake = random.uniform(0.0, 0.016) if random.random() < 0.1 else 0.0
    across = bool(random.random() < 0.5)
    image = blur(light, softness + shake * (not across), softness + shake * across)
    exposure = np.float32(device.exposure * random.uniform(0.88, 1.12))
    contrast = np.float32(device.contrast * random.uniform(0.95, 1.05))
    veil = np.float32(device.veil * random.uniform(0.5, 1.5))
    image *= np.asarray(device.tint, np.float32) * exposure
    image *= (1.0 - device.vignette * _corners(size))[..., None]
    image = (image - np.float32(0.4)) * contrast + np.float32(0.4)
    image += veil * (np.asarray(device.haze, np.float32) - image)
    image += random.standard_normal(image.shape, dtype=np.float32) * np.float32(device.grain)
    image *= device.window(size)[..., None]
    return np.asarray(np.clip(image, 0.0, 1.0) * np.float32(255.0)).astype(np.uint8)
