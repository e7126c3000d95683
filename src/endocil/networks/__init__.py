"""Backbones by name, their compilation, and the parts that methods build networks from."""

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import nn

from endocil.data.augment import IMAGENET, Normalisation
from endocil.data.seeding import generator, torch_seeded
from endocil.errors import EndocilError, SettingsError
from endocil.networks.batch_norm import sync_batch_norm, unsynced_batch_norm
from endocil.networks.branches import Boosted, LastBlocks, WholeBranches, concatenate_features
from endocil.networks.efficientnet_lite import EfficientNetLite, EfficientNetLite0, EfficientNetLite1, EfficientNetLite2
from endocil.networks.heads import CosineClassifier, GrowingClassifier, Head
from endocil.networks.resnet import ResNet, ResNet18, ResNet32, ResNet34, ResNet50, StagedResNet, initialise
from endocil.networks.staged_backbone import beginning_behind, frozen_prefix
from endocil.networks.stages import backbones_of, freeze_stages, frozen_for_now, is_frozen, trained_parts
from endocil.networks.timm_models import TimmBackbone
from endocil.networks.weights import load_imagenet_weights, load_weights
from endocil.registry import check_options, resolve

__all__ = [
    "BACKBONES",
    "RESERVED_OPTIONS",
    "Boosted",
    "CosineClassifier",
    "GrowingClassifier",
    "Head",
    "LastBlocks",
    "ResNet",
    "WholeBranches",
    "backbones_of",
    "beginning_behind",
    "build_backbone",
    "compile_backbones",
    "concatenate_features",
    "frozen_for_now",
    "frozen_prefix",
    "instruction_set",
    "is_compiled",
    "is_frozen",
    "normalisation_of",
    "sync_batch_norm",
    "trained_parts",
    "uncompiled",
    "unsynced_batch_norm",
]

BACKBONES: dict[str, Callable[..., nn.Module]] = {
    "efficientnet-lite0": EfficientNetLite0,
    "efficientnet-lite1": EfficientNetLite1,
    "efficientnet-lite2": EfficientNetLite2,
    "resnet18": ResNet18,
    "resnet32": ResNet32,
    "resnet34": ResNet34,
    "resnet50": ResNet50,
    "timm:NAME": TimmBackbone,
}
RESERVED_OPTIONS = ("pretrained", "size")  # of a backbone, that do not come from [network]
RECOMPILATIONS = 256  # of one function, with train.compile


def build_backbone(
    name: str,
    *,
    seed: int,
    weights: str | None = None,
    freeze: Sequence[str] = (),
    size: int | None = None,
    options: Mapping[str, Any] | None = None,
) -> tuple[nn.Module, list[str]]:
    """A backbone with its initial values, and a note for each tensor of the weights file that did not fit.

    `weights`: "imagenet" for those that come as a package, "pretrained" for those of timm's hub, or a file. `size`:
    of the images, in pixels along a side; a model of timm may need it. A backbone of the user's own is a module class
    with `n_features`; with `stages` its parts can be frozen, and with `mean` and `std` its images are normalised by
    them (else by ImageNet's). It keeps the values that its constructor gives it.
    """
    maker = resolve("network.backbone", name, BACKBONES)
    check_options("network", maker, options or {}, reserved=RESERVED_OPTIONS)
    with torch_seeded(seed, "own backbone"):  # the source of a user's backbone's initial values
        try:
            given = {"size": size, "pretrained": weights == "pretrained"} if name.startswith("timm:") else {}
            backbone = maker(**given, **(options or {}))
        except EndocilError:
            raise
        except ValueError as error:
            raise SettingsError(str(error)) from error
    backbone.made_with = dict(options or {})  # type: ignore[assignment]  # not all of it is in weights and repr
    if isinstance(backbone, StagedResNet | EfficientNetLite):
        initialise(backbone, generator(seed, "backbone"))
    notes = _start_from(backbone, name, weights) if weights else []
    normalisation_of(backbone)  # refuses what cannot be
    freeze_stages(backbone, freeze)
    return backbone, notes


def _start_from(backbone: nn.Module, name: str, weights: str) -> list[str]:
    if weights == "pretrained" and isinstance(backbone, TimmBackbone):
        return []  # timm has loaded them
    if weights == "imagenet" and isinstance(backbone, EfficientNetLite):
        load_imagenet_weights(backbone, name)
        return []
    if weights in ("imagenet", "pretrained"):
        raise SettingsError(
            f"network.weights is '{weights}', which network.backbone '{name}' does not have: 'imagenet' is for "
            f"efficientnet-lite0 to 2, 'pretrained' for timm:NAME; give a weights file, or leave it out"
        )
    return load_weights(backbone, Path(weights).expanduser())


def normalisation_of(backbone: nn.Module) -> Normalisation:
    """What a backbone expects of its input: by its attributes `mean` and `std`, or ImageNet's."""
    values = {name: getattr(backbone, name, getattr(IMAGENET, name)) for name in ("mean", "std")}
    return Normalisation(**{name: tuple(float(value) for value in triple) for name, triple in values.items()})  # type: ignore[arg-type]


def compile_backbones(network: nn.Module) -> None:
    """Have torch.compile compile every backbone in a network at its next call; names and values stay.

    Stage by stage where there are stages, because MEMO and MRFA work between them. The key of torch's cache on disk
    includes the instruction set: code compiled for another one gives wrong numbers. All residual blocks share one
    `forward` and each is compiled for its own shapes: beyond torch's limit of eight they would run uncompiled."""
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, RECOMPILATIONS)
    tag = os.environ.get("TORCH_COMPILE_CACHE_KEY_TAG", "")
    torch.compiler.config.cache_key_tag = f"{tag} {instruction_set()}".strip()
    for module in network.modules():
        for part in _compiled_parts(module):
            if part._compiled_call_impl is None:
                part.compile()


def is_compiled(network: nn.Module) -> bool:
    return any(module._compiled_call_impl is not None for module in network.modules())


def uncompiled(network: nn.Module) -> AbstractContextManager[object]:
    """A context in which compiled backbones run without the compiler."""
    return torch.compiler.set_stance("force_eager") if is_compiled(network) else nullcontext()


def instruction_set() -> str:
    """The instruction set of torch's CPU kernels, and the limit that the environment sets for oneDNN."""
    return f"{torch.backends.cpu.get_cpu_capability()} {os.environ.get('ONEDNN_MAX_CPU_ISA', '')}".strip()


def _compiled_parts(module: nn.Module) -> list[nn.Module]:
    if isinstance(module, LastBlocks):
        return list(module)
    stages: Mapping[str, Sequence[nn.Module]] = getattr(module, "stages", {})
    if stages:
        return [part for parts in stages.values() for part in parts if any(part.children())]
    divided = any(hasattr(part, "stages") for part in module.modules())
    return [module] if hasattr(module, "n_features") and not divided else []
