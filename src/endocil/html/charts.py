"""Line charts as SVG text.

Colours come from the page's style sheet, so that they follow light and dark; each line also has its own dash
and marker, so that nobody needs the colours."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

from endocil.html.markup import escaped

WIDTH, LEFT, RIGHT, TOP, BOTTOM = 520, 56, 20, 10, 44
N_COLOURS = 7  # --c0 to --c6 in assets/page.css
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


def linear_axis(label: str, values: Iterable[float], n: int = 5) -> Axis:
    """From zero to a round number above all values."""
    top = max([value for value in values if math.isfinite(value)], default=1.0) or 1.0
    step = _round_step(top / n)
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
    return Axis(
        label, 10.0**low, 10.0**high, tuple((10.0**p, f"{10.0**p:g}") for p in range(low, high + 1)), True
    )


def line_chart(
    lines: Sequence[Series],
    x: Axis,
    y: Axis,
    *,
    title: str,
    height: int = 300,
    boundaries: Sequence[float] = (),
) -> str:
    """An SVG picture with `title` as its text for those who cannot see it. Boundaries are upright dashes."""
    frame = _Frame(x, y, height)
    parts = [frame.grid(), *(frame.boundary(at) for at in boundaries), *(frame.line(line) for line in lines)]
    return (
        f'<svg class="chart" viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escaped(title)}">'
        f"{''.join(parts)}</svg>"
    )


def sample(style: int, markers: bool = True) -> str:
    """A short piece of a line, for the legend."""
    mark = f'<path class="mark" transform="translate(16 7)" d="{_marker(style)}"/>'
    return (
        f'<svg class="sample {_colour(style)}" viewBox="0 0 32 14" aria-hidden="true">'
        f'<path class="line" {_dash(style)}d="M1 7H31"/>{mark if markers else ""}</svg>'
    )


def _colour(style: int) -> str:
    return f"c{style % N_COLOURS}"


def _marker(style: int) -> str:
    """One further on with each round of the colours: of 14 lines no two share marker and dash, or marker and colour."""
    return MARKERS[(style + style // N_COLOURS) % len(MARKERS)]


def _dash(style: int) -> str:
    dash = DASHES[style % len(DASHES)]
    return f'stroke-dasharray="{dash}" ' if dash else ""


def _stroke(places: Sequence[tuple[float, float]], steps: bool) -> str:
    (x, y), rest = places[0], places[1:]
    return f"M{x} {y}" + "".join(f"H{x}V{y}" if steps else f"L{x} {y}" for x, y in rest)


def _text(kind: str, x: float, y: float, text: str, more: str = "") -> str:
    return f'<text class="{kind}" x="{x:g}" y="{y:g}"{more}>{escaped(text)}</text>'


@dataclass(frozen=True)
class _Frame:
    x: Axis
    y: Axis
    height: int

    def across(self, value: float) -> float:
        return round(LEFT + self.x.place(value) * (WIDTH - LEFT - RIGHT), 1)

    def up(self, value: float) -> float:
        return round(self.height - BOTTOM - self.y.place(value) * (self.height - TOP - BOTTOM), 1)

    def grid(self) -> str:
        base, right, middle = self.height - BOTTOM, WIDTH - RIGHT, (TOP + self.height - BOTTOM) / 2
        parts = [f'<path class="axis" d="M{LEFT} {TOP}V{base}H{right}"/>']
        for value, text in self.y.ticks:
            at = self.up(value)
            parts.append(f'<path class="grid" d="M{LEFT} {at}H{right}"/>')
            parts.append(_text("tick end", LEFT - 6, at + 4, text))
        parts += [_text("tick mid", self.across(value), base + 17, text) for value, text in self.x.ticks]
        parts.append(_text("mid", (LEFT + right) / 2, self.height - 6, self.x.label))
        if self.y.label:
            parts.append(_text("mid", 12, middle, self.y.label, f' transform="rotate(-90 12 {middle:g})"'))
        return "".join(parts)

    def boundary(self, at: float) -> str:
        return f'<path class="boundary" d="M{self.across(at)} {TOP}V{self.height - BOTTOM}"/>'

    def line(self, line: Series) -> str:
        points = list(zip(line.x, line.y, strict=True))
        strokes = []
        for known, piece in groupby(points, key=lambda point: point[1] is not None):
            if known:
                places = [(self.across(x), self.up(y)) for x, y in piece if y is not None]
                strokes.append(_stroke(places, line.steps))
        path = f'<path class="line" {_dash(line.style)}d="{"".join(strokes)}"/>'
        kind = f'class="{_colour(line.style)}" data-line="{line.style}"'
        return f"<g {kind}>{path}{self.whiskers(line)}{self.marks(line)}</g>"

    def whiskers(self, line: Series) -> str:
        strokes = []
        for x, y, deviation in zip(line.x, line.y, line.deviations, strict=False):
            if y is not None and deviation:
                low, high = max(y - deviation, self.y.low), min(y + deviation, self.y.high)
                strokes.append(f"M{self.across(x)} {self.up(low)}V{self.up(high)}")
        return f'<path class="whisker" d="{"".join(strokes)}"/>' if strokes else ""

    def marks(self, line: Series) -> str:
        if not line.markers:
            return ""
        shape = _marker(line.style)
        parts = []
        for x, y in zip(line.x, line.y, strict=True):
            if y is not None:
                told = f"<title>{escaped(line.name)}: {y:.1f}</title>"
                at = f"translate({self.across(x)} {self.up(y)})"
                parts.append(f'<path class="mark" transform="{at}" d="{shape}">{told}</path>')
        return "".join(parts)
