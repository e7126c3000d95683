"""EWC, elastic weight consolidation (Kirkpatrick et al., PNAS 2017) as PyCIL runs it: Finetune with a penalty.

A parameter is held near its value after the last task, the more so the more the loss depends on it (the diagonal
of the Fisher matrix, measured after each task). No exemplars.
Differs from the authors: one running Fisher for all tasks, measured on whole batches by default (`fisher`).
"""

from collections.abc import Callable, Sequence
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional

from endocil.data.batches import Batch, training_batches
from endocil.data.scenario import Task
from endocil.methods import common as moves
from endocil.methods.base import TaskData
from endocil.methods.finetune import Finetune, Losses
from endocil.networks import trained_parts, unshared_batch_norm

Fisher = Literal["batch", "sample", "pycil"]


class EWC(Finetune):
    """Cross-entropy on the new classes, and a penalty on moving parameters that the old ones depend on."""

    native = (moves.PYCIL, moves.pycil_later(180, (70, 120, 150)))

    def __init__(
        self,
        backbone: nn.Module,
        *,
        strength: float = 1000.0,  # lambda: PyCIL
        fisher: Fisher = "batch",  # squared gradient of a batch's mean loss, of each image, or as PyCIL (docs)
        fisher_max: float = 1e-4,  # PyCIL: no parameter is held harder
        **shared: Any,
    ) -> None:
        super().__init__(backbone, **shared)
        moves.refuse_outside("strength", strength, strength >= 0, "a number of 0 or more (PyCIL's is 1000)")
        moves.refuse_unknown("fisher", fisher, get_args(Fisher))
        moves.refuse_outside("fisher_max", fisher_max, fisher_max > 0, "a number above 0 (PyCIL's is 1e-4)")
        self.strength, self.fisher, self.fisher_max = strength, fisher, fisher_max

    def remembering(self, task: Task) -> Callable[[Batch, Tensor], Losses]:
        held = [
            (parameter, self._measured("fisher", name), self._measured("anchor", name))
            for name, parameter in self._learning().items()
            if f"anchor/{name}" in self.statistics
        ]
        if not held:
            return super().remembering(task)
        return lambda batch, logits: {"penalty": self.strength * penalty(held)}

    def consolidate(self, task: Task, data: TaskData) -> None:
        measured = self._measure(task, data)
        for name, parameter in self._learning().items():
            fisher, before = measured[name], self.statistics.get(f"fisher/{name}")
            if before is not None:  # classes that came with this task have no past
                share = moves.old_share(task)
                known = leading(fisher, before)
                known.copy_(share * before.to(known) + (1.0 - share) * known)
            self.statistics[f"fisher/{name}"] = fisher
            self.statistics[f"anchor/{name}"] = parameter.detach().clone()

    def _measured(self, kind: str, name: str) -> Tensor:
        return self.statistics[f"{kind}/{name}"].to(self.device)

    def _learning_modules(self) -> tuple[nn.Module, ...]:
        return (*trained_parts(self.backbone), self.classifier)

    def _learning(self) -> dict[str, nn.Parameter]:
        wanted = {parameter for module in self._learning_modules() for parameter in module.parameters()}
        return {name: parameter for name, parameter in self.named_parameters() if parameter in wanted}

    def _measure(self, task: Task, data: TaskData) -> dict[str, Tensor]:
        """The diagonal Fisher of the task's images: mean over pieces of the squared gradient of their mean loss."""
        learning = self._learning()
        sums = {name: torch.zeros_like(parameter) for name, parameter in learning.items()}
        key, size, pieces = (task.index, "fisher"), self.schedule(task).batch_size, 0
        with unshared_batch_norm(self):
            self.eval()
            for module in self._learning_modules() if self.fisher == "pycil" else ():
                module.train()  # PyCIL lets batch norm's statistics move on while it measures
            for batch in training_batches(data.new, size, data.augmentation, self.seed, key, self.device):
                piece = 1 if self.fisher == "sample" else len(batch)
                pairs = zip(torch.split(batch.images, piece), torch.split(batch.labels, piece), strict=True)
                for images, labels in pairs:
                    loss = functional.cross_entropy(self(images), labels)
                    gradients = torch.autograd.grad(loss, list(learning.values()))
                    for total, gradient in zip(sums.values(), gradients, strict=True):
                        total += gradient.square()
                    pieces += 1
            self.eval()
        return {name: (total / pieces).clamp_max(self.fisher_max) for name, total in sums.items()}


def penalty(held: Sequence[tuple[Tensor, Tensor, Tensor]]) -> Tensor:
    """1/2 sum F (theta - theta*)^2 over (theta, F, theta*); rows that came later are free."""
    # theta stands first: the sum then runs in its memory order, also where F and theta* come from a checkpoint
    parts = [
        ((leading(parameter, anchor) - anchor).square() * fisher).sum() for parameter, fisher, anchor in held
    ]
    return torch.stack(parts).sum() / 2.0


def leading(values: Tensor, earlier: Tensor) -> Tensor:
    """The part of a parameter that was there earlier: the classifier alone grows, by rows."""
    return values if values.shape == earlier.shape else values[: len(earlier)]
