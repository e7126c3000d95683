"""Precision of training, and checks that its numbers are right. All but training is always computed with 32 bits.

"bf16" has the range of 32 bits and needs no more than autocast. "16" can underflow: its losses are multiplied by a
scale before backward and the gradients divided by it; the scale falls by half when a gradient overflows (that step
is left out) and doubles after 2000 steps without.

Networks of 16 bits and compiled ones are compared with plain float32 before they train (`refuse_wrong_gradients`), and
every epoch ends with a search for values that are not finite, or have exploded (`ValueCheck`).
"""

import copy
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from endocil.errors import EndocilError
from endocil.networks import is_compiled, uncompiled

Bits = Literal["32", "bf16", "16"]
KINDS = {"bf16": torch.bfloat16, "16": torch.float16}
GROWTH = 2000  # good steps before the scale doubles, as torch.amp has it
LEAST_SCALE = 2.0**-24  # a gradient that overflows with less is no overflow: it was never finite


def times_slower(bits: Bits, device: torch.device, repeats: int = 5) -> float:
    """Time of a convolution with these bits, forward and backward, relative to 32 bits: above 1 nothing is gained."""
    taken = {kind: min(_seconds(kind, device) for _ in range(repeats)) for kind in (bits, "32")}
    return taken[bits] / taken["32"]


def _seconds(bits: Bits, device: torch.device) -> float:
    layer = nn.Conv2d(64, 64, 3, padding=1).to(device)
    images = torch.zeros(32, 64, 16, 16, device=device)
    began = time.perf_counter()
    with Precision(bits).autocast(device):
        total = layer(images).float().sum()
    total.backward()
    float(total.detach())  # waits for the device
    return time.perf_counter() - began


class Precision(nn.Module):
    """How many bits a phase trains with; its buffers are kept in the checkpoint."""

    scale: Tensor
    good_steps: Tensor

    def __init__(self, bits: Bits = "32", scale: float = 2.0**16) -> None:
        super().__init__()
        self.bits = bits
        self.scaled = bits == "16"
        self.register_buffer("scale", torch.tensor(scale if self.scaled else 1.0, dtype=torch.float64))
        self.register_buffer("good_steps", torch.tensor(0))

    def autocast(self, device: torch.device) -> AbstractContextManager[object]:
        if self.bits == "32":
            return nullcontext()
        return torch.autocast(device.type, KINDS[self.bits])

    @property
    def factor(self) -> float:
        """What losses are multiplied by."""
        return float(self.scale) if self.scaled else 1.0

    def unscale(self, gradients: Iterable[Tensor]) -> bool:
        """Divide gradients by the factor; False where one of them has overflowed and the step is to be left out."""
        if not self.scaled:
            return True
        found = list(gradients)
        fine = bool(torch.stack([gradient.isfinite().all() for gradient in found]).all())
        for gradient in found:
            gradient.div_(self.factor)
        self.good_steps += 1
        if not fine or self.good_steps >= GROWTH:
            self.scale.mul_(2.0 if fine else 0.5)
            self.good_steps.zero_()
        if self.factor < LEAST_SCALE:
            raise EndocilError(
                f"train.precision '{self.bits}': gradients are not finite even where losses are multiplied by "
                f"{self.factor:.0e}, so no step can be taken; lower train.learning_rate, or leave train.precision out"
            )
        return fine


TRIALS = 5  # a kernel that reads memory nobody has written is right now and then
SOILED = (128, 64 * 1024)  # blocks and bytes: small enough to be taken from the heap, not as fresh pages of zeros
TOLERANCE = {"32": 0.02, "bf16": 0.5, "16": 0.5}  # of a gradient's norm; "32" is for compiled networks
SMALL = 0.1  # of the norm of all gradients: smaller ones are compared with this
ROUNDING = 4.0  # times what rounding the weights alone does to a gradient: in small batches batch norm makes it large
LEAP = 1000.0  # no weight grows by this factor in an epoch unless something is wrong


@dataclass(frozen=True)
class Gradients:
    """The loss of one batch and its gradient for every trained parameter."""

    loss: Tensor
    parameters: Mapping[str, Tensor]


def refuse_wrong_gradients(
    gradients: Callable[[Precision], Gradients], method: nn.Module, precision: Precision
) -> None:
    """Compare a batch's gradients, computed several times as asked for, with those of plain float32.

    `gradients` runs the phase's own network forward and backward; buffers are put back afterwards."""
    with unchanged(method.buffers()) as put_back:
        with uncompiled(method):
            plain = gradients(Precision())
            put_back()
            rounded = plain if precision.bits == "32" else _with_rounded_weights(gradients, method, precision)
        for asked, way in _ways(method, precision):
            for _ in range(TRIALS):
                put_back()
                with way():
                    found = gradients(copy.deepcopy(precision))
                problem = _difference(found, plain, rounded, TOLERANCE[precision.bits])
                if problem:
                    raise EndocilError(
                        f"{' with '.join(asked)} gives wrong numbers here: {problem}; leave {' and '.join(asked)} out"
                    )


