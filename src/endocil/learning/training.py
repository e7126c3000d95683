"""The only training loop: `fit` trains a phase, epoch by epoch, and `step` is one batch of it.

A stage of learning is data handed to this loop (`Phase` in methods/base.py), so that all methods log, resume and
distribute alike. `EpochLog` sums what an epoch measures: losses by name and by class, gradients of the classifier, and
the measurements of the gradient rule.
"""

import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from endocil.components.losses import Outcome
from endocil.data.augment import Augmentation
from endocil.data.batches import Batch, PreparePixels, cut, prefetch, training_batches
from endocil.data.seeding import generator
from endocil.errors import SettingsError
from endocil.learning.features import FeatureStore
from endocil.learning.frozen_maps import Inputs, inputs_of
from endocil.learning.numerics import Gradients, Precision, ValueCheck, refuse_wrong_gradients, unchanged
from endocil.learning.optimizers import OptimizerState, optimizer_of, restore_state, set_rate
from endocil.learning.parallel import Processes, all_gather, all_reduce
from endocil.methods.base import Method, Phase
from endocil.networks import Head, beginning_behind, is_compiled

Sums = dict[str, Tensor]


class EpochLog:
    """Sums over the steps of an epoch, kept on the device: no synchronisation before the epoch ends."""

    def __init__(self, classifier: Head) -> None:
        self.classifier = classifier
        n, device = classifier.out_features, classifier.weight.device
        self.images = torch.zeros(n, device=device)
        self.losses: Sums = {}  # name -> sums over the images of each class
        self.penalties: Sums = {}  # name -> sum over the steps
        self.measured: Sums = {}  # likewise, alike on all processes
        self.rows = torch.zeros(n, device=device)
        self.steps = self.updates = 0

    def state(self) -> Sums:
        """What a checkpoint in the middle of an epoch keeps of it."""
        sums = {"losses": self.losses, "penalties": self.penalties, "measured": self.measured}
        return {
            **{f"{kind}/{name}": value for kind, named in sums.items() for name, value in named.items()},
            "images": self.images,
            "rows": self.rows,
            "counts": torch.tensor([self.steps, self.updates]),
        }

    def load(self, state: Mapping[str, Tensor]) -> None:
        device = self.images.device
        for name, value in state.items():
            kind, _, key = name.partition("/")
            if key:
                getattr(self, kind)[key] = value.to(device)
        self.images, self.rows = state["images"].to(device), state["rows"].to(device)
        self.steps, self.updates = state["counts"].tolist()

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
    def add_gradients(self, measured: Mapping[str, Tensor]) -> None:
        """Of a step that was taken, after it: what was measured, and the gradient that the classifier learned by."""
        self.updates += 1
        for name, value in measured.items():
            _add(self.measured, name, value)
        norms = self.classifier.class_norms(gradient=True)  # (n_seen,)
        if norms is not None:
            self.rows += norms
            _add(self.measured, "classifier_gradient", norms.norm())

    def result(self, fabric: Processes) -> dict[str, Any]:
        """What the epoch measured, over all processes."""
        # a process without images of some kind may lack a loss, so sums are matched by name
        by_process = all_gather(fabric, (self.steps, _to_cpu(self.losses), _to_cpu(self.penalties), self.images.cpu()))
        steps, losses, penalties, counted = zip(*by_process, strict=True)
        images = torch.stack(counted).sum(0)
        by_class = _joined(losses)
        means = {name: float(value) / max(1, self.updates) for name, value in self.measured.items()}
        means_of_losses = {name: float(sums.sum() / images.sum()) for name, sums in by_class.items()}
        means_of_losses |= {name: float(value) / sum(steps) for name, value in _joined(penalties).items()}
        per_class = {
            name: [total / n if n else None for total, n in zip(sums.tolist(), images.tolist(), strict=True)]
            for name, sums in by_class.items()
        }
        # a phase may leave the classifier alone: then there is no gradient to report
        known = "classifier_gradient" in means
        return {"losses": means_of_losses, "per_class": per_class, **means, **(self._of_classes() if known else {})}

    @torch.no_grad()
    def _of_classes(self) -> dict[str, list[float]]:
        """Of each class's rows: their gradient over the epoch, and their own norm at the end of it."""
        lengths = self.classifier.class_norms()
        norms = [] if lengths is None else lengths.tolist()
        return {
            "classifier_rows": (self.rows / max(1, self.updates)).tolist(),
            "weight_norms": [round(norm, 6) for norm in norms],  # a float32 written out has 17 digits
        }


def _add(sums: Sums, name: str, value: Tensor) -> None:
    sums[name] = sums.get(name, torch.zeros_like(value)) + value.detach()


def _to_cpu(sums: Sums) -> Sums:
    return {name: value.cpu() for name, value in sums.items()}


def _joined(by_process: tuple[Sums, ...]) -> Sums:
    """Sums of several processes by their names, in order of appearance."""
    names = dict.fromkeys(name for sums in by_process for name in sums)
    return {name: torch.stack([sums[name] for sums in by_process if name in sums]).sum(0) for name in names}


