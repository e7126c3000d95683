"""The inside of a gut: lumen, folds, mucosa and light, and places on the wall for findings."""

import math
from dataclasses import dataclass

import numpy as np

from endocil.datasets.synthetic.devices import Colour, Patient
from endocil.datasets.synthetic.drawing import (
    Field,
    around,
    draw_highlights,
    grid,
    noise,
    rough_noise,
    smoothstep,
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


def empty_scene(
    patient: Patient, random: np.random.Generator, size: int, reach: tuple[float, float]
) -> Scene:
    """A stretch of mucosa; `reach` bounds how far from the middle the lumen may lie."""
    x, y = grid(size)
    towards, far = random.uniform(0.0, math.tau), random.uniform(*reach)
    lumen = (far * math.cos(towards), far * math.sin(towards))
    squeeze, turn = random.uniform(0.72, 1.0), random.uniform(0.0, math.pi)
    along = (x - lumen[0]) * np.float32(math.cos(turn)) + (y - lumen[1]) * np.float32(math.sin(turn))
    beside = (y - lumen[1]) * np.float32(math.cos(turn)) - (x - lumen[0]) * np.float32(math.sin(turn))
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
    _colour_mucosa(scene)
    return scene


def _colour_mucosa(scene: Scene) -> None:
    """Patchy pink with a fine grain, and tiny bumps that break the highlights."""
    size, random, patient = scene.size, scene.random, scene.patient
    patches = rough_noise(random, size, 3, 3)
    grain = noise(random, size, 40)
    scene.albedo[:] = np.asarray(patient.mucosa, np.float32)
    scene.albedo *= (1.0 + np.float32(0.045 * patient.villi) * grain)[..., None]
    red = np.asarray((0.02, 0.075, 0.065), np.float32) * np.float32(patient.redness)
    scene.albedo -= patches[..., None] * red
    scene.height += np.float32(0.004) * noise(random, size, 16) + np.float32(0.0024 * patient.villi) * grain


def add_tube(scene: Scene, depth: float) -> None:
    """The tube itself: it darkens towards the lumen, and its folds hide what lies behind them."""
    patient, r = scene.patient, scene.distance
    width = np.float32(patient.lumen)
    scene.height -= np.float32(0.55 * depth) * width / (r + width)
    scene.shade(smoothstep(r, 2.4 * patient.lumen, 0.3 * patient.lumen), 0.94 * depth)
    if patient.rings:
        _add_rings(scene)
    if patient.stripes:
        _add_stripes(scene)


def _add_rings(scene: Scene) -> None:
    """Folds across the lumen: light climbs to each crest and drops behind it."""
    patient, random = scene.patient, scene.random
    phase = np.log(scene.distance + np.float32(0.3)) / np.float32(patient.ring_spacing)
    phase += 0.22 * noise(random, scene.size, 3) + np.float32(random.random())
    behind = phase - np.floor(phase)  # grows outwards, 0 at a crest
    gap = 1.0 - behind  # grows inwards from the next crest, over the hollow that it hides
    present = smoothstep(noise(random, scene.size, 3), -0.5, 1.0) * np.float32(patient.rings)
    crest = np.exp(-(((behind - 0.14) / 0.11) ** 2))
    scene.height += 0.06 * present * crest
    scene.shadow *= 1.0 + present * (0.2 * crest - 0.6 * np.exp(-3.5 * gap) * smoothstep(gap, 0.0, 0.06))


def _add_stripes(scene: Scene) -> None:
    """Folds along the lumen: soft ridges with dark furrows that close towards it."""
    patient, random = scene.patient, scene.random
    twist = scene.angle + 0.12 * noise(random, scene.size, 3)
    ridges = around(random, twist, patient.stripe_count)
    near = smoothstep(scene.distance, random.uniform(0.8, 1.6), 0.3)
    near *= smoothstep(scene.distance, 0.0, 0.35)  # the folds flatten where they meet
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


def choose_spot(
    scene: Scene,
    radius: tuple[float, float],
    ragged: float = 0.1,
    oblong: float = 0.6,
    cells: int = 6,
    reach: float = 0.6,
) -> Spot:
    """A place in view and clear of the dark lumen; `ragged` and `oblong` say how far from a circle."""
    random = scene.random
    size = random.uniform(*radius)
    for _ in range(12):
        far, where = reach * math.sqrt(random.random()), random.uniform(0.0, math.tau)
        x, y = far * math.cos(where), far * math.sin(where)
        if math.hypot(x - scene.lumen[0], y - scene.lumen[1]) > scene.patient.lumen + 0.6 * size:
            break
    return spot_at(scene, x, y, size, ragged, oblong, cells)


def spot_at(
    scene: Scene, x: float, y: float, size: float, ragged: float, oblong: float, cells: int = 6
) -> Spot:
    """The place around (x, y), turned and squeezed by chance."""
    random = scene.random
    columns, rows = grid(scene.size)
    turn, squeeze = random.uniform(0.0, math.pi), random.uniform(oblong, 1.0)
    along = (columns - x) * np.float32(math.cos(turn)) + (rows - y) * np.float32(math.sin(turn))
    beside = (rows - y) * np.float32(math.cos(turn)) - (columns - x) * np.float32(math.sin(turn))
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
