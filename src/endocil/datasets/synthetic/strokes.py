"""Thin things drawn as lines: branching vessels, fern-like vessel malformations, wet highlights, bubbles."""

import math
from collections.abc import Sequence
from itertools import accumulate

import numpy as np
from PIL import Image, ImageDraw

from endocil.datasets.synthetic.fields import Field

_OVERSAMPLING = 4
Point = tuple[float, float]


class Canvas:
    """A grey drawing in relative coordinates, drawn four times finer than the image it becomes."""

    def __init__(self, size: int) -> None:
        self._half = size * _OVERSAMPLING / 2.0
        self._picture = Image.new("L", (size * _OVERSAMPLING, size * _OVERSAMPLING))
        self._draw = ImageDraw.Draw(self._picture)

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
        return np.asarray(self._picture.reduce(_OVERSAMPLING), np.float32) / np.float32(255.0)

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
    """Groups of small bright dashes that lie across the way to the lumen, as on wet folds."""
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
