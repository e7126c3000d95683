"""endocil report: runs as one page that opens offline."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from endocil.commands.common import say
from endocil.errors import EndocilError

if TYPE_CHECKING:
    from endocil.report import RunRecord
    from endocil.report.gallery import Gallery


def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Folders of finished runs.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="The file to write.")] = Path("report.html"),
    title: Annotated[str | None, typer.Option("--title", help="What stands at the top of the page.")] = None,
    gallery: Annotated[
        bool | None,
        typer.Option(
            "--gallery/--no-gallery",
            help="Show exemplars, which are images of patients. Default: of runs with run.gallery = true.",
        ),
    ] = None,
    names: Annotated[
        bool, typer.Option("--names/--no-names", help="Names of images and groups in the gallery.")
    ] = True,
) -> None:
    """One self-contained page about runs on the same test images: opens offline, light and dark, for print."""
    from endocil.recorded import read_runs
    from endocil.report import write_page

    if output.is_dir():
        raise EndocilError(f"{output} is a folder; name a file with -o, such as {output / 'report.html'}")
    records = read_runs(runs)
    pictures = exemplars_of(records, gallery)
    told = title or f"endocil: {', '.join(run.name for run in records)}"
    if title is None and len(records) > 3:
        told = f"endocil: {len(records)} runs"
    write_page(records, output, title=told, gallery=pictures, names=names)
    say(f"page: {output} ({output.stat().st_size / 1e6:.1f} MB)")


def exemplars_of(records: "list[RunRecord]", wanted: bool | None = None) -> "Gallery":
    """Of each experiment the first seed. Whoever asks for it is told why it fails; otherwise it is left out."""
    from endocil.report.gallery import room_for
    from endocil.report.grouping import groups
    from endocil.run_folder import RunFolder

    shown = [
        group.first
        for group in groups(records)
        if group.first.exemplars
        and (wanted if wanted is not None else group.first.settings.get("run", {}).get("gallery", False))
    ]
    found: Gallery = {}
    for run in shown:
        assert run.folder is not None
        try:
            own = RunFolder(run.folder).gallery(room_for(len(shown), len(run.metrics["classes"])))
        except EndocilError as error:
            if wanted:
                raise
            say(f"no pictures of {run.name}: {error}")
            continue
        found = {**found, **own}
    return found
