"""Charts of a comparison as SVG text: changes with their intervals, class by class, and how true confidence is."""

from collections.abc import Sequence
from typing import Any

from endocil.report.markup import escaped, number
from endocil.report.svg import WIDTH, Axis, Series, line_chart

Record = dict[str, Any]
LEFT, RIGHT, ROW, TOP, BOTTOM = 12, 12, 42, 8, 44
OLD, NEW, DIAGONAL = 1, 0, 6  # styles of lines


def change_chart(
    rows: Sequence[tuple[str, float, tuple[float, float]]], limits: dict[str, float], title: str
) -> str:
    """(class, change, interval) -> a line for each; a dash at what a class may lose by the rules."""
    shown = [end for _, _, interval in rows for end in interval] + [-limit for limit in limits.values()]
    low, high, step = _span([*shown, 0.0])
    height = TOP + ROW * len(rows) + BOTTOM
    base = height - BOTTOM

    def across(value: float) -> float:
        return round(LEFT + (value - low) / (high - low) * (WIDTH - LEFT - RIGHT), 1)

    parts = []
    for k in range(round((high - low) / step) + 1):
        at = low + k * step
        kind = "nought" if abs(at) < 1e-9 else "grid"
        parts.append(f'<path class="{kind}" d="M{across(at)} {TOP}V{base}"/>')
        parts.append(f'<text class="tick mid" x="{across(at)}" y="{base + 17}">{number(at, 0)}</text>')
    for i, (name, value, (start, end)) in enumerate(rows):
        y = TOP + ROW * i + 30
        told = f"{escaped(name)}: {number(value)} ({number(start)} to {number(end)})"
        parts.append(f'<text x="{LEFT}" y="{y - 13}">{escaped(_cut(name))}</text>')
        if name in limits:
            parts.append(f'<path class="limit" d="M{across(-limits[name])} {y - 8}v16"/>')
        parts.append(
            f'<g class="c0"><title>{told}</title><path class="whisker" d="M{across(start)} {y}H{across(end)}'
            f'M{across(start)} {y - 4}v8M{across(end)} {y - 4}v8"/>'
            f'<path class="mark" transform="translate({across(value)} {y})" d="M-4-4h8v8h-8z"/></g>'
        )
    parts.append(
        f'<text class="mid" x="{WIDTH / 2:g}" y="{height - 6}">change in points; left of 0: lost</text>'
    )
    return (
        f'<svg class="chart" viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escaped(title)}">'
        f"{''.join(parts)}</svg>"
    )


def _span(values: Sequence[float]) -> tuple[float, float, float]:
    """Round ends around all values, and the step between labels."""
    width = max(max(values) - min(values), 1.0)
    step = next(step for step in (1.0, 2.0, 5.0, 10.0, 20.0, 50.0) if width / step <= 8 or step == 50.0)
    low = -step * -(min(values) // step)
    high = -step * (-max(values) // step)
    return low, max(high, low + step), step


def _cut(name: str, most: int = 48) -> str:
    return name if len(name) <= most else f"{name[: most - 1]}…"


def reliability_chart(bins: dict[str, list[Record]]) -> str:
    """The share of right images over the mean confidence, bin by bin, with the line on which all confidence is true."""
    ticks = tuple((float(at), str(at)) for at in range(0, 101, 20))
    x = Axis("confidence, %", 0.0, 100.0, ticks)
    y = Axis("right, %", 0.0, 100.0, ticks)
    lines = [Series("confidence is true", (0.0, 100.0), (0.0, 100.0), DIAGONAL, markers=False)]
    for which, style in (("old", OLD), ("new", NEW)):
        points = [(each["confidence"], each["right"]) for each in bins[which]]
        lines.append(Series(which, tuple(p for p, _ in points), tuple(q for _, q in points), style))
    return line_chart(lines, x, y, title="Share of right images over confidence, old and new version")
