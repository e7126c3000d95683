"""LwF: distillation on the new images, and which rows learn from what."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from life import Life, differing, new_method, state_of
from present import present
from torch import Tensor
from torch.nn import functional

from endocil import EndocilError
from endocil.data.batches import Batch, ImageSet, training_batches
from endocil.data.cache import Images
from endocil.data.scenario import Task
from endocil.methods import method_options
from endocil.methods.base import Phase, Schedule


def in_second_task(life: Life) -> tuple[Task, Phase]:
    """Learn the first task and make room for the second."""
    life.live(1)
    task = life.scenario.tasks[1]
    life.method.grow(task)
    (phase,) = life.method.phases(task, life.data(task))
    return task, phase


def a_batch(phase: Phase, n: int = 8) -> Batch:
    return next(iter(training_batches(phase.images, n, None, 0, ("test",), torch.device("cpu"))))


def life_of(images: Images, folder: Path, **options: Any) -> Life:
    return Life(images, folder, new_method("lwf", epochs=1, **options), increments=(3, 3))


def logits_of(life: Life, batch: Batch) -> tuple[Tensor, Tensor]:
    """The student's logits and the teacher's, small enough for a plain loop: batch norm of the batch itself."""
    life.method.train()
    return life.method(batch.images), life.method.teacher(batch.images)


def test_the_loss_equals_a_plain_loop_over_new_and_old_classes(images: Images, tmp_path: Path) -> None:
    life = life_of(images, tmp_path)
    _, phase = in_second_task(life)
    batch = a_batch(phase)
    student, teacher = logits_of(life, batch)
    outcome = phase.objective(batch)
    assert torch.equal(present(outcome.logits), student)
    assert set(outcome.losses) == {"classification", "distillation"}
    rows = zip(student.tolist(), teacher.tolist(), batch.labels.tolist(), strict=True)
    for i, (row, teacher_logits, label) in enumerate(rows):
        new = [math.exp(z) for z in row[3:]]
        p, q = [math.exp(z / 2) for z in teacher_logits], [math.exp(z / 2) for z in row[:3]]
        kept = -3.0 * sum(a / sum(p) * math.log(b / sum(q)) for a, b in zip(p, q, strict=True))
        expected = -math.log(new[label - 3] / sum(new))
        assert outcome.losses["classification"][i].item() == pytest.approx(expected, rel=1e-4, abs=1e-6)
        assert outcome.losses["distillation"][i].item() == pytest.approx(kept, rel=1e-4)
    assert not phase.images.from_memory.any()


def test_old_rows_learn_from_the_teacher_alone_and_new_rows_from_the_labels_alone(
    images: Images, tmp_path: Path
) -> None:
    life = life_of(images, tmp_path)
    task, phase = in_second_task(life)
    life.method.train()
    losses, classifier = phase.objective(a_batch(phase)).losses, life.method.classifier
    for parameter in (classifier.weight, classifier.bias):
        labels, teacher = (
            torch.autograd.grad(losses[name].mean(), parameter, retain_graph=True)[0]
            for name in ("classification", "distillation")
        )
        assert not labels[task.old].any()
        assert not teacher[task.new].any()
        assert bool(labels[task.new].any())
        assert bool(teacher[task.old].any())


def test_at_the_teacher_distillation_is_its_entropy_and_has_no_gradient(images: Images, tmp_path: Path) -> None:
    life = life_of(images, tmp_path, temperature=500.0)  # answers of a young network are far apart
    task, phase = in_second_task(life)
    batch = a_batch(phase)
    life.method.eval()  # as the teacher is, and the old rows are still the teacher's
    told = functional.softmax(life.method.teacher(batch.images) / 500.0, dim=1)
    entropy = -3.0 * (told * told.log()).sum(dim=1)

    def kept() -> Tensor:
        return phase.objective(batch).losses["distillation"]

    def greatest_gradient() -> float:
        gradients = torch.autograd.grad(kept().mean(), list(life.method.classifier.parameters()))
        return max(gradient.abs().max().item() for gradient in gradients)

    assert torch.allclose(kept(), entropy, rtol=1e-3)  # logits of hundreds, rounded
    at_the_teacher = greatest_gradient()
    with torch.no_grad():
        life.method.classifier.bias[task.old] += 40.0  # the same to all old classes: softened answers coincide
    assert torch.allclose(kept(), entropy, rtol=1e-3)
    shifted = greatest_gradient()
    with torch.no_grad():
        life.method.classifier.bias[0] += 400.0
    assert bool((kept() > entropy).all())
    assert max(at_the_teacher, shifted) < 1e-3 * greatest_gradient()


def test_the_teacher_is_the_network_before_the_task_and_nothing_in_the_first(images: Images, tmp_path: Path) -> None:
    life = Life(images, tmp_path, new_method("lwf", epochs=1))
    for task in life.scenario.tasks:
        before = state_of(life.method)
        life.step(task)
        after = state_of(life.method)
        teacher = {key[8:]: value for key, value in after.items() if key.startswith("teacher.")}
        was = {
            key.replace("backbone", "0").replace("classifier", "1"): value
            for key, value in before.items()
            if not key.startswith("teacher.")
        }
        assert differing(teacher, was if task.index > 0 else {}) == []
        assert "classifier.weight" in differing(before, after)
    assert life.memory is None
    assert life.method.statistics == {}


def test_the_first_task_is_plain_cross_entropy(images: Images, tmp_path: Path) -> None:
    life = life_of(images, tmp_path)
    task = life.scenario.tasks[0]
    life.method.grow(task)
    (phase,) = life.method.phases(task, life.data(task))
    outcome = phase.objective(batch := a_batch(phase))
    assert set(outcome.losses) == {"classification"}
    expected = functional.cross_entropy(present(outcome.logits), batch.labels, reduction="none")
    assert torch.equal(outcome.losses["classification"], expected)


def test_the_weight_scales_the_distillation_and_the_temperature_softens_it(images: Images, tmp_path: Path) -> None:
    def kept(**options: float) -> Tensor:
        life = life_of(images, tmp_path / str(options), **options)
        _, phase = in_second_task(life)
        life.method.train()
        return phase.objective(a_batch(phase)).losses["distillation"]

    usual = kept()
    assert torch.allclose(kept(distil=6.0), 2.0 * usual, rtol=1e-5)
    assert not kept(distil=0.0).any()
    hot = kept(temperature=1e6)  # every answer becomes even: the entropy of three classes
    assert torch.allclose(hot, torch.full_like(hot, 3.0 * math.log(3)), rtol=1e-4)
    assert not torch.allclose(usual, hot, rtol=1e-2)


def test_one_new_class_takes_all_seen_logits_beside_the_teacher(images: Images, tmp_path: Path) -> None:
    life = Life(images, tmp_path, new_method("lwf", epochs=1), increments=(2, 1, 3))
    task, phase = in_second_task(life)
    assert len(phase.images) % 8 == 1  # a last batch of one joins the one before
    outcome = phase.objective(batch := a_batch(phase))
    expected = functional.cross_entropy(present(outcome.logits), batch.labels, reduction="none")
    assert torch.equal(outcome.losses["classification"], expected)
    assert "distillation" in outcome.losses
    assert "one new class" in life.method.notes(task, life.data(task))[0]


def test_images_of_known_classes_take_all_seen_logits_and_the_log_says_so(images: Images, tmp_path: Path) -> None:
    life = life_of(images, tmp_path).live(1)
    task = life.scenario.tasks[1]
    rows = torch.cat([life.scenario.rows("train", slice(1, 2)), life.scenario.rows("train", task.new)])
    life.learner.learn(task, ImageSet.of(images, rows), life.images.table.classes)
    assert '"images of known classes: cross-entropy' in (life.folder / "events.jsonl").read_text("utf-8")
    (phase,) = life.method.phases(task, life.data(task))  # without them, the new classes alone again
    outcome = phase.objective(batch := a_batch(phase))
    alone = functional.cross_entropy(outcome.logits[:, 3:], batch.labels - 3, reduction="none")
    assert torch.equal(outcome.losses["classification"], alone)


def test_prediction_needs_the_backbone_and_the_classifier_but_not_the_teacher(images: Images, tmp_path: Path) -> None:
    method = Life(images, tmp_path, new_method("lwf", epochs=1)).live(2).method.requires_grad_(True)
    all_of_it = list(method.parameters())
    gradients = torch.autograd.grad(method(torch.randn(2, 3, 32, 32)).sum(), all_of_it, allow_unused=True)
    touched = {id(p) for p, gradient in zip(all_of_it, gradients, strict=True) if gradient is not None}
    needed = {id(parameter) for module in method.predictors for parameter in module.parameters()}
    assert touched == needed
    assert len(all_of_it) == 2 * len(needed)


def test_options_have_pycils_defaults_and_wrong_values_are_refused() -> None:
    assert method_options("lwf") == {"temperature": 2.0, "distil": 3.0, "native_schedule": False}
    for option, value in (("temperature", 0.0), ("temperature", -2.0), ("distil", -1.0)):
        wrong: dict[str, Any] = {option: value}
        with pytest.raises(EndocilError, match=rf"method\.{option} is {value}; expected a number"):
            new_method("lwf", **wrong)
    with pytest.raises(EndocilError, match=r"method\.distil: input should be a valid number"):
        new_method("lwf", distil="much")


def test_its_own_schedule_is_pycils() -> None:
    schedule = new_method("lwf", native_schedule=True).schedule
    common: dict[str, Any] = {"learning_rate": 0.1, "batch_size": 128, "momentum": 0.9, "cosine": False}
    first = Schedule(epochs=200, milestones=(60, 120, 160), weight_decay=5e-4, **common)
    later = Schedule(epochs=250, milestones=(60, 120, 180, 220), weight_decay=2e-4, **common)
    assert [schedule(task) for task in (Task(0, 0, 4), Task(1, 4, 3), Task(2, 7, 3))] == [first, later, later]
