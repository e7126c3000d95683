"""ER-ACE: new images do not push old classes away."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from life import POOLED, QUOTA, Life, Lives, new_method
from pictures import make_images
from torch import Tensor

from endocil.data.augment import Augmentation
from endocil.data.batches import Batch
from endocil.data.scenario import Task
from endocil.errors import SettingsError
from endocil.learning.features import outputs_of
from endocil.learning.training import batches_of, total_loss
from endocil.methods.base import Phase


def last_task(lives: Lives, folder: Path, compared: str = "batch") -> tuple[Life, Phase, Batch]:
    life = lives.after("er_ace", 2, folder)
    life.method.compared = compared
    task = life.scenario.tasks[2]
    life.method.grow(task)
    life.method.eval()
    (phase,) = life.method.phases(task, life.data(task))
    return life, phase, next(iter(batches_of(phase, life.method, Augmentation(), 0, (2, 0, 0))))


def plain_loss(logits: Tensor, batch: Batch, rivals: set[int]) -> float:
    """Mean over new images of -log softmax among the rivals, plus that over exemplars among all classes."""
    sums, counts = [0.0, 0.0], [0, 0]
    for z, label, stream in zip(logits.tolist(), batch.labels.tolist(), batch.streams.tolist(), strict=True):
        among = range(len(z)) if stream else sorted(rivals)
        sums[stream] += math.log(sum(math.exp(z[c] - z[label]) for c in among))
        counts[stream] += 1
    return sum(total / max(1, n) for total, n in zip(sums, counts, strict=True))


@pytest.mark.parametrize("compared", ["batch", "task"])
def test_the_loss_is_the_plain_loop_over_both_batches(lives: Lives, tmp_path: Path, compared: str) -> None:
    _, phase, batch = last_task(lives, tmp_path, compared)
    outcome = phase.objective(batch)
    assert outcome.logits is not None
    rivals = set(batch.labels[batch.streams == 0].tolist()) if compared == "batch" else {3, 4, 5}
    expected = plain_loss(outcome.logits.double(), batch, rivals)
    assert total_loss(outcome, len(batch), len(batch)).item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("compared", ["batch", "task"])
def test_the_gradient_of_old_classes_from_new_images_is_0(lives: Lives, tmp_path: Path, compared: str) -> None:
    _, phase, batch = last_task(lives, tmp_path, compared)
    outcome = phase.objective(batch)
    assert outcome.logits is not None
    (gradient,) = torch.autograd.grad(outcome.losses["classification"].sum(), outcome.logits)
    assert not gradient[batch.streams == 0, :3].any()
    assert gradient[batch.streams == 0, 3:].any()
    assert gradient[batch.streams == 1, :3].any()


def test_the_memory_of_a_task_has_new_images_and_so_new_classes_are_compared_with_old_ones(
    lives: Lives, tmp_path: Path
) -> None:
    life, phase, _ = last_task(lives, tmp_path)
    (replay,) = phase.replay
    new = life.data(life.scenario.tasks[2]).new.counts(6)
    assert replay.images.counts(6).tolist() == [QUOTA] * 3 + new[3:].clamp(max=QUOTA).tolist()
    assert replay.images.from_memory.tolist().count(True) == 3 * QUOTA
    drawn = [batch.labels[batch.streams == 1] for batch in batches_of(phase, life.method, None, 0, (2, 0, 0))]
    assert set(torch.cat(drawn).tolist()) >= {3, 4, 5}
    (again,) = life.method.phases(life.scenario.tasks[2], life.data(life.scenario.tasks[2]))
    assert torch.equal(again.replay[0].images.rows, replay.images.rows)


def test_the_first_task_has_no_memory(lives: Lives, tmp_path: Path) -> None:
    life = lives.after("er_ace", 0, tmp_path)
    task = life.scenario.tasks[0]
    life.method.grow(task)
    (phase,) = life.method.phases(task, life.data(task))
    assert [len(replay) for replay in phase.replay] == [0]


def test_images_of_a_known_class_leave_its_exemplars_as_many_as_they_are(lives: Lives, tmp_path: Path) -> None:
    life = lives.after("er_ace", 2, tmp_path)
    task, data = Task(2, 3, 0), life.data(life.scenario.tasks[0])
    (phase,) = life.method.phases(task, data)
    assert phase.replay[0].images.counts(3).tolist() == [QUOTA] * 3
    assert bool(phase.replay[0].images.from_memory.all())


def test_new_classes_are_predicted_right_after_their_task(tmp_path: Path) -> None:
    method = new_method("er_ace", network=POOLED, epochs=10, rate=0.05)
    life = Life(make_images([20] * 6), tmp_path, method, increments=(2, 2, 2))
    for task in life.scenario.tasks:
        life.step(task)
        new = life.new_images(task)
        predicted = outputs_of(life.method, new, 64, fabric=life.fabric).logits.argmax(dim=1)
        assert float((predicted == new.labels).double().mean()) > 0.8


def test_one_new_class_is_compared_with_all_seen_ones_and_the_log_says_so(lives: Lives, tmp_path: Path) -> None:
    life = lives.after("er_ace", 1, tmp_path)
    task = life.scenario.tasks[1]
    life.method.grow(task)
    data = life.data(task)
    assert life.method.notes(task, data) == [
        "one new class, and over one class the loss would be 0 for ever: cross-entropy over all seen classes"
    ]
    (phase,) = life.method.phases(task, data)
    batch = next(iter(batches_of(phase, life.method.eval(), None, 0, (1, 0, 0))))
    outcome = phase.objective(batch)
    assert outcome.logits is not None
    over_all = torch.nn.functional.cross_entropy(outcome.logits, batch.labels, reduction="none")
    torch.testing.assert_close(outcome.losses["classification"], batch.stream_weights() * over_all)
    later = lives.after("er_ace", 2, tmp_path / "2")
    assert later.method.notes(life.scenario.tasks[2], later.data(life.scenario.tasks[2])) == []


def test_shares_of_a_batch_have_the_rivals_of_the_whole_batch(lives: Lives, tmp_path: Path) -> None:
    _, phase, batch = last_task(lives, tmp_path)
    whole = phase.objective(batch).losses["classification"]
    parts = [phase.objective(batch.part(part)).losses["classification"] for part in (slice(0, 1), slice(1, len(batch)))]
    torch.testing.assert_close(torch.cat(parts), whole, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("option", "value"), [("compared", "all"), ("replay_batch", 0)])
def test_wrong_values_are_refused_by_name(option: str, value: Any) -> None:
    with pytest.raises((SettingsError, ValueError), match=rf"method\.{option}"):
        new_method("er_ace", **{option: value})
