"""The ledger as one figure: accuracy after the last task of each method, a panel for each data set."""

from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure

from endocil.errors import SettingsError
from endocil.io.text_tables import spread
from endocil.reports.figures.style import COLOURS, fit, new_figure, styled, write_figure
from endocil.reports.ledger import Entry
from endocil.reports.ledger_tables import section, shared_budget
from endocil.runs.experiments import Group, groups, split_title

SUFFIXES = (".svg", ".png", ".pdf")
FEWEST = 2  # methods of a panel


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
    """Methods with the highest mean at the top. A budget that all panels share is named once, below them."""
    panels: dict[str, list[Group[Entry]]] = {}
    for group in groups(entries, section):
        panels.setdefault(section(group.first.settings), []).append(group)
    panels = {name: members for name, members in panels.items() if len(members) >= FEWEST}
    if not panels:
        raise SettingsError(f"the ledger has no data set with {FEWEST} methods to draw")
    names = sorted(panels, key=lambda name: (-len(panels[name]), name))
    rows = [len(panels[name]) for name in names]
    budgets = {shared_budget(panels[name][0].first.settings) for name in names}
    figure = new_figure(6.4, 0.21 * sum(rows) + 0.62 * len(rows))
    axes = figure.subplots(len(rows), 1, squeeze=False, sharex=True, height_ratios=rows)[:, 0]
    for axis, name in zip(axes, names, strict=True):
        accuracies = [
            (spread(entry.metrics["softmax"]["acc_last"] for entry in group.results), group) for group in panels[name]
        ]
        accuracies.sort(key=lambda pair: pair[0].mean if pair[0] else -1.0)
        members = [group for _, group in accuracies]
        for y, (accuracy, group) in enumerate(accuracies):
            if accuracy:
                colour = COLOURS[0] if group.incremental else "#777777"
                style = {"fmt": "o", "color": colour, "markersize": 4.5, "capsize": 2.5}
                axis.errorbar(accuracy.mean, y, xerr=accuracy.deviation, **style)
        labels = [one.label if one.incremental else f"{one.label} (all classes at once)" for one in members]
        axis.set_yticks(range(len(members)), labels)
        title = name if len(budgets) > 1 else split_title(members[0].first.settings)
        axis.set(title=title, xlim=(0, 100), ylim=(-0.7, len(members) - 0.3))
        axis.tick_params(axis="y", length=0)
        axis.grid(axis="x")
    shared = f"\n({budgets.pop()})" if len(budgets) == 1 else ""
    axes[-1].set_xlabel(f"Acc_last in percent, mean ± standard deviation over seeds{shared}")
    return figure
