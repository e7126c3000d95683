"""Label smoothing and mixup: what every method's losses become, against formulas written out."""

import itertools
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from life import ALL_METHODS, POOLED, Life, differing, new_method, state_of
from torch.nn import functional

from endocil import EndocilError, load_settings
from endocil.components.losses import PriorRegularizedLoss, class_balanced_weights
from endocil.data.augment import Augmentation
from endocil.data.batches import Batch, training_batches
from endocil.data.cache import Images
from endocil.learning.build import build_learning
from endocil.learning.checkpoint import FILE, grow
from endocil.learning.training import fit, total_loss
from endocil.methods import METHODS, Method
from endocil.methods.base import Phase, TaskData

CPU = torch.device("cpu")
MIXING = sorted(name for name in ALL_METHODS if METHODS[name].mixes_labels)
SMOOTHING = sorted(name for name in ALL_METHODS if METHODS[name].smooths_labels)


def second_task(images: Images, folder: Path, name: str) -> tuple[Life, tuple[Phase, ...]]:
    life = Life(images, folder, new_method(name), increments=(2, 2, 2))
    at = min(1, len(life.scenario.tasks) - 1)
    task = life.live(at).scenario.tasks[at]
    grow(life.method, task, CPU)
    life.method.eval()
    return life, life.method.phases(task, life.data(task))


def batch_of(phase: Phase, **options: Any) -> Batch:
    return next(training_batches(phase.images, 12, Augmentation(), 0, (1, 0, 0), CPU, **options))


def test_the_smoothed_prior_regularised_loss_is_its_formula() -> None:
    counts, smoothing = torch.tensor([40, 7, 3]), 0.2
    weights = class_balanced_weights(counts, 0.96)
    logits, labels = torch.randn(5, 3, dtype=torch.float64), torch.tensor([0, 1, 2, 2, 0])
    found = PriorRegularizedLoss(counts, weights, smoothing=smoothing)(logits, labels)
    logs = functional.log_softmax(logits + torch.log(counts.double() / counts.sum()), dim=1)
    target = torch.full((5, 3), smoothing / 3, dtype=torch.float64)
    target[torch.arange(5), labels] += 1 - smoothing
    torch.testing.assert_close(found, -(target * weights * logs).sum(dim=1))
    plain = PriorRegularizedLoss(counts, weights)(logits, labels)
    tiny = PriorRegularizedLoss(counts, weights, smoothing=1e-12)(logits, labels)
    torch.testing.assert_close(plain, tiny)


@pytest.mark.parametrize("name", SMOOTHING)
def test_label_smoothing_changes_every_loss_on_labels_and_no_other(images: Images, tmp_path: Path, name: str) -> None:
    life, phases = second_task(images, tmp_path, name)
    kept = [dict(phase.objective(batch_of(phase)).losses) for phase in phases]
    life.method.label_smoothing = 0.2
    task = life.scenario.tasks[min(1, len(life.scenario.tasks) - 1)]
    for before, phase in zip(kept, life.method.phases(task, life.data(task)), strict=True):
        for loss, value in phase.objective(batch_of(phase)).losses.items():
            on_labels = loss in ("classification", "cross_entropy", "auxiliary", "expansion")
            if on_labels or name != "mrfa":  # whose features move along the gradient of the loss on labels
                assert torch.equal(value, before[loss]) != on_labels, (phase.name, loss)


def test_smoothed_cross_entropy_on_the_new_classes_spreads_over_these_alone(images: Images, tmp_path: Path) -> None:
    life, _ = second_task(images, tmp_path, "finetune")
    task = life.scenario.tasks[1]
    life.method.label_smoothing = 0.1
    (phase,) = life.method.phases(task, life.data(task))
    batch = batch_of(phase)
    logs = functional.log_softmax(life.method(batch.images)[:, task.new], dim=1)
    own = logs.gather(1, (batch.labels - task.n_old)[:, None])[:, 0]
    expected = -(0.9 * own + 0.1 * logs.mean(dim=1))
    torch.testing.assert_close(phase.objective(batch).losses["classification"], expected)


def test_images_are_mixed_with_others_of_their_batch_and_labels_likewise(images: Images, tmp_path: Path) -> None:
    _, (phase, *_) = second_task(images, tmp_path, "icarl")
    plain, mixed = batch_of(phase), batch_of(phase, mixup=0.4)
    assert 0.5 <= mixed.mix < 1.0
    assert mixed.mixed_labels is not None
    assert torch.equal(mixed.labels, plain.labels)
    assert sorted(mixed.mixed_labels.tolist()) == sorted(plain.labels.tolist())
    others = (mixed.images - mixed.mix * plain.images) / (1 - mixed.mix)
    partner = torch.cdist(others.flatten(1), plain.images.flatten(1)).argmin(dim=1)
    torch.testing.assert_close(others, plain.images[partner], rtol=0, atol=1e-3)
    assert torch.equal(mixed.mixed_labels, plain.labels[partner])
    again = batch_of(phase, mixup=0.4)
    assert torch.equal(again.images, mixed.images)
    assert again.mix == mixed.mix


def test_the_shares_of_a_mixed_batch_are_its_images_as_one_process_sees_them(images: Images, tmp_path: Path) -> None:
    _, (phase, *_) = second_task(images, tmp_path, "icarl")
    whole = batch_of(phase, mixup=1.0)
    shares = [batch_of(phase, shard=(i, 3), mixup=1.0) for i in range(3)]
    for key in ("images", "labels", "mixed_labels", "from_memory"):
        assert torch.equal(torch.cat([getattr(share, key) for share in shares]), getattr(whole, key)), key
    assert {share.mix for share in shares} == {whole.mix}
    assert [share.start for share in shares] == [0, 4, 8]
    pieces = whole.pieces(4)
    assert torch.equal(torch.cat([piece.mixed_labels for piece in pieces]), whole.mixed_labels)  # type: ignore[misc,arg-type]


