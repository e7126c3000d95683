"""Places on the wall where a finding sits, and domes that rise there."""

import math
from dataclasses import dataclass

import numpy as np

from endocil.datasets.synthetic.fields import Field, grid, rough_noise, smoothstep
from endocil.datasets.synthetic.scene import Scene


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
