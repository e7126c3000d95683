"""CFG against autograd and its known limits, in float64 on a small network."""

from typing import Any

import pytest
import torch
from present import present
from torch import Tensor, nn

from endocil import (
    CalibratedGradient,
    GradientRule,
    Outcome,
    PriorRegularizedLoss,
    calibrated_gradient,
    class_balanced_weights,
    distillation,
    linear_gradient,
)

COUNTS = torch.tensor([30, 30, 30, 200, 80])
N_OLD = 3


class Net(nn.Module):
    """Eight inputs, a hidden layer with batch norm in eval mode, five classes."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(nn.Linear(8, 6), nn.BatchNorm1d(6), nn.ReLU()).double().eval()
        self.classifier = nn.Linear(6, 5).double()
        self.teacher = nn.Linear(8, N_OLD).double()


def outcome(net: Net, *, strength: float = 1.0, student_is_teacher: bool = False) -> Outcome:
    random = torch.Generator().manual_seed(1)
    x = torch.randn(12, 8, generator=random, dtype=torch.float64)
    labels = torch.randint(5, (12,), generator=random)
    features = net.body(x)
    logits = net.classifier(features)
    target = logits.detach()[:, :N_OLD] if student_is_teacher else net.teacher(x).detach()
    classification = PriorRegularizedLoss(COUNTS, class_balanced_weights(COUNTS))(logits, labels)
    losses = {"classification": classification, "distillation": strength * distillation(logits, target)}
    return Outcome(losses, logits, features)


def by_autograd(net: Net, name: str) -> Tensor:
    """(C, d + 1) gradient of one named loss, by a backward pass of its own."""
    loss = outcome(net).losses[name].mean()
    weight, bias = torch.autograd.grad(loss, (net.classifier.weight, net.classifier.bias))
    return torch.cat([weight, bias[:, None]], dim=1)


def stepped(net: Net, rule: GradientRule, **options: Any) -> dict[str, Tensor]:
    """One step's gradients of every parameter under a rule."""
    net.zero_grad()
    found = outcome(net, **options)
    n = len(present(found.logits))
    collected = rule.collect(found, n)
    (torch.cat([*found.losses.values()]).sum() / n).backward()
    rule.overwrite(collected)
    return {name: p.grad.clone() for name, p in net.named_parameters() if p.grad is not None}


def rule_for(net: Net, **options: Any) -> CalibratedGradient:
    return CalibratedGradient(net.classifier, class_balanced_weights(COUNTS), **options)


@pytest.mark.parametrize("name", ["classification", "distillation"])
def test_the_product_of_logit_gradient_and_features_is_the_gradient_of_autograd(name: str) -> None:
    net = Net()
    collected = rule_for(net).collect(outcome(net), 12)
    assert torch.allclose(collected[name], by_autograd(net, name), atol=1e-13)


@pytest.mark.parametrize("name", ["classification", "distillation"])
def test_class_gradients_add_up_to_zero_for_distillation_and_unweighted_images(name: str) -> None:
    """Why gamma is the norm of the stacked gradients: the printed norm of their sum is zero."""
    net = Net()
    assert float(by_autograd(net, name).sum(dim=0).abs().max()) < 1e-12


def test_the_calibrated_gradient_equals_the_printed_formula_row_by_row() -> None:
    net, weights = Net(), class_balanced_weights(COUNTS)
    classification, kept = by_autograd(net, "classification"), by_autograd(net, "distillation")
    top = sum(float(weights[i]) ** 2 * float((classification[i, :-1] ** 2).sum()) for i in range(5)) ** 0.5
    bottom = sum(float((kept[i, :-1] ** 2).sum()) for i in range(5)) ** 0.5
    found, gamma = calibrated_gradient(classification, kept, weights)
    assert float(gamma) == pytest.approx(top / bottom, rel=1e-12)
    for i in range(5):
        assert torch.allclose(found[i], weights[i] * classification[i] + (top / bottom) * kept[i], atol=1e-13)


