"""How all figures look: colours that colour-blind people can distinguish, markers and dashes, and texts that fit.

matplotlib makes room for a title's height, not for its width: a long one would run over its neighbour or be cut. So a
title or label is broken where its place ends, and the sheet grows by the lines."""

import io
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from endocil.io.files import write_atomically

GAP = 0.1  # inches between neighbours
PASSES = 4  # a broken label moves the panels a little, so that places are measured anew
JOINTS = "_-=/,."  # a name without a space is broken after one of these

# Okabe and Ito's colours without yellow, which is too light for lines on white
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "p", "*", "h", "d", "8")
DASHES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (1, 1)), (0, (6, 1.5, 1, 1.5)))
MAP = "viridis"  # grows lighter evenly, so that it prints in grey
EMPTY = "#e6e6e6"  # cells without a value
LEGEND = 0.93  # of the width
MOST_COLUMNS = 6
NARROWEST = 3.6  # inches of a sheet, for its title and legend
STYLE: dict[Any, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 8,
    "axes.titlesize": 8.5,
    "axes.labelsize": 8,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 7,
    "legend.frameon": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.7,
    "axes.axisbelow": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.5,
    "lines.linewidth": 1.3,
    "lines.markersize": 5,
    "text.parse_math": False,
    "pdf.fonttype": 42,  # letters stay letters
    "hatch.linewidth": 0.5,
    "svg.hashsalt": "endocil",  # the same identifiers each time
}


@contextmanager
def styled() -> Iterator[None]:
    """Figures are made and written inside; what the caller has set for others stays."""
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(STYLE)
        yield


def line_style(index: int) -> dict[str, Any]:
    """Colour, marker and dash of the line with this number; 28 are different from each other."""
    return {
        "color": COLOURS[index % len(COLOURS)],
        "marker": MARKERS[index % len(MARKERS)],
        "linestyle": DASHES[index // len(COLOURS) % len(DASHES)],
    }


def new_figure(width: float, height: float) -> Figure:
    """A sheet of so many inches whose parts make room for each other."""
    figure = Figure(figsize=(max(width, NARROWEST), height), layout="constrained")
    FigureCanvasAgg(figure)  # measures texts
    return figure


def small_multiples(
    n: int, *, width: float, height: float, columns: int = 4, more_width: float = 0.0
) -> tuple[Figure, list[Axes]]:
    """n axes in rows as even as can be; the places left over stay white."""
    rows = math.ceil(n / columns)
    columns = math.ceil(n / rows)
    figure = new_figure(width * columns + more_width, height * rows)
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    for unused in axes[n:]:
        unused.set_axis_off()
    return figure, axes[:n]


def first_of_row(axes: Sequence[Axes]) -> list[bool]:
    """Which of these axes stand at the left edge."""
    return [axis.get_subplotspec().is_first_col() for axis in axes]  # type: ignore[union-attr]


def legend_below(figure: Figure, axes: Sequence[Axes]) -> None:
    """One legend for all axes, each name once, in as many columns as fit; the sheet grows by its height."""
    handles: dict[str, Any] = {}
    for axis in axes:
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    if not handles:
        return
    room = LEGEND * figure.bbox.width
    for columns in range(min(len(handles), MOST_COLUMNS), 0, -1):
        legend = figure.legend([*handles.values()], [*handles], loc="outside lower center", ncols=columns)
        if legend.get_window_extent().width <= room:
            break
        if columns > 1:
            legend.remove()
    names = legend.get_texts()
    beside = legend.get_window_extent().width - max(name.get_window_extent().width for name in names)
    for name in names:
        break_text(name, room - beside)
    grow(figure, legend.get_window_extent().height / figure.get_dpi())


def headline(figure: Figure, title: str) -> None:
    """What stands above all axes; the sheet grows by its line."""
    grow(figure, figure.suptitle(title, fontsize=9).get_window_extent().height / figure.get_dpi())


def grow(figure: Figure, inches: float) -> None:
    """Higher by so much, so that the axes need not give way."""
    figure.set_figheight(figure.get_figheight() + inches)


def letters(names: Sequence[str]) -> float:
    """Inches for the longest of names in small letters."""
    return 0.06 * max(map(len, names)) + 0.2


def logarithmic(axis: Axes, which: str) -> None:
    """A logarithmic scale with plain numbers: powers of ten would need mathematical text."""
    getattr(axis, f"set_{which}scale")("log")
    plain_powers(getattr(axis, f"{which}axis"))


def plain_powers(scale: Axis) -> None:
    """Numbers of a logarithmic scale: 1, 2, 5, 10, ..."""
    scale.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0), numticks=8))
    scale.set_major_formatter(FuncFormatter(lambda value, place: f"{value:g}"))
    scale.set_minor_formatter(NullFormatter())


