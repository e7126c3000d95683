"""Accuracy after each task for all experiments, in one picture whose lines can be switched off."""

from collections.abc import Sequence

from endocil.report import averages, svg
from endocil.report.averages import Runs
from endocil.report.markup import details, figure, legend, number, plain_table, switches


def curves(groups: Sequence[Runs]) -> str:
    """Accuracy after each task for all experiments; one trained on everything at once is a single point."""
    lines = [_curve(group, style) for style, group in enumerate(groups)]
    counts = sorted({count for group in groups for count in averages.classes_seen(group)})
    margin = 0.06 * max(1, counts[-1] - counts[0])
    ticks = tuple((float(count), str(count)) for count in counts)
    x = svg.Axis("classes learned so far", counts[0] - margin, counts[-1] + margin / 2, ticks)
    y = svg.Axis("accuracy (%)", 0, 100, tuple((value, str(value)) for value in range(0, 101, 20)))
    told = "; ".join(f"{line.name}: {', '.join(number(value) for value in line.y)}" for line in lines)
    picture = svg.line_chart(lines, x, y, title=f"Accuracy after each task in percent. {told}")
    entries = [(svg.sample(line.style), line.name) for line in lines]
    shown = switches(entries) if len(entries) > 1 else legend(entries)
    caption = "Accuracy on the test images of all classes learned so far, after each task."
    if not all(group.incremental for group in groups):
        caption += " A method trained on everything at once is a single point."
    if any(line.deviations and any(line.deviations) for line in lines):
        caption += " Upright strokes: ± one standard deviation over the seeds."
    return figure(picture, caption, shown) + _curve_numbers(lines)


def _curve(group: Runs, style: int) -> svg.Series:
    values = averages.accuracy_per_task(group)
    return svg.Series(
        group.label,
        tuple(map(float, averages.classes_seen(group))),
        tuple(value.mean if value else None for value in values),
        style,
        tuple(value.deviation if value else None for value in values),
    )


def _curve_numbers(lines: Sequence[svg.Series]) -> str:
    counts = sorted({x for line in lines for x in line.x})
    rows = [
        [line.name, *(number(dict(zip(line.x, line.y, strict=True)).get(count)) for count in counts)]
        for line in lines
    ]
    table = plain_table(
        "Accuracy in percent by the number of classes learned",
        ["Method", *(f"{c:.0f}" for c in counts)],
        rows,
    )
    return details("The numbers of this picture", table)
