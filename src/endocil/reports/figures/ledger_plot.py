"""The ledger as figures: accuracy after the last task with a panel for each data set, and mean ranks over them."""

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.figure import Figure

from endocil.errors import EndocilError, SettingsError
from endocil.io.text_tables import either, spread
from endocil.reports.figures.style import COLOURS, fit, new_figure, styled, write_figure
from endocil.reports.ledger import Entry
from endocil.reports.ledger_tables import training_kind
from endocil.reports.ranks_over_data import Ranks
from endocil.reports.side_by_side import DataSet, comparisons

SUFFIXES = (".svg", ".png", ".pdf")
FEWEST = 2  # methods of a panel
LEAST = 5  # a panel has at least a fifth as many methods as the fullest


def refuse_other_suffixes(path: Path) -> None:
    if path.suffix not in SUFFIXES:
        raise SettingsError(f"{path}: expected a name that ends in {', '.join(SUFFIXES)}")


def write_ledger_plot(entries: Sequence[Entry], path: Path, dpi: int = 110) -> None:
    """The same ledger gives the same bytes."""
    refuse_other_suffixes(path)
    with styled():
        figure = ledger_figure(entries)
        fit(figure, dpi)
        write_figure(figure, path, dpi)


def ledger_figure(entries: Sequence[Entry]) -> Figure:
    """A panel for each data set split by image, a row for each method in all of them. Rows stand by how the network
    was trained, the highest mean at the top; of each kind the scale with the most methods on a data set is drawn."""
    kinds: dict[str, dict[str, DataSet]] = {}
    for comparison in comparisons(entries):
        for data in comparison.data_sets:
            settings = data.methods[0].first.settings
            kinds.setdefault(training_kind(settings), {}).setdefault(data.title, data)
    panels = _panels(kinds)
    if not panels:
        raise SettingsError(f"the ledger has no data set with {FEWEST} methods to draw")
    rows = _rows(kinds, panels)
    figure = new_figure(2.3 + 1.75 * len(panels), 0.17 * len(rows) + 0.75)
    axes = figure.subplots(1, len(panels), squeeze=False, sharey=True)[0]
    for axis, title in zip(axes, panels, strict=True):
        for y, (kind, label) in enumerate(rows):
            group = kinds[kind][title].method(label) if title in kinds[kind] and label else None
            accuracy = group and spread(entry.metrics["softmax"]["acc_last"] for entry in group.results)
            if group and accuracy:
                colour = COLOURS[list(kinds).index(kind) % len(COLOURS)] if group.incremental else "#777777"
                style = {"fmt": "o", "color": colour, "markersize": 3.5, "capsize": 2}
                axis.errorbar(accuracy.mean, y, xerr=accuracy.deviation, **style)
        axis.set(title=title, xlim=(0, 100), ylim=(len(rows) - 0.4, -0.6))
        axis.tick_params(axis="y", length=0)
        axis.grid(axis="x")
    upper = {
        one.label for own in kinds.values() for data in own.values() for one in data.methods if not one.incremental
    }
    labels = [
        f"{label} (all classes at once)" if label in upper else label or _heading(kind, kinds) for kind, label in rows
    ]
    axes[0].set_yticks(range(len(rows)), labels)
    for text, (_, label) in zip(axes[0].get_yticklabels(), rows, strict=True):
        text.set_fontweight("normal" if label else "bold")
    figure.supxlabel("Accuracy after the last task in percent, mean ± standard deviation over seeds", fontsize=8)
    return figure


def _heading(kind: str, kinds: Mapping[str, Mapping[str, DataSet]]) -> str:
    """With the size of the images and the time that training took: the median over runs."""
    runs = [entry for data in kinds[kind].values() for one in data.methods for entry in one.results]
    minutes = [entry.seconds / 60 for entry in runs if entry.seconds]
    sizes = either(run.settings["data"].get("size") for run in runs)
    pixels = f"{sizes} px, " if sizes else ""
    return f"{kind} ({pixels}{f'{statistics.median(minutes):.0f} min a run' if minutes else 'nothing to train'})"


def _panels(kinds: Mapping[str, Mapping[str, DataSet]]) -> list[str]:
    """The data sets, those with the most methods first; one with few methods beside a full one is left out."""
    numbers: dict[str, int] = {}
    for data_sets in kinds.values():
        for title, data in data_sets.items():
            numbers[title] = numbers.get(title, 0) + len(data.methods)
    most = max(numbers.values(), default=0)
    return sorted(
        (title for title, n in numbers.items() if LEAST * n >= most), key=lambda title: (-numbers[title], title)
    )


def _rows(kinds: Mapping[str, Mapping[str, DataSet]], panels: Sequence[str]) -> list[tuple[str, str]]:
    """Kind and label of each row; a kind's own row, without a label, stands above its methods."""
    rows = []
    for kind, data_sets in kinds.items():
        means: dict[str, list[float]] = {}
        shown = [data_sets[title] for title in panels if title in data_sets]
        for data in shown:
            for one in data.methods:
                value = spread(entry.metrics["softmax"]["acc_last"] for entry in one.results)
                means.setdefault(one.label, []).append(value.mean if value else 0.0)
        order = sorted(means, key=lambda label: -sum(means[label]) / len(means[label]))
        rows += [(kind, ""), *((kind, label) for label in order)] if order else []
    return rows


# --- the critical-difference diagram: mean ranks on a line, and bars over methods that are not told apart


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
