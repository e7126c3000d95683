"""The three devices, and the examinations made with them.

A device colours, sharpens, frames and disturbs a scene. The images of one examination share patient, organ and device.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from endocil.datasets.synthetic.drawing import Field, blur, grid, random_source, smoothstep

Colour = tuple[float, float, float]


@dataclass(frozen=True)
class Device:
    """What a device does to a scene; exposure, veil and softness are the middles of ranges drawn per image."""

    mucosa: Colour  # how healthy mucosa looks in its light
    tint: Colour  # gain of each channel
    haze: Colour  # colour of the veil over the image
    veil: float  # share of the veil
    exposure: float
    contrast: float
    softness: float  # sigma of the blur, relative to the width
    vignette: float  # share of the light that the corners lose
    grain: float  # sigma of the sensor noise
    window: Callable[[int], Field]  # 1 inside the view, 0 in the black frame


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
    """The image (size, size, 3) that the device takes of the light from a scene."""
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


@dataclass(frozen=True)
class Organ:
    """What a healthy stretch of this organ looks like."""

    tone: Colour  # gain on the colour that mucosa has under the device's light
    rings: tuple[float, float]  # depth of the folds across the lumen
    ring_spacing: tuple[float, float]
    stripes: tuple[float, float]  # height of the folds along the lumen
    vessels: tuple[float, float]  # how many vessels shine through
    villi: float  # roughness of the surface


ORGANS: dict[str, Organ] = {
    "oesophagus": Organ((1.05, 1.16, 1.14), (0.0, 0.0), (0.4, 0.5), (0.0, 0.03), (0.2, 0.8), 0.3),
    "stomach": Organ((1.00, 0.88, 0.85), (0.0, 0.2), (0.4, 0.6), (0.02, 0.06), (0.0, 0.3), 0.7),
    "small-bowel": Organ((0.97, 1.10, 0.80), (0.25, 0.5), (0.16, 0.26), (0.0, 0.0), (0.0, 0.4), 1.0),
    "colon": Organ((1.00, 1.00, 0.98), (0.3, 0.7), (0.28, 0.5), (0.0, 0.0), (0.3, 1.0), 0.5),
}


@dataclass(frozen=True)
class Patient:
    """What the images of one examination share."""

    device: str
    mucosa: Colour
    rings: float
    ring_spacing: float
    three_sided: float  # how triangular the lumen is, as in the transverse colon
    stripes: float
    stripe_count: int  # the finest fold's number of turns around the lumen
    villi: float
    redness: float  # strength of the patches in the mucosa's colour
    vessels: float
    lumen: float  # width of the dark end


def draw_device(seed: int, finding: str, number: int) -> str:
    """The device of examination `number`: each three in a row are taken by the three devices, shuffled."""
    order = random_source(seed, "devices", finding, number // len(DEVICES)).permutation(sorted(DEVICES))
    return str(order[number % len(DEVICES)])


def draw_patient(seed: int, finding: str, number: int, organs: tuple[str, ...]) -> Patient:
    """The examination `number` of a finding, in one of these organs."""
    device = draw_device(seed, finding, number)
    random = random_source(seed, "patient", finding, number)
    organ = ORGANS[organs[int(random.integers(len(organs)))]]
    warm, bright = random.uniform(-0.025, 0.025), random.uniform(0.95, 1.05)
    red, green, blue = (tone * light for tone, light in zip(organ.tone, DEVICES[device].mucosa, strict=True))
    return Patient(
        device=device,
        mucosa=(red * bright, (green + warm) * bright, (blue + 0.6 * warm) * bright),
        rings=random.uniform(*organ.rings),
        ring_spacing=random.uniform(*organ.ring_spacing),
        three_sided=random.uniform(0.0, 0.15),
        stripes=random.uniform(*organ.stripes),
        stripe_count=int(random.integers(5, 12)),
        villi=organ.villi * random.uniform(0.7, 1.3),
        redness=random.uniform(0.2, 0.7),
        vessels=random.uniform(*organ.vessels),
        lumen=random.uniform(0.2, 0.36),
    )
