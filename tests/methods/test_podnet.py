"""PODNet: pooled maps, proxies, their loss as printed and as coded, and a second phase."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from life import Life, Lives, differing, new_method, state_of
from small_networks import Pooled
from torch.nn import functional

from endocil.data.augment import Augmentation
from endocil.data.batches import Batch
from endocil.data.seeding import generator
from endocil.errors import SettingsError
from endocil.learning.training import batches_of, total_loss
from endocil.methods.base import Phase, shared_schedule
from endocil.methods.podnet import PODNet, balanced, centres, maps_and_features, nca, pod, printed_nca


def last_task(lives: Lives, folder: Path) -> tuple[Life, tuple[Phase, ...], Batch]:
    life = lives.after("podnet", 2, folder)
    task = life.scenario.tasks[2]
    life.method.grow(task)
    with torch.no_grad():  # away from the teacher, so that no loss is 0
        life.method.backbone.layer2[0].conv1.weight.mul_(1.5)
    life.method.eval()
    phases = life.method.phases(task, life.data(task))
    return life, phases, next(iter(batches_of(phases[0], life.method, Augmentation(), 0, (2, 0, 0))))


def test_the_loss_is_that_of_its_parts_with_their_weights(lives: Lives, tmp_path: Path) -> None:
    life, (phase, _), batch = last_task(lives, tmp_path)
    outcome = phase.objective(batch)
    maps, features = maps_and_features(life.method.backbone, batch.images)
    old_maps, old_features = maps_and_features(life.method.teacher[0], batch.images)
    weight, logits = math.sqrt(6 / 3), life.method.classify(features)
    flat = 1.0 - functional.cosine_similarity(features, old_features)
    expected = nca(logits, batch.labels) + 3.0 * weight * pod(maps, old_maps) + weight * flat
    torch.testing.assert_close(total_loss(outcome, len(batch), len(batch)), expected.mean())
    torch.testing.assert_close(features, life.method.embed(batch.images))
    assert len(maps) == 4


def test_pooled_distances_are_a_plain_loop_over_rows_and_columns_and_0_for_the_same_maps() -> None:
    one, other = (torch.randn(2, 3, 4, 5, generator=generator(i)).double() for i in range(2))
    assert pod([one, other], [one, other]).tolist() == [0, 0]
    found = pod([one], [other])
    for image in range(2):
        pooled = []
        for maps in (one[image], other[image]):
            values = [
                [sum(float(maps[c, i, j]) ** 2 for j in range(5)) for c in range(3) for i in range(4)],
                [sum(float(maps[c, i, j]) ** 2 for i in range(4)) for c in range(3) for j in range(5)],
            ]
            joined = values[0] + values[1]
            pooled.append([value / math.hypot(*joined) for value in joined])
        distance = math.hypot(*(a - b for a, b in zip(*pooled, strict=True)))
        assert float(found[image]) == pytest.approx(distance, rel=1e-12)


def test_the_coded_loss_and_the_printed_one_are_plain_loops() -> None:
    logits = 3.0 * torch.randn(5, 4, generator=generator(0)).double()
    labels = torch.tensor([0, 1, 2, 3, 0])
    coded, printed = nca(logits, labels), printed_nca(logits, labels, torch.tensor(0.6).double())
    for z, label, by_code, by_print in zip(
        logits.tolist(), labels.tolist(), coded.tolist(), printed.tolist(), strict=True
    ):
        top = max(z)
        others = [one for c, one in enumerate(z) if c != label]
        assert by_code == pytest.approx(
            top - z[label] + math.log(1.0 + sum(math.exp(one - top) for one in others)), rel=1e-12
        )
        expected = max(0.0, float(torch.tensor(0.6)) - z[label] + math.log(sum(math.exp(one) for one in others)))
        assert by_print == pytest.approx(expected, rel=1e-12)
    assert printed_nca(torch.ones(2, 1), torch.zeros(2, dtype=torch.int64), torch.tensor(0.6)).tolist() == [0, 0]


def test_the_second_phase_trains_the_classifier_alone_on_as_many_images_of_each_class(
    lives: Lives, tmp_path: Path
) -> None:
    life, (_, second), _ = last_task(lives, tmp_path)
    assert second.name == "balance"
    assert list(second.train) == [life.method.classifier]
    assert second.images.counts(6).tolist() == [4, 4, 4, 3, 4, 4]  # the fourth class has three images to learn
    assert bool(second.images.from_memory[second.images.labels < 3].all())
    assert (second.schedule.learning_rate, second.schedule.milestones) == (0.05, ())
    assert set(second.objective(next(iter(batches_of(second, life.method, None, 0, (0,))))).losses) == {
        "classification"
    }
    data = life.data(life.scenario.tasks[2])
    assert not torch.equal(balanced(data, generator(1)).rows, balanced(data, generator(2)).rows)


def test_the_first_phase_leaves_old_proxies_alone(lives: Lives, tmp_path: Path) -> None:
    life, (first, _), _ = last_task(lives, tmp_path)
    old = {
        name
        for name, _ in life.method.named_parameters()
        if name.startswith(("classifier.tasks.0", "classifier.tasks.1"))
    }
    trained = {id(one) for module in first.train for one in module.parameters()}
    assert old
    assert not any(id(one) in trained for name, one in life.method.named_parameters() if name in old)
    before, after = (state_of(lives.after("podnet", n, tmp_path / str(n)).method) for n in (2, 3))
    assert (
        set(differing({name: before[name] for name in old}, {name: after[name] for name in old})) == old
    )  # in phase 2


def test_proxies_start_as_centres_of_their_class_and_come_again_where_images_are_few() -> None:
    features = torch.cat(
        [torch.eye(3).repeat(4, 1), 0.01 * torch.randn(12, 3, generator=generator(0)) + torch.eye(3)[0]]
    )
    found = centres(features, 3)
    assert sorted(found.round().tolist()) == sorted(torch.eye(3).tolist())
    again = centres(torch.eye(3)[:2], 5)
    assert again.shape == (5, 3)
    torch.testing.assert_close(again[0], again[2])


def test_a_backbone_that_cannot_be_divided_is_refused() -> None:
    with pytest.raises(SettingsError, match="cannot be divided"):
        PODNet(Pooled(), schedule=shared_schedule(epochs=1))


@pytest.mark.parametrize(
    ("option", "value"),
    [("proxies", 0), ("pod_spatial", -1.0), ("pod_flat", -1.0), ("balance_epochs", -1), ("balance_rate", 0.0)],
)
def test_defaults_are_the_authors_and_wrong_values_are_refused_by_name(option: str, value: Any) -> None:
    method = PODNet(new_method("icarl").backbone)
    assert (method.classifier.proxies, method.pod_spatial, method.pod_flat) == (10, 3.0, 1.0)
    assert (method.balance_epochs, method.balance_rate, method.nca_loss) == (20, 0.05, "code")
    with pytest.raises(SettingsError, match=rf"method\.{option} is"):
        new_method("podnet", **{option: value})
