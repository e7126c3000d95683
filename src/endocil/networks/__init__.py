"""Backbones by name, and the classifier that grows."""

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import nn

from endocil.data.seeding import generator
from endocil.errors import EndocilError
from endocil.networks import stages as freezing
from endocil.networks.batch_norm import share_batch_norm, unshared_batch_norm
from endocil.networks.branches import LastBlocks, WholeBranches, concatenate_features
from endocil.networks.classifier import Boosted, GrowingClassifier
from endocil.networks.resnet import ResNet, ResNet18, ResNet34, initialise
from endocil.networks.stages import trained_parts
from endocil.networks.weights import load_weights
from endocil.registry import check_options, resolve

__all__ = [
    "BACKBONES",
    "Boosted",
    "GrowingClassifier",
    "LastBlocks",
    "ResNet",
    "WholeBranches",
    "build_backbone",
    "compile_backbones",
    "concatenate_features",
    "instruction_set",
    "is_compiled",
    "share_batch_norm",
    "trained_parts",
    "uncompiled",
    "unshared_batch_norm",
]

BACKBONES: dict[str, Callable[..., nn.Module]] = {"resnet18": ResNet18, "resnet34": ResNet34}


def build_backbone(
    name: str,
    *,
    seed: int,
    weights: str | None = None,
    freeze: Sequence[str] = (),
    options: Mapping[str, Any] | None = None,
) -> tuple[nn.Module, list[str]]:
    """A backbone with its first values, and what did not fit of the weights file.

    A backbone of one's own is a module class with `n_features`; with `stages` its parts can be frozen. It keeps the
    values that its constructor gives it.
    """
    maker = resolve("network.backbone", name, BACKBONES)
    check_options("network", maker, options or {})
    with torch.random.fork_rng(devices=[]):  # a backbone of one's own draws its first values from here
        torch.manual_seed(generator(seed, "own backbone").initial_seed())
        try:
            backbone = maker(**(options or {}))
        except ValueError as error:
            raise EndocilError(str(error)) from error
    if isinstance(backbone, ResNet):
        initialise(backbone, generator(seed, "backbone"))
    notes = load_weights(backbone, Path(weights).expanduser()) if weights else []
    freezing.freeze(backbone, freeze)
    return backbone, notes


def compile_backbones(network: nn.Module) -> None:
    """Let torch.compile translate every backbone in a network when it is next called; names and values stay.

    Stage by stage where there are stages: MEMO and MRFA do something between them. What torch keeps on disk of earlier
    translations is told apart by the instruction set: code for another one gives garbage."""
    tag = os.environ.get("TORCH_COMPILE_CACHE_KEY_TAG", "")
    torch.compiler.config.cache_key_tag = f"{tag} {instruction_set()}".strip()
    for module in network.modules():
        for part in _compiled_parts(module):
            if part._compiled_call_impl is None:
                part.compile()


def is_compiled(network: nn.Module) -> bool:
    return any(module._compiled_call_impl is not None for module in network.modules())


def uncompiled(network: nn.Module) -> AbstractContextManager[object]:
    """While this is open, compiled backbones run as they were written."""
    return torch.compiler.set_stance("force_eager") if is_compiled(network) else nullcontext()


def instruction_set() -> str:
    """What kernels use on this processor, and what they are held to by the environment."""
    return f"{torch.backends.cpu.get_cpu_capability()} {os.environ.get('ONEDNN_MAX_CPU_ISA', '')}".strip()


def _compiled_parts(module: nn.Module) -> list[nn.Module]:
    if isinstance(module, LastBlocks):
        return list(module)
    stages: Mapping[str, Sequence[nn.Module]] = getattr(module, "stages", {})
    if stages:
        return [part for parts in stages.values() for part in parts if any(part.children())]
    divided = any(hasattr(part, "stages") for part in module.modules())
    return [module] if hasattr(module, "n_features") and not divided else []
