"""The critical-difference diagram: mean ranks on a line, and bars over methods that are not told apart."""

from pathlib import Path

from matplotlib.figure import Figure

from endocil.errors import EndocilError
from endocil.reports.figures.ledger_plot import refuse_other_suffixes
from endocil.reports.figures.style import COLOURS, new_figure, styled, write_figure
from endocil.reports.ranks_over_data import Ranks

ROW = 0.2  # inches between the names
LINE = "#444444"


def write_rank_plot(ranks: Ranks, path: Path, dpi: int = 110) -> None:
    """The same ranks give the same bytes."""
    refuse_other_suffixes(path)
    if not ranks.can_differ:
        raise EndocilError(
            f"{len(ranks.data)} data sets are too few for a diagram of {len(ranks.methods)} methods: the critical "
            f"difference is {ranks.critical_difference:.2f}, and mean ranks differ by {len(ranks.methods) - 1} at most"
        )
    with styled():
        write_figure(rank_figure(ranks), path, dpi)


def rank_figure(ranks: Ranks) -> Figure:
    """Rank 1 at the left. The better half is named at the left, the others at the right."""
    k, mean, bars = len(ranks.methods), ranks.mean, ranks.not_different()
    left = (k + 1) // 2
    depth = 0.6 * len(bars) + 1.0  # of the first name below the axis, in rows
    lowest = depth + max(left, k - left)
    figure = new_figure(6.4, ROW * (lowest + 4.5))
    axis = figure.subplots()
    room = 0.3 * (k - 1)  # for the names, on both sides
    axis.set(xlim=(1 - room, k + room), ylim=(lowest + 1.2, -3.2))
    axis.set_axis_off()
    axis.plot([1, k], [0, 0], color="black", linewidth=1)
    for tick in range(1, k + 1):
        axis.plot([tick, tick], [0, -0.35], color="black", linewidth=0.8)
        axis.text(tick, -0.5, str(tick), ha="center", va="bottom", fontsize=7)
    end = 1 + ranks.critical_difference
    axis.plot([1, end], [-2.1, -2.1], color="black", linewidth=1)
    for x in (1.0, end):
        axis.plot([x, x], [-2.3, -1.9], color="black", linewidth=1)
    axis.text((1 + end) / 2, -2.3, f"critical difference {ranks.critical_difference:.2f}", ha="center", va="bottom")
    for i, (name, rank) in enumerate(zip(ranks.methods, mean, strict=True)):
        y = depth + (i if i < left else k - 1 - i)
        side, align = (1 - 0.05 * k, "right") if i < left else (k + 0.05 * k, "left")
        axis.plot([rank, rank, side], [0, y, y], color=LINE, linewidth=0.7)
        axis.text(side, y, f" {name} {rank:.2f} ", ha=align, va="center", fontsize=7.5)
    for row, (first, last) in enumerate(bars):
        height = 0.6 * (row + 1)
        axis.plot(
            [mean[first] - 0.05, mean[last] + 0.05],
            [height, height],
            color=COLOURS[0],
            linewidth=3,
            solid_capstyle="round",
        )
    axis.text(
        (1 + k) / 2, lowest + 0.9, f"Mean rank in Acc_last over {', '.join(ranks.data)}", ha="center", va="center"
    )
    return figure
