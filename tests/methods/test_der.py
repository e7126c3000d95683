"""DER: a new backbone for each task beside frozen ones, an auxiliary head while it learns, rows aligned after."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from life import QUOTA, Life, differing, new_method, state_of
from pictures import make_images
from present import present
from torch import Tensor
from torch.nn import functional

from endocil import EndocilError
from endocil.data.batches import Batch, ImageSet, cut
from endocil.data.cache import Images
from endocil.data.scenario import Task
from endocil.methods import build_method, common, method_options
from endocil.methods.base import Schedule, TaskData, shared_schedule
from endocil.methods.der import DER, auxiliary_labels
from endocil.networks import build_backbone

TASKS = (Task(0, 0, 2), Task(1, 2, 1), Task(2, 3, 3))
SIZES = (11_176_512, 512)  # of ResNet-18: parameters and features


def batch_of(images: Tensor, labels: list[int]) -> Batch:
    known = torch.tensor(labels) < 3
    return Batch(images, torch.tensor(labels), known, torch.tensor(labels), known)


def prepared(**options: Any) -> tuple[DER, Batch, dict[str, Tensor]]:
    """A method in float64 in its third task, a batch of every class, and the losses of that batch."""
    torch.manual_seed(0)
    method = new_method("der", **options)
    for task in TASKS:
        method.grow(task)
        for value in (method.branches[-1] if len(method.branches) else method.backbone).parameters():
            value.data.mul_(1.0 + 0.1 * torch.randn_like(value))  # no two branches alike
    method.double().eval()
    images = functional.interpolate(torch.randn(7, 3, 8, 8, dtype=torch.float64), 32)
    batch = batch_of(images, [0, 1, 2, 3, 4, 5, 4])
    nothing = ImageSet.of(make_images([1] * 6, size=8), torch.arange(6))
    (phase,) = method.phases(TASKS[2], TaskData(nothing, nothing))
    return method, batch, phase.objective(batch).losses


def test_older_backbones_keep_every_bit_and_batch_norm_statistic(images: Images, tmp_path: Path) -> None:
    life = Life(images, tmp_path, new_method("der", epochs=1)).live(1)
    first = state_of(life.method)
    life.step(life.scenario.tasks[1])
    second = state_of(life.method)
    life.step(life.scenario.tasks[2])
    third = state_of(life.method)
    backbone = [name for name in first if name.startswith("backbone.")]
    branch = [name for name in second if name.startswith("branches.0.")]
    assert len(backbone) == len(branch) == 120
    for before in (first, second):
        assert differing({k: before[k] for k in backbone}, {k: third[k] for k in backbone}) == []
    assert differing({k: second[k] for k in branch}, {k: third[k] for k in branch}) == []
    # each branch did learn something of its own
    newest = {name: third[f"branches.1.{name[11:]}"] for name in branch}
    assert len(differing({k: third[k] for k in branch}, newest)) > 100


def test_features_grow_by_those_of_a_backbone_in_each_task(images: Images, tmp_path: Path) -> None:
    life = Life(images, tmp_path, new_method("der", epochs=1))
    for task in life.scenario.tasks:
        life.step(task)
        width = 64 * (task.index + 1)
        assert life.method.embed(torch.randn(2, 3, 32, 32)).shape == (2, width)
        assert life.method.statistics["class_means"].shape == (task.n_seen, width)
        assert life.method.classifier.weight.shape == (task.n_seen, width)
    assert len(life.kept_rows()[3]) == 3 < QUOTA  # a class smaller than the quota keeps all


def test_before_the_first_step_the_old_logits_come_back_with_the_new_columns_at_zero(
    images: Images, tmp_path: Path
) -> None:
    life = Life(images, tmp_path, new_method("der", epochs=1)).live(2)
    pictures = torch.randn(4, 3, 32, 32, dtype=torch.float64)
    before = life.method.double().eval()(pictures)
    life.method.grow(life.scenario.tasks[2])
    latest, newest = life.method.branches[0].state_dict(), life.method.branches[1].state_dict()
    assert differing(dict(latest), dict(newest)) == []
    with torch.no_grad():
        life.method.classifier.weight[:, 128:] = 0.0
    torch.testing.assert_close(life.method(pictures)[:, :3], before, rtol=1e-4, atol=1e-4)


def test_auxiliary_labels_are_0_for_old_classes_and_from_1_to_the_number_of_new_ones() -> None:
    for task in TASKS[1:]:
        labels = range(task.n_seen)
        expected = [0 if label < task.n_old else 1 + label - task.n_old for label in labels]
        assert auxiliary_labels(torch.tensor(labels), task).tolist() == expected
        assert (min(expected), max(expected)) == (0, task.n_new)


def cross_entropy(logits: list[float], label: int) -> float:
    return math.log(sum(math.exp(z) for z in logits)) - logits[label]


def test_the_losses_equal_a_plain_loop_and_the_auxiliary_one_is_weighed() -> None:
    method, batch, losses = prepared(auxiliary_weight=0.25)
    branches = [method.backbone(batch.images), *(branch(batch.images) for branch in method.branches)]
    weight, bias, auxiliary = method.classifier.weight, method.classifier.bias, present(method.auxiliary)
    logits = (sum(h @ weight[:, 64 * i : 64 * (i + 1)].T for i, h in enumerate(branches)) + bias).tolist()
    answers = (branches[2] @ auxiliary.weight.T + auxiliary.bias).tolist()
    found = {name: loss.tolist() for name, loss in losses.items()}
    for n, label in enumerate(batch.labels.tolist()):
        target = max(0, label - 2)
        assert found["classification"][n] == pytest.approx(cross_entropy(logits[n], label), abs=1e-10)
        assert found["auxiliary"][n] == pytest.approx(0.25 * cross_entropy(answers[n], target), abs=1e-10)


def test_the_auxiliary_head_is_new_in_each_task_and_the_first_task_has_none() -> None:
    method, heads = new_method("der"), []
    for task in TASKS:
        method.grow(task)
        heads.append(method.auxiliary)
    assert heads[0] is None
    assert [tuple(head.weight.shape) for head in heads[1:]] == [(2, 64), (4, 64)]
    assert not torch.equal(heads[1].weight, heads[2].weight[:2])
    assert float(heads[2].bias.detach().abs().max()) == 0.0


def test_after_a_later_task_new_rows_are_as_long_as_old_ones_and_nothing_else_moved(
    images: Images, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    life = Life(images, tmp_path, new_method("der", epochs=1))
    before: list[dict[str, Tensor]] = []

    def align(classifier: torch.nn.Linear, task: Task) -> float:
        before.append(state_of(life.method))
        return plain(classifier, task)

    plain = common.align
    monkeypatch.setattr(common, "align", align)
    life.live(2)
    (unaligned,) = before  # none after the first task
    task, after = life.scenario.tasks[1], state_of(life.method)
    lengths = after["classifier.weight"].norm(dim=1)
    assert float(lengths[task.old].mean() / lengths[task.new].mean()) == pytest.approx(1.0, rel=1e-6)
    changed = {name for name in differing(unaligned, after) if not name.startswith("statistics/")}
    assert changed == {"classifier.weight"}
    assert torch.equal(unaligned["classifier.weight"][task.old], after["classifier.weight"][task.old])


def test_what_predicts_is_every_backbone_and_the_classifier_and_not_the_auxiliary_head() -> None:
    method, batch, _ = prepared()
    method.requires_grad_(True)
    method(batch.images).square().sum().backward()
    touched = {name for name, value in method.named_parameters() if value.grad is not None}
    counted = {value for module in method.predictors for value in module.parameters()}
    assert touched == {name for name, value in method.named_parameters() if value in counted}
    assert {name.split(".")[0] for name in touched} == {"backbone", "branches", "classifier"}


def test_each_task_adds_the_parameters_of_a_resnet18_and_a_wider_head() -> None:
    backbone, _ = build_backbone("resnet18", seed=0)
    method = build_method("der", backbone, {}, schedule=shared_schedule(), seed=0)
    for task in (Task(0, 0, 4), Task(1, 4, 3), Task(2, 7, 3)):
        method.grow(task)
        parameters, features = ((task.index + 1) * size for size in SIZES)
        counted = sum(value.numel() for module in method.predictors for value in module.parameters())
        assert counted == parameters + task.n_seen * (features + 1)


def test_one_new_class_known_classes_and_a_remainder_of_one_image_are_learned(images: Images, tmp_path: Path) -> None:
    life = Life(images, tmp_path, new_method("der", epochs=1)).live(1)
    task = life.scenario.tasks[1]
    known = ImageSet.of(images, life.scenario.rows("test", slice(0, 2))[:4])
    new = life.new_images(task).take(torch.arange(5)) + known
    (phase,) = life.method.phases(task, TaskData(new, life.data(life.scenario.tasks[0]).exemplars))
    assert [len(part) for part in cut(torch.arange(len(phase.images)), 8)] == [8, 9]
    assert task.n_new == 1
    life.learner.learn(task, new, life.images.table.classes)
    assert all(value.isfinite().all() for value in state_of(life.method).values())
    assert life.method(torch.randn(1, 3, 32, 32)).shape == (1, 3)


def test_a_batch_without_exemplars_has_the_losses_of_its_images_in_any_other_batch() -> None:
    method, batch, whole = prepared()
    nothing = ImageSet.of(make_images([1] * 6, size=8), torch.arange(6))
    (phase,) = method.phases(TASKS[2], TaskData(nothing, nothing))
    part = phase.objective(batch_of(batch.images[3:], [3, 4, 5, 4])).losses
    assert all(torch.allclose(whole[name][3:], part[name], atol=1e-10) for name in whole)


def test_the_authors_schedule_is_pycils() -> None:
    method = new_method("der", native_schedule=True)
    first, later = (method.schedule(task) for task in TASKS[:2])
    # epochs, learning rate, milestones, decay, momentum, weight decay, batch size
    assert first == Schedule(200, 0.1, (60, 120, 170), 0.1, 0.9, 5e-4, 128, cosine=False)
    assert later == Schedule(170, 0.1, (80, 120, 150), 0.1, 0.9, 2e-4, 128, cosine=False)


def test_options_have_pycils_defaults_and_wrong_values_are_refused() -> None:
    assert method_options("der") == {"auxiliary_weight": 1.0, "native_schedule": False}
    for weight in (-1.0, math.nan):
        with pytest.raises(EndocilError, match=r"method\.auxiliary_weight is .*; expected a number from 0 on"):
            new_method("der", auxiliary_weight=weight)
    with pytest.raises(
        EndocilError, match="unknown method key 'temperature'; known: auxiliary_weight, native_schedule"
    ):
        new_method("der", temperature=2.0)
