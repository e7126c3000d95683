"""fit(): the only training loop. A stage of learning is data handed to it (methods/method.py, Phase).

One step: the batch's total is the mean of its per-image losses plus the penalties; the gradient rule collects
its matrices on the live graph; backward; the rule overwrites what it wants; the optimiser steps.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from endocil.errors import EndocilError
from endocil.images.augment import Augmentation
from endocil.images.batch import Batch, training_batches
from endocil.methods.method import Outcome, Phase

if TYPE_CHECKING:
    from lightning_fabric import Fabric


@dataclass(frozen=True)
class Epoch:
    """What one epoch measured, and the optimiser as it stands after it."""

    index: int
    measured: dict[str, Any]
    optimizer: torch.optim.SGD


def fit(
    phase: Phase,
    method: nn.Module,
    *,
    fabric: "Fabric",
    augmentation: Augmentation,
    seed: int,
    key: Sequence[int | str],
    observe: nn.Linear,
    start: int = 0,
    momentum: Sequence[Tensor] = (),
) -> Iterator[Epoch]:
    """Train a phase from epoch `start` on, yielding after each epoch.

    `key` says where in the run this is (task, phase): all random numbers come from it. `observe` is the classifier
    whose gradient is logged; `momentum` the optimiser's state of an interrupted phase.
    """
    schedule = phase.schedule
    with only_training(method, (*phase.train, phase.gradients)):
        optimizer = optimizer_of(phase)
        _restore(optimizer, momentum)
        for epoch in range(start, schedule.epochs):
            rate = schedule.learning_rate_at(epoch)
            for group in optimizer.param_groups:
                group["lr"] = rate
            log, began = _Log(observe), time.perf_counter()
            seen = augmentation if phase.augmented else None
            batches = training_batches(
                phase.images, schedule.batch_size, seen, seed, (*key, epoch), fabric.device
            )
            for batch in batches:
                log.add(step(phase, batch, optimizer, fabric), batch, phase)
            measured = {"learning_rate": rate, **log.result(), **_speed(len(phase.images), began)}
            _refuse_divergence(phase, epoch, measured)
            yield Epoch(epoch, measured, optimizer)


def step(phase: Phase, batch: Batch, optimizer: torch.optim.SGD, fabric: "Fabric") -> Outcome:
    """One step of training: everything that is done for a batch."""
    n = len(batch)
    with fabric.autocast():
        outcome = phase.objective(batch)
        parts = [loss.sum() / n if loss.ndim else loss for loss in outcome.losses.values()]
        total = torch.stack(parts).sum()
    collected = phase.gradients.collect(outcome, n)
    optimizer.zero_grad(set_to_none=True)
    fabric.backward(total)
    phase.gradients.apply(collected)
    optimizer.step()
    return outcome


class only_training:  # noqa: N801 - a context manager, named like one
    """These modules learn; everything else of the method is frozen and in eval mode. All is put back at the end."""

    def __init__(self, method: nn.Module, modules: Sequence[nn.Module]) -> None:
        self.method, self.modules = method, modules

    def __enter__(self) -> None:
        self.wanted = {parameter: parameter.requires_grad for parameter in self.method.parameters()}
        self.method.eval().requires_grad_(False)
        for module in self.modules:
            module.train().requires_grad_(True)

    def __exit__(self, *error: object) -> None:
        for parameter, wanted in self.wanted.items():
            parameter.requires_grad_(wanted)
            parameter.grad = None  # a branch that has learned would carry its last gradient for ever
        self.method.eval()


def optimizer_of(phase: Phase) -> torch.optim.SGD:
    parameters = [parameter for module in phase.train for parameter in module.parameters()]
    chosen = phase.schedule
    return torch.optim.SGD(
        parameters, chosen.learning_rate, chosen.momentum, weight_decay=chosen.weight_decay
    )


def _restore(optimizer: torch.optim.SGD, momentum: Sequence[Tensor]) -> None:
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for parameter, saved in zip(parameters, momentum, strict=bool(momentum)):
        # empty_like keeps the memory layout of an uninterrupted run, and with it every bit
        optimizer.state[parameter]["momentum_buffer"] = torch.empty_like(parameter).copy_(saved)


def momentum_of(optimizer: torch.optim.SGD) -> list[Tensor]:
    """The optimiser's state: one tensor per parameter, or none before the first step or without momentum."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    buffers = [optimizer.state[parameter].get("momentum_buffer") for parameter in parameters]
    return [buffer for buffer in buffers if buffer is not None]


class _Log:
    """Sums over the steps of an epoch, kept on the device: no synchronisation before the epoch ends."""

    def __init__(self, classifier: nn.Linear) -> None:
        self.classifier = classifier
        n = classifier.out_features
        self.images = torch.zeros(n, device=classifier.weight.device)
        self.per_class: dict[str, Tensor] = {}
        self.scalars: dict[str, Tensor] = {}
        self.rows = torch.zeros(n, device=classifier.weight.device)
        self.steps = 0

    @torch.no_grad()
    def add(self, outcome: Outcome, batch: Batch, phase: Phase) -> None:
        self.steps += 1
        self.images.index_add_(0, batch.labels, torch.ones_like(batch.labels, dtype=self.images.dtype))
        for name, loss in outcome.losses.items():
            if loss.ndim:
                sums = self.per_class.setdefault(name, torch.zeros_like(self.images))
                sums.index_add_(0, batch.labels, loss.detach().float())
            else:
                self._scalar(f"losses/{name}", loss)
        for name, value in phase.gradients.measured.items():
            self._scalar(name, value)
        if self.classifier.weight.grad is not None:
            norms = self.classifier.weight.grad.norm(dim=1)  # (n_seen,)
            self.rows += norms
            self._scalar("classifier_gradient", norms.norm())

    def _scalar(self, name: str, value: Tensor) -> None:
        self.scalars[name] = self.scalars.get(name, torch.zeros_like(value)) + value.detach()

    def result(self) -> dict[str, Any]:
        means = {name: float(value) / self.steps for name, value in self.scalars.items()}
        losses = {name: float(sums.sum() / self.images.sum()) for name, sums in self.per_class.items()}
        penalties = {name[7:]: means.pop(name) for name in list(means) if name.startswith("losses/")}
        per_class = {name: _ratios(sums, self.images) for name, sums in self.per_class.items()}
        # a phase may leave the classifier alone: then there is no gradient to tell of
        rows = (
            {"classifier_rows": (self.rows / self.steps).tolist()} if "classifier_gradient" in means else {}
        )
        return {"losses": losses | penalties, "per_class": per_class, **means, **rows}


def _ratios(sums: Tensor, counts: Tensor) -> list[float | None]:
    pairs = zip(sums.tolist(), counts.tolist(), strict=True)
    return [total / count if count else None for total, count in pairs]


def _speed(images: int, began: float) -> dict[str, float]:
    seconds = time.perf_counter() - began
    return {"images": images, "seconds": seconds, "images_per_second": images / seconds}


def _refuse_divergence(phase: Phase, epoch: int, measured: Mapping[str, Any]) -> None:
    for name, value in measured["losses"].items():
        if not value - value == 0.0:  # NaN and infinity alike
            raise EndocilError(
                f"the {name} loss became {value} in epoch {epoch} of phase '{phase.name}'; lower train.learning_rate"
            )
