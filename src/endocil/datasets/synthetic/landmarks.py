"""Landmarks, and what changes the shape or the colour of a whole stretch: each builds its own tube."""

import math

import numpy as np

from endocil.datasets.synthetic.fields import around, noise, rough_noise, smoothstep
from endocil.datasets.synthetic.scene import Scene
from endocil.datasets.synthetic.spots import spot_at
from endocil.datasets.synthetic.strokes import Canvas, grow_vessel


def z_line(scene: Scene) -> None:
    """Where the pale oesophagus meets the salmon-red stomach: a jagged ring around the lumen."""
    random = scene.random
    jag, edge = random.uniform(0.05, 0.12), random.uniform(0.03, 0.1)
    teeth = 0.8 * around(random, scene.angle, 7) + 0.8 * rough_noise(random, scene.size, 5, 3)
    where = random.uniform(0.42, 0.72)
    inside = smoothstep(scene.distance + np.float32(jag) * teeth, where + edge, where - edge)
    strength = np.float32(random.uniform(0.7, 1.0))
    scene.stain(inside * strength, (0.93, 0.62, 0.58))
    scene.stain((1.0 - inside) * strength, (1.04, 1.12, 1.10))


def oesophagitis(scene: Scene) -> None:
    """Red streaks with white slough that run up the pale wall, away from the lumen."""
    random = scene.random
    canvas = Canvas(scene.size)
    for _ in range(int(random.integers(4, 9))):
        where, start = random.uniform(0.0, math.tau), random.uniform(0.25, 0.5)
        at = (scene.lumen[0] + start * math.cos(where), scene.lumen[1] + start * math.sin(where))
        length, width = random.uniform(0.3, 0.7), random.uniform(0.07, 0.17)
        grow_vessel(canvas, random, at, where, length=length, width=width, wander=0.2, generations=0)
    streaks = smoothstep(canvas.field() + 0.2 * rough_noise(random, scene.size, 8, 2), 0.15, 0.6)
    scene.stain(streaks * np.float32(random.uniform(0.7, 1.0)), (0.92, 0.36, 0.36))
    scene.paint(0.9 * streaks * smoothstep(noise(random, scene.size, 12), 0.4, 1.4), (0.9, 0.85, 0.75))


def pylorus(scene: Scene) -> None:
    """A round opening with a smooth swollen rim."""
    random = scene.random
    x, y = scene.lumen
    opening = random.uniform(0.12, 0.22)
    spot = spot_at(scene, x, y, opening, ragged=0.07, oblong=0.85)
    scene.height += np.float32(random.uniform(0.04, 0.09)) * np.exp(-(((spot.rho - 1.9) / 0.7) ** 2))
    scene.shade(smoothstep(spot.rho, 1.15, 0.7), random.uniform(0.75, 0.95))
    scene.shade(smoothstep(spot.rho, 5.5, 3.0) * smoothstep(spot.rho, 2.2, 3.2), 0.2)


def cecum(scene: Scene) -> None:
    """The blind end: three folds that meet, and the curved slit of the appendix beside them."""
    random = scene.random
    arms = np.abs(np.cos(1.5 * scene.angle + 0.5 * noise(scene.random, scene.size, 3)))
    scene.height += 0.05 * np.exp(-((arms / 0.3) ** 2)) * smoothstep(scene.distance, 1.1, 0.1)
    scene.shade(
        smoothstep(arms, 0.55, 0.2) * smoothstep(arms, 0.02, 0.2) * smoothstep(scene.distance, 1.1, 0.15), 0.5
    )
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
