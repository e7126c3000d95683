"""Parts of synthetic images: grids, smooth random fields, blur, and thin lines such as vessels, highlights and bubbles.

All geometry is in relative coordinates (-1 to 1 across the image) and every random lattice has a size of its
own, so an image of 64 and one of 256 pixels show the same scene.
"""

import hashlib
import math
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw

Field = npt.NDArray[Any]  # float32, of which numpy's annotations lose track in mixed expressions
Point = tuple[float, float]
_OVERSAMPLING = 4


def random_source(*key: int | str) -> np.random.Generator:
    """Random numbers of this key alone; the same key always gives the same numbers."""
    name = "/".join(str(part) for part in key)
    digest = hashlib.blake2b(name.encode(), digest_size=16).digest()
    return np.random.Generator(np.random.PCG64(int.from_bytes(digest, "little")))


@lru_cache(maxsize=8)
def grid(size: int) -> tuple[Field, Field]:
    """Columns x and rows y of the pixel centres, from -1 to 1."""
    line = ((np.arange(size, dtype=np.float32) + 0.5) * (2.0 / size) - 1.0).astype(np.float32)
    x, y = np.meshgrid(line, line)
    x.setflags(write=False)  # shared by all images of this size
    y.setflags(write=False)
    return x, y


@lru_cache(maxsize=64)
def _spline(cells: int, size: int) -> Field:
    """Cubic B-spline weights (size, cells + 3), averaged over each pixel so that fine lattices do not alias."""
    taps = 4
    where = (np.arange(size * taps) + 0.5) / (size * taps) * cells
    distance = np.abs(where[:, None] - (np.arange(cells + 3)[None, :] - 1.0))
    inner = 2.0 / 3.0 - distance**2 + distance**3 / 2.0
    outer = np.clip(2.0 - distance, 0.0, None) ** 3 / 6.0
    weights = np.where(distance < 1.0, inner, outer)
    averaged: Field = weights.reshape(size, taps, cells + 3).mean(axis=1).astype(np.float32)
    return averaged


def noise(random: np.random.Generator, size: int, cells: int) -> Field:
    """A smooth random field with about `cells` bumps across, mean 0 and spread about 1."""
    lattice = random.standard_normal((cells + 3, cells + 3), dtype=np.float32)
    weights = _spline(cells, size)
    field: Field = weights @ lattice @ weights.T
    return field * np.float32(2.2)  # a cubic B-spline keeps about 1/2.2 of white noise's spread


def rough_noise(random: np.random.Generator, size: int, cells: int, octaves: int) -> Field:
    """Several octaves of noise, each half as strong and twice as fine as the one before."""
    field = noise(random, size, cells)
    for octave in range(1, octaves):
        field += noise(random, size, cells << octave) * np.float32(0.5**octave)
    return field


def around(random: np.random.Generator, angle: Field, harmonics: int) -> Field:
    """A random periodic function of the angle (-pi to pi), mean 0 and spread about 1."""
    at = np.linspace(-np.pi, np.pi, 129)
    orders = np.arange(1, harmonics + 1)
    waves = np.cos(orders[:, None] * at[None, :] + random.uniform(0.0, 2.0 * np.pi, harmonics)[:, None])
    table = (random.standard_normal(harmonics) @ waves) * np.sqrt(2.0 / harmonics)
    values: Field = np.interp(angle, at, table).astype(np.float32)
    return values


@lru_cache(maxsize=256)
def _blur_matrix(size: int, step: int) -> Field:
    sigma = step / 400.0 * size  # step 1 is a sigma of 1/400 of the image's width
    at = np.arange(size)
    weights: Field = np.exp(-0.5 * ((at[:, None] - at[None, :]) / max(sigma, 1e-3)) ** 2)
    return np.asarray(weights / weights.sum(axis=1, keepdims=True), np.float32)


def blur(image: Field, down: float, across: float) -> Field:
    """Gaussian blur of an image (size, size, 3); the two sigmas are in relative widths of the image."""
    size = image.shape[0]
    rows = _blur_matrix(size, round(down * 400))
    columns = _blur_matrix(size, round(across * 400))
    planes = rows @ image.transpose(2, 0, 1) @ columns.T  # (3, size, size)
    return np.ascontiguousarray(planes.transpose(1, 2, 0))


def smoothstep(field: Field, low: float, high: float) -> Field:
    """0 below `low`, 1 above `high`, an S-curve between; `low` may be the greater one."""
    part: Field = np.clip((field - np.float32(low)) * np.float32(1.0 / (high - low)), 0.0, 1.0)
    curve: Field = part * part * (np.float32(3.0) - np.float32(2.0) * part)
    return curve


