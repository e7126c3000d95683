"""The first exemplars of each class. They are images of patients: drawn only for those who run the command."""

from matplotlib.figure import Figure

from endocil.errors import EndocilError
from endocil.reports.figures.material import Drawings, Gallery, Material, NotDrawnError
from endocil.reports.figures.style import headline, letters, new_figure


def draw(material: Material) -> Drawings:
    """One for each data and way of choosing, of the first run that has it."""
    if material.gallery is None:
        raise NotDrawnError("left out by --no-gallery")
    seen: set[tuple[str, str]] = set()
    for panel, members in material.panels.items():
        for group in members:
            run, select = group.first, str(group.first.settings["memory"].get("select"))
            if run.exemplars and (panel, select) not in seen:
                seen.add((panel, select))
                try:
                    exemplars = material.gallery(run)
                except EndocilError as error:  # the images are elsewhere, or changed
                    raise NotDrawnError(str(error)) from error
                yield material.suffix(panel, select), gallery_figure(f"{group.label}, {panel}", exemplars)
    if not seen:
        raise NotDrawnError("needs a run of a method that keeps exemplars")


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
