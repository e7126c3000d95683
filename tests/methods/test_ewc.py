"""EWC: the Fisher matrix, the penalty, and what holds of them through a life."""

import copy
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
from endocil.methods.base import Phase, Schedule, TaskData
from endocil.methods.ewc import EWC, penalty

CPU = torch.device("cpu")


def in_second_task(life: Life) -> tuple[Task, TaskData, Phase]:
    """Learn the first task and make room for the second."""
    task, data = life.scenario.tasks[1], life.live(1).data(life.scenario.tasks[1])
    life.method.grow(task)
    (phase,) = life.method.phases(task, data)
    return task, data, phase


def a_batch(phase: Phase, n: int = 8) -> Batch:
    return next(iter(training_batches(phase.images, n, None, 0, ("test",), CPU)))


def names(method: EWC, kind: str) -> dict[str, Tensor]:
    return {key[len(kind) + 1 :]: v for key, v in method.statistics.items() if key.startswith(f"{kind}/")}


def moved(method: EWC, by: float = 0.01) -> None:
    """Push every parameter off its anchor."""
    random = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in method.parameters():
            parameter.add_(by * torch.randn(parameter.shape, generator=random))


@pytest.mark.parametrize("how", ["batch", "sample", "pycil"])
def test_the_fisher_matrix_equals_a_plain_loop_over_batches_or_images(how: str, images: Images, tmp_path: Path) -> None:
    life = Life(images, tmp_path, new_method("ewc", fisher=how, fisher_max=1e9))
    task = life.scenario.tasks[0]
    data = life.data(task)
    life.method.grow(task)
    with torch.no_grad():  # batch norm sees the images, so that nothing explodes in eval mode
        for batch in training_batches(data.new, 8, None, 0, ("settle",), CPU):
            for _ in range(10):
                life.method.train()(batch.images)
    network = copy.deepcopy(life.method).double().train(how == "pycil")
    life.method.consolidate(task, data)
    totals, pieces = {name: torch.zeros_like(p) for name, p in network.named_parameters()}, 0
    for batch in training_batches(data.new, 8, data.augmentation, 0, (0, "fisher"), CPU):
        groups = [[i] for i in range(len(batch))] if how == "sample" else [list(range(len(batch)))]
        for group in groups:
            network.zero_grad()
            log_p = torch.log_softmax(network(batch.images[group].double()), dim=1)
            (-log_p[range(len(group)), batch.labels[group]].sum() / len(group)).backward()
            for name, parameter in network.named_parameters():
                totals[name] += parameter.grad**2
            pieces += 1
    found = names(life.method, "fisher")
    assert found.keys() == totals.keys()
    near = 1e-2 if how == "pycil" else 1e-4  # batch norm over 8 images is coarse in float32
    for name, total in totals.items():
        atol = near * float(total.max()) / pieces / 10
        assert torch.allclose(found[name].double(), total / pieces, rtol=near, atol=atol), name


@pytest.mark.parametrize("how", ["batch", "sample", "pycil"])
def test_measuring_moves_batch_norm_statistics_only_as_pycil_does(how: str, images: Images, tmp_path: Path) -> None:
    life = Life(images, tmp_path, new_method("ewc", fisher=how))
    task = life.scenario.tasks[0]
    life.method.grow(task)
    before = life.method.state_dict(), copy.deepcopy(life.method.state_dict())
    life.method.consolidate(task, life.data(task))
    changed = differing(*before)
    assert bool(changed) == (how == "pycil")
    assert all("running" in name or "num_batches" in name for name in changed)
    assert not any(module.training for module in life.method.modules())


def test_frozen_stages_have_no_fisher_matrix_and_stay_while_it_is_measured(images: Images, tmp_path: Path) -> None:
    method = new_method("ewc", epochs=1, fisher="pycil", freeze=("stem", "layer1"))
    before = state_of(method)
    Life(images, tmp_path, method).live(2)
    frozen = ("backbone.conv1", "backbone.bn1", "backbone.layer1")
    kept = [key for key in before if key.startswith(frozen)]
    assert differing({k: before[k] for k in kept}, {k: state_of(method)[k] for k in kept}) == []
    assert not [name for name in names(method, "fisher") if name.startswith(frozen)]
    assert "backbone.layer2.0.conv1.weight" in names(method, "fisher")