def whole_numbers(axis: Axes, which: str = "x") -> None:
    """Ticks at whole numbers alone: there is no task 1.5."""
    getattr(axis, f"{which}axis").set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))


def write_figure(figure: Figure, path: Path, dpi: int, *, public: bool = True) -> None:
    """As PNG, PDF or SVG, by the path's ending, without a date."""
    dateless = {".pdf": {"CreationDate": None}, ".svg": {"Date": None}}
    metadata = dateless.get(path.suffix, {"Software": "endocil"})
    content = io.BytesIO()
    figure.savefig(content, format=path.suffix[1:], dpi=dpi, metadata=metadata)
    write_atomically(path, content.getvalue(), public=public)


def fit(figure: Figure, dpi: int) -> None:
    """Break what is too long, give each part its place, and keep it: every format of the file has the same."""
    figure.set_dpi(dpi)
    for _ in range(PASSES):
        figure.draw_without_rendering()
        # vertical labels first: they move the panels sideways
        if _break_all(figure, [axis.yaxis.label for axis in figure.axes], along=1):
            continue
        # horizontal texts, by kind: those of one kind stand beside each other
        kinds = (figure.texts, [axis.title for axis in figure.axes], [axis.xaxis.label for axis in figure.axes])
        if not sum(_break_all(figure, texts, along=0) for texts in kinds):
            break
    figure.set_layout_engine("none")


def _break_all(figure: Figure, texts: Sequence[Text], along: int) -> bool:
    """Whether anything had to be broken; the sheet has then grown by the new lines of each row."""
    shown = [text for text in texts if text.get_text()]
    rooms = [_room(figure, text, shown, along) for text in shown]
    grown: dict[int, float] = {}
    changed = False
    for text, room in zip(shown, rooms, strict=True):
        before = text.get_window_extent()
        if break_text(text, room, along):
            changed = True
            row = round(before.y0)
            grown[row] = max(grown.get(row, 0.0), text.get_window_extent().height - before.height)
    if along == 0:
        grow(figure, sum(grown.values()) / figure.get_dpi())
    return changed


def _room(figure: Figure, text: Text, others: Sequence[Text], along: int) -> float:
    """Pixels for a centred text: to the nearest edge on both sides, and half-way to each neighbour on its own."""
    box, gap = text.get_window_extent(), GAP * figure.get_dpi()
    across = 1 - along
    centre = float(box.min[along] + box.max[along]) / 2
    room = 2 * min(centre, float(figure.bbox.max[along]) - centre)
    for other in others:
        beside = other.get_window_extent()
        if other is not text and beside.min[across] < box.max[across] and box.min[across] < beside.max[across]:
            room = min(room, abs(float(beside.min[along] + beside.max[along]) / 2 - centre))
    return room - gap


def break_text(text: Text, room: float, along: int = 0) -> bool:
    """Whether it was too long for so many pixels; then it is in lines that are not."""
    whole = text.get_text()

    def fits(line: str) -> bool:
        text.set_text(line)
        box = text.get_window_extent()
        return (box.height if along else box.width) <= room

    broken = "\n".join(part for line in whole.split("\n") for part in lines_of(line, fits))
    text.set_text(broken)
    return broken != whole


def lines_of(line: str, fits: Callable[[str], bool]) -> Iterator[str]:
    """Cut at the last space that fits, else after a joint, else where the room ends; a letter stands in any case."""
    while len(line) > 1 and not fits(line):
        end = next((n for n in range(len(line) - 1, 1, -1) if fits(line[:n])), 1)
        cut = line.rfind(" ", 1, end + 1)
        if cut < 0:
            cut = max(line.rfind(joint, 0, end) for joint in JOINTS) + 1 or end
        yield line[:cut].rstrip()
        line = line[cut:].lstrip()
    yield line
