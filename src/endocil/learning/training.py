"""What an epoch measures: losses by name and by class, gradients of the classifier, what the gradient rule tells."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from endocil.components.gradients import GradientRule
from endocil.components.losses import Outcome
from endocil.data.augment import Augmentation
from endocil.data.batches import Batch, ahead, cut, training_batches
from endocil.data.seeding import generator
from endocil.learning.numerics import Gradients, Precision, Watch, refuse_wrong_gradients
from endocil.learning.parallel import add_up, gathered
from endocil.methods.base import Phase
from endocil.networks import is_compiled

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


# fit(): the only training loop. A stage of learning is data handed to it (methods/method.py, Phase).

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
