"""Numbers of 32 or 16 bits while training. Evaluation, exemplars and statistics are always computed with 32.

"bf16" has the range of 32 bits and needs no more than autocast. "16" can underflow: its losses are multiplied by a
scale before backward and the gradients divided by it; the scale falls by half when a gradient overflows (that step
is left out) and doubles after 2000 steps without.
"""

import time
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Literal

import torch
from torch import Tensor, nn

Bits = Literal["32", "bf16", "16"]
KINDS = {"bf16": torch.bfloat16, "16": torch.float16}
GROWTH = 2000  # good steps before the scale doubles, as torch.amp has it


def times_slower(bits: Bits, device: torch.device, repeats: int = 5) -> float:
    """The time of a convolution, forward and backward, over that with 32 bits: above 1 there is nothing to gain."""
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
        return fine
