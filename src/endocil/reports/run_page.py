"""The report page of one run, and the exemplars that it may show."""

from pathlib import Path

from endocil.model.file import read_model_file
from endocil.reports.gallery import Exemplar, Gallery
from endocil.reports.page import write_page
from endocil.runs.folder import RunFolder
from endocil.runs.records import read_run


def write_run_page(folder: Path) -> None:
    """RUN/report.html; with exemplars where `run.gallery` allows it, as they are images of patients."""
    here = RunFolder(folder)
    gallery = run_gallery(folder) if here.settings().run.gallery else None
    write_page([read_run(folder)], here.page, title=f"endocil run {folder.name}", gallery=gallery)


def run_gallery(folder: Path, per_class: int = 5) -> Gallery:
    """The first exemplars of each class at the end of a run, under the run's name."""
    exemplars = read_model_file(folder).exemplars
    by_class: dict[str, list[Exemplar]] = {}
    for one, pixels in zip(exemplars.provenance, exemplars.pixels, strict=True):
        if one.order < per_class:
            shown = Exemplar(one.image, one.order, str(one.task), one.group, one.source, pixels.numpy())
            by_class.setdefault(one.class_name, []).append(shown)
    return {folder.resolve().name: by_class} if by_class else {}
