"""DER++: what it lowers, and what an exemplar keeps."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from life import Life, Lives, new_method
from torch import Tensor

from endocil.data.augment import Augmentation
from endocil.data.batches import Batch
from endocil.data.cache import Images
from endocil.data.seeding import generator
from endocil.errors import SettingsError
from endocil.learning.training import batches_of, total_loss
from endocil.methods.base import Phase
from endocil.methods.derpp import DERpp, squared_error
from endocil.methods.finetune import Finetune


def plain_loss(logits: Tensor, batch: Batch, alpha: float, beta: float) -> float:
    """By loops over the images of each stream."""
    sums, counts = [0.0, 0.0, 0.0], [0, 0, 0]
    for z, label, stream, place in zip(
        logits.tolist(), batch.labels.tolist(), batch.streams.tolist(), range(len(batch)), strict=True
    ):
        counts[stream] += 1
        if stream == 1:
            known = int(batch.kept["known"][place])
            stored = batch.kept["logits"][place].tolist()
            sums[1] += sum((z[c] - stored[c]) ** 2 for c in range(known)) / known
        else:
            top = max(z)  # a life of large steps may end with logits whose exponential overflows
            sums[stream] += top - z[label] + math.log(sum(math.exp(one - top) for one in z))
    new, held, labelled = (total / max(1, n) for total, n in zip(sums, counts, strict=True))
    return new + alpha * held + beta * labelled


def third_task(lives: Lives, folder: Path, **options: float) -> tuple[Life, Phase, Batch]:
    """Its exemplars come from two tasks, with 2 and with 3 stored logits."""
    life = lives.after("derpp", 2, folder)
    for name, value in options.items():
        setattr(life.method, name, value)
    task = life.scenario.tasks[2]
    life.method.grow(task)
    (phase,) = life.method.phases(task, life.data(task))
    return life, phase, next(iter(batches_of(phase, life.method, Augmentation(), 0, (2, 0, 0))))


def test_the_loss_is_the_plain_loop_over_new_images_stored_logits_and_labels(lives: Lives, tmp_path: Path) -> None:
    life, phase, batch = third_task(lives, tmp_path, alpha=0.3, beta=0.7)
    life.method.eval()
    outcome = phase.objective(batch)
    assert sorted(set(batch.streams.tolist())) == [0, 1, 2]
    assert {2, 3} <= set(batch.kept["known"][batch.streams > 0].tolist())
    assert outcome.logits is not None
    expected = plain_loss(outcome.logits.double(), batch, 0.3, 0.7)
    assert total_loss(outcome, len(batch), len(batch)).item() == pytest.approx(expected, rel=1e-5)


def test_without_both_weights_it_is_cross_entropy_of_the_new_images_over_all_seen_classes(
    lives: Lives, tmp_path: Path
) -> None:
    life, phase, batch = third_task(lives, tmp_path, alpha=0.0, beta=0.0)
    life.method.eval()
    new = batch.streams == 0
    outcome = phase.objective(batch)
    assert outcome.logits is not None
    expected = torch.nn.functional.cross_entropy(outcome.logits[new], batch.labels[new])
    torch.testing.assert_close(total_loss(outcome, len(batch), len(batch)), expected)


def test_the_squared_error_sees_the_classes_that_were_known_and_nothing_of_new_images() -> None:
    logits = torch.randn(3, 5, generator=generator(0)).requires_grad_()
    stored, known = torch.randn(3, 4, generator=generator(1)), torch.tensor([2, 4, 0])
    losses = squared_error(logits, stored, known)
    losses.sum().backward()
    assert losses[2] == 0
    assert logits.grad is not None
    assert logits.grad[0, 2:].tolist() == [0, 0, 0]
    torch.testing.assert_close(logits.grad[0, :2], (logits[0, :2] - stored[0, :2]).detach())  # 2 (z - s) / 2
    assert not logits.grad[2].any()


def test_an_exemplar_keeps_the_logits_of_the_task_that_it_was_chosen_in(lives: Lives, tmp_path: Path) -> None:
    first = lives.after("derpp", 1, tmp_path / "1").memory
    later = lives.after("derpp", 3, tmp_path / "3").memory
    before = dict(
        zip((one.image for one in first.exemplars.provenance), first.exemplars.tensors["logits"], strict=True)
    )
    stored = later.exemplars.tensors
    for one, logits, known in zip(later.exemplars.provenance, stored["logits"], stored["known"].tolist(), strict=True):
        assert known == (2, 3, 6)[one.task]
        assert not logits[known:].any()
        if one.task == 0:
            assert torch.equal(logits[:2], before[one.image])


def test_the_first_task_is_that_of_finetune(images: Images, tmp_path: Path) -> None:
    one = Life(images, tmp_path / "one", new_method("derpp")).live(1)
    other = Life(images, tmp_path / "other", new_method("finetune")).live(1)
    assert isinstance(other.method, Finetune)
    for name, value in other.method.state_dict().items():
        assert torch.equal(value, one.method.state_dict()[name]), name


@pytest.mark.parametrize(("option", "value"), [("alpha", -1.0), ("beta", -0.1), ("replay_batch", 0)])
def test_defaults_are_mammoths_and_wrong_values_are_refused_by_name(option: str, value: Any) -> None:
    method: DERpp = new_method("derpp", alpha=0.3)
    assert (method.alpha, method.beta, method.replay_batch) == (0.3, 0.5, None)
    with pytest.raises(SettingsError, match=rf"method\.{option} is"):
        new_method("derpp", **{option: value})
