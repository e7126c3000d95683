"""Moves that several methods share: functions, so that a method file reads like its paper's algorithm."""

import copy

import torch
from torch import Tensor, nn
from torch.nn import functional

from endocil.images.batch import Batch
from endocil.scenario import Task


def frozen_copy(backbone: nn.Module, classifier: nn.Module) -> nn.Sequential:
    """The network of this moment as a teacher: it gives logits, and never learns."""
    teacher = nn.Sequential(copy.deepcopy(backbone), copy.deepcopy(classifier))
    return teacher.requires_grad_(False).eval()


@torch.no_grad()
def taught(teacher: nn.Module, batch: Batch) -> Tensor:
    """The teacher's logits for a batch."""
    return teacher(batch.images)  # type: ignore[no-any-return]


def cross_entropy_on_new(logits: Tensor, labels: Tensor, task: Task) -> Tensor:
    """Cross-entropy over the new classes alone, one per image: old logits are not pushed down.

    Over a single logit it would be 0 for ever, so a task of one new class takes all seen logits.
    """
    if task.n_new == 1:
        return functional.cross_entropy(logits, labels, reduction="none")
    return functional.cross_entropy(logits[:, task.new], labels - task.n_old, reduction="none")


def one_class_note(task: Task) -> list[str]:
    if task.index == 0 or task.n_new > 1:
        return []
    return ["one new class: cross-entropy over all seen classes, as over one class it would be 0 for ever"]
