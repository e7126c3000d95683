"""One self-contained HTML page about one or several runs: opens offline, asks nothing from outside."""

from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from string import Template

from endocil.errors import EndocilError
from endocil.html.markup import escaped, policy_hash
from endocil.io.files import write_atomically
from endocil.model.disclaimer import DISCLAIMER
from endocil.reports import method_section as task_views
from endocil.reports import sections
from endocil.reports import sections as facts
from endocil.reports.averages import HEAD, Runs, mean
from endocil.reports.gallery import Gallery, gallery
from endocil.reports.method_section import SHADES, curves, method_section
from endocil.reports.ranking import contest, examined_or_none, what_was_run
from endocil.runs.experiments import groups as grouped
from endocil.runs.records import RunRecord


def write_page(
    records: Sequence[RunRecord],
    path: Path,
    *,
    title: str,
    gallery: Gallery | None = None,
    names: bool = True,
) -> None:
    """Write the page; `gallery` holds exemplars to show, `names` says whether with the names of images and groups."""
    write_atomically(Path(path), page(records, title=title, pictures=gallery, names=names))


def page(
    records: Sequence[RunRecord], *, title: str, pictures: Gallery | None = None, names: bool = True
) -> str:
    """The page as text. All runs must have been tested on the same classes and as many images."""
    _refuse_unlike(records)
    examined = examined_or_none(records)
    # Methods that learn task by task come first, the upper bound after them, everywhere on the page.
    groups = sorted(grouped(records), key=lambda group: not group.incremental)
    found = contest(examined)
    parts = [
        ("results", "Results", sections.results(groups, examined, found)),
        ("noise", "Is it noise?", sections.verdicts(groups, found)),
        ("accuracy", "Accuracy as classes arrive", curves(groups)),
        ("recall", "What each method knows in the end", sections.recall_by_class(groups)),
        ("sources", "Source by source", sections.sources(groups, examined)),
        ("methods", "The method" if len(groups) == 1 else "Method by method", _methods(groups)),
        ("nearest-mean", "Nearest-mean head", sections.nearest_mean(groups)),
        ("gallery", "Some exemplars", gallery(groups, pictures or {}, names=names)),
        ("leaks", "The images, and how new those of the test are", facts.leaks(records)),
        ("definitions", "What the numbers mean", facts.definitions()),
        ("settings", "Settings and environment", facts.settings_and_environment(records)),
    ]
    there = [part for part in parts if part[2]]
    script, style = _asset("page.js"), _asset("page.css") + SHADES
    return Template(_asset("page.html")).substitute(
        title=escaped(title),
        script_hash=policy_hash(script),
        style_hash=policy_hash(style),
        style=style,
        script=script,
        notice=DISCLAIMER,
        data=task_views.data(groups),
        summary=escaped(what_was_run(groups)),
        navigation=_navigation(groups, [name for name, _, _ in there]),
        body="".join(_section(*part) for part in there),
    )


def _asset(name: str) -> str:
    return resources.files("endocil.reports").joinpath("assets", name).read_text("utf-8")


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


def _section(name: str, title: str, body: str) -> str:
    head = f'<h2 id="{name}-title">{escaped(title)}</h2>'
    return f'<section id="{name}" aria-labelledby="{name}-title">{head}{body}</section>'


def _methods(groups: Sequence[Runs]) -> str:
    accuracies = [mean(run.metrics[HEAD]["acc_last"] for run in group.results) or 0.0 for group in groups]
    learners = [i for i, group in enumerate(groups) if group.incremental] or range(len(groups))
    best = max(learners, key=accuracies.__getitem__)
    note = (
        "<p>Numbers are means over the seeds; training curves and exemplars are those of the first seed.</p>"
    )
    several_seeds = any(len(group.seeds) > 1 for group in groups)
    body = "".join(method_section(group, index) for index, group in enumerate(groups))
    return (note if several_seeds else "") + task_views.controls(groups, best) + body


def _navigation(groups: Sequence[Runs], there: Sequence[str]) -> str:
    places = [("results", "Results"), ("noise", "Noise"), ("accuracy", "Accuracy"), ("recall", "Classes")]
    places += [("sources", "Sources")]
    places += [(f"method-{index}", group.label) for index, group in enumerate(groups)]
    places += [("nearest-mean", "Nearest mean"), ("gallery", "Exemplars"), ("leaks", "Train and test")]
    places += [("definitions", "Definitions"), ("settings", "Settings")]
    shown = [(name, text) for name, text in places if name in there or name.startswith("method-")]
    return "".join(f'<li><a href="#{name}">{escaped(text)}</a></li>' for name, text in shown)
