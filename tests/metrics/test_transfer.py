"""Top-5, task-aware accuracy, backward and forward transfer: cases worked by hand."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from commands import endocil
from made_runs import settings_of, write_run

from endocil.metrics.metrics import FURTHER_METRICS, class_tasks, summarise, task_aware_correct, top_correct
from endocil.model.prediction_files import read_predictions, write_predictions
from endocil.model.predictions import Predictions


def scored(
    labels: Sequence[int], scores: Sequence[Sequence[float]], classes: str, true_scores: bool = True
) -> Predictions:
    names = tuple(f"{classes[label]}{i}" for i, label in enumerate(labels))
    matrix = np.array(scores, np.float32)
    return Predictions(
        names, np.array(labels, np.int64), tuple(classes), matrix, None, ("",) * len(labels), true_scores=true_scores
    )


# Two tasks of two classes, one test image of each class. After the first both are right. After the second: a is taken
# for c, but beats b; b is right; c is right; d is taken for a, and c beats it.
FIRST = scored([0, 1], [[2, 1], [1, 2]], "ab")
LAST = scored([0, 1, 2, 3], [[2, 1, 3, 0], [1, 4, 3, 2], [0, 1, 2, 1], [4, 1, 3, 2]], "abcd")
JOINT = scored([0, 1, 2, 3], [[2, 1, 0, 0], [1, 4, 3, 2], [0, 1, 2, 3], [0, 1, 3, 4]], "abcd")  # of c and d, d is right


def test_the_class_is_among_the_best_k() -> None:
    assert top_correct(LAST, k=1).tolist() == [False, True, True, False]
    assert top_correct(LAST, k=2).tolist() == [True, True, True, False]
    assert top_correct(LAST, k=3).tolist() == [True, True, True, True]
    assert top_correct(LAST).all()  # of four classes, five hold every one
    tie = scored([0, 1], [[1, 1, 1], [1, 1, 1]], "abc")
    assert top_correct(tie, k=1).tolist() == [True, False]  # ties go to the class learned first


def test_task_aware_is_a_choice_among_the_classes_of_the_images_task() -> None:
    tasks = class_tasks([FIRST, LAST])
    assert tasks.tolist() == [0, 0, 1, 1]
    assert task_aware_correct(LAST, tasks).tolist() == [True, True, True, False]
    assert task_aware_correct(JOINT, tasks).tolist() == [True, True, False, True]
    assert task_aware_correct(FIRST, tasks).all()


def stored(folder: Path, method: str, run: list[Predictions]) -> Path:
    write_run(folder, settings_of(method), summarise(run))
    for task, one in enumerate(run):
        write_predictions(folder / "predictions" / f"task-{task}.csv", one)
    return folder


def shown(*arguments: object) -> list[dict[str, str]]:
    done = endocil("table", *arguments, "--no-intervals", "--format", "csv")
    assert done.returncode == 0, done.stderr
    header, *rows = (line.split(",") for line in done.stdout.splitlines())
    return [dict(zip(header, row, strict=True)) for row in rows]


def test_the_table_shows_them_where_they_are_asked_for(tmp_path: Path) -> None:
    runs = stored(tmp_path / "finetune", "finetune", [FIRST, LAST]), stored(tmp_path / "joint", "joint", [JOINT])
    usual, _ = shown(*runs)
    assert not set(FURTHER_METRICS) & {name.removesuffix("_mean") for name in usual}
    every = [part for name in FURTHER_METRICS for part in ("--metric", name)]
    learner, at_once = shown(*runs, *every)
    values = {key: value for key, value in learner.items() if key.removesuffix("_mean") in FURTHER_METRICS}
    numbers = {key.removesuffix("_mean"): float(value) for key, value in values.items()}
    # Forward: of the second task one of two just after it, as the joint model in its task: 50 - 50.
    expected = {"top5_last": 100, "top5_avg": 100, "task_aware_last": 75, "task_aware_avg": 87.5, "bwt": -50, "fwt": 0}
    assert numbers == pytest.approx(expected)
    assert float(next(value for key, value in at_once.items() if key.startswith("task_aware_last"))) == 75
    done = endocil("table", *runs, "--metric", "fwt")
    assert done.returncode == 0, done.stderr


def test_forward_transfer_without_a_reference_and_unknown_metrics_are_one_line(tmp_path: Path) -> None:
    run = stored(tmp_path / "finetune", "finetune", [FIRST, LAST])
    assert "add runs with method.name=joint" in endocil("table", run, "--metric", "fwt").stderr
    assert "no metric speed; known: acc_last" in endocil("table", run, "--metric", "speed").stderr


def test_predicted_classes_without_scores_have_no_second_best(tmp_path: Path) -> None:
    one_hot = np.eye(4)[LAST.predicted()].tolist()
    alone = scored(LAST.labels.tolist(), one_hot, "abcd", true_scores=False)
    write_predictions(tmp_path / "alone.csv", alone)
    assert (tmp_path / "alone.csv").read_text("utf-8").splitlines()[0] == "image,label,source,predicted"
    again = read_predictions(tmp_path / "alone.csv")
    assert not again.true_scores
    assert again.predicted().tolist() == LAST.predicted().tolist()
    run = stored(tmp_path / "run", "finetune", [FIRST, alone])
    done = endocil("table", run, "--metric", "acc_last", "--metric", "top5_last")
    assert done.returncode == 0, done.stderr
    assert "predicted classes without scores, so no top5_last" in " ".join(done.stdout.split())
