"""Results as pandas frames: the numbers of the metrics, one row for each run and head, task or class."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import endocil
from endocil import EndocilError
from endocil.runs.import_predictions import Origin, import_predictions
from endocil.runs.records import read_run


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two seeds of a method with two heads, and one of a method with one."""
    folder = tmp_path_factory.mktemp("runs")
    made = []
    for method, seed, heads in (("a", 0, 2), ("a", 1, 2), ("b", 0, 1)):
        random, files = np.random.default_rng(seed), []
        for task, seen in enumerate((2, 3)):
            labels = np.repeat(np.arange(seen), 5)
            score = random.normal(size=(len(labels), seen)) + np.eye(seen)[labels]
            file = folder / f"{method}-{seed}-task-{task}.npz"
            distance: dict[str, Any] = {"distance": -score} if heads == 2 else {}
            np.savez(file, label=labels, score=score, **distance)
            files.append(file)
        made.append(folder / f"{method}-{seed}")
        import_predictions(files, made[-1], Origin(method=method, toolbox="peer", seed=seed))
    return made


def test_a_frame_has_the_metrics_of_each_run_and_head(runs: list[Path]) -> None:
    frame = endocil.results_frame(runs)
    assert list(zip(frame["run"], frame["head"], strict=True)) == [
        ("a-0", "softmax"),
        ("a-0", "nearest_mean"),
        ("a-1", "softmax"),
        ("a-1", "nearest_mean"),
        ("b-0", "softmax"),
    ]
    metrics = [read_run(run).metrics for run in runs]
    assert frame["acc_last"].tolist()[::2] == [one["softmax"]["acc_last"] for one in metrics]
    assert frame["epochs"].tolist() == ["unknown"] * 5
    spread = frame[frame["head"] == "softmax"].groupby("experiment")["acc_last"].count()
    assert spread.to_dict() == {"a (peer)": 2, "b (peer)": 1}


def test_a_frame_per_task_and_per_class(runs: list[Path]) -> None:
    tasks = endocil.results_frame(runs[2:], per="task")
    metrics = read_run(runs[2]).metrics["softmax"]
    assert tasks["classes"].tolist() == [2, 3]
    assert tasks["acc"].tolist() == metrics["acc"]
    classes = endocil.results_frame(runs[2:], per="class")
    assert classes["class"].tolist() == ["0", "1", "2"]
    assert classes["recall"].tolist() == [one["recall"] for one in metrics["per_class"].values()]


def test_what_cannot_be_is_refused(runs: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(EndocilError, match="expected 'run', 'task' or 'class'"):
        endocil.results_frame(runs, per="epoch")  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(EndocilError, match=r"pip install 'endocil\[pandas\]'"):
        endocil.results_frame(runs)
