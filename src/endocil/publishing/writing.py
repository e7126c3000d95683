"""Everything that can be shown of runs on the same test images, each part by the code that other commands use."""

from collections.abc import Callable, Sequence
from pathlib import Path

from endocil.files import write_atomically
from endocil.predictions import HEADS
from endocil.publishing.folder import refuse_foreign, replacing_folder, write_record
from endocil.publishing.index import Piece, identity_of, index
from endocil.report import RunRecord, Table, write_page
from endocil.report.averages import Runs
from endocil.report.class_table import class_table
from endocil.report.comparing import Examined, examine, interval_note, interval_table, source_table, versus
from endocil.report.latex import latex
from endocil.report.versus_table import named, versus_note, versus_table

METRICS = ("acc_last", "acc_avg")  # that are compared, as by endocil versus
FORMATS, DPI = ("png", "pdf"), 200
GALLERY, PRIVATE = "gallery", "images of patients; 'endocil figures --only gallery' draws it"


def publish(
    records: Sequence[RunRecord],
    output: Path,
    *,
    against: str | None = None,
    figures: bool = True,
    tell: Callable[[str], None] = lambda line: None,
) -> list[Piece]:
    """Write the folder. `against`: the experiment that others are compared with; else that of the first run."""
    refuse_foreign(output)
    examined = examine(records)  # refuses runs on different images
    other = named(examined, against, records[0].name)
    with replacing_folder(output) as folder:
        pieces = [*_tables(records, folder), _versus(examined, other, folder)]
        tell("tables are written")
        if figures:
            pieces += _figures(records, folder, tell)
            tell("figures are drawn")
        write_page(records, folder / "report.html", title=f"endocil: {len(records)} runs")
        pieces.append(Piece("One page about all runs, which opens offline", ("report.html",)))
        write_atomically(folder / "index.md", index(records, pieces))
        write_record(folder, [identity_of(run) for run in records])
    return pieces


def _tables(records: Sequence[RunRecord], folder: Path) -> list[Piece]:
    pieces = []
    for head in HEADS:
        if all(run.metrics.get(head) is None for run in records):
            continue
        examined = examine(records, head)
        note = interval_note(examined)
        end = "" if head == "softmax" else f"-{head.replace('_', '-')}"
        pieces.append(_table(interval_table(examined), note, folder, f"results{end}"))
        if any(examined.tested.sources):
            found = source_table(examined)
            pieces.append(_table(found, note, folder, f"sources{end}"))
        seeds = "± is the sample standard deviation over the seeds."
        pieces.append(_table(class_table(examined.groups, head), seeds, folder, f"classes{end}"))
    if not any("tables/sources" in piece.files[0] for piece in pieces):
        why = "the images of these runs do not say which source they come from"
        pieces.append(Piece("Accuracy source by source", (), why))
    return pieces


def _versus(examined: Examined, other: Runs, folder: Path) -> Piece:
    found = versus(examined, other, METRICS)
    if not found:
        return Piece("Paired differences", (), "there is no other experiment to compare with")
    note = versus_note(examined, found, other)
    return _table(versus_table(found, other), note, folder, "versus")


def _table(table: Table, note: str, folder: Path, name: str) -> Piece:
    texts = {
        "md": f"{table.caption}.\n\n{table.markdown()}\n{note}\n",
        "tex": latex(table, label=f"tab:{name}", note=note),
        "csv": table.csv(),
    }
    for form, text in texts.items():
        write_atomically(folder / "tables" / f"{name}.{form}", text)
    return Piece(table.caption, tuple(f"tables/{name}.{form}" for form in texts))


def _figures(records: Sequence[RunRecord], folder: Path, tell: Callable[[str], None]) -> list[Piece]:
    """Without pictures of exemplars: they are images of patients, and this folder is made to be shown."""
    from endocil.figures.catalogue import NAMES
    from endocil.figures.drawing import draw_all
    from endocil.figures.material import Material

    pieces = []
    for drawn in draw_all(Material(records, None, tell), folder / "figures", NAMES, FORMATS, DPI):
        files = tuple(file.relative_to(folder).as_posix() for file in drawn.files)
        why = PRIVATE if drawn.kind.name == GALLERY else drawn.reason
        pieces.append(Piece(f"Figure {drawn.kind.name}: {drawn.kind.shows}", files, why))
    return pieces