_WAY_OUT = "lower train.learning_rate, or take train.precision '32' without train.compile; the last checkpoint is sound"


@dataclass(frozen=True)
class Epoch:
    """What one epoch measured, and the optimiser as it stands after it; or an epoch that was to stop after a step."""

    index: int
    measured: dict[str, Any]
    optimizer: torch.optim.Optimizer
    stopped_at: int = 0  # steps that are done of an epoch that is not over
    log: Sums = field(default_factory=dict)  # and what it has measured so far


def fit(
    phase: Phase,
    method: Method,
    *,
    fabric: Processes,
    augmentation: Augmentation,
    seed: int,
    key: Sequence[int | str],
    logged_head: Head,
    start_epoch: int = 0,
    start_step: int = 0,
    state: OptimizerState | None = None,
    log_state: Mapping[str, Tensor] | None = None,
    precision: Precision | None = None,
    accumulate: int = 1,
    mixup: float = 0.0,
    store: FeatureStore | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> Generator[Epoch, None, None]:
    """Train a phase from step `start_step` of epoch `start_epoch` on, yielding after each epoch, and where `stop`
    says so.

    `key` says where in the run this is (task, phase): all random numbers come from it. `logged_head` is the classifier
    whose gradient is logged; `state` and `log_state` those of the optimiser and the log in an interrupted phase. `stop`
    is asked after each step of a process alone, and of several after each epoch. `accumulate`: a batch goes
    through the network in as many pieces, for less memory. `mixup`: of augmented images (data/batches.py). `store`:
    where maps of frozen stages are kept (learning/frozen_maps.py).
    """
    schedule, shard = phase.schedule, (fabric.global_rank, fabric.world_size)
    precision = precision or Precision()
    refuse_unfit(phase, processes=fabric.world_size, accumulate=accumulate, mixup=mixup)
    with only_training(method, (*phase.train, phase.gradients)):
        optimizer = optimizer_of(phase)
        if state is not None:
            restore_state(optimizer, state)
        compare_with_float32(phase, method, seed, key, fabric, precision, accumulate)
        check, inputs = ValueCheck(method, phase.train), Inputs(phase, augmentation)
        if precision.bits == "32" and fabric.world_size == 1 and not (mixup or is_compiled(method)):
            inputs = inputs_of(phase, method, augmentation, store=store, stop=stop)
        for epoch in range(start_epoch, schedule.epochs):
            log, began = EpochLog(logged_head), time.perf_counter()
            if epoch == start_epoch and start_step and log_state:
                log.load(log_state)
            first = start_step if epoch == start_epoch else 0
            batches = batches_of(
                inputs.phase, method, inputs.prepare, seed, (*key, epoch), shard, mixup=mixup, first=first
            )
            steps = len(cut(phase.images.rows, schedule.batch_size))
            where = f"epoch {epoch + 1} of phase '{phase.name}'"
            for number, batch in enumerate(prefetch(batches, fabric.device), start=1 + first):
                rate = schedule.learning_rate_at(epoch, number / steps)
                set_rate(optimizer, rate)
                with beginning_behind(method, inputs.stages):
                    step(phase, batch, optimizer, fabric, precision, accumulate, log)
                if number < steps and fabric.world_size == 1 and stop():
                    check.refuse_damage({}, where, _WAY_OUT)  # the checkpoint that follows replaces a sound one
                    yield Epoch(epoch, {}, optimizer, number, log.state())
            images, seconds = phase.images_per_epoch, time.perf_counter() - began
            speed = {"images": images, "seconds": seconds, "images_per_second": images / seconds}
            measured = {"learning_rate": rate, **log.result(fabric), **speed}
            check.refuse_damage(measured["losses"], where, _WAY_OUT)
            yield Epoch(epoch, measured, optimizer)


def batches_of(
    phase: Phase,
    method: Method,
    augmentation: PreparePixels | None,
    seed: int,
    key: Sequence[int | str],
    shard: tuple[int, int] = (0, 1),
    *,
    mixup: float = 0.0,
    first: int = 0,
) -> Iterator[Batch]:
    """The batches of one epoch of a phase, from the `first` on."""
    return training_batches(
        phase.images,
        phase.schedule.batch_size,
        augmentation if phase.augmented else None,
        seed,
        key,
        method.device,
        shard,
        normalisation=method.normalisation,
        mixup=mixup if phase.augmented else 0.0,
        first=first,
        replay=phase.replay,
        views=phase.views,
    )


def refuse_unfit(phase: Phase, *, processes: int = 1, accumulate: int = 1, mixup: float = 0.0) -> None:
    """What a phase asks for that does not go with these settings."""
    if phase.whole_batches and (processes > 1 or accumulate > 1):
        divided_by = f"{processes} processes" if processes > 1 else f"train.accumulate {accumulate}"
        raise SettingsError(
            f"phase '{phase.name}' compares the images of a batch with each other, so a batch cannot be divided by "
            f"{divided_by}; use one process and train.accumulate 1"
        )
    if mixup and phase.augmented and (phase.views > 1 or phase.replay):
        asked = f"{phase.views} views of each image" if phase.views > 1 else "replay batches"
        raise SettingsError(f"phase '{phase.name}' has {asked}, which train.mixup cannot mix; leave train.mixup out")
    if phase.views > 1 and not phase.augmented:
        raise SettingsError(
            f"phase '{phase.name}' asks for {phase.views} views of images that are not augmented; set "
            f"augmented=True or views=1"
        )


def step(
    phase: Phase,
    batch: Batch,
    optimizer: torch.optim.Optimizer,
    fabric: Processes,
    precision: Precision | None = None,
    accumulate: int = 1,
    log: EpochLog | None = None,
) -> None:
    """One training step on a batch, or on this process's share of it: losses, backward, gradient rule, optimiser."""
    precision = precision or Precision()
    learning = [parameter for group in optimizer.param_groups for parameter in group["params"]]

    def gradients(log: EpochLog | None) -> tuple[bool, dict[str, Tensor]]:
        """Whether they are sound, and what the rule collects."""
        optimizer.zero_grad(set_to_none=True)
        _, collected = _backward(phase, batch, fabric, precision, accumulate, log)
        values = [*_gradients(optimizer), *collected.values()]
        all_reduce(fabric, values)
        return precision.unscale(values), collected

    sound, collected = gradients(log)
    if sound and phase.gradients.second_pass:
        with unchanged([*learning, *(buffer for module in phase.train for buffer in module.buffers())]):
            with torch.no_grad():
                phase.gradients.perturb(learning)
            sound, collected = gradients(None)
    if sound:
        phase.gradients.overwrite(collected)
        longest, norms = phase.schedule.clip_gradients, dict[str, Tensor]()
        if longest:  # after the rule: it is the gradient that is learned by, of all processes together, that counts
            norms["gradient_norm"] = nn.utils.clip_grad_norm_(learning, longest)
        optimizer.step()
        if phase.after_step is not None:
            with torch.no_grad():
                phase.after_step()
        if log is not None:
            log.add_gradients({**phase.gradients.measured, **norms})


def _backward(
    phase: Phase, batch: Batch, fabric: Processes, precision: Precision, accumulate: int, log: EpochLog | None = None
) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss of this process's share, its gradients in every parameter, and what the gradient rule collects."""
    n, loss, collected = len(batch.batch_labels), torch.zeros((), device=fabric.device), dict[str, Tensor]()
    for piece in batch.pieces(accumulate, fabric.world_size):
        with precision.autocast(fabric.device), piece.torch_seeded():
            outcome = phase.objective(piece)
            total = total_loss(outcome, len(piece), n)
        for name, part in phase.gradients.collect(outcome, n / precision.factor).items():
            collected[name] = collected[name] + part if name in collected else part
        (total * precision.factor if precision.scaled else total).backward()
        loss += total.detach()
        if log is not None:
            log.add_losses(outcome, piece, n)
    return loss, collected


def compare_with_float32(
    phase: Phase,
    method: Method,
    seed: int,
    key: Sequence[int | str],
    fabric: Processes,
    precision: Precision,
    accumulate: int,
) -> None:
    """Before the first step: with 16 bits or compiled, the phase's own network must give float32's gradients,
    at the sizes of its batches."""
    if precision.bits == "32" and not is_compiled(method):
        return
    learning = {name: value for name, value in method.named_parameters() if value.requires_grad}
    shard = (fabric.global_rank, fabric.world_size)
    sizes = {len(rows) for rows in cut(torch.arange(len(phase.images)), phase.schedule.batch_size)}
    for size in sorted(sizes, reverse=True):
        order = torch.randperm(len(phase.images), generator=generator(seed, *key, "float32"))
        some = replace(phase, images=phase.images.take(order[:size]), schedule=replace(phase.schedule, batch_size=size))
        (batch,) = batches_of(some, method, None, seed, (*key, 0), shard)

        def gradients(precision: Precision, batch: Batch = batch) -> Gradients:
            while True:  # a scaled loss that overflows is tried again with half the scale, as in training
                loss, _ = _backward(phase, batch, fabric, precision, accumulate)
                by_name = {
                    name: torch.zeros_like(value) if value.grad is None else value.grad
                    for name, value in learning.items()
                }
                for value in learning.values():
                    value.grad = None
                all_reduce(fabric, [loss, *by_name.values()])
                if precision.unscale(by_name.values()) or precision.factor <= 1.0:
                    return Gradients(loss, by_name)

        refuse_wrong_gradients(gradients, method, precision)


def total_loss(outcome: Outcome, images: int, n: int) -> Tensor:
    """What `images` of n add to the loss of a batch: the mean over the batch of its images' losses, and penalties."""
    parts = [loss.sum() / n if loss.ndim else loss * (images / n) for loss in outcome.losses.values()]
    return torch.stack(parts).sum()


def _gradients(optimizer: torch.optim.Optimizer) -> list[Tensor]:
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
