"""Several processes that learn one network: each takes a share of every batch, and all agree on everything else.

They start equal and draw the same random numbers; gradients are added up before each step, so they stay equal.
With one process nothing here costs anything.
"""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, TypeVar

import torch
import torch.distributed
from torch import Tensor

from endocil.errors import EndocilError

if TYPE_CHECKING:
    from lightning_fabric import Fabric

T = TypeVar("T")


def add_up(fabric: "Fabric", tensors: Iterable[Tensor]) -> None:
    """Replace each tensor by its sum over the processes."""
    if fabric.world_size > 1:
        _in_one_message(tensors, torch.distributed.all_reduce)


def agree(fabric: "Fabric", tensors: Iterable[Tensor]) -> None:
    """Replace each tensor by that of the first process: other processors may have rounded otherwise."""
    if fabric.world_size > 1:
        _in_one_message(tensors, lambda flat: torch.distributed.broadcast(flat, 0))


@torch.no_grad()
def _in_one_message(tensors: Iterable[Tensor], send: Callable[[Tensor], object]) -> None:
    """One for each kind of number and device."""
    alike: dict[object, list[Tensor]] = {}
    for tensor in tensors:
        alike.setdefault((tensor.dtype, tensor.device), []).append(tensor)
    for same in alike.values():
        flat = torch.cat([tensor.reshape(-1) for tensor in same])
        send(flat)
        parts = torch.split(flat, [tensor.numel() for tensor in same])
        for tensor, part in zip(same, parts, strict=True):
            tensor.copy_(part.view(tensor.shape))


def gathered(fabric: "Fabric", value: T) -> list[T]:
    """The values of all processes, in their order, on every process."""
    if fabric.world_size == 1:
        return [value]
    found: list[T | None] = [None] * fabric.world_size
    torch.distributed.all_gather_object(found, value)
    return found  # type: ignore[return-value]


def by_one(fabric: "Fabric", action: Callable[[], T]) -> T:
    """Done by the first process alone; what it returns, or the error it meets, comes to all of them."""
    if fabric.world_size == 1:
        return action()
    answer: tuple[T | None, str | None] = (None, None)
    if fabric.global_rank == 0:
        try:
            answer = (action(), None)
        except EndocilError as error:
            answer = (None, str(error))
    value, problem = fabric.broadcast(answer)
    if problem is not None:
        raise EndocilError(problem)
    return value  # type: ignore[return-value]
