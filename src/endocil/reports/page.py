"""One self-contained HTML page about one or several runs: opens offline, loads nothing from the network."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from endocil.errors import DataError, SettingsError
from endocil.html.markup import render_page
from endocil.io.files import write_atomically
from endocil.metrics.metrics import METRICS
from endocil.model import DISCLAIMER
from endocil.reports import sections
from endocil.reports.averages import HEAD, Runs, confusions, mean
from endocil.reports.comparisons import comparable_or_none
from endocil.reports.gallery import Gallery, exemplar_gallery, mistake_gallery, run_gallery
from endocil.reports.method_section import accuracy_curves, method_section, task_data
from endocil.reports.ranking import describe_runs
from endocil.reports.tables import TITLES, budgets_of
from endocil.runs.experiments import groups as grouped
from endocil.runs.folder import RunFolder
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


def write_run_page(run: RunRecord, folder: Path) -> None:
    """RUN/report.html; with exemplars where `run.gallery` allows it, as they are images of patients."""
    gallery = run_gallery(folder) if run.settings.get("run", {}).get("gallery") else None
    write_page([run], RunFolder(folder).page, title=f"endocil run {folder.name}", gallery=gallery)


def write_page(
    records: Sequence[RunRecord],
    path: Path,
    *,
    title: str,
    gallery: Gallery | None = None,
    names: bool = True,
    rank_anyway: bool = False,
) -> None:
    """Write the page. All runs must have been tested on the same classes and as many images. `gallery` holds exemplars
    to show, and None shows no image at all; `names` says whether with the names of images and groups; `rank_anyway`
    ranks runs of different budgets against each other."""
    _check_comparable(records)
    # Methods that learn task by task come first, the upper bound after them, everywhere on the page.
    groups = sorted(grouped(records), key=lambda group: not group.incremental)
    compared, budgets = comparable_or_none(records), budgets_of(groups)
    ranks = sections.ranked(groups, compared, budgets, rank_anyway=rank_anyway)
    parts: dict[str, Any] = {
        "results": sections.results(groups, compared, ranks, budgets),
        "noise": sections.verdicts(ranks),
        "accuracy": accuracy_curves(groups),
        "recall": sections.recall_by_class(groups),
        "sources": sections.sources(groups, compared, budgets.rankings(len(ranks) == 1)),
        "methods": _methods(groups),
        "nearest-mean": sections.nearest_mean(groups, ranks),
        "mistakes": mistake_gallery(groups, gallery, names=names),
        "gallery": exemplar_gallery(groups, gallery or {}, names=names),
        "leaks": sections.leaks(records),
        "definitions": [(TITLES.get(name, name), meaning) for name, meaning in METRICS.items()],
        "settings": sections.settings_and_environment(records),
    }
    links: list[tuple[str, str]] = []
    for name, link in NAVIGATION.items():
        if name == "methods":
            links += [(f"method-{index}", group.label) for index, group in enumerate(groups)]
        elif parts[name]:
            links.append((name, link))
    text = render_page(
        "endocil.reports",
        title=title,
        disclaimer=DISCLAIMER,
        summary=describe_runs(groups),
        navigation=links,
        data=task_data(groups),
        **{name.replace("-", "_"): part for name, part in parts.items()},
    )
    write_atomically(Path(path), text, public=not gallery)


def _check_comparable(records: Sequence[RunRecord]) -> None:
    if not records:
        raise SettingsError("no run to show; give at least one run folder")
    test_images = [
        {name: run.images.get(name, {}).get("test", 0) for name in run.metrics["classes"]} for run in records
    ]
    for run, images in zip(records, test_images, strict=True):
        if images != test_images[0]:
            raise DataError(
                f"the runs {records[0].name} and {run.name} were tested on different classes or images and "
                f"cannot stand in one table; write one page for each data set"
            )


def _methods(groups: Sequence[Runs]) -> dict[str, Any]:
    """The sections of all methods, and which one the script shows first."""
    accuracies = [mean(run.metrics[HEAD]["acc_last"] for run in group.results) or 0.0 for group in groups]
    return {
        "all": [method_section(group) for group in groups],
        "best": max(range(len(groups)), key=lambda i: (groups[i].incremental, accuracies[i])),
        "n_tasks": max(len(confusions(group)) for group in groups),
        "several_seeds": any(len(group.seeds) > 1 for group in groups),
    }
