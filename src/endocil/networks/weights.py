"""Pretrained weights for a backbone: safetensors, or a torch file read without running code."""

from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from endocil.errors import DataError


def load_weights(backbone: nn.Module, path: Path) -> list[str]:
    """Copy every tensor that fits by name and shape; returns a sentence for each mismatch."""
    tensors = _read(path)
    own = backbone.state_dict()
    fitting = {
        name: value for name, value in tensors.items() if name in own and value.shape == own[name].shape
    }
    if not any(value.ndim for value in fitting.values()):  # scalars such as batch counters fit every network
        raise DataError(
            f"network.weights {path} holds none of the backbone's {len(own)} tensors "
            f"(first expected: {next(iter(own))}, first found: {next(iter(tensors), 'nothing')})"
        )
    not_finite = [name for name, value in fitting.items() if not bool(value.isfinite().all())]
    if not_finite:
        raise DataError(f"network.weights {path} holds numbers that are not finite, first in {not_finite[0]}")
    backbone.load_state_dict({**own, **fitting})
    return [*_missing(own, tensors), *_unused(own, tensors)]


def _read(path: Path) -> dict[str, Tensor]:
    if not path.is_file():
        raise DataError(
            f"network.weights {path} is not a file; expected a .safetensors or torch weights file"
        )
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        content = torch.load(path, map_location="cpu", weights_only=True)
    except (SafetensorError, OSError, RuntimeError, ValueError, EOFError, KeyError) as error:
        raise DataError(f"network.weights {path} cannot be read: {str(error).splitlines()[0]}") from error
    except Exception as error:  # the unpickler's error has another type in each torch version
        raise DataError(f"network.weights {path} is refused: it holds more than tensors") from error
    content = content.get("state_dict", content) if isinstance(content, dict) else {}
    return {name: value for name, value in content.items() if isinstance(value, Tensor)}


def _missing(own: dict[str, Tensor], tensors: dict[str, Tensor]) -> list[str]:
    notes = []
    for name, value in own.items():
        if name not in tensors:
            notes.append(f"{name} is not in the file and keeps its initial values")
        elif tensors[name].shape != value.shape:
            notes.append(
                f"{name} has shape {tuple(tensors[name].shape)}, expected {tuple(value.shape)}; left out"
            )
    return notes


def _unused(own: dict[str, Tensor], tensors: dict[str, Tensor]) -> list[str]:
    return [f"{name} is in the file but not in the backbone; left out" for name in tensors if name not in own]