class Canvas:
    """A grey drawing in relative coordinates, drawn four times finer than the image it becomes."""

    def __init__(self, size: int) -> None:
        self._half = size * _OVERSAMPLING / 2.0
        self._image = Image.new("L", (size * _OVERSAMPLING, size * _OVERSAMPLING))
        self._draw = ImageDraw.Draw(self._image)

    def line(self, points: Sequence[Point], width: float, strength: float = 1.0) -> None:
        at = [((x + 1.0) * self._half, (y + 1.0) * self._half) for x, y in points]
        self._draw.line(at, fill=round(255 * strength), width=max(1, round(width * self._half)))

    def dot(self, centre: Point, radius: float, strength: float = 1.0) -> None:
        self._draw.ellipse(self._box(centre, radius), fill=round(255 * strength))

    def ring(self, centre: Point, radius: float, width: float, strength: float = 1.0) -> None:
        pen = max(1, round(width * self._half))
        self._draw.ellipse(self._box(centre, radius), outline=round(255 * strength), width=pen)

    def field(self) -> Field:
        """The drawing as a field from 0 to 1, smoothed down to the image's size."""
        return np.asarray(self._image.reduce(_OVERSAMPLING), np.float32) / np.float32(255.0)

    def _box(self, centre: Point, radius: float) -> tuple[float, float, float, float]:
        x, y, r = (centre[0] + 1.0) * self._half, (centre[1] + 1.0) * self._half, radius * self._half
        return x - r, y - r, x + r, y + r


def grow_vessel(
    canvas: Canvas,
    random: np.random.Generator,
    start: Point,
    heading: float,
    *,
    length: float,
    width: float,
    wander: float = 0.25,
    generations: int = 3,
) -> None:
    """A winding vessel whose branches are thinner, paler and shorter than itself."""
    steps = 8
    headings = [heading + turn for turn in accumulate(random.uniform(-wander, wander, steps).tolist())]
    xs = accumulate(math.cos(towards) for towards in headings)
    ys = accumulate(math.sin(towards) for towards in headings)
    step = length / steps
    path = [start, *((start[0] + x * step, start[1] + y * step) for x, y in zip(xs, ys, strict=True))]
    canvas.line(path, width, 0.4 + 0.2 * generations)
    if generations == 0:
        return
    for at, side in ((int(random.integers(2, 5)), 1.0), (int(random.integers(5, 9)), -1.0)):
        turn = side * random.uniform(0.4, 1.0)
        grow_vessel(
            canvas,
            random,
            path[at],
            headings[at - 1] + turn,
            length=length * random.uniform(0.5, 0.8),
            width=width * 0.65,
            wander=wander,
            generations=generations - 1,
        )


def draw_vessels(random: np.random.Generator, size: int, density: float) -> Field:
    """The net of vessels that shines through the mucosa."""
    canvas = Canvas(size)
    for _ in range(round(density * random.uniform(1.0, 4.0))):
        where = random.uniform(0.0, math.tau)
        start = (1.1 * math.cos(where), 1.1 * math.sin(where))
        heading = where + math.pi + random.uniform(-0.8, 0.8)
        grow_vessel(canvas, random, start, heading, length=random.uniform(0.8, 1.7), width=0.028)
    return canvas.field()


def draw_highlights(random: np.random.Generator, size: int, lumen: Point) -> Field:
    """Groups of small bright dashes across the direction of the lumen, as on wet folds."""
    canvas = Canvas(size)
    for _ in range(int(random.integers(1, 5))):
        middle = random.uniform(-0.85, 0.85, 2)
        for _ in range(int(random.integers(1, 8))):
            x, y = (middle + random.normal(0.0, 0.11, 2)).tolist()
            along = math.atan2(y - lumen[1], x - lumen[0]) + math.pi / 2 + random.uniform(-0.5, 0.5)
            half = random.uniform(0.005, 0.05)
            dx, dy = half * math.cos(along), half * math.sin(along)
            canvas.line([(x - dx, y - dy), (x + dx, y + dy)], random.uniform(0.012, 0.035))
    return canvas.field()


def draw_bubbles(random: np.random.Generator, size: int) -> Field:
    """A patch of foam: small bright rings."""
    canvas = Canvas(size)
    middle = random.uniform(-0.8, 0.8, 2)
    for _ in range(int(random.integers(4, 22))):
        x, y = (middle + random.normal(0.0, 0.2, 2)).tolist()
        canvas.ring((x, y), random.uniform(0.015, 0.07), 0.012, random.uniform(0.3, 0.8))
    return canvas.field()
