"""The experiment of the class that is held back runs, goes on, and mixes no settings. Its numbers are not tested."""

import json
import sys
from pathlib import Path
from types import ModuleType

import pytest
from files import CLASSES, write_pictures, write_settings


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "benchmarks")
    import learn_one_class

    return learn_one_class


def test_a_line_for_each_result_and_none_made_twice(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = write_pictures(tmp_path / "images")
    values = {
        "data": {"name": "folder", "root": str(images), "size": 32},
        "scenario": {"tasks": 2},
        "network": {"width": 8},
        "memory": {"per_class": 3},
        "train": {"epochs": 2, "milestones": [1], "batch_size": 8},
        "run": {"threads": 1, "accelerator": "cpu"},
    }
    output = tmp_path / "results.jsonl"
    typed = ["x", "-o", str(output), "--methods", "icarl", "--seeds", "0"]
    typed += ["--settings", str(write_settings(tmp_path / "s.toml", values))]
    monkeypatch.setattr(sys, "argv", typed)
    script.main()
    script.main()  # all is there
    (line,) = map(json.loads, output.read_text().splitlines())
    assert (line["method"], line["seed"], line["held_back"]) == ("icarl", 0, CLASSES[-1])
    assert set(line["softmax"]) == {"old_before", "old_after", "new"}
    assert list(line["recall"]["before"]["softmax"]) == list(CLASSES[:-1])
    assert list(line["recall"]["after"]["mean"]) == list(CLASSES)
    assert set(line["test_images"].values()) == {2}
    monkeypatch.setattr(sys, "argv", [*typed, "--set", "train.epochs=3"])
    with pytest.raises(SystemExit, match="with other settings"):
        script.main()
    output.unlink()
    with pytest.raises(SystemExit, match="with other settings"):
        script.main()


@pytest.mark.slow
def test_a_frozen_model_learns_the_class_and_is_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "benchmarks")
    import frozen

    values = {
        "data": {"name": "folder", "root": str(write_pictures(tmp_path / "images")), "size": 32},
        "scenario": {"tasks": 2},
        "network": {"width": 8},
        "run": {"threads": 1, "accelerator": "cpu"},
    }
    typed = ["x", "-o", str(tmp_path / "results.jsonl"), "--methods", "analytic"]
    typed += ["--settings", str(write_settings(tmp_path / "s.toml", values))]
    monkeypatch.setattr(sys, "argv", typed)
    frozen.main()
    (line,) = map(json.loads, (tmp_path / "results.jsonl").read_text().splitlines())
    assert (line["method"], line["held_back"], line["new_images"]) == ("analytic", CLASSES[-1], 10)
    assert set(line["softmax"]) == {"old_before", "old_after", "new"}
    assert set(line["seconds"]) == {"run", "learn", "fill the store", "learn from stored features", "command"}
    assert set(line["processor_seconds"]) == set(line["seconds"]) - {"run"}
