"""The inside of a gut: lumen, folds, mucosa and light, places on the wall for findings, and the device that sees it.

The images of one examination share patient, organ and device. A device colours, sharpens, frames and disturbs a scene.
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
import numpy.typing as npt

from endocil.datasets.synthetic.drawing import (
    Field,
    around,
    blur,
    draw_highlights,
    grid,
    noise,
    random_source,
    rough_noise,
    smoothstep,
)

Colour = tuple[float, float, float]
Shape = Literal["circle", "octagon", "rounded square"]


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
    window: Shape  # of the view in its black frame


DEVICES: dict[str, Device] = {
    "capsule": Device(
        (0.86, 0.575, 0.46), (0.98, 1.01, 0.93), (0.52, 0.48, 0.34), 0.08, 1.08, 1.05, 0.005, 0.55, 0.02, "circle"
    ),
    "colonoscope": Device(
        (0.87, 0.545, 0.46),
        (1.03, 0.98, 0.95),
        (0.45, 0.25, 0.15),
        0.03,
        1.05,
        1.12,
        0.003,
        0.42,
        0.01,
        "rounded square",
    ),
    "gastroscope": Device(
        (0.86, 0.555, 0.51), (1.0, 0.98, 1.02), (0.72, 0.52, 0.58), 0.06, 1.12, 1.0, 0.004, 0.20, 0.01, "octagon"
    ),
}


@lru_cache(maxsize=16)
def _window(shape: Shape, size: int) -> Field:
    """1 inside the view, 0 in the black frame."""
    x, y = grid(size)
    if shape == "circle":
        radius, edge, blend = np.hypot(x, y), 0.99, 1.5
    elif shape == "octagon":
        radius, edge, blend = np.abs(x) + np.abs(y), 1.68, 2.0
    else:
        radius, edge, blend = (x**4 + y**4) ** np.float32(0.25), 1.05, 1.5
    return smoothstep(radius, edge + blend / size, edge - blend / size)


@lru_cache(maxsize=8)
def _corners(size: int) -> Field:
    return smoothstep(np.hypot(*grid(size)), 0.35, 1.35)


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
    image *= _window(device.window, size)[..., None]
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


@dataclass
class Scene:
    """A surface under construction: findings paint it, raise it and wet it; `illuminate` makes it light."""

    random: np.random.Generator
    patient: Patient
    lumen: tuple[float, float]  # where the tube goes on, in relative coordinates; may lie outside the image
    distance: Field  # from the lumen's centre, bent by the organ's shape
    angle: Field  # around the lumen
    albedo: Field  # (size, size, 3)
    height: Field  # towards the camera, in half widths
    shadow: Field  # share of light that arrives
    gloss: Field  # strength of the highlights

    @property
    def size(self) -> int:
        return len(self.height)

    def paint(self, mask: Field, colour: Colour) -> None:
        self.albedo += mask[..., None] * (np.asarray(colour, np.float32) - self.albedo)

    def stain(self, mask: Field, gain: Colour) -> None:
        """Multiply the colour, as dye or blood under the surface does."""
        self.albedo *= 1.0 + mask[..., None] * (np.asarray(gain, np.float32) - 1.0)

    def shade(self, mask: Field, strength: float) -> None:
        self.shadow *= 1.0 - mask * np.float32(strength)


def _turned_grid(size: int, x: float, y: float, turn: float) -> tuple[Field, Field]:
    """Coordinates of the pixels around (x, y), turned by an angle."""
    columns, rows = grid(size)
    cos, sin = np.float32(math.cos(turn)), np.float32(math.sin(turn))
    return (columns - x) * cos + (rows - y) * sin, (rows - y) * cos - (columns - x) * sin


def empty_scene(patient: Patient, random: np.random.Generator, size: int, reach: tuple[float, float]) -> Scene:
    """A stretch of mucosa; `reach` bounds how far from the middle the lumen may lie."""
    towards, far = random.uniform(0.0, math.tau), random.uniform(*reach)
    lumen = (far * math.cos(towards), far * math.sin(towards))
    squeeze, turn = random.uniform(0.72, 1.0), random.uniform(0.0, math.pi)
    along, beside = _turned_grid(size, *lumen, turn)
    angle = np.arctan2(beside, along * np.float32(squeeze))
    distance = np.hypot(along * np.float32(squeeze), beside)
    distance *= 1.0 + 0.09 * noise(random, size, 3) + patient.three_sided * np.cos(3.0 * angle)
    scene = Scene(
        random=random,
        patient=patient,
        lumen=lumen,
        distance=distance,
        angle=angle,
        albedo=np.empty((size, size, 3), np.float32),
        height=0.06 * noise(random, size, 2) + 0.03 * noise(random, size, 5),
        shadow=np.ones((size, size), np.float32),
        gloss=np.ones((size, size), np.float32),
    )
    # patchy pink with a fine grain, and tiny bumps that break the highlights
    patches = rough_noise(random, size, 3, 3)
    grain = noise(random, size, 40)
    scene.albedo[:] = np.asarray(patient.mucosa, np.float32)
    scene.albedo *= (1.0 + np.float32(0.045 * patient.villi) * grain)[..., None]
    red = np.asarray((0.02, 0.075, 0.065), np.float32) * np.float32(patient.redness)
    scene.albedo -= patches[..., None] * red
    scene.height += np.float32(0.004) * noise(random, size, 16) + np.float32(0.0024 * patient.villi) * grain
    return scene


def add_tube(scene: Scene, depth: float) -> None:
    """The tube itself: it darkens towards the lumen, and its folds hide what lies behind them."""
    patient, random, size, r = scene.patient, scene.random, scene.size, scene.distance
    width = np.float32(patient.lumen)
    scene.height -= np.float32(0.55 * depth) * width / (r + width)
    scene.shade(smoothstep(r, 2.4 * patient.lumen, 0.3 * patient.lumen), 0.94 * depth)
    if patient.rings:  # folds across the lumen: light climbs to each crest and drops behind it
        phase = np.log(r + np.float32(0.3)) / np.float32(patient.ring_spacing)
        phase += 0.22 * noise(random, size, 3) + np.float32(random.random())
        behind = phase - np.floor(phase)  # grows outwards, 0 at a crest
        gap = 1.0 - behind  # grows inwards from the next crest, over the hollow that it hides
        present = smoothstep(noise(random, size, 3), -0.5, 1.0) * np.float32(patient.rings)
        crest = np.exp(-(((behind - 0.14) / 0.11) ** 2))
        scene.height += 0.06 * present * crest
        scene.shadow *= 1.0 + present * (0.2 * crest - 0.6 * np.exp(-3.5 * gap) * smoothstep(gap, 0.0, 0.06))
    if patient.stripes:  # folds along the lumen: soft ridges with dark furrows that close towards it
        twist = scene.angle + 0.12 * noise(random, size, 3)
        ridges = around(random, twist, patient.stripe_count)
        near = smoothstep(r, random.uniform(0.8, 1.6), 0.3)
        near *= smoothstep(r, 0.0, 0.35)  # the folds flatten where they meet
        scene.height += np.float32(patient.stripes) * ridges * near
        scene.shade(smoothstep(ridges, 0.2, -1.6) * near, 0.35)


def illuminate(scene: Scene) -> Field:
    """Light (size, size, 3) that comes back to the camera: diffuse, with highlights where wet surface faces it."""
    random = scene.random
    x, y = grid(scene.size)
    down, across = np.gradient(scene.height, 2.0 / scene.size)
    to_x = np.float32(random.uniform(-0.3, 0.3)) - 0.7 * x  # from the surface to the lamp beside the lens
    to_y = np.float32(random.uniform(-0.3, 0.3)) - 0.7 * y
    steepness = np.sqrt(across**2 + down**2 + 1.0)
    facing = (1.1 - across * to_x - down * to_y) / (steepness * np.sqrt(to_x**2 + to_y**2 + 1.21))
    level = scene.shadow * (0.15 + 0.97 * np.clip(facing, 0.0, 1.0) ** 1.6)
    # blood takes green and blue out of light that was scattered often, so shadows turn brown
    exponents = np.asarray((0.88, 1.1, 1.14), np.float32)
    light: Field = scene.albedo * np.power(np.clip(level, 1e-3, None)[..., None], exponents)
    wet = noise(random, scene.size, 26)
    shine = smoothstep(facing, 0.985, 1.0) * smoothstep(wet, 1.0, 1.9)
    dashes = draw_highlights(random, scene.size, scene.lumen) * smoothstep(facing, 0.55, 0.9)
    bright = np.clip(shine + dashes, 0.0, 1.0) * scene.gloss * smoothstep(scene.shadow, 0.1, 0.7)
    light += bright[..., None] * np.asarray((0.8, 0.77, 0.75), np.float32)
    return light


@dataclass(frozen=True)
class Spot:
    """A place on the wall: its centre, its radius, and how far every pixel is from it in radii."""

    x: float
    y: float
    radius: float
    rho: Field


def choose_spot(scene: Scene, radius: tuple[float, float], ragged: float, cells: int = 6, reach: float = 0.6) -> Spot:
    """A place in view and clear of the dark lumen; `ragged` says how far it is from a smooth outline."""
    random = scene.random
    size = random.uniform(*radius)
    for _ in range(12):
        far, where = reach * math.sqrt(random.random()), random.uniform(0.0, math.tau)
        x, y = far * math.cos(where), far * math.sin(where)
        if math.hypot(x - scene.lumen[0], y - scene.lumen[1]) > scene.patient.lumen + 0.6 * size:
            break
    return spot_at(scene, x, y, size, ragged, 0.6, cells)


def spot_at(scene: Scene, x: float, y: float, size: float, ragged: float, oblong: float, cells: int = 6) -> Spot:
    """The place around (x, y), turned and squeezed by chance."""
    random = scene.random
    turn, squeeze = random.uniform(0.0, math.pi), random.uniform(oblong, 1.0)
    along, beside = _turned_grid(scene.size, x, y, turn)
    rho = np.hypot(along * np.float32(squeeze), beside / np.float32(squeeze)) / np.float32(size)
    rho += np.float32(ragged) * rough_noise(random, scene.size, cells, 2)
    return Spot(x, y, size, rho)


def raise_dome(scene: Scene, spot: Spot, height: float) -> Field:
    """Raise a dome that throws a shadow away from the lamp; returns its mask."""
    inside = np.clip(1.0 - spot.rho * np.abs(spot.rho), 0.0, 1.0)
    scene.height += np.float32(height * spot.radius) * inside ** np.float32(1.1)
    columns, rows = grid(scene.size)
    away = ((columns - spot.x) * spot.x + (rows - spot.y) * spot.y) / (
        spot.radius * (math.hypot(spot.x, spot.y) + 0.15)
    )
    foot = smoothstep(spot.rho, 1.55, 1.0) * smoothstep(spot.rho, 0.88, 1.02)
    scene.shadow *= 1.0 - foot * (0.12 + 0.5 * smoothstep(away, -0.3, 1.1))
    scene.shadow *= 1.0 + 0.18 * inside
    return smoothstep(spot.rho, 1.05, 0.92)
