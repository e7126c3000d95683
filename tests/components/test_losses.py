"""PRCBL and distillation against plain loops and known limits."""

import math

import pytest
import torch
from present import present
from torch.nn import functional

from endocil import PriorRegularizedLoss, class_balanced_weights, distillation


def random_batch(n: int = 9, classes: int = 5) -> tuple[torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(0)
    logits = torch.randn(n, classes, generator=random, dtype=torch.float64)
    return logits, torch.randint(classes, (n,), generator=random)


def test_class_balanced_weights_equal_the_formula() -> None:
    counts, beta = [30, 85, 500], 0.96
    alpha = [(1 - beta) / (1 - beta**n) for n in counts]
    expected = [a * 3 / sum(alpha) for a in alpha]
    assert class_balanced_weights(torch.tensor(counts), beta).tolist() == pytest.approx(expected, rel=1e-12)


def test_class_balanced_weights_add_up_to_the_number_of_classes_and_fall_with_the_count() -> None:
    weights = class_balanced_weights(torch.tensor([1, 2, 30, 400, 34_000]), 0.96)
    assert float(weights.sum()) == pytest.approx(5.0, rel=1e-12)
    assert bool((weights.diff() <= 0).all())


def test_one_class_or_beta_zero_weighs_one() -> None:
    assert class_balanced_weights(torch.tensor([7]), 0.96).tolist() == pytest.approx([1.0])
    assert class_balanced_weights(torch.tensor([3, 500, 20]), 0.0).tolist() == pytest.approx([1.0] * 3)


def test_beta_near_one_weighs_by_the_inverse_count() -> None:
    counts = torch.tensor([10.0, 20.0, 40.0])
    weights = class_balanced_weights(counts, 1 - 1e-10)
    inverse = (1 / counts.double()) * 3 / (1 / counts.double()).sum()
    assert torch.allclose(weights, inverse, rtol=1e-6)


def test_weights_of_the_paper_are_those_of_the_last_hyper_kvasir_task() -> None:
    """Thirteen classes of 30 exemplars and the training images of UC-2, UC-3 and z-line."""
    weights = class_balanced_weights(torch.tensor([30] * 13 + [354, 106, 745]), 0.96)
    assert weights[0].item() == pytest.approx(1.058, abs=5e-4)
    assert weights[13].item() == pytest.approx(0.747, abs=5e-4)
    assert weights[14].item() == pytest.approx(0.757, abs=5e-4)


@pytest.mark.parametrize("counts", [[], [3, 0], [[1, 2]]])
def test_counts_below_one_are_refused(counts: list[int]) -> None:
    with pytest.raises(ValueError, match="counts must be"):
        class_balanced_weights(torch.tensor(counts))
    with pytest.raises(ValueError, match="counts must be"):
        PriorRegularizedLoss(torch.tensor(counts))


def test_beta_outside_its_range_is_refused() -> None:
    with pytest.raises(ValueError, match="beta must lie in"):
        class_balanced_weights(torch.tensor([3]), 1.0)


def test_weights_of_another_length_are_refused() -> None:
    with pytest.raises(ValueError, match="3 counts but weights"):
        PriorRegularizedLoss(torch.tensor([1, 2, 3]), torch.ones(2))


def test_prior_regularized_loss_equals_a_plain_loop() -> None:
    logits, labels = random_batch()
    counts = [5, 40, 12, 30, 9]
    weights = class_balanced_weights(torch.tensor(counts))
    found = PriorRegularizedLoss(torch.tensor(counts), weights)(logits, labels)
    for row, label, value in zip(logits.tolist(), labels.tolist(), found.tolist(), strict=True):
        shifted = [z + math.log(n / sum(counts)) for z, n in zip(row, counts, strict=True)]
        log_p = shifted[label] - math.log(sum(math.exp(s) for s in shifted))
        assert value == pytest.approx(-float(weights[label]) * log_p, rel=1e-12)


@pytest.mark.parametrize("weighted", [False, True])
def test_with_uniform_counts_it_is_cross_entropy_in_value_and_gradient(weighted: bool) -> None:
    logits, labels = random_batch()
    counts = torch.full((5,), 17)
    weights = class_balanced_weights(counts) if weighted else None
    ours, theirs = logits.clone().requires_grad_(), logits.clone().requires_grad_()
    PriorRegularizedLoss(counts, weights)(ours, labels).sum().backward()
    functional.cross_entropy(theirs, labels, reduction="sum").backward()
    assert torch.allclose(present(ours.grad), present(theirs.grad), atol=1e-14)


def test_a_constant_on_all_logits_or_on_the_prior_changes_nothing() -> None:
    logits, labels = random_batch()
    counts = torch.tensor([5, 40, 12, 30, 9])
    loss = PriorRegularizedLoss(counts)(logits, labels)
    assert torch.allclose(PriorRegularizedLoss(counts)(logits + 3.5, labels), loss, atol=1e-12)
    assert torch.allclose(PriorRegularizedLoss(counts * 7)(logits, labels), loss, atol=1e-12)


def test_the_buffers_move_with_the_module_and_logits_keep_their_type() -> None:
    loss = PriorRegularizedLoss(torch.tensor([3, 4]))
    assert loss(torch.zeros(2, 2), torch.tensor([0, 1])).dtype == torch.float32
    assert set(loss.state_dict()) == {"log_prior", "weights"}


def test_distillation_equals_a_plain_loop_over_the_teachers_classes() -> None:
    logits, _ = random_batch()
    teacher, _ = random_batch(classes=3)
    found = distillation(logits, teacher, 2.0)
    for row, target, value in zip(logits.tolist(), teacher.tolist(), found.tolist(), strict=True):
        p = [math.exp(z / 2) for z in target]
        q = [math.exp(z / 2) for z in row[:3]]
        loss = -sum(a / sum(p) * math.log(b / sum(q)) for a, b in zip(p, q, strict=True))
        assert value == pytest.approx(loss, rel=1e-12)


def test_distillation_is_at_least_the_teachers_entropy_with_no_gradient_at_the_teacher() -> None:
    teacher, _ = random_batch(classes=3)
    same = teacher.clone().requires_grad_()
    loss = distillation(same, teacher, 2.0)
    soft = functional.softmax(teacher / 2.0, dim=1)
    entropy = -(soft * soft.log()).sum(dim=1)
    other, _ = random_batch(n=9, classes=4)
    assert bool((distillation(other, teacher, 2.0) >= entropy - 1e-12).all())
    assert torch.allclose(loss, entropy, atol=1e-12)
    loss.sum().backward()
    assert float(present(same.grad).abs().max()) < 1e-15
