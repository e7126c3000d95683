"""CFG, the calibrated gradient of the classifier of EndoCIL (arXiv 2510.17200), and the plain rule. Torch alone.

The gradient of a linear classifier is (gradient of the loss with respect to the logits)^T x features, so both
parts come from two small matrix products: no second backward pass through the network.

Differs from the print: gamma is the ratio of the norms of the *stacked* class gradients. The printed ratio of
norms of sums divides by zero, because the logit gradients of a softmax loss add up to zero over the classes.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from endocil.components.losses import Outcome

SMALLEST = 1e-12  # below this norm the distillation gradient has no direction; gamma is 0 then
DISTILLATION = "distillation"  # the name of the loss that CFG calibrates against all the others


def linear_gradient(logit_gradient: Tensor, features: Tensor) -> Tensor:
    """Gradient of a linear layer from that of its output: (C, d + 1), the bias in the last column."""
    kind = torch.promote_types(features.dtype, torch.float32)  # a sum over a batch is too much for 16 bits
    inputs = functional.pad(features.detach().to(kind), (0, 1), value=1.0)  # (B, d + 1)
    return logit_gradient.detach().to(kind).T @ inputs


def calibrated_gradient(
    classification: Tensor, distillation: Tensor, weights: Tensor, *, gamma_max: float | None = None
) -> tuple[Tensor, Tensor]:
    """W_i g_i^clf + gamma g_i^kd with gamma = |W G^clf| / |G^kd|: the gradient and gamma.

    Both gradients are (C, d + 1) with the bias last (`linear_gradient`); gamma is taken from the weight columns
    and serves the bias too. Any positive factor on the distillation cancels.
    """
    weighted = weights.to(classification)[:, None] * classification
    length = distillation[:, :-1].norm()
    gamma = torch.where(length < SMALLEST, 0.0, weighted[:, :-1].norm() / length.clamp_min(SMALLEST))
    if gamma_max is not None:
        gamma = gamma.clamp_max(gamma_max)
    return weighted + gamma * distillation, gamma


class GradientRule(nn.Module):
    """The plain rule: the gradients of the total loss stay as they are.

    State of a rule that must survive a crash lives in buffers; `measured` holds values of the last step for the log.
    """

    measured: Mapping[str, Tensor]
    second_pass = False  # is the gradient taken a second time, where `perturb` leads to?

    def __init__(self) -> None:
        super().__init__()
        self.measured = {}

    def collect(self, outcome: Outcome, n: float) -> dict[str, Tensor]:
        """On the live graph, before backward: small matrices that add up over the pieces of a batch of n images.

        (n is divided by the factor of a scaled loss.)"""
        return {}

    def perturb(self, parameters: Sequence[nn.Parameter]) -> None:
        """Where `second_pass` is true: after the first backward pass, move the parameters to where the gradient is
        wanted (SAM). The loop takes it there, and puts parameters and batch norm's statistics back."""

    def overwrite(self, collected: Mapping[str, Tensor]) -> None:
        """After backward, before the optimiser's step: overwrite the classifier's gradient."""


def classifier_gradients(outcome: Outcome, n: float) -> dict[str, Tensor]:
    """The linear classifier's gradient of the distillation, and of all other losses together: (C, d + 1) each."""
    if outcome.logits is None or outcome.features is None:
        raise ValueError(
            "calibrated gradients need the outcome's logits and features; return them, or take the plain GradientRule"
        )
    parts: dict[str, list[Tensor]] = {"classification": [], DISTILLATION: []}
    for name, loss in outcome.losses.items():
        if not loss.ndim:
            raise ValueError(f"calibrated gradients take losses of images; '{name}' is a penalty on parameters")
        parts[name if name == DISTILLATION else "classification"].append(loss.sum() / n)
    return {
        part: linear_gradient(_gradient(losses, outcome.logits), outcome.features) for part, losses in parts.items()
    }


class CalibratedGradient(GradientRule):
    """CFG: the classifier takes the calibrated gradient, everything before it that of the total loss."""

    weights: Tensor

    def __init__(self, classifier: nn.Linear, weights: Tensor, *, gamma_max: float | None = None) -> None:
        super().__init__()
        if type(classifier).forward is not nn.Linear.forward:
            raise ValueError(
                f"calibrated gradients are those of a linear classifier, not of {type(classifier).__name__}; "
                f"take the plain GradientRule, or set method.gradients='plain'"
            )
        self._classifier = (classifier,)  # in a tuple: its parameters belong to the method, not to the rule
        self.register_buffer("weights", weights)
        self.gamma_max = gamma_max

    def collect(self, outcome: Outcome, n: float) -> dict[str, Tensor]:
        return classifier_gradients(outcome, n)

    def overwrite(self, collected: Mapping[str, Tensor]) -> None:
        (classifier,) = self._classifier
        gradient, gamma = calibrated_gradient(
            collected["classification"], collected[DISTILLATION], self.weights, gamma_max=self.gamma_max
        )
        classifier.weight.grad = gradient[:, :-1].to(classifier.weight)
        classifier.bias.grad = gradient[:, -1].to(classifier.bias)
        self.measured = {"gamma": gamma}


def _gradient(losses: list[Tensor], logits: Tensor) -> Tensor:
    """Gradient of the losses with respect to the logits; the graph below the logits is not entered."""
    if not losses:
        return torch.zeros_like(logits)
    (gradient,) = torch.autograd.grad(torch.stack(losses).sum(), logits, retain_graph=True)
    return gradient