def test_after_each_task_the_fisher_matrix_is_within_its_limits_and_the_anchor_is_the_network(
    images: Images, tmp_path: Path
) -> None:
    life = Life(images, tmp_path, new_method("ewc"))  # one of its tasks has one class, another three
    for task in life.scenario.tasks:
        life.step(task)
        parameters = dict(life.method.named_parameters())
        fisher, anchor = names(life.method, "fisher"), names(life.method, "anchor")
        assert fisher.keys() == anchor.keys() == parameters.keys()
        for name, parameter in parameters.items():
            assert fisher[name].shape == parameter.shape
            assert torch.equal(anchor[name], parameter)
            assert 0.0 <= float(fisher[name].min()) <= float(fisher[name].max()) <= 1e-4
        greatest = max(float(values.max()) for values in fisher.values())
        assert task.index > 0 or greatest == pytest.approx(1e-4)  # the limit is felt
    assert life.memory is None


def test_fisher_matrices_are_merged_by_the_share_of_old_classes_and_new_rows_have_no_past(
    images: Images, tmp_path: Path
) -> None:
    life = Life(images, tmp_path, new_method("ewc", epochs=1), increments=(4, 2)).live(1)
    old = names(life.method, "fisher")
    task = life.scenario.tasks[1]
    life.step(task)
    new = life.method._fisher_diagonal(task, life.data(task))  # of this task alone: the weights are the same
    for name, merged in names(life.method, "fisher").items():
        known = len(old[name])
        expected = 4 / 6 * old[name] + 2 / 6 * new[name][:known]
        assert torch.allclose(merged[:known], expected, rtol=1e-6, atol=1e-12), name
        assert torch.equal(merged[known:], new[name][known:])
    assert len(merged) == 6  # the last is the classifier's bias
    assert bool(new["classifier.bias"][:4].any())  # the loss it is measured by sees old logits too


def test_at_the_anchor_the_penalty_and_its_gradient_are_0(images: Images, tmp_path: Path) -> None:
    life = Life(images, tmp_path, new_method("ewc", epochs=1))
    _, _, phase = in_second_task(life)
    loss = phase.objective(a_batch(phase)).losses["penalty"]
    gradients = torch.autograd.grad(loss, list(life.method.parameters()))
    assert loss.item() == 0.0
    assert all(float(gradient.abs().max()) == 0.0 for gradient in gradients)


def test_the_penalty_and_its_gradient_equal_the_formula(images: Images, tmp_path: Path) -> None:
    life = Life(images, tmp_path, new_method("ewc", epochs=1, strength=70.0), increments=(3, 3))
    _, _, phase = in_second_task(life)
    moved(life.method)
    loss, total = phase.objective(a_batch(phase)).losses["penalty"], 0.0
    learning = dict(life.method.named_parameters())
    gradients = torch.autograd.grad(loss, list(learning.values()))
    for (name, parameter), gradient in zip(learning.items(), gradients, strict=True):
        anchor, fisher = life.method.statistics[f"anchor/{name}"], life.method.statistics[f"fisher/{name}"]
        away = parameter.detach()[: len(anchor)].double() - anchor.double()
        total += 70.0 / 2 * float((fisher.double() * away**2).sum())
        assert torch.allclose(gradient[: len(anchor)], (70.0 * fisher * away).float(), rtol=1e-4, atol=1e-12)
        assert bool((gradient[len(anchor) :] == 0).all())  # rows of new classes are free
    assert loss.item() == pytest.approx(total, rel=1e-5)


def test_the_penalty_has_the_same_bits_when_its_matrices_come_from_a_checkpoint(images: Images, tmp_path: Path) -> None:
    life = Life(images, tmp_path, new_method("ewc", epochs=1)).live(1)
    moved(life.method)
    named = dict(life.method.named_parameters())
    fisher, anchor = names(life.method, "fisher"), names(life.method, "anchor")
    straight = penalty([(named[name], fisher[name], anchor[name]) for name in named])
    resumed = penalty([(named[name], fisher[name].contiguous(), anchor[name].contiguous()) for name in named])
    assert fisher["backbone.conv1.weight"].stride() != fisher["backbone.conv1.weight"].contiguous().stride()
    assert torch.equal(straight, resumed)


