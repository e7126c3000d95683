"""After each `learn`: what it cost the old classes, on the held-out images; a gate that writes nothing."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from commands import endocil
from pictures import make_images

from endocil import EndocilError, Model, learning_cost
from endocil.errors import RefusedError
from endocil.io.files import write_csv
from endocil.learning.memory import KeptImages, Provenance
from endocil.model.model import HEADS
from endocil.release.compare import LearningCost
from endocil.release.gate import Rules
from endocil.release.learn import learn

VALUES = {
    "data": {"size": 32},
    "network": {"width": 8},
    "memory": {"per_class": 3},
    "method": {"name": "icarl"},
    "train": {"epochs": 1, "milestones": [], "batch_size": 16},
    "run": {"threads": 1, "accelerator": "cpu"},
}
NAMES = ("a", "b", "c")
Learned = Callable[..., Model]


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of two classes, ten images each of which four are held out; all from the device A."""
    pixels = make_images([10] * 2).pixels.numpy()
    model = Model.create(VALUES)
    labels = ["a"] * 10 + ["b"] * 10
    model.learn(list(pixels), labels, sources=["A"] * 20, validation=0.4)
    file = tmp_path_factory.mktemp("first") / "model.endocil"
    model.save(file)
    return file


def newcomers(folder: Path, *names: str, source: str = "B") -> Path:
    """Ten new images of each class as a list, four of them held out."""
    from PIL import Image

    pixels = make_images([10] * len(names), seed=5).pixels.numpy()
    rows = []
    for i, image in enumerate(pixels):
        Image.fromarray(image).save(folder / f"new-{i}.png")
        part = "validation" if i % 10 < 4 else "train"
        rows.append((f"new-{i}.png", names[i // 10], source, part))
    write_csv(folder / "new.csv", ("path", "label", "source", "split"), rows)
    return folder / "new.csv"


def test_known_classes_of_a_new_device_are_learned_and_told_by_source(first: Path, tmp_path: Path) -> None:
    listing = newcomers(tmp_path, "a", "b")
    done = endocil("learn", first, listing, "-o", tmp_path / "out.endocil", "--train", "heads")
    assert done.returncode == 0, done.stderr
    assert "task 2: a 6+4 (known), b 6+4 (known)" in done.stdout
    assert "task 2: no new class; 12 new images" in done.stdout
    assert "on 16 held-out images, recall before -> after in percent" in done.stdout
    assert "source A, accuracy: " in done.stdout
    assert "source B, accuracy: " in done.stdout
    model = Model.load(tmp_path / "out.endocil")
    assert [task.n_new for task in model.tasks] == [2, 0]
    assert {one.source for one in model.exemplars.provenance} >= {"B"}  # chosen from old and new together
    assert model.history[-1].changes == (HEADS,)


def test_few_images_of_a_new_class_are_warned_of_beforehand(first: Path, tmp_path: Path) -> None:
    told: list[str] = []
    learn(first, newcomers(tmp_path, "c"), tmp_path / "out.endocil", log=told.append)
    warned = next(i for i, line in enumerate(told) if line.startswith("WARNING: few images to learn from: 'c' has 6"))
    assert warned < next(i for i, line in enumerate(told) if line.startswith("about "))
    assert any(line.startswith("  c (new): ") for line in told)


def test_a_gate_that_refuses_writes_nothing_and_says_why(first: Path, tmp_path: Path) -> None:
    (tmp_path / "gate.toml").write_text("[new_classes]\nsmallest_sensitivity = 100.0\n")
    listing = newcomers(tmp_path, "c")
    before = sorted(tmp_path.iterdir())
    done = endocil("learn", first, listing, "-o", tmp_path / "out.endocil", "--gate", tmp_path / "gate.toml")
    assert done.returncode == 1
    assert "REFUSED: 1 of " in done.stderr
    assert "sensitivity (c)" in done.stderr
    assert "These are held-out images; " in done.stderr
    assert "is not written" in done.stderr
    assert sorted(tmp_path.iterdir()) == before
    harmless = Rules.model_validate({"overall": {"largest_loss_of_accuracy": 100.0}})
    learn(first, listing, tmp_path / "out.endocil", rules=harmless)
    assert (tmp_path / "out.endocil").exists()


def test_a_gate_without_held_out_images_is_refused_before_learning(first: Path, tmp_path: Path) -> None:
    model = Model.load(first)
    model.held_out = model.held_out.take([])
    model.save(tmp_path / "bare.endocil")
    rules = Rules.model_validate({"overall": {"largest_loss_of_accuracy": 5.0}})
    listing = newcomers(tmp_path, "c")
    with pytest.raises(EndocilError, match="--gate: no held-out images") as refused:
        learn(tmp_path / "bare.endocil", listing, tmp_path / "out.endocil", rules=rules)
    assert not isinstance(refused.value, RefusedError)
    told: list[str] = []
    learn(tmp_path / "bare.endocil", listing, tmp_path / "out.endocil", log=told.append, validation=0.0)
    assert any("what learning cost" in line and "not measured" in line for line in told)


def harmful(first: Path) -> LearningCost:
    """A model that knew all 20 images of `a`, and now takes 12 of them for the new class."""
    model = Model.load(first)
    provenance = tuple(Provenance(str(i), NAMES[i // 20], 0, 0, "", "A") for i in range(60))
    pixels = torch.zeros(60, 32, 32, 3, dtype=torch.uint8)
    model.held_out = KeptImages(pixels, provenance)
    old = model.predict_kept(model.held_out)
    scores = np.eye(2, dtype=np.float32)[np.repeat([0, 1, 1], 20)]
    model.held_out_before = replace(old, scores=scores, distances=None)
    now = np.eye(3, dtype=np.float32)[np.repeat([2, 0, 1, 2], [12, 8, 20, 20])]
    after = replace(old, scores=now, classes=NAMES, labels=np.repeat([0, 1, 2], 20), distances=None)
    model.predict_kept = lambda kept: after  # type: ignore[method-assign]
    cost = learning_cost(model)
    assert cost is not None
    return cost


def test_harm_that_is_shown_is_warned_of_and_the_confusion_that_grew_is_named(first: Path) -> None:
    cost = harmful(first)
    assert [each.name for each in cost.harmed] == ["a"]
    assert cost.confusions == (("a", "c", 0, 12),)
    (warning,) = [line for line in cost.lines if line.startswith("WARNING")]
    assert "'a' has lost 60.0 points of recall (" in warning
    assert "  b: 100.0 -> 100.0 " in "\n".join(cost.lines)
    assert "  c (new): 100.0 " in "\n".join(cost.lines)


def test_a_model_that_has_learned_once_has_no_cost(first: Path) -> None:
    assert learning_cost(Model.load(first)) is None
