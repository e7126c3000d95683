"""PRCBL, the prior-regularised class-balanced loss of EndoCIL (arXiv 2510.17200), and distillation.

Torch alone: every loss returns one value per image, so that the caller decides how to average.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True)
class Outcome:
    """What an objective returns for one batch."""

    losses: Mapping[str, Tensor]  # already weighted; (B,) one per image, or () a penalty on parameters
    logits: Tensor | None = None  # the classifier output these losses were computed from (B, n_seen)
    features: Tensor | None = None  # the classifier input (B, d)


def class_balanced_weights(counts: Tensor, beta: float = 0.96) -> Tensor:
    """Weights of the classes that add up to their number: W_i = C alpha_i / sum alpha, alpha_i = (1-beta)/(1-beta^n_i).

    beta = 0 gives all classes the same weight; beta near 1 the inverse of their counts.
    """
    counts = torch.as_tensor(counts)
    if counts.ndim != 1 or counts.numel() == 0 or bool((counts < 1).any()):
        raise ValueError(f"counts must be one number >= 1 for each class, got {counts.tolist()}")
    if not 0.0 <= beta < 1.0:
        raise ValueError(f"beta must lie in [0, 1), got {beta}")
    # expm1 keeps digits where beta^n is near 1; beta = 0 has no logarithm
    logarithm = torch.log(torch.tensor(beta, dtype=torch.float64))
    alpha = (1.0 - beta) / -torch.expm1(counts.double() * logarithm)  # (C,)
    return alpha * counts.numel() / alpha.sum()


class PriorRegularizedLoss(nn.Module):
    """Cross-entropy of softmax(z + log pi), times the weight of the image's class: -W_y log p_y, one per image.

    pi is the share of each class in `counts`; without `weights` every class weighs 1 (the paper's first task).
    Prediction uses the raw logits z: adding the prior again would bring the imbalance back.
    `smoothing` e is not the paper's: -sum_c q_c W_c log p_c, with q_c = e / C, and 1 - e more for the image's class.
    """

    log_prior: Tensor
    weights: Tensor

    def __init__(self, counts: Tensor, weights: Tensor | None = None, *, smoothing: float = 0.0) -> None:
        super().__init__()
        self.smoothing = smoothing
        counts = torch.as_tensor(counts)
        if counts.ndim != 1 or counts.numel() == 0 or bool((counts < 1).any()):
            raise ValueError(f"counts must be one number >= 1 for each class, got {counts.tolist()}")
        weights = torch.ones(counts.numel()) if weights is None else torch.as_tensor(weights)
        if weights.shape != counts.shape:
            raise ValueError(f"{counts.numel()} counts but weights of shape {tuple(weights.shape)}")
        self.register_buffer("log_prior", torch.log(counts.double() / counts.double().sum()))
        self.register_buffer("weights", weights.double())

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        adjusted = logits + self.log_prior.to(logits)  # (B, C)
        if self.smoothing:
            return functional.cross_entropy(
                adjusted, labels, self.weights.to(logits), reduction="none", label_smoothing=self.smoothing
            )
        return self.weights.to(logits)[labels] * functional.cross_entropy(adjusted, labels, reduction="none")


def distillation(logits: Tensor, teacher_logits: Tensor, temperature: float = 2.0) -> Tensor:
    """Soft cross-entropy to the teacher on its classes, one per image; no factor temperature^2 (PyCIL's form).

    The student's logits are cut to the teacher's classes before the softmax.
    """
    student = logits[:, : teacher_logits.shape[1]] / temperature
    target = functional.softmax(teacher_logits / temperature, dim=1)
    return -(target * functional.log_softmax(student, dim=1)).sum(dim=1)
