"""What an epoch measures: losses by name and by class, gradients of the classifier, what the gradient rule tells."""

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from endocil.gradients import GradientRule
from endocil.images.batch import Batch
from endocil.losses import Outcome
from endocil.processes import gathered

if TYPE_CHECKING:
    from lightning_fabric import Fabric

Sums = dict[str, Tensor]


class EpochLog:
    """Sums over the steps of an epoch, kept on the device: no synchronisation before the epoch ends."""

    def __init__(self, classifier: nn.Linear) -> None:
        self.classifier = classifier
        n, device = classifier.out_features, classifier.weight.device
        self.images = torch.zeros(n, device=device)
        self.losses: Sums = {}  # name -> sums over the images of each class
        self.penalties: Sums = {}  # name -> sum over the steps
        self.measured: Sums = {}  # likewise, alike on all processes
        self.rows = torch.zeros(n, device=device)
        self.steps = self.updates = 0

    @torch.no_grad()
    def add_losses(self, outcome: Outcome, piece: Batch, n: int) -> None:
        """Of a piece of a batch of n images."""
        if piece.start + len(piece) == n:  # the last piece of the batch
            self.steps += 1
        self.images.index_add_(0, piece.labels, torch.ones_like(piece.labels, dtype=self.images.dtype))
        for name, loss in outcome.losses.items():
            if loss.ndim:
                sums = self.losses.setdefault(name, torch.zeros_like(self.images))
                sums.index_add_(0, piece.labels, loss.detach().to(sums.dtype))
            else:
                _add(self.penalties, name, loss * (len(piece) / n))

    @torch.no_grad()
    def add_gradients(self, rule: GradientRule) -> None:
        """Of a step that was taken, after it."""
        self.updates += 1
        for name, value in rule.measured.items():
            _add(self.measured, name, value)
        if self.classifier.weight.grad is not None:
            norms = self.classifier.weight.grad.norm(dim=1)  # (n_seen,)
            self.rows += norms
            _add(self.measured, "classifier_gradient", norms.norm())

    def result(self, fabric: "Fabric") -> dict[str, Any]:
        """The epoch of all processes together."""
        # a process without images of some kind may lack a loss, so sums are told by their names
        shares = gathered(
            fabric, (self.steps, _to_cpu(self.losses), _to_cpu(self.penalties), self.images.cpu())
        )
        steps, losses, penalties, counted = zip(*shares, strict=True)
        images = torch.stack(counted).sum(0)
        by_class = _joined(losses)
        means = {name: float(value) / max(1, self.updates) for name, value in self.measured.items()}
        told = {name: float(sums.sum() / images.sum()) for name, sums in by_class.items()}
        told |= {name: float(value) / sum(steps) for name, value in _joined(penalties).items()}
        per_class = {name: _ratios(sums, images) for name, sums in by_class.items()}
        # a phase may leave the classifier alone: then there is no gradient to tell of
        known = "classifier_gradient" in means
        return {"losses": told, "per_class": per_class, **means, **(self._of_classes() if known else {})}

    @torch.no_grad()
    def _of_classes(self) -> dict[str, list[float]]:
        """Of each row of the classifier: its gradient over the epoch, and its own norm at the end of it."""
        norms = self.classifier.weight.norm(dim=1).tolist()
        return {
            "classifier_rows": (self.rows / max(1, self.updates)).tolist(),
            "weight_norms": [round(norm, 6) for norm in norms],  # a float32 written out has 17 digits
        }


def _add(sums: Sums, name: str, value: Tensor) -> None:
    sums[name] = sums.get(name, torch.zeros_like(value)) + value.detach()


def _to_cpu(sums: Sums) -> Sums:
    return {name: value.cpu() for name, value in sums.items()}


def _joined(shares: tuple[Sums, ...]) -> Sums:
    """Sums of several processes by their names, in order of appearance."""
    names = dict.fromkeys(name for share in shares for name in share)
    return {name: torch.stack([share[name] for share in shares if name in share]).sum(0) for name in names}


def _ratios(sums: Tensor, counts: Tensor) -> list[float | None]:
    pairs = zip(sums.tolist(), counts.tolist(), strict=True)
    return [total / count if count else None for total, count in pairs]
