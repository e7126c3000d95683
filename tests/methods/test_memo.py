"""MEMO: DER with one general part and a last block for each task."""

import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from life import QUOTA, Life, differing, new_method, state_of
from pictures import make_images
from present import present
from torch import Tensor, nn
from torch.nn import functional

from endocil import EndocilError
from endocil.data.batches import Batch, ImageSet, cut
from endocil.data.cache import Images
from endocil.data.scenario import Task
from endocil.learning.training import only_training
from endocil.methods import build_method, method_options
from endocil.methods.base import Phase, Schedule, TaskData, shared_schedule
from endocil.methods.memo import MEMO
from endocil.networks import build_backbone

TASKS = (Task(0, 0, 2), Task(1, 2, 1), Task(2, 3, 3))
GENERAL = ("conv1", "bn1", "layer1", "layer2", "layer3")
GENERAL_SIZE, LAST_SIZE = 2_782_784, 8_393_728  # parameters of ResNet-18


def batch_of(images: Tensor, labels: list[int]) -> Batch:
    known = torch.tensor(labels) < 3
    return Batch(images, torch.tensor(labels), known, torch.tensor(labels), known)


def prepared(**options: Any) -> tuple[MEMO, Phase, Batch]:
    """A method in float64 in its third task, what it would train, and a batch of every class."""
    torch.manual_seed(0)
    method = new_method("memo", **options)
    for task in TASKS:
        method.grow(task)
        for value in (method.branches[-1] if len(method.branches) else method.backbone).parameters():
            value.data.mul_(1.0 + 0.1 * torch.randn_like(value))  # no two blocks alike
    method.double().eval()
    images = functional.interpolate(torch.randn(7, 3, 8, 8, dtype=torch.float64), 32)
    nothing = ImageSet.of(make_images([1] * 6, size=8), torch.arange(6))
    (phase,) = method.phases(TASKS[2], TaskData(nothing, nothing))
    return method, phase, batch_of(images, [0, 1, 2, 3, 4, 5, 4])