def test_both_parts_of_the_calibrated_gradient_have_the_same_length() -> None:
    net, weights = Net(), class_balanced_weights(COUNTS)
    classification, kept = by_autograd(net, "classification"), by_autograd(net, "distillation")
    _, gamma = calibrated_gradient(classification, kept, weights)
    weighted = weights[:, None] * classification
    assert float((gamma * kept)[:, :-1].norm()) == pytest.approx(float(weighted[:, :-1].norm()), rel=1e-12)


def test_the_strength_of_distillation_cancels_in_the_classifier() -> None:
    net = Net()
    weak, strong = stepped(net, rule_for(net), strength=0.1), stepped(net, rule_for(net), strength=50.0)
    assert torch.allclose(weak["classifier.weight"], strong["classifier.weight"], atol=1e-12)
    assert torch.allclose(weak["classifier.bias"], strong["classifier.bias"], atol=1e-12)


def test_the_backbone_gradient_is_untouched() -> None:
    net = Net()
    plain, calibrated = stepped(net, GradientRule()), stepped(net, rule_for(net))
    for name in plain:
        if not name.startswith("classifier"):
            assert torch.equal(plain[name], calibrated[name]), name
    assert not torch.allclose(plain["classifier.weight"], calibrated["classifier.weight"])


def test_with_unit_weights_and_gamma_one_it_is_the_plain_gradient() -> None:
    net = Net()
    classification, kept = by_autograd(net, "classification"), by_autograd(net, "distillation")
    ratio = classification[:, :-1].norm() / kept[:, :-1].norm()
    found, gamma = calibrated_gradient(classification, ratio * kept, torch.ones(5))
    assert float(gamma) == pytest.approx(1.0)
    assert torch.allclose(found, classification + ratio * kept, atol=1e-13)


def test_a_student_equal_to_its_teacher_leaves_the_weighted_classification_gradient() -> None:
    net = Net()
    rule = rule_for(net)
    found = stepped(net, rule, student_is_teacher=True)
    expected = class_balanced_weights(COUNTS)[:, None] * by_autograd(net, "classification")
    assert torch.allclose(found["classifier.weight"], expected[:, :-1], atol=1e-12)
    assert float(rule.measured["gamma"]) == 0.0


def test_rows_of_new_classes_are_independent_of_distillation() -> None:
    net = Net()
    assert float(rule_for(net).collect(outcome(net), 12)["distillation"][N_OLD:].abs().max()) == 0.0


def test_a_cap_on_gamma_is_kept() -> None:
    net = Net()
    rule = rule_for(net, gamma_max=1e-3)
    stepped(net, rule)
    assert float(rule.measured["gamma"]) == pytest.approx(1e-3)


def test_matrices_of_shares_add_up_to_those_of_the_whole_batch() -> None:
    net = Net()
    whole = outcome(net)
    rule = rule_for(net)
    together = rule.collect(whole, 12)["classification"]
    parts = [
        Outcome({name: loss[share] for name, loss in whole.losses.items()}, whole.logits, whole.features)
        for share in (slice(0, 5), slice(5, 12))
    ]
    apart = torch.stack([rule.collect(part, 12)["classification"] for part in parts]).sum(dim=0)
    assert torch.allclose(apart, together, atol=1e-14)


def test_the_rule_owns_no_parameter_and_its_state_round_trips() -> None:
    net = Net()
    rule = rule_for(net)
    assert list(rule.parameters()) == []
    assert set(rule.state_dict()) == {"weights"}


def test_an_objective_without_logits_is_refused() -> None:
    with pytest.raises(ValueError, match="logits and features"):
        rule_for(Net()).collect(Outcome({"classification": torch.zeros(2)}), 2)


def test_a_penalty_on_parameters_is_refused_rather_than_lost() -> None:
    net = Net()
    found = outcome(net)
    with pytest.raises(ValueError, match="'penalty' is a penalty"):
        rule_for(net).collect(Outcome({"penalty": torch.zeros(())}, found.logits, found.features), 12)


def test_linear_gradient_puts_the_bias_last() -> None:
    found = linear_gradient(torch.tensor([[1.0], [2.0]]), torch.tensor([[3.0, 4.0], [5.0, 6.0]]))
    assert found.tolist() == [[13.0, 16.0, 3.0]]
