"""Charts as SVG: lines over an axis, and changes with their intervals.

Colours come from the page's style sheet, so that they follow light and dark; each line also has its own dash
and marker, so that nobody needs the colours."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from markupsafe import Markup

from endocil.html.markup import number

NOTHING = Markup()
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


def end_axis(label: str, last: float, n: int = 6) -> Axis:
    """From zero to exactly `last`, with round ticks below it: nothing is drawn where nothing was measured."""
    step = max(1.0, _round_step(last / n))
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
    """`title` says in words what the chart shows. Boundaries, (place, label), are upright dashes."""
    frame = _Frame(x, y, height)
    return _svg(
        height,
        title,
        [
            frame.grid(),
            *(frame.boundary(*each) for each in boundaries),
            *(frame.line(line) for line in lines),
        ],
    )


def interval_chart(
    rows: Sequence[tuple[str, float, tuple[float, float]]],
    limits: Mapping[str, float],
    *,
    title: str,
    label: str,
) -> Markup:
    """(name, change, interval) -> a line for each; a dash where `limits` ends what a name may lose."""
    ends = [end for _, _, interval in rows for end in interval] + [-limit for limit in limits.values()]
    low, high, step = _round_ends([*ends, 0.0])
    height = 8 + 42 * len(rows) + BOTTOM
    base = height - BOTTOM

    def across(value: float) -> float:
        return round(12 + (value - low) / (high - low) * (WIDTH - 24), 1)

    parts: list[str] = []
    for k in range(round((high - low) / step) + 1):
        value = low + k * step
        kind = "zero" if abs(value) < 1e-9 else "grid"
        parts.append(f'<path class="{kind}" d="M{across(value)} 8V{base}"/>')
        parts.append(_text("tick mid", across(value), base + 17, number(value, 0)))
    for i, (name, value, (start, end)) in enumerate(rows):
        y = 38 + 42 * i
        parts.append(_text("", 12, y - 13, name if len(name) <= 48 else f"{name[:47]}…"))
        if name in limits:
            parts.append(f'<path class="limit" d="M{across(-limits[name])} {y - 8}v16"/>')
        values = _title(f"{name}: {number(value)} ({number(start)} to {number(end)})")
        parts.append(
            f'<g class="c0">{values}<path class="whisker" d="M{across(start)} {y}H{across(end)}'
            f'M{across(start)} {y - 4}v8M{across(end)} {y - 4}v8"/>'
            f'<path class="mark" transform="translate({across(value)} {y})" d="M-4-4h8v8h-8z"/></g>'
        )
    parts.append(_text("mid", WIDTH / 2, height - 6, label))
    return _svg(height, title, parts)


def _round_ends(values: Sequence[float]) -> tuple[float, float, float]:
    """Round ends around all values, and the step between labels."""
    width = max(max(values) - min(values), 1.0)
    step = next(step for step in (1.0, 2.0, 5.0, 10.0, 20.0, 50.0) if width / step <= 8 or step == 50.0)
    low = -step * -(min(values) // step)
    high = -step * (-max(values) // step)
    return low, max(high, low + step), step


def sample(style: int, markers: bool = True) -> Markup:
    """A short piece of a line, for the legend."""
    mark = f'<path class="mark" transform="translate(16 7)" d="{_marker(style)}"/>'
    return Markup(
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


def _svg(height: float, title: str, parts: Iterable[str]) -> Markup:
    opening = Markup('<svg class="chart" viewBox="0 0 {} {}" role="img" aria-label="{}">')
    return opening.format(WIDTH, height, title) + Markup("".join(parts)) + Markup("</svg>")


def _text(kind: str, x: float, y: float, text: str, more: Markup = NOTHING) -> Markup:
    return Markup('<text class="{}" x="{:g}" y="{:g}"{}>{}</text>').format(kind, x, y, more, text)


def _title(text: str) -> Markup:
    return Markup("<title>{}</title>").format(text)


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
            turn = Markup(' transform="rotate(-90 12 {:g})"').format(middle)
            parts.append(_text("mid", 12, middle, self.y.label, turn))
        return "".join(parts)

    def boundary(self, at: float, label: str) -> str:
        line = f'<path class="boundary" d="M{self.across(at)} {TOP}V{self.height - BOTTOM}"/>'
        return f"{line}{_text('tick', self.across(at) + 3, TOP + 10, label)}" if label else line

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
                at = f"translate({self.across(x)} {self.up(y)})"
                value = _title(f"{line.name}: {y:.1f}")
                parts.append(f'<path class="mark" transform="{at}" d="{shape}">{value}</path>')
        return "".join(parts)
