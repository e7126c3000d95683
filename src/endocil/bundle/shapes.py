"""Networks built without memory: what they would hold is known by shape, so absurd sizes cost nothing."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode


@contextmanager
def without_memory() -> Iterator[None]:
    """Tensors made here are on torch's device "meta": names, shapes and types, no values."""
    with torch.device("meta"), _Shortcuts():
        yield


class _Shortcuts(TorchFunctionMode):
    """The few calculations that first values need, by shape alone.

    Without these torch would do the same, but loads its compiler for it: seconds, and a folder for temporary files."""

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        options = kwargs or {}
        if function in (Tensor.normal_, Tensor.mul, Tensor.sub) and not _tensors(args[1:]):
            return args[0]
        return _joined(*args, **options) if function is torch.cat else function(*args, **options)


def _tensors(values: Sequence[Any]) -> bool:
    return any(isinstance(value, Tensor) for value in values)


def _joined(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    shape = list(tensors[0].shape)
    shape[dim] = sum(tensor.shape[dim] for tensor in tensors)
    return torch.empty(shape, dtype=tensors[0].dtype)
