"""ER-ACE: new images do not push old classes away."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from life import Life, Lives, new_method
from torch import Tensor

from endocil.data.augment import Augmentation
from endocil.data.batches import Batch
from endocil.errors import SettingsError
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
