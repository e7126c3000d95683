"""The findings and landmarks: each function adds one to a scene. Sizes, places, angles and strengths vary widely.

Some are hard to tell apart, as in reality: a small ulcer and an erosion, an angiectasia and a little blood, a
polyp under weak dye with or without the cushion below it.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from endocil.datasets.synthetic.drawing import (
    Canvas,
    Field,
    around,
    draw_bubbles,
    grow_vessel,
    noise,
    rough_noise,
    smoothstep,
)
from endocil.datasets.synthetic.scene import Scene, Spot, choose_spot, raise_dome, spot_at

Random = np.random.Generator


@dataclass(frozen=True)
class Finding:
    """How a class is drawn, in which organs it occurs, how far off the lumen is and how deep the tube goes on."""

    add: Callable[[Scene, Random], None]
    organs: tuple[str, ...]
    reach: tuple[float, float] = (0.4, 1.2)
    depth: tuple[float, float] = (0.4, 1.0)


def normal_mucosa(scene: Scene, random: Random) -> None:
    """Nothing but the mucosa, its folds and its vessels."""


def polyp(scene: Scene, random: Random) -> None:
    """A dome, smooth or lobed, a little redder than the mucosa around it."""
    spot = choose_spot(scene, (0.32, 0.6), ragged=random.uniform(0.0, 0.09))
    mask = raise_dome(scene, spot, random.uniform(0.35, 0.7))
    gain = random.uniform(0.72, 0.98)
    scene.stain(mask, (random.uniform(0.98, 1.1), gain, gain * random.uniform(0.92, 1.02)))
    scene.height += mask * np.float32(random.uniform(0.0, 0.05) * spot.radius) * noise(random, scene.size, 10)
    scene.height += mask * np.float32(random.uniform(0.0, 0.012)) * noise(random, scene.size, 24)


def _dye(scene: Scene, random: Random, mask: Field, strength: float) -> None:
    """Blue dye under the mucosa, uneven as injected dye is."""
    cloud = np.clip(1.0 + 0.35 * noise(random, scene.size, 5), 0.0, 1.4)
    scene.stain(np.clip(mask * cloud * np.float32(strength), 0.0, 1.0), (0.38, 0.95, 1.45))


def dyed_lifted_polyp(scene: Scene, random: Random) -> None:
    """A polyp on a cushion of blue fluid; the cushion is smooth and pale where it is stretched."""
    cushion = choose_spot(scene, (0.5, 0.8), ragged=0.08)
    scene.height += np.float32(0.3 * cushion.radius) * smoothstep(cushion.rho, 1.1, 0.0)
    _dye(scene, random, smoothstep(cushion.rho, random.uniform(1.2, 1.6), 0.6), random.uniform(0.5, 1.0))
    top = random.uniform(-0.25, 0.25, 2) * cushion.radius
    radius = cushion.radius * random.uniform(0.4, 0.65)
    spot = spot_at(scene, cushion.x + top[0], cushion.y + top[1], radius, ragged=0.05, oblong=0.7)
    mask = raise_dome(scene, spot, random.uniform(0.3, 0.6))
    scene.paint(mask * np.float32(random.uniform(0.35, 0.7)), (0.80, 0.72, 0.74))
    scene.height += mask * 0.012 * noise(random, scene.size, 20)


def dyed_resection_margin(scene: Scene, random: Random) -> None:
    """The wound after the removal: a ragged hole with burnt and bleeding patches in a blue field."""
    field = choose_spot(scene, (0.5, 0.8), ragged=0.1)
    _dye(scene, random, smoothstep(field.rho, random.uniform(1.2, 1.6), 0.6), random.uniform(0.5, 1.0))
    hole = spot_at(scene, field.x, field.y, field.radius * random.uniform(0.55, 0.8), ragged=0.25, oblong=0.6, cells=8)
    inside = smoothstep(hole.rho, 1.05, 0.85)
    scene.height -= np.float32(0.1 * hole.radius) * smoothstep(hole.rho, 1.1, 0.7)
    scene.paint(inside * np.float32(random.uniform(0.4, 0.8)), (0.62, 0.66, 0.74))
    patches = rough_noise(random, scene.size, 10, 2)
    scene.paint(0.85 * inside * smoothstep(patches, 0.2, 1.3), (0.55, 0.10, 0.08))
    scene.paint(0.9 * inside * smoothstep(patches, -0.3, -1.3), (0.90, 0.84, 0.72))
    scene.height += 0.015 * inside * patches


def ulcer(scene: Scene, random: Random) -> None:
    """One large crater with a raised rim."""
    _crater(scene, random, choose_spot(scene, (0.3, 0.55), ragged=0.12), depth=random.uniform(0.08, 0.2), rim=0.14)


def erosion(scene: Scene, random: Random) -> None:
    """Several small, flat craters."""
    for _ in range(int(random.integers(4, 10))):
        spot = choose_spot(scene, (0.08, 0.17), ragged=0.2, cells=14, reach=0.8)
        _crater(scene, random, spot, depth=random.uniform(0.0, 0.06), rim=0.02)


def _crater(scene: Scene, random: Random, spot: Spot, depth: float, rim: float) -> None:
    """A white base of fibrin in a red surrounding."""
    inside = smoothstep(spot.rho, 1.1, 0.65)
    halo = smoothstep(spot.rho, random.uniform(1.5, 2.2), 1.0) * (1.0 - inside)
    scene.height -= np.float32(depth * spot.radius) * smoothstep(spot.rho, 1.15, 0.6)
    scene.height += np.float32(rim * spot.radius) * np.exp(-(((spot.rho - 1.2) / 0.22) ** 2))
    scene.stain(halo * np.float32(random.uniform(0.5, 1.0)), (0.95, 0.54, 0.54))
    yellow = random.uniform(0.0, 1.0)
    base = (0.90, 0.86 - 0.08 * yellow, 0.78 - 0.28 * yellow)
    scene.paint(inside * np.float32(random.uniform(0.7, 0.97)), base)
    scene.gloss *= 1.0 - 0.7 * inside


def bleeding(scene: Scene, random: Random) -> None:
    """Blood: a ragged pool, dark where it is deep, with streaks that run down the wall."""
    spot = choose_spot(scene, (0.3, 0.62), ragged=0.0)
    edge = spot.rho + np.float32(random.uniform(0.25, 0.5)) * rough_noise(random, scene.size, 4, 4)
    canvas = Canvas(scene.size)
    down = random.uniform(0.0, math.tau)
    for _ in range(int(random.integers(0, 4))):
        x, y = random.normal(0.0, 0.4 * spot.radius, 2)
        length, width = random.uniform(0.4, 1.1), random.uniform(0.05, 0.11)
        grow_vessel(canvas, random, (spot.x + x, spot.y + y), down, length=length, width=width, generations=0)
    streaks = smoothstep(canvas.field() + 0.1 * noise(random, scene.size, 16), 0.15, 0.5)
    amount = np.maximum(smoothstep(edge, 1.15, 0.75), streaks) * np.float32(random.uniform(0.75, 0.95))
    scene.paint(amount, (random.uniform(0.6, 0.72), 0.08, 0.06))
    scene.paint(0.8 * smoothstep(edge, 0.9, 0.1), (0.36, 0.02, 0.02))
    scene.height += 0.03 * amount


def angiectasia(scene: Scene, random: Random) -> None:
    """A patch of fern-like, cherry-red vessels."""
    spot = choose_spot(scene, (0.28, 0.5), ragged=0.25)
    canvas = Canvas(scene.size)
    for _ in range(int(random.integers(8, 15))):
        heading, length = random.uniform(0.0, math.tau), spot.radius * random.uniform(0.7, 1.3)
        grow_vessel(canvas, random, (spot.x, spot.y), heading, length=length, width=0.05, wander=0.55, generations=1)
    red = np.clip(1.5 * canvas.field() + 0.55 * smoothstep(spot.rho, 1.3, 0.1), 0.0, 1.0)
    scene.paint(red * np.float32(random.uniform(0.8, 1.0)), (random.uniform(0.65, 0.8), 0.12, 0.12))


def lymphangiectasia(scene: Scene, random: Random) -> None:
    """Scattered white dots: swollen lymph vessels."""
    spot = choose_spot(scene, (0.5, 1.0), ragged=0.0)
    canvas = Canvas(scene.size)
    for _ in range(int(random.integers(40, 90))):
        x, y = random.normal(0.0, 0.5 * spot.radius, 2)
        canvas.dot((spot.x + x, spot.y + y), random.uniform(0.025, 0.06), random.uniform(0.6, 1.0))
    dots = canvas.field()
    scene.paint(dots * np.float32(random.uniform(0.75, 1.0)), (0.95, 0.92, 0.86))
    scene.height += 0.02 * dots


def stool(scene: Scene, random: Random) -> None:
    """Brown to yellow clumps and smears."""
    green = random.uniform(0.0, 1.0)
    colour = (random.uniform(0.40, 0.60), 0.34 + 0.10 * green, 0.08 + 0.06 * green)
    for _ in range(int(random.integers(2, 6))):
        spot = choose_spot(scene, (0.22, 0.45), ragged=random.uniform(0.2, 0.45), cells=8)
        mask = smoothstep(spot.rho, 1.1, 0.8)
        crumbs = noise(random, scene.size, 20)
        scene.paint(mask * np.float32(random.uniform(0.5, 0.95)), colour)
        scene.stain(mask * smoothstep(crumbs, -0.5, 1.5), (0.75, 0.72, 0.7))
        scene.height += mask * (0.06 * np.clip(1.0 - spot.rho, 0.0, 1.0) + 0.012 * crumbs)


def z_line(scene: Scene, random: Random) -> None:
    """Where the pale oesophagus meets the salmon-red stomach: a jagged ring around the lumen."""
    jag, edge = random.uniform(0.05, 0.12), random.uniform(0.03, 0.1)
    teeth = 0.8 * around(random, scene.angle, 7) + 0.8 * rough_noise(random, scene.size, 5, 3)
    where = random.uniform(0.42, 0.72)
    inside = smoothstep(scene.distance + np.float32(jag) * teeth, where + edge, where - edge)
    strength = np.float32(random.uniform(0.7, 1.0))
    scene.stain(inside * strength, (0.93, 0.62, 0.58))
    scene.stain((1.0 - inside) * strength, (1.04, 1.12, 1.10))


def oesophagitis(scene: Scene, random: Random) -> None:
    """Red streaks with white slough that run up the pale wall, away from the lumen."""
    canvas = Canvas(scene.size)
    for _ in range(int(random.integers(4, 9))):
        where, start = random.uniform(0.0, math.tau), random.uniform(0.25, 0.5)
        at = (scene.lumen[0] + start * math.cos(where), scene.lumen[1] + start * math.sin(where))
        length, width = random.uniform(0.3, 0.7), random.uniform(0.07, 0.17)
        grow_vessel(canvas, random, at, where, length=length, width=width, wander=0.2, generations=0)
    streaks = smoothstep(canvas.field() + 0.2 * rough_noise(random, scene.size, 8, 2), 0.15, 0.6)
    scene.stain(streaks * np.float32(random.uniform(0.7, 1.0)), (0.92, 0.36, 0.36))
    scene.paint(0.9 * streaks * smoothstep(noise(random, scene.size, 12), 0.4, 1.4), (0.9, 0.85, 0.75))


def pylorus(scene: Scene, random: Random) -> None:
    """A round opening with a smooth swollen rim."""
    x, y = scene.lumen
    opening = random.uniform(0.12, 0.22)
    spot = spot_at(scene, x, y, opening, ragged=0.07, oblong=0.85)
    scene.height += np.float32(random.uniform(0.04, 0.09)) * np.exp(-(((spot.rho - 1.9) / 0.7) ** 2))
    scene.shade(smoothstep(spot.rho, 1.15, 0.7), random.uniform(0.75, 0.95))
    scene.shade(smoothstep(spot.rho, 5.5, 3.0) * smoothstep(spot.rho, 2.2, 3.2), 0.2)


def cecum(scene: Scene, random: Random) -> None:
    """The blind end: three folds that meet, and the curved slit of the appendix beside them."""
    arms = np.abs(np.cos(1.5 * scene.angle + 0.5 * noise(random, scene.size, 3)))
    scene.height += 0.05 * np.exp(-((arms / 0.3) ** 2)) * smoothstep(scene.distance, 1.1, 0.1)
    scene.shade(smoothstep(arms, 0.55, 0.2) * smoothstep(arms, 0.02, 0.2) * smoothstep(scene.distance, 1.1, 0.15), 0.5)
    off = random.uniform(0.1, 0.3)
    where = random.uniform(0.0, math.tau)
    x, y = scene.lumen[0] + off * math.cos(where), scene.lumen[1] + off * math.sin(where)
    radius, start, sweep = random.uniform(0.16, 0.26), random.uniform(0.0, math.tau), random.uniform(1.8, 4.5)
    arc = [
        (x + radius * math.cos(start + sweep * k / 10), y + 0.7 * radius * math.sin(start + sweep * k / 10))
        for k in range(11)
    ]
    canvas = Canvas(scene.size)
    canvas.line(arc, random.uniform(0.05, 0.09))
    scene.shade(canvas.field(), random.uniform(0.5, 0.85))
    dent = spot_at(scene, x, y, 2.2 * radius, ragged=0.05, oblong=0.8)
    scene.height += np.float32(0.03) * np.exp(-(((dent.rho - 1.0) / 0.35) ** 2))


def add_debris(scene: Scene, random: Random) -> None:
    """What may be in any image: specks of food or stool, red spots, foam."""
    size = scene.size
    if random.random() < 0.2:
        canvas = Canvas(size)
        for _ in range(int(random.integers(1, 9))):
            x, y = random.uniform(-0.8, 0.8, 2)
            canvas.dot((x, y), random.uniform(0.01, 0.05))
        colour = [(0.62, 0.48, 0.15), (0.72, 0.2, 0.18), (0.85, 0.8, 0.7)][int(random.integers(3))]
        scene.paint(0.6 * canvas.field(), colour)
    if random.random() < 0.12:
        mist = smoothstep(noise(random, size, 3), 0.6, 2.0)
        scene.paint(0.5 * mist, (0.75, 0.66, 0.36))
    if random.random() < 0.2:
        scene.paint(0.7 * draw_bubbles(random, size), (0.95, 0.92, 0.85))


ANYWHERE = ("oesophagus", "stomach", "small-bowel", "colon")

FINDINGS: dict[str, Finding] = {  # the most frequent one first: an order with no relation to the alphabet
    "normal-mucosa": Finding(normal_mucosa, ANYWHERE),
    "erosion": Finding(erosion, ("stomach", "small-bowel", "colon")),
    "polyp": Finding(polyp, ("colon", "colon", "stomach")),
    "oesophagitis": Finding(oesophagitis, ("oesophagus",), reach=(0.0, 0.4)),
    "z-line": Finding(z_line, ("oesophagus",), reach=(0.0, 0.4)),
    "lymphangiectasia": Finding(lymphangiectasia, ("small-bowel",)),
    "angiectasia": Finding(angiectasia, ("small-bowel", "colon")),
    "ulcer": Finding(ulcer, ("stomach", "small-bowel", "colon")),
    "dyed-lifted-polyp": Finding(dyed_lifted_polyp, ("colon", "stomach")),
    "cecum": Finding(cecum, ("colon",), reach=(0.0, 0.4), depth=(0.1, 0.4)),
    "bleeding": Finding(bleeding, ANYWHERE),
    "dyed-resection-margin": Finding(dyed_resection_margin, ("colon", "stomach")),
    "stool": Finding(stool, ("colon",)),
    "pylorus": Finding(pylorus, ("stomach",), reach=(0.0, 0.4), depth=(0.1, 0.4)),
}
CLASSES = tuple(sorted(FINDINGS))
