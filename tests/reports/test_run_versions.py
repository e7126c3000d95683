"""Runs of two versions, the later one with settings that the earlier did not know: one experiment everywhere."""

import copy
import csv
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from made_runs import CLASSES, TASK_SIZES, _predictions
from typer.testing import CliRunner

from endocil.cli.main import _application
from endocil.metrics.metrics import summarise
from endocil.model.prediction_files import write_predictions
from endocil.reports.figures.material import Material
from endocil.runs.experiments import groups
from endocil.runs.records import completed, read_run, read_runs

MakeRun = Callable[..., Path]
MakeSettings = Callable[..., dict[str, Any]]
LATER = {"data": ["crop_frame"], "train": ["accumulate", "precision"], "run": ["tensorboard"]}


def _command(*words: object) -> Any:
    return CliRunner().invoke(_application(), [str(word) for word in words])


@pytest.fixture
def two_versions(make_run: MakeRun, make_settings: MakeSettings) -> list[Path]:
    """Two seeds with predictions: all settings of today, and without those that came later."""
    folders = []
    for seed in (0, 1):
        stored = [_predictions("icarl", seed, CLASSES, TASK_SIZES, t) for t in range(len(TASK_SIZES))]
        folder = make_run("icarl", seed, metrics=summarise(stored))
        for t, predictions in enumerate(stored):
            write_predictions(folder / "predictions" / f"task-{t}.csv", predictions)
        settings = completed(make_settings("icarl", seed))
        for section, keys in LATER.items() if seed else ():
            for key in keys:
                del settings[section][key]
        (folder / "settings.toml").write_text(tomli_w.dumps(settings), "utf-8")
        folders.append(folder)
    return folders


def test_seeds_of_two_versions_are_one_experiment(two_versions: list[Path]) -> None:
    assert len(groups([read_run(folder) for folder in two_versions])) == 2  # as they were recorded
    [group] = groups(read_runs(two_versions))
    assert (group.label, group.seeds) == ("iCaRL", (0, 1))


def test_tables_comparisons_and_what_is_published_count_them_together(two_versions: list[Path], tmp_path: Path) -> None:
    table = _command("table", *two_versions, "--format", "csv").stdout
    assert [row["method"] for row in csv.DictReader(table.splitlines())] == ["iCaRL"]
    refused = _command("versus", *two_versions)
    assert "only runs of iCaRL were given" in str(refused.exception)
    assert _command("publish", *two_versions, "--no-figures", "-o", tmp_path / "out").exit_code == 0
    page = (tmp_path / "out" / "report.html").read_text("utf-8")
    assert "iCaRL learned the 14 classes" in page


def test_figures_draw_them_as_one_line(
    two_versions: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[Material] = []

    def draw_all(material: Material, *_: object) -> Iterator[object]:
        drawn.append(material)
        return iter(())

    monkeypatch.setattr("endocil.reports.figures.kinds.draw_all", draw_all)
    _command("figures", *two_versions, "-o", tmp_path / "figures")
    [group] = groups(drawn[0].runs)
    assert group.seeds == (0, 1)


def test_the_page_lists_no_default_among_the_settings_that_differ(two_versions: list[Path], tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    assert _command("report", *two_versions, "-o", page).exit_code == 0
    text = page.read_text("utf-8")
    assert text.count('<section class="method"') == 1
    differ = re.search(r"<caption><span>Settings that differ.*?</table>", text, re.DOTALL)
    assert differ is not None
    cells = re.findall(r"<td>(.*?)</td>", differ[0])
    assert cells == ["seed = 0", "seed = 1"]


def test_settings_are_completed_but_no_machine_is_invented(make_settings: MakeSettings) -> None:
    recorded = make_settings("icarl")
    del recorded["run"]["threads"]
    as_it_was = copy.deepcopy(recorded)
    filled = completed(recorded)
    assert recorded == as_it_was
    assert filled["train"]["accumulate"] == 1
    assert "threads" not in filled["run"]
    assert completed(filled) == filled


def test_settings_that_name_what_is_not_here_stay_as_they_are(make_settings: MakeSettings) -> None:
    outside = make_settings("package.module:Mine")
    assert completed(outside) == outside
