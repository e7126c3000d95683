"""endocil report, figures and publish: runs as a page, as figures, and as a folder with everything."""

from enum import StrEnum
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import typer

from endocil.cli.console import Against, Force, Runs, say, with_baseline
from endocil.errors import DataError, EndocilError, SettingsError
from endocil.io.files import refuse_existing
from endocil.io.terminal import aligned

if TYPE_CHECKING:
    from endocil.reports.figures.material import Gallery as FigureGallery
    from endocil.reports.gallery import Gallery
    from endocil.runs.records import RunRecord


def report(
    runs: Runs,
    output: Annotated[Path, typer.Option("-o", "--output", help="The file to write.")] = Path("report.html"),
    title: Annotated[str | None, typer.Option(help="Title of the page.")] = None,
    gallery: Annotated[
        bool | None,
        typer.Option(help="Show exemplars (images of patients). Default: only for runs with run.gallery = true."),
    ] = None,
    names: Annotated[bool, typer.Option(help="Show names of images and groups in the gallery.")] = True,
    rank_anyway: Annotated[
        bool,
        typer.Option("--rank-anyway", help="Also rank runs that differ in epochs, image size, width or exemplars."),
    ] = False,
    force: Force = False,
) -> None:
    """Write one self-contained HTML page about runs on the same test images."""
    from endocil.reports.page import write_page
    from endocil.runs.records import read_runs

    if output.is_dir():
        raise SettingsError(f"{output} is a folder; name a file with -o, such as {output / 'report.html'}")
    refuse_existing(output, force=force)
    records = read_runs(runs)
    listed = ", ".join(run.name for run in records) if len(records) <= 3 else f"{len(records)} runs"
    exemplars = None if gallery is False else exemplars_of(records, gallery)
    page_title = title or f"endocil: {listed}"
    write_page(records, output, title=page_title, gallery=exemplars, names=names, rank_anyway=rank_anyway)
    say(f"page: {output} ({output.stat().st_size / 1e6:.1f} MB)")


def exemplars_of(records: "list[RunRecord]", requested: bool | None = None) -> "Gallery":
    """Of each experiment the first seed. What cannot be read is an error where it was requested, else left out."""
    from endocil.reports.gallery import exemplars_per_class, run_gallery
    from endocil.runs.experiments import groups

    shown = [
        group.first
        for group in groups(records)
        if group.first.exemplars
        and (group.first.settings.get("run", {}).get("gallery", False) if requested is None else requested)
    ]
    exemplars: Gallery = {}
    for run in shown:
        assert run.folder is not None
        try:
            own = run_gallery(run.folder, exemplars_per_class(len(shown), len(run.metrics["classes"])))
        except EndocilError as error:
            if requested:
                raise
            say(f"no exemplars of {run.name}: {error}")
            continue
        exemplars = {**exemplars, **own}
    return exemplars


PER_CLASS = 8  # exemplars in the gallery


class FigureFormat(StrEnum):
    png = "png"
    pdf = "pdf"


