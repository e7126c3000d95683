"""Event files for TensorBoard: every number of the events once, whatever happened in between."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from pictures import TINY, run_files
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from typer.testing import CliRunner

import endocil
from endocil.cli.main import _application
from endocil.errors import EndocilError
from endocil.learning.build import NO_BITS
from endocil.runs.experiments import digest

SETTINGS = {**TINY, "run": {"threads": 1, "checkpoint_seconds": 0.0, "tensorboard": True}}


class StoppedError(Exception):
    pass


def scalars(run: Path) -> dict[str, list[tuple[int, float]]]:
    """Tag -> (step, value), without what depends on the clock."""
    found = EventAccumulator(str(run / "tensorboard"), size_guidance={"scalars": 0})
    found.Reload()
    tags = set(found.Tags()["scalars"]) - {"epoch/images_per_second"}
    return {tag: [(one.step, one.value) for one in found.Scalars(tag)] for tag in sorted(tags)}


def events(run: Path, kind: str) -> list[dict[str, Any]]:
    records = map(json.loads, (run / "events.jsonl").read_text("utf-8").splitlines())
    return [record for record in records if record["event"] == kind]


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "straight"
    endocil.run(SETTINGS, folder)
    return folder


def test_the_files_hold_the_numbers_of_the_events_and_the_metrics(straight: Path) -> None:
    found, epochs = scalars(straight), events(straight, "epoch")
    steps = list(range(1, len(epochs) + 1))
    losses = [epoch["losses"]["classification"] for epoch in epochs]
    assert [step for step, _ in found["loss/classification"]] == steps
    assert [value for _, value in found["loss/classification"]] == pytest.approx(losses)
    rates = [epoch["learning_rate"] for epoch in epochs]
    assert [value for _, value in found["epoch/learning_rate"]] == pytest.approx(rates)
    assert [step for step, _ in found["epoch/classifier_gradient"]] == steps
    gammas = [epoch["gamma"] for epoch in epochs if epoch.get("gamma") is not None]
    assert [value for _, value in found["epoch/gamma"]] == pytest.approx(gammas)
    metrics = json.loads((straight / "metrics.json").read_text())
    for head in ("softmax", "nearest_mean"):
        accuracies = [value for _, value in found[f"accuracy/{head}"]]
        assert accuracies == pytest.approx(metrics[head]["acc"])
        assert found[f"forgetting/{head}"][-1][1] == pytest.approx(metrics[head]["af"])
    name = events(straight, "task")[1]["classes"][0]
    own = epochs[-1]["per_class"]["classification"][len(events(straight, "task")[0]["classes"])]
    assert found[f"loss of {name}/classification"][-1][1] == pytest.approx(own)


def test_a_run_that_was_stopped_and_went_on_has_every_step_once(straight: Path, tmp_path: Path) -> None:
    run, seen = tmp_path / "run", 0

    def stop(record: dict[str, Any]) -> None:
        nonlocal seen
        seen += record["event"] == "epoch"
        if seen == 3:
            raise StoppedError

    with pytest.raises(StoppedError):
        endocil.run(SETTINGS, run, show=stop)
    [file] = (run / "tensorboard").iterdir()
    file.write_bytes(file.read_bytes()[:-7])  # as a kill in the middle of writing leaves it
    (run / "tensorboard" / "events.out.tfevents.0.left").write_bytes(b"left behind")
    endocil.resume(run)
    assert scalars(run) == scalars(straight)
    assert run_files(run) == run_files(straight)


def test_a_run_without_them_is_the_same_and_gets_them_afterwards(straight: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    endocil.run({**SETTINGS, "run": {**SETTINGS["run"], "tensorboard": False}}, run)
    assert not (run / "tensorboard").exists()
    assert run_files(run) == run_files(straight)
    for _ in range(2):  # the second time writes them anew
        done = CliRunner().invoke(_application(), ["tensorboard", str(run)], catch_exceptions=False)
        assert done.exit_code == 0
        assert scalars(run) == scalars(straight)


def test_the_setting_changes_neither_the_runs_identity_nor_its_first_task() -> None:
    plain = {**SETTINGS, "run": {"threads": 1}}
    assert digest({"seed": 0, **SETTINGS}) == digest({"seed": 0, **plain})
    assert "tensorboard" in NO_BITS["run"]


def test_without_the_package_nothing_is_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(EndocilError, match=r"pip install 'endocil\[tensorboard\]'"):
        endocil.run(SETTINGS, tmp_path / "run")
    assert not (tmp_path / "run").exists()
