"""fit(): the only training loop. A stage of learning is data handed to it (methods/method.py, Phase).

One step: the batch's total is the mean of its per-image losses plus the penalties; the gradient rule collects
its matrices on the live graph; backward; the rule overwrites what it wants; the optimiser steps. A batch may be
shared by several processes and cut into pieces: gradients and collected matrices add up to those of the whole.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from endocil.epoch_log import EpochLog
from endocil.images.augment import Augmentation
from endocil.images.batch import Batch, ahead, cut, training_batches
from endocil.methods.method import Outcome, Phase
from endocil.networks import is_compiled
from endocil.numerics import Gradients, Watch, refuse_wrong_gradients
from endocil.precision import Precision
from endocil.processes import add_up
from endocil.randomness import generator

if TYPE_CHECKING:
    from lightning_fabric import Fabric

_WAY_OUT = "lower train.learning_rate, or take train.precision '32' without train.compile; the last checkpoint is sound"


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
    precision: Precision | None = None,
    accumulate: int = 1,
) -> Iterator[Epoch]:
    """Train a phase from epoch `start` on, yielding after each epoch.

    `key` says where in the run this is (task, phase): all random numbers come from it. `observe` is the classifier
    whose gradient is logged; `momentum` the optimiser's state of an interrupted phase. `accumulate`: a batch goes
    through the network in as many pieces, for less memory.
    """
    schedule, share = phase.schedule, (fabric.global_rank, fabric.world_size)
    how = precision or Precision()
    with only_training(method, (*phase.train, phase.gradients)):
        optimizer = optimizer_of(phase)
        _restore(optimizer, momentum)
        compare_with_float32(phase, method, seed, key, fabric, how, accumulate)
        watch = Watch(method, phase.train)
        for epoch in range(start, schedule.epochs):
            rate = schedule.learning_rate_at(epoch)
            for group in optimizer.param_groups:
                group["lr"] = rate
            log, began = EpochLog(observe), time.perf_counter()
            seen = augmentation if phase.augmented else None
            batches = training_batches(
                phase.images, schedule.batch_size, seen, seed, (*key, epoch), fabric.device, share
            )
            for batch in ahead(batches, fabric.device):
                step(phase, batch, optimizer, fabric, how, accumulate, log)
            measured = {"learning_rate": rate, **log.result(fabric), **_speed(len(phase.images), began)}
            watch.refuse_damage(measured["losses"], f"epoch {epoch} of phase '{phase.name}'", _WAY_OUT)
            yield Epoch(epoch, measured, optimizer)


def step(
    phase: Phase,
    batch: Batch,
    optimizer: torch.optim.SGD,
    fabric: "Fabric",
    precision: Precision | None = None,
    accumulate: int = 1,
    log: EpochLog | None = None,
) -> None:
    """One step of training: everything that is done for a batch, or for this process's share of it."""
    how = precision or Precision()
    optimizer.zero_grad(set_to_none=True)
    _, collected = _backward(phase, batch, fabric, how, accumulate, log)
    gradients = [*_gradients(optimizer), *collected.values()]
    add_up(fabric, gradients)
    if how.unscale(gradients):
        phase.gradients.apply(collected)
        optimizer.step()
        if log is not None:
            log.add_gradients(phase.gradients)


def _backward(
    phase: Phase, batch: Batch, fabric: "Fabric", how: Precision, accumulate: int, log: EpochLog | None = None
) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss of this process's share, its gradients in every parameter, and what the gradient rule collects."""
    n, loss, collected = len(batch.batch_labels), torch.zeros((), device=fabric.device), dict[str, Tensor]()
    for piece in batch.pieces(accumulate, fabric.world_size):
        with how.autocast(fabric.device):
            outcome = phase.objective(piece)
            total = total_loss(outcome, len(piece), n)
        for name, part in phase.gradients.collect(outcome, n / how.factor).items():
            collected[name] = collected[name] + part if name in collected else part
        (total * how.factor if how.scaled else total).backward()  # type: ignore[no-untyped-call]
        loss += total.detach()
        if log is not None:
            log.add_losses(outcome, piece, n)
    return loss, collected


def compare_with_float32(
    phase: Phase,
    method: nn.Module,
    seed: int,
    key: Sequence[int | str],
    fabric: "Fabric",
    precision: Precision,
    accumulate: int,
) -> None:
    """Before the first step: with 16 bits or compiled, the phase's own network must give float32's gradients,
    at the sizes of its batches."""
    if precision.bits == "32" and not is_compiled(method):
        return
    learning = {name: value for name, value in method.named_parameters() if value.requires_grad}
    share = (fabric.global_rank, fabric.world_size)
    sizes = {len(rows) for rows in cut(torch.arange(len(phase.images)), phase.schedule.batch_size)}
    for size in sorted(sizes, reverse=True):
        order = torch.randperm(len(phase.images), generator=generator(seed, *key, "float32"))
        some = phase.images.take(order[:size])
        (batch,) = training_batches(some, size, None, seed, (*key, 0), fabric.device, share)

        def gradients(how: Precision, batch: Batch = batch) -> Gradients:
            while True:  # a scaled loss that overflows is tried again with half the scale, as in training
                loss, _ = _backward(phase, batch, fabric, how, accumulate)
                found = {
                    name: torch.zeros_like(value) if value.grad is None else value.grad
                    for name, value in learning.items()
                }
                for value in learning.values():
                    value.grad = None
                add_up(fabric, [loss, *found.values()])
                if how.unscale(found.values()) or how.factor <= 1.0:
                    return Gradients(loss, found)

        refuse_wrong_gradients(gradients, method, precision)


def total_loss(outcome: Outcome, images: int, n: int) -> Tensor:
    """What `images` of n add to the loss of a batch: the mean over the batch of its images' losses, and penalties."""
    parts = [loss.sum() / n if loss.ndim else loss * (images / n) for loss in outcome.losses.values()]
    return torch.stack(parts).sum()


def _gradients(optimizer: torch.optim.SGD) -> list[Tensor]:
    """Of every parameter that learns: zeros where the loss, or a share without images, has left one untouched."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for parameter in parameters:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
    return [parameter.grad for parameter in parameters if parameter.grad is not None]


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


def _speed(images: int, began: float) -> dict[str, float]:
    seconds = time.perf_counter() - began
    return {"images": images, "seconds": seconds, "images_per_second": images / seconds}
