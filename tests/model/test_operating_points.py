"""Prediction sets cover as stated, thresholds are as sensitive as required, and what is too little is said."""

import csv
from pathlib import Path

import numpy as np
import pytest
from commands import endocil
from pictures import make_images

from endocil import EndocilError, Model, Predictions
from endocil.io.files import write_csv
from endocil.model.manifest import Calibration, HeldOutScores
from endocil.model.operating_points import (
    decisions,
    least_images,
    operating_point,
    prediction_sets,
    rank_of,
    threshold_of,
)

CLASSES = ("a", "b", "c")


def drawn(random: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities of n images of each class, of a classifier that is often wrong about c."""
    labels = np.repeat(np.arange(3), n)
    logits = random.normal(0, 1, (3 * n, 3)) + np.array([3.0, 2.0, 0.7])[labels][:, None] * np.eye(3)[labels]
    return np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True), labels


def held_out(probabilities: np.ndarray, labels: np.ndarray) -> HeldOutScores:
    own = probabilities[np.arange(len(labels)), labels]
    return HeldOutScores(of_class={name: tuple(own[labels == c].tolist()) for c, name in enumerate(CLASSES)})


def test_the_threshold_is_the_order_statistic_of_split_conformal_prediction() -> None:
    scores = [0.5, 0.1, 0.9, 0.3, 0.7, 0.2, 0.8, 0.4, 0.6]  # nine: k = 1 for 0.9, k = 2 for 0.8
    assert threshold_of(scores, 0.9) == 0.1
    assert threshold_of(scores, 0.8) == 0.2
    assert threshold_of(scores[:8], 0.9) is None
    assert [least_images(coverage) for coverage in (0.8, 0.9, 0.95, 0.99)] == [4, 9, 19, 99]
    for coverage in (0.8, 0.9, 0.95, 0.99):
        assert rank_of(least_images(coverage), coverage) == 1
        assert rank_of(least_images(coverage) - 1, coverage) == 0


@pytest.mark.parametrize("coverage", [0.8, 0.9])
def test_over_many_draws_every_class_is_covered_as_asked_and_hardly_more(coverage: float) -> None:
    random, hits = np.random.default_rng(0), np.zeros(3)
    rounds, n = 300, 24
    for _ in range(rounds):
        kept = held_out(*drawn(random, n))
        probabilities, labels = drawn(random, 20)
        sets = prediction_sets(probabilities, CLASSES, kept, coverage, by_class=True)
        hits += [np.mean([CLASSES[c] in sets[i] for i in np.flatnonzero(labels == c)]) for c in range(3)]
    exact = (n + 1 - rank_of(n, coverage)) / (n + 1)
    assert np.abs(hits / rounds - exact).max() < 0.02
    assert exact >= coverage


def test_one_threshold_for_all_covers_on_average_and_the_hard_class_less() -> None:
    random = np.random.default_rng(1)
    kept = held_out(*drawn(random, 2000))
    probabilities, labels = drawn(random, 2000)
    sets = prediction_sets(probabilities, CLASSES, kept, 0.9, by_class=False)
    hit = np.array([CLASSES[c] in own for c, own in zip(labels.tolist(), sets, strict=True)])
    assert abs(hit.mean() - 0.9) < 0.02
    assert hit[labels == 2].mean() < 0.85


def test_a_class_with_too_few_held_out_images_is_in_every_set() -> None:
    kept = HeldOutScores(of_class={"a": (0.9,) * 9, "b": (0.9,) * 8})
    rows = np.array([[0.95, 0.05], [0.3, 0.7]])
    assert prediction_sets(rows, ("a", "b"), kept, 0.9, by_class=True) == [("a", "b"), ("b",)]


def test_the_interval_of_a_sensitivity_holds_it_in_95_of_100_draws() -> None:
    random, inside, rounds = np.random.default_rng(2), 0, 400
    many, labels = drawn(random, 20_000)
    truth = np.sort(many[labels == 2, 2])
    for _ in range(rounds):
        point = operating_point(held_out(*drawn(random, 40)), "c", 0.9)
        real = 1.0 - np.searchsorted(truth, point.threshold) / len(truth)
        inside += int(point.interval[0] <= real <= point.interval[1])
    assert point.expected == pytest.approx(37 / 41)
    assert 0.92 < inside / rounds < 0.98


def test_a_decision_names_the_classes_whose_threshold_is_reached() -> None:
    kept = HeldOutScores(of_class={"a": tuple(np.linspace(0.05, 0.95, 19)), "b": (0.5,) * 19, "c": (0.5,) * 19})
    points = {"a": operating_point(kept, "a", 0.95)}
    rows = np.array([[0.06, 0.9, 0.04], [0.01, 0.9, 0.09], [0.7, 0.2, 0.1], [0.04, 0.01, 0.95]])
    assert decisions(rows, CLASSES, points) == [("a",), ("b",), ("a",), ("c",)]
    assert decisions(rows, CLASSES, {}) == [("b",), ("b",), ("a",), ("c",)]
    with pytest.raises(EndocilError, match=r"19 held-out images of 'a' are too few .* 0.99; at least 99"):
        operating_point(kept, "a", 0.99)
    with pytest.raises(EndocilError, match="sensitivity of 'z' is asked for; known: a, b, c"):
        operating_point(kept, "z", 0.9)
    with pytest.raises(EndocilError, match=r"of 1.5 is asked for; expected one between 0 and 1"):
        operating_point(kept, "a", 1.5)


def predictions(calibration: Calibration | None) -> Predictions:
    scores = np.log(np.array([[0.7, 0.3], [0.2, 0.8]], np.float32))
    labels = np.array([0, -1])
    return Predictions(("x", "y"), labels, ("a", "b"), scores, None, ("", ""), calibration=calibration)


def test_without_held_out_images_there_are_decisions_but_no_sets() -> None:
    plain = predictions(None)
    assert plain.decisions() == [("a",), ("b",)]
    with pytest.raises(EndocilError, match="neither prediction sets nor operating points"):
        plain.prediction_sets()


def test_predict_writes_decision_set_truth_model_and_time(tmp_path: Path) -> None:
    from PIL import Image

    pixels = make_images([24] * 2).pixels.numpy()
    model = Model.create(
        {
            "data": {"size": 32},
            "network": {"width": 8},
            "memory": {"per_class": 3},
            "method": {"name": "icarl"},
            "train": {"epochs": 1, "milestones": [], "batch_size": 16},
            "run": {"threads": 1, "accelerator": "cpu"},
        }
    )
    model.learn(list(pixels), ["a"] * 24 + ["b"] * 24, validation=0.5)
    digest = model.save(tmp_path / "model.endocil")
    for i in range(2):
        Image.fromarray(pixels[24 * i]).save(tmp_path / f"{i}.png")
    write_csv(tmp_path / "list.csv", ("path", "label"), [("0.png", "a"), ("1.png", "unheard-of")])
    typed = ("predict", tmp_path / "model.endocil", tmp_path / "list.csv", "-o", tmp_path / "out.csv")
    done = endocil(*typed, "--coverage", "0.8", "--sensitivity", "b=0.9")
    assert done.returncode == 0, done.stderr
    assert "b: from a probability of " in done.stdout
    with (tmp_path / "out.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["true_class"] for row in rows] == ["a", "unheard-of"]
    assert {row["model"] for row in rows} == {digest}
    assert {row["coverage"] for row in rows} == {"0.8"}
    assert all(row["time"].endswith("+00:00") for row in rows)
    said = Model.load(tmp_path / "model.endocil").predict(tmp_path / "list.csv")
    assert [row["prediction_set"] for row in rows] == [" | ".join(own) for own in said.prediction_sets(0.8)]
    assert [row["decision"] for row in rows] == [" | ".join(own) for own in said.decisions({"b": 0.9})]
    (tmp_path / "0.png").unlink()
    (tmp_path / "1.png").unlink()
    refused = endocil(*typed, "--force", "--sensitivity", "b=0.99")  # before the images are read
    assert "are too few for a sensitivity of 0.99" in refused.stderr
    refused = endocil(*typed, "--force", "--sensitivity", "b")
    assert "--sensitivity b: expected CLASS=SHARE between 0 and 1" in refused.stderr
