"""Images of each class: how many there are, in the order of learning (the paper's Fig. 3 for the public data sets, and
the runs' own), and the first exemplars. Exemplars are images of patients: drawn only for those who run the command."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from endocil.data.scenario import keep_classes
from endocil.datasets.public.facts import PUBLIC, DataSet, published_table
from endocil.reports.figures.material import Drawings, Gallery, Material, NotDrawnError
from endocil.reports.figures.style import COLOURS, headline, legend_below, letters, new_figure
from endocil.runs.records import RunRecord
from endocil.settings.settings import load_settings

HATCHES = {"train": "", "validation": "....", "test": "//////"}
SHADES = {"train": 1.0, "validation": 0.55, "test": 0.3}


@dataclass(frozen=True)
class ClassCounts:
    """How many images each class has in each part, and how many classes each task brings."""

    title: str
    classes: Sequence[str]
    parts: Mapping[str, Sequence[int]]  # part -> images of each class
    task_sizes: Sequence[int]


def draw(material: Material) -> Drawings:
    """The published counts need no run."""
    yield "published", counts_figure([published(facts) for facts in PUBLIC.values() if facts.of_paper])
    if material.runs:
        yield "runs", counts_figure([of_run(name, members[0].first) for name, members in material.panels.items()])


def published(facts: DataSet) -> ClassCounts:
    """The classes that its preset keeps, from the numbers that are published: nothing is downloaded."""
    chosen = load_settings(facts.presets[0]).scenario
    everything = published_table(facts)
    table = keep_classes(everything, minimum=chosen.minimum, leave_out=chosen.leave_out, order=chosen.order, seed=0)
    counts = [int(count) for count in table.counts()]
    title = f"{facts.title}\n{len(counts)} of {len(everything.classes)} classes, {sum(counts):,} images"
    return ClassCounts(title, table.classes, {"all": counts}, chosen.increments or [len(counts)])


def of_run(title: str, run: RunRecord) -> ClassCounts:
    classes = run.metrics["classes"]
    every = {part: [run.images[name].get(part, 0) for name in classes] for part in HATCHES}
    parts = {part: counts for part, counts in every.items() if any(counts)}
    total = sum(map(sum, parts.values()))
    return ClassCounts(f"{title}\n{len(classes)} classes, {total:,} images", classes, parts, run.metrics["task_sizes"])


def counts_figure(panels: Sequence[ClassCounts]) -> Figure:
    """Two columns of bar charts; a row is as high as its longer chart needs."""
    columns = min(2, len(panels))
    rows = [panels[start : start + columns] for start in range(0, len(panels), columns)]
    heights = [max(len(panel.classes) for panel in row) + 5 for row in rows]
    width = max(4.6, 2.2 + max(letters(panel.classes) for panel in panels))
    figure = new_figure(width * columns, 0.17 * sum(heights))
    grid = figure.add_gridspec(len(rows), columns, height_ratios=heights)
    for i, panel in enumerate(panels):
        _bars(figure.add_subplot(grid[i // columns, i % columns]), panel)
    if any(len(panel.parts) > 1 for panel in panels):
        legend_below(figure, figure.axes)
    return figure


def _bars(axis: Axes, panel: ClassCounts) -> None:
    tasks = np.repeat(np.arange(len(panel.task_sizes)), panel.task_sizes)
    places, left = np.arange(len(panel.classes)), np.zeros(len(panel.classes))
    for part, counts in panel.parts.items():
        axis.barh(
            places,
            counts,
            left=left,
            color=[(COLOURS[task % 2], SHADES.get(part, 1.0)) for task in tasks],
            edgecolor="white" if part in ("all", "train") else "#555555",
            hatch=HATCHES.get(part, ""),
            linewidth=0.3,
            label=part,
        )
        left += counts
    for place, total in enumerate(left.astype(int).tolist()):
        axis.text(total, place, f" {total:,}", va="center", fontsize=6)
    for end, task in zip(np.cumsum(panel.task_sizes).tolist(), range(len(panel.task_sizes)), strict=True):
        axis.axhline(end - 0.5, color="#bbbbbb", linewidth=0.5, linestyle=":")
        middle = end - panel.task_sizes[task] / 2 - 0.5
        label = axis.text(1.01, middle, f"task {task + 1}", va="center", fontsize=7)
        label.set_transform(axis.get_yaxis_transform())  # beside the bars, whatever the numbers
    axis.set(title=panel.title, xlabel="images", ylim=(len(places) - 0.5, -0.5), xlim=(0, 1.18 * left.max()))
    axis.set_yticks(places, panel.classes)
    axis.tick_params(axis="y", length=0)


def draw_gallery(material: Material) -> Drawings:
    """One for each data and way of choosing, of the first run that has it."""
    if material.gallery is None:
        raise NotDrawnError("left out by --no-gallery")
    drawn: set[tuple[str, str]] = set()
    for panel, members in material.panels.items():
        for group in members:
            run, select = group.first, str(group.first.settings["memory"].get("select"))
            if run.exemplars and (panel, select) not in drawn:
                drawn.add((panel, select))
                figure = gallery_figure(f"{group.label}, {panel}", material.gallery(run))
                yield material.suffix(panel, select), figure


def gallery_figure(title: str, exemplars: Gallery) -> Figure:
    """A row for each class, first choice at the left."""
    columns = max(len(row) for row in exemplars.values())
    figure = new_figure(letters([*exemplars]) + 0.75 * columns, 0.75 * len(exemplars))
    axes = figure.subplots(len(exemplars), columns, squeeze=False)
    for row, (name, chosen) in zip(axes, exemplars.items(), strict=True):
        for axis in row:
            axis.set_axis_off()
        for axis, pixels in zip(row, chosen, strict=False):
            axis.imshow(pixels)
        row[0].text(-0.1, 0.5, name, transform=row[0].transAxes, ha="right", va="center", fontsize=7)
    headline(figure, title)
    return figure
