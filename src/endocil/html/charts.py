"""Charts as SVG: lines over an axis, and changes with their intervals. `templates/charts.html` draws them.

Colours come from the page's style sheet, so that they follow light and dark; each line also has its own dash
and marker, so that nobody needs the colours."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from typing import Any

from markupsafe import Markup

from endocil.html.markup import environment, number

WIDTH, LEFT, RIGHT, TOP, BOTTOM = 520, 56, 20, 10, 44
N_COLOURS = 7  # --c0 to --c6 in assets/style.css
DASHES = ("", "7 4", "2 3", "9 3 2 3")
MARKERS = (
    "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0z",  # circle
    "M-4-4h8v8h-8z",  # square
    "M0-5L5 4H-5z",  # triangle
    "M0-5.5L5.5 0L0 5.5L-5.5 0z",  # diamond
    "M0 5L5-4H-5z",  # triangle on its head
    "M-5-1.5h3.5v-3.5h3v3.5h3.5v3h-3.5v3.5h-3v-3.5h-3.5z",  # plus
    "M0-5.5L1.6-1.8L5.5-1.6L2.5 1L3.4 5L0 2.8L-3.4 5L-2.5 1L-5.5-1.6L-1.6-1.8z",  # star
)


@dataclass(frozen=True)
class Series:
    """One line; None is a gap, `deviations` become whiskers, `style` picks colour, dash and marker."""

    name: str
    x: tuple[float, ...]
    y: tuple[float | None, ...]
    style: int
    deviations: tuple[float | None, ...] = ()
    markers: bool = True
    steps: bool = False  # a value holds until the next one

    @property
    def points(self) -> list[tuple[float, float]]:
        return [(x, y) for x, y in zip(self.x, self.y, strict=True) if y is not None]


@dataclass(frozen=True)
class Axis:
    """The range of an axis and where it is labelled."""

    label: str
    low: float
    high: float
    ticks: tuple[tuple[float, str], ...]
    log: bool = False

    def place(self, value: float) -> float:
        """0 at the low end, 1 at the high end."""
        low, high, value = (math.log(v) if self.log else v for v in (self.low, self.high, value))
        return (value - low) / (high - low)


def linear_axis(label: str, values: Iterable[float]) -> Axis:
    """From zero to a round number above all values."""
    top = max([value for value in values if math.isfinite(value)], default=1.0) or 1.0
    step = _round_step(top / 5)
    n_steps = max(1, math.ceil(top / step - 1e-9))
    ticks = tuple((i * step, f"{i * step:g}") for i in range(n_steps + 1))
    return Axis(label, 0.0, n_steps * step, ticks)


def _round_step(rough: float) -> float:
    power = 10.0 ** math.floor(math.log10(rough))
    return next(m * power for m in (1.0, 2.0, 2.5, 5.0, 10.0) if m * power >= rough * (1 - 1e-9))


def log_axis(label: str, values: Iterable[float]) -> Axis:
    """Whole powers of ten around all positive values."""
    known = [value for value in values if value > 0 and math.isfinite(value)] or [1.0]
    low, high = math.floor(math.log10(min(known))), math.ceil(math.log10(max(known)))
    high = max(high, low + 1)
    ticks = tuple((10.0**p, f"{10.0**p:g}" if p > -4 else f"1e{p}") for p in range(low, high + 1))  # short: phones
    return Axis(label, 10.0**low, 10.0**high, ticks, True)


def end_axis(label: str, last: float) -> Axis:
    """From zero to exactly `last`, with round ticks below it: nothing is drawn where nothing was measured."""
    step = max(1.0, _round_step(last / 6))
    inner = [i * step for i in range(math.ceil(last / step)) if last - i * step > 0.4 * step]
    return Axis(label, 0.0, last, tuple((value, f"{value:g}") for value in (*inner, last)))


def line_chart(
    lines: Sequence[Series],
    x: Axis,
    y: Axis,
    *,
    title: str,
    height: int = 300,
    boundaries: Sequence[tuple[float, str]] = (),
) -> Markup:
    """`title` says in words what the chart shows. Boundaries, (place, label), are vertical dashes."""
    return Markup(_macros().line_chart(_Frame(x, y, height), lines, title, boundaries))


def interval_chart(
    rows: Sequence[tuple[str, float, tuple[float, float]]], limits: Mapping[str, float], *, title: str, label: str
) -> Markup:
    """(name, change, interval) -> a line for each; a dash where `limits` ends what a name may lose."""
    ends = [0.0, *(end for _, _, interval in rows for end in interval), *(-limit for limit in limits.values())]
    width = max(max(ends) - min(ends), 1.0)
    step = next(step for step in (1.0, 2.0, 5.0, 10.0, 20.0, 50.0) if width / step <= 8 or step == 50.0)
    low = math.floor(min(ends) / step)
    high = max(math.ceil(max(ends) / step), low + 1)
    ticks = tuple((k * step, number(k * step, 0)) for k in range(low, high + 1))
    axis = Axis(label, low * step, high * step, ticks)

    def across(value: float) -> float:
        return round(12 + axis.place(value) * (WIDTH - 24), 1)

    return Markup(_macros().interval_chart(rows, limits, title, axis, across, 8 + 42 * len(rows) + BOTTOM))


def sample(style: int, markers: bool = True) -> Markup:
    """A short piece of a line, for the legend."""
    return Markup(_macros().sample(style, markers))


@cache
def _macros() -> Any:
    measures = {"width": WIDTH, "left": LEFT, "right": WIDTH - RIGHT, "top": TOP, "bottom": BOTTOM}
    looks = {"n_colours": N_COLOURS, "dashes": DASHES, "markers": MARKERS}
    return environment("endocil.html").get_template("charts.html").make_module(measures | looks)


@dataclass(frozen=True)
class _Frame:
    """Where values of two axes lie in a chart, in pixels."""

    x: Axis
    y: Axis
    height: int

    def across(self, value: float) -> float:
        return round(LEFT + self.x.place(value) * (WIDTH - LEFT - RIGHT), 1)

    def up(self, value: float) -> float:
        return round(self.height - BOTTOM - self.y.place(value) * (self.height - TOP - BOTTOM), 1)

    def path(self, line: Series) -> str:
        """Through the points, with a gap where there is none."""
        path = ""
        for known, piece in groupby(zip(line.x, line.y, strict=True), key=lambda point: point[1] is not None):
            if known:
                (x, y), *rest = [(self.across(x), self.up(y)) for x, y in piece if y is not None]
                path += f"M{x} {y}" + "".join(f"H{x}V{y}" if line.steps else f"L{x} {y}" for x, y in rest)
        return path

    def whiskers(self, line: Series) -> str:
        path = ""
        for x, y, deviation in zip(line.x, line.y, line.deviations, strict=False):
            if y is not None and deviation:
                low, high = max(y - deviation, self.y.low), min(y + deviation, self.y.high)
                path += f"M{self.across(x)} {self.up(low)}V{self.up(high)}"
        return path
