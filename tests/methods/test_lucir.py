"""LUCIR: cosines, directions held, a margin, imprinted rows."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from life import Life, Lives, differing, new_method, state_of
from torch.nn import functional

from endocil.data.augment import Augmentation
from endocil.data.batches import Batch
from endocil.data.scenario import Task
from endocil.data.seeding import generator
from endocil.errors import SettingsError
from endocil.learning.features import features_of
from endocil.learning.training import batches_of, total_loss
from endocil.methods.base import Phase, TaskData
from endocil.methods.lucir import margin_ranking


def last_task(lives: Lives, folder: Path) -> tuple[Life, Task, Phase, Batch]:
    life = lives.after("lucir", 2, folder)
    task = life.scenario.tasks[2]
    life.method.grow(task)
    with torch.no_grad():  # away from the teacher, so that no loss is 0
        life.method.backbone.layer4[-1].conv2.weight.mul_(1.5)
    life.method.eval()
    (phase,) = life.method.phases(task, life.data(task))
    return life, task, phase, next(iter(batches_of(phase, life.method, Augmentation(), 0, (2, 0, 0))))


def test_the_loss_is_the_plain_loop_of_its_three_parts(lives: Lives, tmp_path: Path) -> None:
    life, task, phase, batch = last_task(lives, tmp_path)
    outcome = phase.objective(batch)
    features = life.method.embed(batch.images).detach().double().tolist()
    before = life.method.teacher(batch.images).detach().double().tolist()
    rows = life.method.classifier.weight.detach().double().tolist()
    scale = life.method.classifier.scale.factor.item()

    def cosine(a: list[float], b: list[float]) -> float:
        return math.fsum(x * y for x, y in zip(a, b, strict=True)) / (math.hypot(*a) * math.hypot(*b))

    old = [label for label in batch.labels.tolist() if label < 3]
    total = 0.0
    for f, g, label in zip(features, before, batch.labels.tolist(), strict=True):
        scores = [cosine(f, row) for row in rows]
        total += math.log(sum(math.exp(scale * (one - scores[label])) for one in scores)) / len(batch)
        total += 5.0 * math.sqrt(3 / 3) * (1.0 - cosine(f, g)) / len(batch)
        if label < task.n_old:
            hardest = sorted(scores[3:])[-2:]
            total += sum(max(0.0, 0.5 - scores[label] + one) for one in hardest) / (2 * len(old))
    assert old
    assert total_loss(outcome, len(batch), len(batch)).item() == pytest.approx(total, rel=1e-4)


def test_scores_do_not_depend_on_the_length_of_features(lives: Lives, tmp_path: Path) -> None:
    method = lives.after("lucir", 2, tmp_path).method
    features = torch.randn(4, method.classifier.in_features, generator=generator(0))
    torch.testing.assert_close(method.classify(9.0 * features), method.classify(features), rtol=1e-4, atol=1e-5)


def test_imprinted_rows_are_the_mean_directions_of_their_classes_as_long_as_old_rows(
    lives: Lives, tmp_path: Path
) -> None:
    life = lives.after("lucir", 2, tmp_path)
    task = life.scenario.tasks[2]
    life.method.grow(task)
    data = life.data(task)
    life.method.prepare(task, TaskData(data.new, data.exemplars, features=lambda some: features_of(life.method, some)))
    features = functional.normalize(features_of(life.method, data.new), dim=1)
    weight = life.method.classifier.weight.detach()
    for label in range(3, 6):
        mean = features[data.new.labels == label].mean(dim=0)
        torch.testing.assert_close(functional.normalize(weight[label], dim=0), functional.normalize(mean, dim=0))
    torch.testing.assert_close(weight[3:].norm(dim=1), weight[:3].norm(dim=1).mean().expand(3))


def test_old_rows_stay_and_the_new_ones_and_the_scale_learn(lives: Lives, tmp_path: Path) -> None:
    before = state_of(lives.after("lucir", 2, tmp_path / "2").method)
    after = state_of(lives.after("lucir", 3, tmp_path / "3").method)
    head = {name: value for name, value in after.items() if name.startswith("classifier.") and name in before}
    assert differing({name: before[name] for name in head}, head) == ["classifier.scale.factor"]


def test_the_margin_is_that_of_images_of_old_classes_and_its_nearest_new_ones() -> None:
    cosines = torch.tensor([[0.9, 0.1, 0.2, 0.6], [0.1, 0.2, 0.9, 0.0]])
    losses = margin_ranking(cosines, torch.tensor([0, 2]), Task(1, 1, 3), 0.5, 2)
    torch.testing.assert_close(losses, torch.tensor([((0.5 - 0.9 + 0.6) + 0.0) / 2, 0.0]))
    one = margin_ranking(cosines, torch.tensor([1, 0]), Task(1, 3, 1), 0.5, 2)  # fewer new classes than asked for
    torch.testing.assert_close(one, torch.tensor([0.5 - 0.1 + 0.6, 0.5 - 0.1 + 0.0]))


def test_features_have_both_signs_because_the_last_relu_is_gone() -> None:
    method = new_method("lucir")
    pictures = torch.randn(8, 3, 32, 32, generator=generator(0))
    assert bool((method.embed(pictures) < 0).any())
    assert not bool((new_method("icarl").embed(pictures) < 0).any())


@pytest.mark.parametrize(
    ("option", "value"), [("less_forget", -1.0), ("margin", 3.0), ("hardest", 0), ("ranking", -1.0)]
)
def test_defaults_are_the_authors_and_wrong_values_are_refused_by_name(option: str, value: Any) -> None:
    method = new_method("lucir")
    assert (method.less_forget, method.margin, method.hardest, method.ranking) == (5.0, 0.5, 2, 1.0)
    with pytest.raises(SettingsError, match=rf"method\.{option} is"):
        new_method("lucir", **{option: value})
