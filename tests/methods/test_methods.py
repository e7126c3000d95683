"""Each method's own invariants."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from life import QUOTA, Life, Lives, differing, new_method, state_of
from present import present
from torch.nn import functional

from endocil import EndocilError, class_balanced_weights
from endocil.components.gradients import CalibratedGradient
from endocil.data.batches import Batch, training_batches
from endocil.data.cache import Images
from endocil.data.scenario import Task
from endocil.methods import common, method_options
from endocil.methods.base import Schedule, shared_schedule


def lived(images: Images, folder: Path, name: str, *, select: str | None = None, **options: Any) -> Life:
    return Life(images, folder, new_method(name, **options), select=select).live()


def test_joint_training_is_finetune_on_a_single_task_bit_for_bit(images: Images, tmp_path: Path) -> None:
    joint = lived(images, tmp_path / "joint", "joint")
    finetune = Life(images, tmp_path / "finetune", new_method("finetune"), increments=(6,)).live()
    assert len(joint.scenario.tasks) == 1
    assert joint.memory is None
    assert differing(state_of(joint.method), state_of(finetune.method)) == []


def test_finetune_gives_old_rows_no_gradient_from_the_data(images: Images, tmp_path: Path) -> None:
    life = Life(images, tmp_path, new_method("finetune"), increments=(3, 3)).live(1)
    task = life.scenario.tasks[1]
    life.method.grow(task)
    (phase,) = life.method.phases(task, life.data(task))
    life.method.train()
    pictures = functional.interpolate(torch.randn(6, 3, 8, 8), 32)
    features = life.method.embed(pictures)
    logits = life.method.classify(features)
    labels, new = torch.tensor([3, 4, 5, 3, 4, 5]), torch.zeros(6, dtype=torch.bool)
    cross_entropy = common.cross_entropy_on_new(life.method, task, life.data(task))
    cross_entropy(logits, Batch(pictures, labels, new, labels, new)).mean().backward()
    assert float(life.method.classifier.weight.grad[task.old].abs().max()) == 0.0
    assert float(life.method.classifier.bias.grad[task.old].abs().max()) == 0.0
    assert float(life.method.classifier.weight.grad[task.new].abs().min()) > 0.0
    assert not phase.images.from_memory.any()


def test_finetunes_old_rows_move_by_weight_decay_alone(images: Images, tmp_path: Path) -> None:
    life = Life(images, tmp_path, new_method("finetune"), increments=(3, 3)).live(1)
    before = life.method.classifier.weight.detach().clone()
    life.step(life.scenario.tasks[1])
    after = life.method.classifier.weight.detach()[:3]
    cosine = functional.cosine_similarity(before, after)
    assert torch.allclose(cosine, torch.ones(3), atol=1e-5)
    assert bool((after.norm(dim=1) < before.norm(dim=1)).all())


def test_one_new_class_takes_all_seen_logits_and_the_log_says_so(images: Images, tmp_path: Path) -> None:
    life = Life(images, tmp_path, new_method("finetune"), increments=(2, 1, 3))
    logits, labels, task = torch.randn(4, 3), torch.tensor([2, 2, 2, 2]), life.scenario.tasks[1]
    new = torch.zeros(4, dtype=torch.bool)
    batch = Batch(torch.zeros(4, 3, 8, 8), labels, new, labels, new)
    loss = common.cross_entropy_on_new(life.method, task, life.data(task))(logits, batch)
    assert torch.equal(loss, functional.cross_entropy(logits, labels, reduction="none"))
    assert "one new class" in life.method.notes(task, life.data(task))[0]
    later = life.scenario.tasks[2]
    assert life.method.notes(later, life.data(later)) == []


def test_icarl_keeps_the_quota_of_distinct_training_images_of_each_class(images: Images, tmp_path: Path) -> None:
    life = lived(images, tmp_path, "icarl")
    train = set(life.scenario.rows("train", slice(0, 6)).tolist())
    for label, rows in life.kept_rows().items():
        mine = [row for row in train if images.table.labels[row] == label]
        assert len(rows) == len(set(rows.tolist())) == min(QUOTA, len(mine))
        assert set(rows.tolist()) <= set(mine)


def test_exemplars_of_old_classes_never_change(images: Images, tmp_path: Path) -> None:
    life = Life(images, tmp_path, new_method("icarl"))
    life.step(life.scenario.tasks[0])
    first = {label: rows.tolist() for label, rows in life.kept_rows().items()}
    for task in life.scenario.tasks[1:]:
        before = len(life.memory)
        life.step(task)
        grown = sum(min(QUOTA, int(n)) for n in life.new_images(task).counts(task.n_seen) if n)
        assert len(life.memory) == before + grown
    assert {label: life.kept_rows()[label].tolist() for label in first} == first


def test_class_means_have_length_one(images: Images, tmp_path: Path) -> None:
    means = lived(images, tmp_path, "icarl").method.statistics["class_means"]
    assert means.shape == (6, 64)
    assert torch.allclose(means.norm(dim=1), torch.ones(6), atol=1e-5)


def test_the_teacher_is_the_network_before_the_task_and_stays_so(lives: Lives, tmp_path: Path) -> None:
    life = lives.after("icarl", 1, tmp_path)
    before = state_of(life.method)
    life.step(life.scenario.tasks[1])
    after = state_of(life.method)
    for name in before:
        if name.startswith("backbone."):
            assert torch.equal(after[f"teacher.0.{name[9:]}"], before[name]), name
    assert torch.equal(after["teacher.1.weight"], before["classifier.weight"])


def test_endocil_with_its_three_components_exchanged_is_icarl_bit_for_bit(images: Images, tmp_path: Path) -> None:
    icarl = lived(images, tmp_path / "icarl", "icarl")
    exchanged = lived(images, tmp_path / "endocil", "endocil", select="mean", loss="cross_entropy", gradients="plain")
    assert differing(state_of(icarl.method), state_of(exchanged.method)) == []
    assert icarl.memory.records() == exchanged.memory.records()


@pytest.mark.parametrize(
    "exchange",
    [
        {"loss": "cross_entropy"},
        {"gradients": "plain"},
        {"reduction": "weights"},
        {"gamma_max": 0.1},
        {"distil_weight": "class_ratio"},
    ],
)
def test_each_component_of_endocil_does_something(images: Images, tmp_path: Path, exchange: dict[str, Any]) -> None:
    whole = lived(images, tmp_path / "whole", "endocil")
    other = lived(images, tmp_path / "other", "endocil", **exchange)
    assert "classifier.weight" in differing(state_of(whole.method), state_of(other.method))


def test_the_first_task_of_endocil_has_the_prior_but_neither_weights_nor_calibration(
    images: Images, tmp_path: Path
) -> None:
    life = Life(images, tmp_path, new_method("endocil", beta=0.5))
    other = Life(images, tmp_path / "other", new_method("endocil", beta=0.99))
    assert differing(state_of(life.live(1).method), state_of(other.live(1).method)) == []
    task = life.scenario.tasks[1]
    life.method.grow(task)
    (phase,) = life.method.phases(task, life.data(task))
    assert isinstance(phase.gradients, CalibratedGradient)


def test_reduction_by_weights_divides_by_the_mean_weight_of_the_whole_batch() -> None:
    counts, task = torch.tensor([4, 30, 9]), Task(1, 2, 1)
    labels, logits = torch.tensor([0, 2, 2, 1]), torch.randn(4, 3)
    new = torch.zeros(4, dtype=torch.bool)
    whole = Batch(logits, labels, new, labels, new)
    half = Batch(logits[:2], labels[:2], new[:2], labels, new)
    by_images = new_method("endocil").label_loss(task, counts)
    by_weights = new_method("endocil", reduction="weights").label_loss(task, counts)
    mean_weight = class_balanced_weights(counts)[labels].mean().float()
    assert torch.allclose(by_weights(logits, whole), by_images(logits, whole) / mean_weight)
    assert torch.allclose(by_weights(logits[:2], half), by_images(logits[:2], half) / mean_weight)


def test_distillation_by_class_ratio_equals_a_plain_loop_times_old_over_new_classes(
    images: Images, tmp_path: Path
) -> None:
    life = Life(images, tmp_path, new_method("endocil", distil=0.5, distil_weight="class_ratio"), increments=(4, 2))
    life.live(1)
    task = life.scenario.tasks[1]
    life.method.grow(task)
    (phase,) = life.method.phases(task, life.data(task))
    batch = next(iter(training_batches(phase.images, 8, None, 0, ("test",), torch.device("cpu"))))
    life.method.train()
    outcome, teacher = phase.objective(batch), life.method.teacher(batch.images)
    for i, (row, taught) in enumerate(zip(present(outcome.logits).tolist(), teacher.tolist(), strict=True)):
        p, q = [math.exp(z / 2) for z in taught], [math.exp(z / 2) for z in row[:4]]
        kept = -sum(a / sum(p) * math.log(b / sum(q)) for a, b in zip(p, q, strict=True))
        assert outcome.losses["distillation"][i].item() == pytest.approx(0.5 * 4 / 2 * kept, rel=1e-4)


def test_unknown_options_and_values_are_refused_with_the_known() -> None:
    with pytest.raises(
        EndocilError, match="unknown method key 'temprature'; known: beta, distil, distil_weight, gamma_max"
    ):
        new_method("endocil", temprature=2.0)
    with pytest.raises(
        EndocilError, match=r"method\.loss: input should be 'cross_entropy' or 'prior_regularized', got 'focal'"
    ):
        new_method("endocil", loss="focal")
    with pytest.raises(
        EndocilError, match=r"unknown method.name 'endo'; known: analytic, bic, der, derpp, dgr, endocil, er_ace, ewc"
    ):
        new_method("endo")
    assert method_options("finetune") == {"native_schedule": False}


def test_the_shared_schedule_is_the_papers() -> None:
    schedule = shared_schedule()
    first, later = schedule(Task(0, 0, 4)), schedule(Task(1, 4, 3))
    assert (first.weight_decay, later.weight_decay) == (5e-4, 2e-4)
    assert first == Schedule()
    rates = [first.learning_rate_at(epoch) for epoch in (0, 49, 50, 69, 70, 99)]
    assert rates == pytest.approx([0.1, 0.1, 0.01, 0.01, 0.001, 0.001])


@pytest.mark.parametrize(
    ("name", "option", "value"),
    [("memo", "train_base", "no"), ("wa", "native_schedule", "off"), ("mrfa", "step", True), ("lwf", "distil", "2")],
)
def test_a_word_is_no_switch_and_a_switch_no_number(name: str, option: str, value: object) -> None:
    wrong: dict[str, Any] = {option: value}
    with pytest.raises(EndocilError, match=rf"method\.{option}: .*, got {value!r}"):
        new_method(name, **wrong)


def test_a_whole_number_is_a_number() -> None:
    assert new_method("lwf", distil=2).distil == 2
