"""WA: losses weighted by the ratio of old classes, and rows of equal length afterwards."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from life import QUOTA, Life, differing, new_method, state_of
from present import present
from torch import Tensor
from torch.nn import functional

from endocil import EndocilError
from endocil.data.batches import Batch, ImageSet, training_batches
from endocil.data.cache import Images
from endocil.data.scenario import Task
from endocil.learning.events import read_events
from endocil.learning.training import fit
from endocil.methods import common, method_options
from endocil.methods.base import Method, Phase, Schedule


def in_second_task(life: Life) -> tuple[Task, Phase]:
    """Learn the first task and make room for the second."""
    life.live(1)
    task = life.scenario.tasks[1]
    life.method.grow(task)
    (phase,) = life.method.phases(task, life.data(task))
    return task, phase


def a_batch(images: ImageSet, n: int = 8) -> Batch:
    return next(iter(training_batches(images, n, None, 0, ("test",), torch.device("cpu"))))


def life_of(images: Images, folder: Path, **options: Any) -> Life:
    return Life(images, folder, new_method("wa", epochs=1, **options), increments=(4, 2))


def lengths(method: Method) -> Tensor:
    norms: Tensor = method.classifier.weight.detach().norm(dim=1)
    return norms


def test_the_losses_equal_a_plain_loop_weighed_by_the_share_of_old_classes(images: Images, tmp_path: Path) -> None:
    life = life_of(images, tmp_path)
    _, phase = in_second_task(life)
    batch = a_batch(phase.images)
    assert 0 < int(batch.from_memory.sum()) < len(batch)
    life.method.train()
    outcome, teacher = phase.objective(batch), life.method.teacher(batch.images)
    assert set(outcome.losses) == {"classification", "distillation"}
    rows = zip(present(outcome.logits).tolist(), teacher.tolist(), batch.labels.tolist(), strict=True)
    for i, (row, teacher_logits, label) in enumerate(rows):
        all_seen = [math.exp(z) for z in row]
        p, q = [math.exp(z / 2) for z in teacher_logits], [math.exp(z / 2) for z in row[:4]]
        kept = -sum(a / sum(p) * math.log(b / sum(q)) for a, b in zip(p, q, strict=True))
        answer = -math.log(all_seen[label] / sum(all_seen))
        assert outcome.losses["classification"][i].item() == pytest.approx(2 / 6 * answer, rel=1e-4, abs=1e-6)
        assert outcome.losses["distillation"][i].item() == pytest.approx(4 / 6 * kept, rel=1e-4)


def test_the_gradient_of_the_logits_is_the_weighed_sum_of_both(images: Images, tmp_path: Path) -> None:
    life = life_of(images, tmp_path)
    _, phase = in_second_task(life)
    life.method.teacher[1].weight.zero_()  # a teacher in doubt: a young one is too sure for a gradient
    life.method.train()
    outcome = phase.objective(batch := a_batch(phase.images))
    total = torch.stack([loss.sum() for loss in outcome.losses.values()]).sum()
    (found,) = torch.autograd.grad(total, present(outcome.logits))
    logits, teacher_logits = present(outcome.logits).detach().double(), life.method.teacher(batch.images).double()
    answer = torch.softmax(logits, dim=1) - functional.one_hot(batch.labels, 6)
    held = (torch.softmax(logits[:, :4] / 2, dim=1) - torch.softmax(teacher_logits / 2, dim=1)) / 2
    assert held.abs().max() > 0.01
    expected = 2 / 6 * answer + 4 / 6 * functional.pad(held, (0, 2))
    assert torch.allclose(found.double(), expected, atol=1e-6)


def test_after_each_later_task_old_and_new_rows_are_equally_long_on_average(images: Images, tmp_path: Path) -> None:
    life = Life(images, tmp_path, new_method("wa", epochs=1))  # tasks of 2, 1 and 3 classes
    for task in life.scenario.tasks:
        life.step(task)
        if task.index > 0:
            old, new = lengths(life.method)[task.old].mean(), lengths(life.method)[task.new].mean()
            assert new.item() == pytest.approx(old.item(), rel=1e-6)
            assert common.alignment_factor(life.method.classifier, task).item() == pytest.approx(1.0, rel=1e-6)
            before = life.method.classifier.weight.detach().clone()
            life.method.consolidate(task, life.data(task))  # a second time does nothing
            assert torch.allclose(life.method.classifier.weight, before, rtol=1e-5, atol=0.0)


def test_alignment_scales_the_new_rows_by_one_number_and_touches_nothing_else(images: Images, tmp_path: Path) -> None:
    life = life_of(images, tmp_path)
    task, phase = in_second_task(life)
    options: dict[str, Any] = {
        "fabric": life.fabric,
        "augmentation": life.learner.augmentation,
        "seed": 0,
        "key": (1, 0),
    }
    list(fit(phase, life.method, **options, logged_head=life.method.classifier))
    before = state_of(life.method)
    ratio = lengths(life.method)[task.old].double().mean() / lengths(life.method)[task.new].double().mean()
    life.method.consolidate(task, life.data(task))
    after = state_of(life.method)
    assert abs(ratio.item() - 1.0) > 1e-3
    assert differing(before, after) == ["classifier.weight"]  # biases too stay as they are
    old, new = before["classifier.weight"], after["classifier.weight"]
    assert torch.equal(old[task.old], new[task.old])
    assert torch.allclose(new[task.new], (ratio * old[task.new].double()).float(), rtol=1e-6)


def test_without_biases_the_order_of_the_new_classes_stays(images: Images, tmp_path: Path) -> None:
    life = Life(images, tmp_path, new_method("wa", epochs=1), increments=(2, 4))
    task, _ = in_second_task(life)
    classifier = life.method.classifier
    with torch.no_grad():
        classifier.bias.zero_()
        classifier.weight[task.new] *= 3.0
        features = torch.randn(50, 64)
        before = classifier(features)[:, task.new].argsort(dim=1)
        common.align(classifier, task)
        assert torch.equal(classifier(features)[:, task.new].argsort(dim=1), before)


def test_the_first_task_is_plain_cross_entropy_and_is_not_aligned(images: Images, tmp_path: Path) -> None:
    life = life_of(images, tmp_path)
    task = life.scenario.tasks[0]
    life.method.grow(task)
    (phase,) = life.method.phases(task, life.data(task))
    outcome = phase.objective(batch := a_batch(phase.images))
    assert set(outcome.losses) == {"classification"}
    expected = functional.cross_entropy(outcome.logits, batch.labels, reduction="none")
    assert torch.equal(outcome.losses["classification"], expected)
    before = state_of(life.method)
    life.method.consolidate(task, life.data(task))
    assert differing(before, state_of(life.method)) == []


def test_the_teacher_is_the_aligned_network_of_the_task_before(images: Images, tmp_path: Path) -> None:
    life = Life(images, tmp_path, new_method("wa", epochs=1)).live(2)
    aligned = life.method.classifier.weight.detach().clone()
    life.method.grow(life.scenario.tasks[2])
    assert torch.equal(life.method.teacher[1].weight, aligned)
    assert not any(parameter.requires_grad for parameter in life.method.teacher.parameters())
    assert not any(module.training for module in life.method.teacher.modules())


@pytest.mark.parametrize("name", ["wa", "der", "memo"])
def test_the_factor_of_the_alignment_is_in_the_event_of_each_later_task(
    images: Images, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    life = Life(images, tmp_path, new_method(name, epochs=1))
    factors, plain = list[float](), common.align

    def align(classifier: torch.nn.Linear, task: Task) -> float:
        factors.append(common.alignment_factor(classifier, task).item())
        return plain(classifier, task)

    monkeypatch.setattr(common, "align", align)
    life.live()
    learned = [event for event in read_events(life.journal.path) if event["event"] == "learned"]
    expected = [{}, *({"alignment": pytest.approx(factor)} for factor in factors)]
    assert [event["measured"] for event in learned] == expected
    assert len(factors) == 2


def test_rows_are_aligned_before_exemplars_are_chosen(
    images: Images, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    life = life_of(images, tmp_path).live(1)
    task, choose, ratios = life.scenario.tasks[1], life.memory.choose, []

    def watched(*arguments: object) -> object:
        ratios.append(common.alignment_factor(life.method.classifier, task).item())
        return choose(*arguments)

    monkeypatch.setattr(life.memory, "choose", watched)
    life.step(task)
    assert ratios == [pytest.approx(1.0, rel=1e-6)]


def test_it_learns_from_new_images_and_exemplars_and_keeps_the_quota_or_all_of_a_small_class(
    images: Images, tmp_path: Path
) -> None:
    life = Life(images, tmp_path, new_method("wa", epochs=1))
    for task in life.scenario.tasks:
        exemplars, new = len(life.memory), len(life.new_images(task))
        life.step(task)
        (phase,) = life.method.phases(task, life.data(task))
        assert phase.images.from_memory.tolist() == [False] * new + [True] * len(life.memory)
        assert task.index != 1 or (new + exemplars) % 8 == 1  # a last batch of one joins the one before
    counts = [len(rows) for rows in life.kept_rows().values()]
    assert counts == [QUOTA, QUOTA, QUOTA, 3, QUOTA, QUOTA]


def test_a_batch_without_exemplars_has_both_losses(images: Images, tmp_path: Path) -> None:
    life = life_of(images, tmp_path)
    task, phase = in_second_task(life)
    losses = phase.objective(a_batch(life.new_images(task))).losses
    assert set(losses) == {"classification", "distillation"}
    assert all(bool(loss.isfinite().all()) for loss in losses.values())


def test_images_of_known_classes_are_learned_and_compete_with_the_old_exemplars(images: Images, tmp_path: Path) -> None:
    life = life_of(images, tmp_path).live(1)
    task = life.scenario.tasks[1]
    old = life.kept_rows()[0].tolist()
    more = [row for row in life.scenario.rows("train", slice(0, 1)).tolist() if row not in old]
    life.learner.learn(task, ImageSet.of(images, torch.tensor(more)) + life.new_images(task), life.images.table.classes)
    assert set(life.kept_rows()[0].tolist()) <= {*old, *more}
    assert len(life.kept_rows()[0]) == QUOTA
    assert common.alignment_factor(life.method.classifier, task).item() == pytest.approx(1.0, rel=1e-6)


def test_the_temperature_softens_the_distillation(images: Images, tmp_path: Path) -> None:
    life = life_of(images, tmp_path, temperature=1e6)
    _, phase = in_second_task(life)
    life.method.train()
    kept = phase.objective(a_batch(phase.images)).losses["distillation"]
    even = torch.full_like(kept, 4 / 6 * math.log(4))  # every answer becomes even: the entropy of four classes
    assert torch.allclose(kept, even, rtol=1e-4)


def test_prediction_needs_the_backbone_and_the_classifier_but_not_the_teacher(images: Images, tmp_path: Path) -> None:
    method = Life(images, tmp_path, new_method("wa", epochs=1)).live(2).method.requires_grad_(True)
    all_of_it = list(method.parameters())
    gradients = torch.autograd.grad(method(torch.randn(2, 3, 32, 32)).sum(), all_of_it, allow_unused=True)
    touched = {id(p) for p, gradient in zip(all_of_it, gradients, strict=True) if gradient is not None}
    needed = {id(parameter) for module in method.predictors for parameter in module.parameters()}
    assert touched == needed
    assert len(all_of_it) == 2 * len(needed)


def test_options_have_pycils_defaults_and_wrong_values_are_refused() -> None:
    assert method_options("wa") == {"temperature": 2.0, "native_schedule": False}
    for value in (0.0, -2.0, float("nan")):
        with pytest.raises(EndocilError, match=rf"method\.temperature is {value}; expected a number above 0"):
            new_method("wa", temperature=value)
    with pytest.raises(EndocilError, match="unknown method key 'distil'; known: native_schedule, temperature"):
        new_method("wa", distil=1.0)


def test_its_own_schedule_is_pycils() -> None:
    schedule = new_method("wa", native_schedule=True).schedule
    common: dict[str, Any] = {"learning_rate": 0.1, "batch_size": 128, "momentum": 0.9, "cosine": False}
    first = Schedule(epochs=200, milestones=(60, 120, 170), weight_decay=5e-4, **common)
    later = Schedule(epochs=170, milestones=(60, 100, 140), weight_decay=2e-4, **common)
    assert [schedule(task) for task in (Task(0, 0, 4), Task(1, 4, 3), Task(2, 7, 3))] == [first, later, later]