def parts_of(state: dict[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Tensors of the general part, and those of the first task's last block."""
    general = {name: state[name] for name in state if name.startswith(tuple(f"backbone.{g}." for g in GENERAL))}
    first = {name: state[name] for name in state if name.startswith("backbone.layer4.")}
    assert (len(general), len(first)) == (90, 30)
    return general, first


@pytest.mark.parametrize("train_base", [True, False])
def test_older_last_blocks_keep_every_bit_and_the_general_part_only_without_train_base(
    images: Images, tmp_path: Path, train_base: bool
) -> None:
    life = Life(images, tmp_path, new_method("memo", epochs=1, train_base=train_base)).live(1)
    states = [state_of(life.method)]
    for task in life.scenario.tasks[1:]:
        life.step(task)
        states.append(state_of(life.method))
    generals, firsts = zip(*(parts_of(state) for state in states), strict=True)
    assert differing(firsts[0], firsts[1]) == differing(firsts[0], firsts[2]) == []
    second = [name for name in states[1] if name.startswith("branches.0.")]
    assert len(second) == 30
    assert differing({k: states[1][k] for k in second}, {k: states[2][k] for k in second}) == []
    for before, after in pairwise(generals):
        changed = differing(before, after)
        expected = {"backbone.conv1.weight", "backbone.layer3.1.bn2.running_mean"} if train_base else set()
        assert expected <= {*changed}
        assert train_base or not changed


def test_features_grow_by_those_of_a_last_block_in_each_task(images: Images, tmp_path: Path) -> None:
    life = Life(images, tmp_path, new_method("memo", epochs=1))
    for task in life.scenario.tasks:
        life.step(task)
        width = 64 * (task.index + 1)
        assert life.method.embed(torch.randn(2, 3, 32, 32)).shape == (2, width)
        assert life.method.statistics["class_means"].shape == (task.n_seen, width)
        assert life.method.classifier.weight.shape == (task.n_seen, width)
        lengths = life.method.classifier.weight.detach().norm(dim=1)
        if task.index > 0:  # aligned, as DER
            assert float(lengths[task.old].mean()) == pytest.approx(float(lengths[task.new].mean()), rel=1e-6)
    assert len(life.kept_rows()[3]) == 3 < QUOTA  # a class smaller than the quota keeps all


def test_each_task_adds_the_parameters_of_a_last_block_and_a_wider_head() -> None:
    backbone, _ = build_backbone("resnet18", seed=0)
    method = build_method("memo", backbone, {}, schedule=shared_schedule(), seed=0)
    counted, heads = [], []
    for task in (Task(0, 0, 4), Task(1, 4, 3), Task(2, 7, 3)):
        method.grow(task)
        counted.append(sum(value.numel() for module in method.predictors for value in module.parameters()))
        heads.append(task.n_seen * 512 * (task.index + 1) + task.n_seen)
    assert counted[0] == GENERAL_SIZE + LAST_SIZE + heads[0]
    assert counted[1] - counted[0] == LAST_SIZE + heads[1] - heads[0]
    assert counted[2] - counted[1] == LAST_SIZE + heads[2] - heads[1]


def test_before_the_first_step_the_old_logits_come_back_with_the_new_columns_at_zero(
    images: Images, tmp_path: Path
) -> None:
    life = Life(images, tmp_path, new_method("memo", epochs=1)).live(2)
    pictures = torch.randn(4, 3, 32, 32, dtype=torch.float64)
    before = life.method.double().eval()(pictures)
    life.method.grow(life.scenario.tasks[2])
    latest, newest = life.method.branches[0].state_dict(), life.method.branches[1].state_dict()
    assert differing(dict(latest), dict(newest)) == []
    with torch.no_grad():
        life.method.classifier.weight[:, 128:] = 0.0
    torch.testing.assert_close(life.method(pictures)[:, :3], before, rtol=1e-4, atol=1e-4)


def cross_entropy(logits: list[float], label: int) -> float:
    return math.log(sum(math.exp(z) for z in logits)) - logits[label]


def test_the_losses_equal_a_plain_loop_and_the_auxiliary_head_sees_the_newest_block_alone() -> None:
    method, phase, batch = prepared(auxiliary_weight=0.5)
    maps = batch.images
    for stage in GENERAL:
        maps = getattr(method.backbone, stage)(maps)
        if stage == "bn1":
            maps = functional.max_pool2d(maps.relu(), 3, 2, 1)
    blocks = (method.backbone.get_submodule("layer4"), *method.branches)
    features = [block(maps).flatten(2).mean(2) for block in blocks]
    weight, bias, auxiliary = method.classifier.weight, method.classifier.bias, present(method.auxiliary)
    logits = (sum(h @ weight[:, 64 * i : 64 * (i + 1)].T for i, h in enumerate(features)) + bias).tolist()
    answers = (features[2] @ auxiliary.weight.T + auxiliary.bias).tolist()
    found = {name: loss.tolist() for name, loss in phase.objective(batch).losses.items()}
    for n, label in enumerate(batch.labels.tolist()):
        target = max(0, label - 2)
        assert found["classification"][n] == pytest.approx(cross_entropy(logits[n], label), abs=1e-10)
        assert found["auxiliary"][n] == pytest.approx(0.5 * cross_entropy(answers[n], target), abs=1e-10)


def test_the_general_part_learns_through_the_frozen_last_blocks_too() -> None:
    method, phase, batch = prepared(auxiliary_weight=0.0)
    with torch.no_grad():
        method.classifier.weight[:, 128:] = 0.0  # the newest block has no say
    with only_training(method, phase.train):
        phase.objective(batch).losses["classification"].mean().backward()
        assert float(present(method.backbone.get_parameter("conv1.weight").grad).abs().max()) > 0.0
        assert all(value.grad is None for value in method.branches[0].parameters())


def test_what_predicts_is_the_general_part_every_last_block_and_the_classifier() -> None:
    method, _, batch = prepared()
    method.requires_grad_(True)
    method(batch.images).square().sum().backward()
    touched = {name for name, value in method.named_parameters() if value.grad is not None}
    counted = {value for module in method.predictors for value in module.parameters()}
    assert touched == {name for name, value in method.named_parameters() if value in counted}
    assert {name.split(".")[0] for name in touched} == {"backbone", "branches", "classifier"}


def test_one_new_class_known_classes_and_a_remainder_of_one_image_are_learned(images: Images, tmp_path: Path) -> None:
    life = Life(images, tmp_path, new_method("memo", epochs=1)).live(1)
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
    _, phase, batch = prepared()
    whole = phase.objective(batch).losses
    part = phase.objective(batch_of(batch.images[3:], [3, 4, 5, 4])).losses
    assert all(torch.allclose(whole[name][3:], part[name], atol=1e-10) for name in whole)


def test_the_authors_schedule_is_pycils() -> None:
    method = new_method("memo", native_schedule=True)
    first, later = (method.schedule(task) for task in TASKS[:2])
    # epochs, learning rate, milestones, decay, momentum, weight decay, batch size
    assert first == Schedule(200, 0.1, (60, 120, 170), 0.1, 0.9, 5e-4, 128, cosine=False)
    assert later == Schedule(170, 0.1, (80, 120, 150), 0.1, 0.9, 2e-4, 128, cosine=False)


class Indivisible(nn.Module):
    n_features = 4


def test_options_have_pycils_defaults_and_wrong_values_and_backbones_are_refused() -> None:
    own = {"train_base": True, "auxiliary_weight": 1.0}
    assert method_options("memo") == own | {"native_schedule": False}
    with pytest.raises(EndocilError, match=r"method\.train_base: input should be a valid boolean"):
        new_method("memo", train_base="sometimes")
    with pytest.raises(EndocilError, match=r"method\.auxiliary_weight is -0\.5; expected a number from 0 on"):
        new_method("memo", auxiliary_weight=-0.5)
    with pytest.raises(EndocilError, match="Indivisible cannot be divided into a general part and a last block"):
        MEMO(Indivisible())
