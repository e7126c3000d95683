"""EWC, elastic weight consolidation (Kirkpatrick et al., PNAS 2017) as in PyCIL: Finetune with a penalty.

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
from endocil.data.seeding import torch_seeded
from endocil.errors import FileFormatError
from endocil.methods import common
from endocil.methods.base import TaskData
from endocil.methods.finetune import Finetune, Losses
from endocil.networks import trained_parts, unsynced_batch_norm

Fisher = Literal["batch", "sample", "pycil"]


class EWC(Finetune):
    """Cross-entropy on the new classes, and a penalty on moving parameters that the old ones depend on."""

    native = (common.PYCIL_FIRST_TASK, common.pycil_schedule(180, (70, 120, 150)))

    def __init__(
        self,
        backbone: nn.Module,
        *,
        strength: float = 1000.0,  # lambda: PyCIL
        fisher: Fisher = "batch",  # squared gradient of a batch's mean loss, of each image, or as PyCIL (docs)
        fisher_max: float = 1e-4,  # PyCIL: no parameter is held harder
        **inherited: Any,
    ) -> None:
        super().__init__(backbone, **inherited)
        common.check_number("strength", strength, strength >= 0, "a number of 0 or more (PyCIL's is 1000)")
        common.check_choice("fisher", fisher, get_args(Fisher))
        common.check_number("fisher_max", fisher_max, fisher_max > 0, "a number above 0 (PyCIL's is 1e-4)")
        self.strength, self.fisher, self.fisher_max = strength, fisher, fisher_max

    def retention_losses(self, task: Task) -> Callable[[Batch, Tensor], Losses]:
        anchored = [
            (parameter, self._statistic("fisher", name, parameter), self._statistic("anchor", name, parameter))
            for name, parameter in self._trained_parameters().items()
            if f"anchor/{name}" in self.statistics
        ]
        if not anchored:
            return super().retention_losses(task)
        return lambda batch, logits: {"penalty": self.strength * penalty(anchored)}

    def consolidate(self, task: Task, data: TaskData) -> None:
        diagonal = self._fisher_diagonal(task, data)
        for name, parameter in self._trained_parameters().items():
            fisher = diagonal[name]
            if f"fisher/{name}" in self.statistics:  # the rows of this task's classes have no earlier Fisher
                before, old = self._statistic("fisher", name, parameter), common.old_class_ratio(task, data)
                rows = existing_rows(fisher, before)
                rows.copy_(old * before.to(rows) + (1.0 - old) * rows)
            self.statistics[f"fisher/{name}"] = fisher
            self.statistics[f"anchor/{name}"] = parameter.detach().clone()

    def _statistic(self, kind: str, name: str, parameter: Tensor) -> Tensor:
        """From a model file or checkpoint, maybe: it has to fit the parameter, which may have got more rows."""
        value, other = (
            self.statistics.get(f"{one}/{name}") for one in (kind, "anchor" if kind == "fisher" else "fisher")
        )
        fits = value is not None and other is not None and value.shape == other.shape and value.dim() == parameter.dim()
        if value is None or not fits or value.shape != existing_rows(parameter, value).shape:
            raise FileFormatError(f"the statistic {kind}/{name} does not fit the network: the file was changed")
        return value.to(self.device)

    def _trained_modules(self) -> tuple[nn.Module, ...]:
        return (*trained_parts(self.backbone), self.classifier)

    def _trained_parameters(self) -> dict[str, nn.Parameter]:
        trained = {parameter for module in self._trained_modules() for parameter in module.parameters()}
        return {name: parameter for name, parameter in self.named_parameters() if parameter in trained}

    def _fisher_diagonal(self, task: Task, data: TaskData) -> dict[str, Tensor]:
        """The diagonal Fisher of the task's images: mean over pieces of the squared gradient of their mean loss."""
        trained = self._trained_parameters()
        sums = {name: torch.zeros_like(parameter) for name, parameter in trained.items()}
        key, size, pieces = (task.index, "fisher"), self.schedule(task).batch_size, 0
        with unsynced_batch_norm(self), torch_seeded(self.seed, *key):  # dropout, in the mode of training
            self.eval()
            for module in self._trained_modules() if self.fisher == "pycil" else ():
                module.train()  # PyCIL lets batch norm's statistics move on while it measures
            for batch in training_batches(
                data.new, size, data.augmentation, self.seed, key, self.device, normalisation=self.normalisation
            ):
                piece = 1 if self.fisher == "sample" else len(batch)
                pairs = zip(torch.split(batch.images, piece), torch.split(batch.labels, piece), strict=True)
                for images, labels in pairs:
                    loss = functional.cross_entropy(self(images), labels)
                    gradients = torch.autograd.grad(loss, list(trained.values()))
                    for total, gradient in zip(sums.values(), gradients, strict=True):
                        total += gradient.square()
                    pieces += 1
            self.eval()
        return {name: (total / pieces).clamp_max(self.fisher_max) for name, total in sums.items()}


def penalty(anchored: Sequence[tuple[Tensor, Tensor, Tensor]]) -> Tensor:
    """1/2 sum F (theta - theta*)^2 over (theta, F, theta*); rows that came later are not held."""
    # theta stands first: the sum then runs in its memory order, also where F and theta* come from a checkpoint
    parts = [
        ((existing_rows(parameter, anchor) - anchor).square() * fisher).sum() for parameter, fisher, anchor in anchored
    ]
    return torch.stack(parts).sum() / 2.0


def existing_rows(values: Tensor, earlier: Tensor) -> Tensor:
    """The rows of a parameter that existed earlier: the classifier alone grows, by rows."""
    return values if values.shape == earlier.shape else values[: len(earlier)]
