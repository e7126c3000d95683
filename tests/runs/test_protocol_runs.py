"""Runs whose classes come back in later tasks: learned, resumed, measured, or refused before training."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from commands import endocil as type_here
from pictures import TINY, run_files
from PIL import Image

import endocil
from endocil import EndocilError
from endocil.io.files import read_csv, write_csv
from endocil.methods import METHODS
from endocil.runs.follow import task_sizes
from endocil.runs.records import read_run


def settings_of(method: str, **scenario: Any) -> dict[str, Any]:
    settings = copy.deepcopy(TINY)
    settings["method"] = {"name": method}
    settings["scenario"] = scenario
    return settings


class StoppedError(Exception):
    pass


def stop(record: dict[str, Any]) -> None:
    if record["event"] == "epoch" and record["task"] == 1:
        raise StoppedError


def test_a_blurry_run_learns_known_classes_again_and_resumes_to_the_same_bits(tmp_path: Path) -> None:
    settings = settings_of("icarl", tasks=2, blurry=0.3)
    endocil.run(settings, tmp_path / "straight")
    events = [json.loads(line) for line in (tmp_path / "straight" / "events.jsonl").read_text("utf-8").splitlines()]
    new = [event["new"] for event in events if event["event"] == "task"]
    rows = [row for row in read_csv(tmp_path / "straight" / "split.csv") if row["part"] == "train"]
    first = {row["class"] for row in rows if row["task"] == "0"}
    back = [row for row in rows if row["task"] == "1" and row["class"] in first]
    assert back
    assert new == [sum(row["task"] == task for row in rows) for task in ("0", "1")]
    sizes = task_sizes(tmp_path / "straight" / "split.csv")
    assert [size.images for size in sizes] == new
    assert [size.classes for size in sizes] == read_run(tmp_path / "straight").metrics["task_sizes"]
    with pytest.raises(StoppedError):
        endocil.run(settings, tmp_path / "stopped", show=stop)
    endocil.resume(tmp_path / "stopped")
    assert run_files(tmp_path / "stopped") == run_files(tmp_path / "straight")


def test_a_new_device_of_known_classes_is_a_task_for_frozen_features(tmp_path: Path) -> None:
    settings = settings_of("simplecil", tasks="source")
    settings["network"]["freeze"] = ["all"]
    endocil.run(settings, tmp_path / "run")
    metrics = read_run(tmp_path / "run").metrics
    assert 0 in metrics["task_sizes"]
    assert len(metrics["softmax"]["acc"]) == len(metrics["task_sizes"])
    for command in (["table"], ["score"], ["report", "-o", tmp_path / "page.html"]):
        done = type_here(command[0], tmp_path / "run", *command[1:])
        assert done.returncode == 0, done.stderr
    learned = endocil.Model.load(tmp_path / "run")
    assert [task.n_new for task in learned.tasks] == metrics["task_sizes"]


def test_a_list_may_bring_a_class_again_in_a_later_task(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    rows = []
    for i in range(36):
        label, task = ("polyp", i % 2) if i < 20 else ("ulcer", 0) if i < 28 else ("cecum", 1)
        colour = {"polyp": 200, "ulcer": 100, "cecum": 20}[label]
        Image.new("RGB", (32, 32), (colour, i, 2 * i)).save(tmp_path / "images" / f"{i}.png")
        rows.append((f"{i}.png", label, task))
    write_csv(tmp_path / "list.csv", ("path", "label", "task"), rows)
    settings = settings_of("icarl", tasks="given")
    settings["data"] = {
        "name": "csv",
        "file": str(tmp_path / "list.csv"),
        "root": str(tmp_path / "images"),
        "size": TINY["data"]["size"],
    }
    metrics = endocil.run(settings, tmp_path / "run").metrics
    assert (metrics["task_sizes"], metrics["classes"]) == ([2, 1], ["polyp", "ulcer", "cecum"])
    split = read_csv(tmp_path / "run" / "split.csv")
    assert {row["task"] for row in split if (row["class"], row["part"]) == ("polyp", "train")} == {"0", "1"}


def test_a_method_that_needs_new_classes_is_refused_before_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(METHODS["icarl"], "learns_known_classes", False)  # one of the user's own may say so
    with pytest.raises(EndocilError, match=r"known classes alone, and iCaRL says .* need none: Analytic, BiC, DER"):
        endocil.run(settings_of("icarl", tasks="source"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_few_shots_and_a_long_tail_are_recorded_and_counted(tmp_path: Path) -> None:
    endocil.run(settings_of("finetune", tasks=2, shots=3, imbalance=2.0), tmp_path / "run")
    record = read_run(tmp_path / "run")
    later = record.metrics["classes"][record.metrics["task_sizes"][0] :]
    assert {name: record.images[name]["train"] for name in later} == dict.fromkeys(later, 3)
    assert record.images[later[0]]["unused"] > 0
    assert any("scenario.shots = 3" in note for note in record.notes)
    again = settings_of("finetune", tasks=2, split=str(tmp_path / "run" / "split.csv"))
    parts = endocil.run(again, tmp_path / "again")
    assert read_run(parts.folder).images == record.images