def _ways(
    method: nn.Module, precision: Precision
) -> Iterator[tuple[list[str], Callable[[], AbstractContextManager[object]]]]:
    """What was asked for, and the context to try it in. 16 bits are tried without the compiler first: compiled code
    calls the same kernels, but its memory cannot be soiled."""
    bits = [f"train.precision '{precision.bits}'"] if precision.bits != "32" else []
    if bits:
        yield bits, lambda: _uncompiled_on_soiled_memory(method)
    if is_compiled(method):
        yield [*bits, "train.compile"], nullcontext


@contextmanager
def _uncompiled_on_soiled_memory(method: nn.Module) -> Iterator[None]:
    with uncompiled(method), _soiled_memory():
        yield


@contextmanager
def _soiled_memory() -> Iterator[None]:
    """Leave NaN in free memory before each operation of backward: a kernel that reads what nobody has written is right
    where it meets zeros. Backward's operations show by asking for the tensors that forward saved."""
    blocks, size = SOILED
    last: list[Tensor] = []

    def soil(saved: Tensor) -> Tensor:
        # The last block lies behind the others: as long as it lives, their memory stays the process's own.
        last[:] = [torch.full((size // 4,), math.nan) for _ in range(blocks)][-1:]
        return saved

    with torch.autograd.graph.saved_tensors_hooks(Tensor.detach, soil):
        yield


@torch.no_grad()
def _with_rounded_weights(
    gradients: Callable[[Precision], Gradients], method: nn.Module, precision: Precision
) -> Gradients:
    """In float32, by a network whose weights were rounded to 16 bits: how much rounding matters to it."""
    with unchanged(method.parameters()):
        for weights in method.parameters():
            weights.copy_(weights.to(KINDS[precision.bits]))
        with torch.enable_grad():
            return gradients(Precision())


def _difference(found: Gradients, plain: Gradients, rounded: Gradients, tolerance: float) -> str:
    """What sets gradients apart from those of plain float32 by more than rounding can; empty where nothing does."""
    norms = _norms(plain.parameters.values())
    allowed = tolerance * (norms + SMALL * norms.norm()) + ROUNDING * _distances(rounded, plain)
    distances = _distances(found, plain)
    for name, norm, distance, most in zip(
        plain.parameters, norms.tolist(), distances.tolist(), allowed.tolist(), strict=True
    ):
        if not math.isfinite(distance):
            return f"the gradient of {name} is not finite"
        if distance > most:
            return f"the gradient of {name} is off by {distance:.2g}, its norm in float32 is {norm:.2g}"
    loss, expected, noise = found.loss.item(), plain.loss.item(), (rounded.loss - plain.loss).abs().item()
    if not abs(loss - expected) <= 0.2 * tolerance * (1.0 + abs(expected)) + ROUNDING * noise:  # NaN is not either
        return f"the loss is {loss:.3g}, in float32 {expected:.3g}"
    return ""


def _distances(some: Gradients, others: Gradients) -> Tensor:
    return _norms(some.parameters[name] - gradient for name, gradient in others.parameters.items())


@contextmanager
def unchanged(tensors: Iterable[Tensor]) -> Iterator[Callable[[], None]]:
    """Whatever is done to these tensors is undone, also on demand."""
    kept = [(tensor, tensor.detach().clone()) for tensor in tensors]

    @torch.no_grad()
    def put_back() -> None:
        for tensor, value in kept:
            tensor.copy_(value)

    try:
        yield put_back
    finally:
        put_back()


class ValueCheck:
    """Checks the values of a method at the end of each epoch: one synchronisation per epoch, none per step."""

    def __init__(self, method: nn.Module, trained: Sequence[nn.Module]) -> None:
        self.method = method
        self.parameters = {parameter for module in trained for parameter in module.parameters()}
        self.before = largest(method.state_dict())

    def refuse_damage(self, losses: Mapping[str, float], where: str, way_out: str) -> None:
        """Raise an error of one line if a loss or value is not finite, or a trained weight has exploded."""
        now = largest(self.method.state_dict())
        trained = {name for name, value in self.method.named_parameters() if value in self.parameters}
        damage = [f"the {name} loss became {value}" for name, value in losses.items() if not math.isfinite(value)]
        damage += [f"{name} is not finite" for name, value in now.items() if not math.isfinite(value)][:1]
        damage += [
            f"{name} grew from {self.before[name]:.2g} to {now[name]:.2g}"
            for name in sorted(trained & now.keys())
            if math.isfinite(now[name]) and now[name] > LEAP * max(1.0, self.before[name])
        ][:1]
        if damage:
            raise EndocilError(f"{', '.join(damage)} in {where}; {way_out}")
        self.before = now


def refuse_not_finite(tensors: Mapping[str, Tensor], where: str) -> None:
    for name, value in largest(tensors).items():
        if not math.isfinite(value):
            raise EndocilError(f"{name} is not finite {where}; lower train.learning_rate")


@torch.no_grad()
def largest(tensors: Mapping[str, Tensor]) -> dict[str, float]:
    """The largest absolute value in each tensor of real numbers; NaN where one is."""
    real = {name: value for name, value in tensors.items() if value.is_floating_point() and value.numel()}
    return dict(zip(real, _norms(real.values(), math.inf).tolist(), strict=True))


def _norms(tensors: Iterable[Tensor], order: float = 2.0) -> Tensor:
    norms = [torch.linalg.vector_norm(tensor, order).float() for tensor in tensors]
    return torch.stack(norms) if norms else torch.zeros(0)