def test_the_mixed_part_follows_the_beta_distribution(images: Images, tmp_path: Path) -> None:
    _, (phase, *_) = second_task(images, tmp_path, "icarl")
    mixes = [
        next(training_batches(phase.images, 2, None, 0, (epoch,), CPU, mixup=0.4)).mix - 0.5 for epoch in range(400)
    ]
    variance = sum(mix**2 for mix in mixes) / len(mixes)  # of Beta about its mean, 1/2
    assert variance == pytest.approx(1 / (4 * (2 * 0.4 + 1)), rel=0.12)


@pytest.mark.parametrize("name", MIXING)
def test_the_loss_of_a_mixed_image_is_that_of_both_labels_as_they_are_mixed(
    images: Images, tmp_path: Path, name: str
) -> None:
    _, phases = second_task(images, tmp_path, name)
    for phase in phases:
        mixed = batch_of(phase, mixup=1.0)
        assert mixed.mixed_labels is not None
        as_first = replace(mixed, mixed_labels=None)
        as_second = replace(as_first, labels=mixed.mixed_labels)
        losses = [dict(phase.objective(batch).losses) for batch in (mixed, as_first, as_second)]
        for key, value in losses[0].items():
            expected = mixed.mix * losses[1][key] + (1 - mixed.mix) * losses[2][key]
            torch.testing.assert_close(value, expected, rtol=1e-4, atol=1e-5, msg=f"{phase.name} {key}")


@pytest.mark.parametrize("name", MIXING)
def test_pieces_of_a_mixed_batch_add_up_to_it(images: Images, tmp_path: Path, name: str) -> None:
    _, (phase, *_) = second_task(images, tmp_path, name)
    whole = batch_of(phase, mixup=1.0)
    parts = [total_loss(phase.objective(piece), len(piece), len(whole)) for piece in whole.pieces(4)]
    total = total_loss(phase.objective(whole), len(whole), len(whole))
    torch.testing.assert_close(torch.stack(parts).sum(), total, rtol=1e-4, atol=1e-5)


def test_images_that_are_not_augmented_are_not_mixed(images: Images, tmp_path: Path) -> None:
    life, (_, correct) = second_task(images, tmp_path, "bic")
    seen: list[Batch] = []

    def objective(batch: Batch) -> Any:
        seen.append(batch)
        return correct.objective(batch)

    where: dict[str, Any] = {"fabric": life.fabric, "augmentation": Augmentation(), "seed": 0, "key": (1, 1)}
    list(
        fit(replace(correct, objective=objective), life.method, logged_head=life.method.classifier, mixup=1.0, **where)
    )
    assert seen
    assert all(batch.mixed_labels is None for batch in seen)


@pytest.mark.parametrize("name", ["endocil", "dgr", "der", "ewc"])
def test_a_life_with_mixup_and_smoothing_stopped_at_any_epoch_goes_on_to_the_same_bits(
    images: Images, tmp_path: Path, name: str
) -> None:
    def life(folder: Path) -> Life:
        method = new_method(name, network=POOLED)
        method.label_smoothing = 0.1
        found = Life(images, folder, method, clock=itertools.count(0, 100).__next__)
        found.learner.mixup = 0.4
        return found

    straight, stops = life(tmp_path / "whole"), list[Path]()

    def keep(record: dict[str, Any]) -> None:
        if record["event"] == "epoch" and (straight.folder / FILE).exists():
            stops.append(shutil.copytree(straight.folder, tmp_path / f"stop-{len(stops)}"))

    straight.journal.show = keep
    straight.live()
    for stop in stops:
        assert differing(state_of(straight.method), state_of(life(stop).go_on().method)) == [], stop
    without = Life(images, tmp_path / "without", new_method(name, network=POOLED)).live()
    assert differing(state_of(straight.method), state_of(without.method)) != []


class Deaf(Method):
    """A method from outside whose losses know nothing of either."""

    def phases(self, task: Any, data: TaskData) -> tuple[Phase, ...]:
        return ()


@pytest.mark.parametrize(
    ("method", "setting", "message"),
    [
        ("test_label_losses:Deaf", "label_smoothing=0.1", "train.label_smoothing is 0.1, but the method"),
        ("test_label_losses:Deaf", "mixup=0.2", "train.mixup is 0.2, but the method 'test_label_losses:Deaf'"),
        ("mrfa", "mixup=0.2", "train.mixup is 0.2, but the method 'mrfa' does not support it; leave it out"),
        ("icarl", "label_smoothing=1.0", "train.label_smoothing: input should be less than 1, got 1.0"),
        ("icarl", "mixup=-1", "train.mixup: input should be greater than or equal to 0, got -1"),
    ],
)
def test_a_method_that_does_not_support_a_setting_refuses_it(method: str, setting: str, message: str) -> None:
    with pytest.raises(EndocilError) as refused:
        build_learning(load_settings("smoke", [f"method={{name='{method}'}}", f"train.{setting}"]).trusted())
    assert message in str(refused.value)


def test_settings_reach_the_method(tmp_path: Path) -> None:
    method, _ = build_learning(load_settings("smoke", ["train.label_smoothing=0.1", "train.mixup=0.3"]))
    assert method.label_smoothing == 0.1