def figures(
    runs: Annotated[
        list[Path] | None, typer.Argument(metavar="RUN", help="Folders of finished runs, or of sweeps.")
    ] = None,
    output: Annotated[Path, typer.Option("-o", "--output", help="Folder of the files.")] = Path("figures"),
    only: Annotated[list[str] | None, typer.Option(metavar="NAME", help="This figure alone; may be repeated.")] = None,
    show_list: Annotated[bool, typer.Option("--list", help="List the figures and what they need.")] = False,
    form: Annotated[list[FigureFormat] | None, typer.Option("--format", help="png or pdf; both if not given.")] = None,
    dpi: Annotated[int, typer.Option(min=20, max=1200, help="Pixels per inch.")] = 200,
    gallery: Annotated[bool, typer.Option(help="Show exemplars (images of patients).")] = True,
) -> None:
    """Draw the paper's figures and others from runs, as PNG and PDF."""
    from endocil.reports.figures.kinds import KINDS, NAMES, draw_all
    from endocil.reports.figures.material import Material
    from endocil.runs.records import read_runs

    if show_list:
        kinds = [(kind.name, kind.paper, kind.shows, kind.needs) for kind in KINDS]
        say(aligned([("figure", "paper", "shows", "needs"), *kinds]))
        return
    if unknown := set(only or ()) - set(NAMES):
        raise SettingsError(f"no figure {', '.join(sorted(unknown))}; known: {', '.join(NAMES)}")
    material = Material(read_runs(runs or ()), _gallery if gallery else None, say)
    formats = list(dict.fromkeys(one.value for one in form or FigureFormat))
    drawn = list(draw_all(material, output, only or NAMES, formats, dpi))
    rows = [("figure", "paper", f"files in {output}")]
    for one in drawn:
        stems: dict[str, list[str]] = {}
        for file in one.files:
            stems.setdefault(file.stem, []).append(file.suffix)
        lines = [f"{stem}{'/'.join(suffixes)}" for stem, suffixes in stems.items()]
        if one.reason:
            lines.append(f"not drawn: {one.reason}")
        names = [(one.kind.name, one.kind.paper), *[("", "")] * (len(lines) - 1)]
        rows += [(*name, line) for name, line in zip(names, lines, strict=True)]
    say(aligned(rows))
    if not any(one.files for one in drawn):
        raise DataError("no figure could be drawn; the table says what each needs")


def _gallery(run: "RunRecord") -> "FigureGallery":
    from endocil.reports.gallery import run_gallery

    assert run.folder is not None
    gallery = run_gallery(run.folder, PER_CLASS)
    return {name: [one.pixels for one in chosen] for classes in gallery.values() for name, chosen in classes.items()}


def publish(
    runs: Runs,
    output: Annotated[Path, typer.Option("-o", "--output", help="New folder, or one that was published before.")],
    against: Against = None,
    figures: Annotated[bool, typer.Option(help="Draw the figures as well.")] = True,
    ledger: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Add the runs to this ledger.")] = None,
    insert: Annotated[
        list[Path] | None, typer.Option(metavar="FILE", help="Also write the ledger's tables into this file.")
    ] = None,
) -> None:
    """Write tables, figures, the report page and an index of finished runs into one folder."""
    from endocil.cli import ledger as ledger_commands
    from endocil.reports.ledger import insert_texts
    from endocil.reports.ledger_texts import ledger_texts
    from endocil.reports.publish import publish as write
    from endocil.runs.experiments import evaluated_part
    from endocil.runs.records import is_imported, read_runs

    if insert and ledger is None:
        raise SettingsError("--insert writes the tables of a ledger; give it with --ledger")
    records = read_runs(with_baseline(runs, against))
    if ledger is not None:  # what the ledger or a file would refuse in the end is refused before anything is written
        for run in records:
            if is_imported(run.settings):
                raise SettingsError(f"{run.folder} holds imported predictions, which the ledger does not take")
            if (part := evaluated_part(run.settings)) != "test":
                raise SettingsError(
                    f"{run.folder} was evaluated on its {part} part, for tuning; the ledger takes results on the test "
                    f"part alone"
                )
        with TemporaryDirectory() as empty:  # a ledger that does not exist yet has the same tables
            known = ledger_texts(ledger if ledger.exists() else Path(empty))
        for file in insert or ():
            insert_texts(file, known, check=True)
    pieces = write(records, output, against=against, figures=figures, tell=say)
    if ledger is not None:
        ledger_commands.add(runs, ledger)
    if insert and ledger is not None:
        ledger_commands.insert(insert, ledger)
        say(f"wrote the ledger's tables into {', '.join(map(str, insert))}")
    absent = [f"not made: {piece.title}: {piece.missing}" for piece in pieces if piece.missing]
    for line in (*absent, f"wrote {output / 'index.md'} and what it lists"):
        say(line)
