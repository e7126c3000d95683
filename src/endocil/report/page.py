"""One self-contained HTML page about one or several runs: opens offline, asks nothing from outside."""

from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from string import Template

from endocil.errors import EndocilError
from endocil.files import write_atomically
from endocil.report import sections
from endocil.report.averages import Runs
from endocil.report.grouping import groups as grouped
from endocil.report.markup import escaped
from endocil.report.method_section import method_section
from endocil.report.runs import RunRecord
from endocil.report.sentences import what_was_run


def write_page(
    records: Sequence[RunRecord], path: Path, *, title: str, gallery: sections.Gallery | None = None
) -> None:
    """Write the page; `gallery` maps a class to (image id, uint8 pixels) of exemplars to show."""
    write_atomically(Path(path), page(records, title=title, gallery=gallery))


def page(records: Sequence[RunRecord], *, title: str, gallery: sections.Gallery | None = None) -> str:
    """The page as text. All runs must have been tested on the same classes and as many images."""
    _refuse_unlike(records)
    # Methods that learn task by task come first, the upper bound after them, everywhere on the page.
    groups = sorted(grouped(records), key=lambda group: not group.incremental)
    body = "".join(
        [
            sections.results(groups),
            sections.curves(groups),
            sections.recall_by_class(groups),
            _methods(groups),
            sections.nearest_mean(groups),
            sections.gallery(gallery),
            sections.leaks(records),
            sections.settings_and_environment(records),
        ]
    )
    return Template(_asset("page.html")).substitute(
        title=escaped(title),
        style=_asset("page.css"),
        script=_asset("page.js"),
        summary=escaped(what_was_run(groups)),
        navigation=_navigation(groups, body),
        body=body,
    )


def _asset(name: str) -> str:
    return resources.files("endocil.report").joinpath("assets", name).read_text("utf-8")


def _refuse_unlike(records: Sequence[RunRecord]) -> None:
    if not records:
        raise EndocilError("no run to show; give at least one run folder")
    first = records[0]
    for other in records[1:]:
        if _question(other) != _question(first):
            raise EndocilError(
                f"the runs {first.name} and {other.name} were tested on different classes or images and "
                f"cannot stand in one table; write one page for each data set"
            )


def _question(run: RunRecord) -> dict[str, int]:
    return {name: run.images.get(name, {}).get("test", 0) for name in run.metrics["classes"]}


def _methods(groups: Sequence[Runs]) -> str:
    one = len(groups) == 1
    several_seeds = any(len(group.seeds) > 1 for group in groups)
    note = (
        "<p>Numbers are means over the seeds; training curves and exemplars are those of the first seed.</p>"
    )
    body = "".join(method_section(group, index) for index, group in enumerate(groups))
    return sections.section(
        "methods", "The method" if one else "Method by method", (note if several_seeds else "") + body
    )


def _navigation(groups: Sequence[Runs], body: str) -> str:
    places = [("results", "Results"), ("accuracy", "Accuracy"), ("recall", "Classes")]
    places += [(f"method-{index}", group.label) for index, group in enumerate(groups)]
    places += [("nearest-mean", "Nearest mean"), ("gallery", "Exemplars"), ("leaks", "Train and test")]
    places += [("settings", "Settings")]
    there = [(name, text) for name, text in places if f' id="{name}"' in body]
    return "".join(f'<li><a href="#{name}">{escaped(text)}</a></li>' for name, text in there)