def test_the_loss_of_the_labels_is_cross_entropy_over_the_new_classes(images: Images, tmp_path: Path) -> None:
    life = Life(images, tmp_path, new_method("ewc", epochs=1), increments=(3, 3))
    _, _, phase = in_second_task(life)
    life.method.train()
    batch = a_batch(phase)
    outcome = phase.objective(batch)
    assert set(outcome.losses) == {"classification", "penalty"}
    values = (present(outcome.logits).tolist(), batch.labels.tolist(), outcome.losses["classification"].tolist())
    for row, label, loss in zip(*values, strict=True):
        new = [math.exp(z) for z in row[3:]]
        assert loss == pytest.approx(-math.log(new[label - 3] / sum(new)), rel=1e-5, abs=1e-6)
    assert not phase.images.from_memory.any()


def test_a_stronger_penalty_holds_the_network_nearer_to_its_anchor(images: Images, tmp_path: Path) -> None:
    def distance(strength: float) -> float:
        life = Life(images, tmp_path / str(strength), new_method("ewc", strength=strength)).live(1)
        fisher, anchor = names(life.method, "fisher"), names(life.method, "anchor")
        life.step(life.scenario.tasks[1])
        named = dict(life.method.named_parameters())
        return penalty([(named[name], fisher[name], anchor[name]) for name in fisher]).item()

    assert distance(1e4) < distance(1000.0) < distance(0.0)


def test_one_new_class_and_images_of_known_classes_take_all_seen_logits(images: Images, tmp_path: Path) -> None:
    life = Life(images, tmp_path, new_method("ewc", epochs=1), increments=(2, 1, 3))
    task, data, phase = in_second_task(life)
    assert len(data.new) % 8 == 1  # a last batch of one joins the one before, in training and in measuring
    outcome = phase.objective(batch := a_batch(phase))
    expected = functional.cross_entropy(present(outcome.logits), batch.labels, reduction="none")
    assert torch.equal(outcome.losses["classification"], expected)
    assert "one new class" in life.method.notes(task, data)[0]

    again = Life(images, tmp_path / "again", new_method("ewc", epochs=1), increments=(2, 4)).live(1)
    task = again.scenario.tasks[1]
    rows = torch.cat([again.scenario.rows("train", slice(1, 2)), again.scenario.rows("train", task.new)])
    again.learner.learn(task, ImageSet.of(images, rows), again.images.table.classes)
    assert '"images of known classes: cross-entropy' in (again.folder / "events.jsonl").read_text("utf-8")
    assert len(again.method.statistics["fisher/classifier.bias"]) == 6


def test_prediction_needs_the_backbone_and_the_classifier(images: Images, tmp_path: Path) -> None:
    method = Life(images, tmp_path, new_method("ewc", epochs=1)).live(2).method
    touched = torch.autograd.grad(method(torch.randn(2, 3, 32, 32)).sum(), list(method.parameters()))
    needed = {parameter for module in method.predictors for parameter in module.parameters()}
    assert len(touched) == len(needed)
    assert needed == set(method.parameters())


def test_options_have_pycils_defaults_and_wrong_values_are_refused() -> None:
    defaults = {"strength": 1000.0, "fisher": "batch", "fisher_max": 1e-4, "native_schedule": False}
    assert method_options("ewc") == defaults
    for option, value in (("strength", -1.0), ("strength", float("nan")), ("fisher_max", 0.0)):
        wrong: dict[str, Any] = {option: value}
        with pytest.raises(EndocilError, match=rf"method\.{option} is {value}; expected a number"):
            new_method("ewc", **wrong)
    with pytest.raises(EndocilError, match=r"method\.fisher: input should be 'batch', 'sample' or 'pycil'"):
        new_method("ewc", fisher="exact")
    unknown: Any = "exact"
    with pytest.raises(EndocilError, match=r"method\.fisher is 'exact'; known: batch, sample, pycil"):
        EWC(new_method("ewc").backbone, fisher=unknown)


def test_its_own_schedule_is_pycils() -> None:
    schedule = new_method("ewc", native_schedule=True).schedule
    common: dict[str, Any] = {"learning_rate": 0.1, "batch_size": 128, "momentum": 0.9, "cosine": False}
    first = Schedule(epochs=200, milestones=(60, 120, 170), weight_decay=5e-4, **common)
    later = Schedule(epochs=180, milestones=(70, 120, 150), weight_decay=2e-4, **common)
    assert [schedule(task) for task in (Task(0, 0, 4), Task(1, 4, 3), Task(2, 7, 3))] == [first, later, later]
