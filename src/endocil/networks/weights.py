"""Public weights into a backbone: safetensors, or a torch file read without running code."""

from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from endocil.errors import EndocilError


def load_weights(backbone: nn.Module, path: Path) -> list[str]:
    """Copy every tensor that fits by name and shape; returns a sentence for each mismatch."""
    found = _read(path)
    own = backbone.state_dict()
    fitting = {name: value for name, value in found.items() if name in own and value.shape == own[name].shape}
    if not any(value.ndim for value in fitting.values()):  # counters fit every network
        raise EndocilError(
            f"network.weights {path} holds none of the backbone's {len(own)} tensors "
            f"(first expected: {next(iter(own))}, first found: {next(iter(found), 'nothing')})"
        )
    broken = [name for name, value in fitting.items() if not bool(value.isfinite().all())]
    if broken:
        raise EndocilError(f"network.weights {path} holds numbers that are not finite, first in {broken[0]}")
    backbone.load_state_dict({**own, **fitting})
    return [*_missing(own, found), *_unused(own, found)]


def _read(path: Path) -> dict[str, Tensor]:
    if not path.is_file():
        raise EndocilError(
            f"network.weights {path} is not a file; expected a .safetensors or torch weights file"
        )
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        found = torch.load(path, map_location="cpu", weights_only=True)
    except (SafetensorError, OSError, RuntimeError, ValueError, EOFError, KeyError) as error:
        raise EndocilError(f"network.weights {path} cannot be read: {str(error).splitlines()[0]}") from error
    except Exception as error:  # the unpickler's refusal has a type of its own in each torch version
        raise EndocilError(f"network.weights {path} is refused: it holds more than tensors") from error
    found = found.get("state_dict", found) if isinstance(found, dict) else {}
    return {name: value for name, value in found.items() if isinstance(value, Tensor)}


def _missing(own: dict[str, Tensor], found: dict[str, Tensor]) -> list[str]:
    notes = []
    for name, value in own.items():
        if name not in found:
            notes.append(f"{name} is not in the file and keeps its first values")
        elif found[name].shape != value.shape:
            notes.append(
                f"{name} has shape {tuple(found[name].shape)}, expected {tuple(value.shape)}; left out"
            )
    return notes


def _unused(own: dict[str, Tensor], found: dict[str, Tensor]) -> list[str]:
    return [f"{name} is in the file but not in the backbone; left out" for name in found if name not in own]
