"""Texts that stay on their sheet: a title or a label is broken where its place ends, and the sheet grows by the lines.

matplotlib makes room for a title's height, not for its width: a long one would run over its neighbour or be cut."""

from collections.abc import Callable, Iterator, Sequence

from matplotlib.figure import Figure
from matplotlib.text import Text

GAP = 0.1  # inches between neighbours
PASSES = 4  # a broken label moves the panels a little, so that places are measured anew
JOINTS = "_-=/,."  # a name without a space is broken after one of these


def fit(figure: Figure, dpi: int) -> None:
    """Break what is too long, give each part its place, and keep it: every format of the file has the same."""
    figure.set_dpi(dpi)
    for _ in range(PASSES):
        figure.draw_without_rendering()
        # vertical labels first: they move the panels sideways
        if not (
            _break_all(figure, [axis.yaxis.label for axis in figure.axes], along=1) or _break_across(figure)
        ):
            break
    figure.set_layout_engine("none")


def _break_across(figure: Figure) -> bool:
    """Horizontal texts, by kind: those of one kind stand beside each other."""
    kinds = (
        figure.texts,
        [axis.title for axis in figure.axes],
        [axis.xaxis.label for axis in figure.axes],
    )
    changed = [_break_all(figure, texts, along=0) for texts in kinds]
    return any(changed)


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
        figure.set_figheight(figure.get_figheight() + sum(grown.values()) / figure.get_dpi())
    return changed


def _room(figure: Figure, text: Text, others: Sequence[Text], along: int) -> float:
    """Pixels for a centred text: to the nearest edge on both sides, and half-way to each neighbour on its own."""
    box, gap = text.get_window_extent(), GAP * figure.get_dpi()
    across = 1 - along
    centre = float(box.min[along] + box.max[along]) / 2
    room = 2 * min(centre, float(figure.bbox.max[along]) - centre)
    for other in others:
        beside = other.get_window_extent()
        if (
            other is not text
            and beside.min[across] < box.max[across]
            and box.min[across] < beside.max[across]
        ):
            room = min(room, abs(float(beside.min[along] + beside.max[along]) / 2 - centre))
    return room - gap


def break_text(text: Text, room: float, along: int = 0) -> bool:
    """Whether it was too long for so many pixels; then it is in lines that are not."""
    whole = text.get_text()

    def fits(line: str) -> bool:
        text.set_text(line)
        box = text.get_window_extent()
        return (box.height if along else box.width) <= room

    told = "\n".join(part for line in whole.split("\n") for part in lines_of(line, fits))
    text.set_text(told)
    return told != whole


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
