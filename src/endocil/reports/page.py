"""One self-contained HTML page about one or several runs: opens offline, asks nothing from outside."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from endocil.errors import DataError, SettingsError
from endocil.html.markup import render_page
from endocil.io.files import write_atomically
from endocil.model.disclaimer import DISCLAIMER
from endocil.reports import sections
from endocil.reports.averages import HEAD, Runs, confusions, mean
from endocil.reports.budgets import budgets
from endocil.reports.comparisons import comparable_or_none
from endocil.reports.gallery import Gallery, exemplar_gallery, mistake_gallery
from endocil.reports.method_section import accuracy_curves, method_section, task_data
from endocil.reports.ranking import what_was_run
from endocil.runs.experiments import groups as grouped
from endocil.runs.records import RunRecord

NAVIGATION = {  # sections in the order of the page; "methods" stands for a link to each method
    "results": "Results",
    "noise": "Noise",
    "accuracy": "Accuracy",
    "recall": "Classes",
    "sources": "Sources",
    "methods": "",
    "nearest-mean": "Nearest mean",
    "mistakes": "Misclassified",
    "gallery": "Exemplars",
    "leaks": "Train and test",
    "definitions": "Glossary",
    "settings": "Settings",
}


def write_page(
    records: Sequence[RunRecord],
    path: Path,
    *,
    title: str,
    gallery: Gallery | None = None,
    names: bool = True,
    rank_anyway: bool = False,
) -> None:
    """Write the page. `gallery` holds exemplars to show, and None shows no image at all; `names` says whether with the
    names of images and groups; `rank_anyway` ranks runs of different budgets against each other."""
    text = page(records, title=title, gallery=gallery, names=names, rank_anyway=rank_anyway)
    write_atomically(Path(path), text)


def page(
    records: Sequence[RunRecord],
    *,
    title: str,
    gallery: Gallery | None = None,
    names: bool = True,
    rank_anyway: bool = False,
) -> str:
    """The page as text. All runs must have been tested on the same classes and as many images."""
    _check_comparable(records)
    # Methods that learn task by task come first, the upper bound after them, everywhere on the page.
    groups = [sections.titled(g) for g in sorted(grouped(records), key=lambda group: not group.incremental)]
    examined = comparable_or_none(records)
    if examined:
        examined = replace(examined, groups=tuple(map(sections.titled, examined.groups)))
    spent = budgets(groups)
    ranks = sections.ranked(groups, examined, spent, rank_anyway=rank_anyway)
    parts: dict[str, Any] = {
        "results": sections.results(groups, examined, ranks, spent),
        "noise": sections.verdicts(ranks),
        "accuracy": accuracy_curves(groups),
        "recall": sections.recall_by_class(groups),
        "sources": sections.sources(groups, examined, sections.competitions(groups, spent, ranks)),
        "methods": _methods(groups),
        "nearest-mean": sections.nearest_mean(groups, ranks),
        "mistakes": mistake_gallery(groups, gallery, names=names),
        "gallery": exemplar_gallery(groups, gallery or {}, names=names),
        "leaks": sections.leaks(records),
        "definitions": sections.metric_names(),
        "settings": sections.settings_and_environment(records),
    }
    links: list[tuple[str, str]] = []
    for name, text in NAVIGATION.items():
        if name == "methods":
            links += [(f"method-{index}", group.label) for index, group in enumerate(groups)]
        elif parts[name]:
            links.append((name, text))
    return render_page(
        "endocil.reports",
        title=title,
        disclaimer=DISCLAIMER,
        summary=what_was_run(groups),
        navigation=links,
        data=task_data(groups),
        **{name.replace("-", "_"): part for name, part in parts.items()},
    )


def _check_comparable(records: Sequence[RunRecord]) -> None:
    if not records:
        raise SettingsError("no run to show; give at least one run folder")
    first = records[0]
    for other in records[1:]:
        if _test_images(other) != _test_images(first):
            raise DataError(
                f"the runs {first.name} and {other.name} were tested on different classes or images and "
                f"cannot stand in one table; write one page for each data set"
            )


def _test_images(run: RunRecord) -> dict[str, int]:
    return {name: run.images.get(name, {}).get("test", 0) for name in run.metrics["classes"]}


def _methods(groups: Sequence[Runs]) -> dict[str, Any]:
    """The sections of all methods, and which one the script shows first."""
    accuracies = [mean(run.metrics[HEAD]["acc_last"] for run in group.results) or 0.0 for group in groups]
    learners = [i for i, group in enumerate(groups) if group.incremental] or range(len(groups))
    return {
        "all": [method_section(group) for group in groups],
        "best": max(learners, key=accuracies.__getitem__),
        "n_tasks": max(len(confusions(group)) for group in groups),
        "several_seeds": any(len(group.seeds) > 1 for group in groups),
    }
