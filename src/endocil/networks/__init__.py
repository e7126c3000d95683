"""Backbones by name, and the classifier that grows."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from endocil.errors import EndocilError
from endocil.networks.classifier import GrowingClassifier
from endocil.networks.resnet import ResNet, ResNet18, ResNet34, initialise
from endocil.networks.weights import load_weights
from endocil.randomness import generator
from endocil.registry import check_options, resolve

__all__ = ["BACKBONES", "GrowingClassifier", "ResNet", "build_backbone", "trained_parts"]

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
    _freeze(backbone, freeze)
    return backbone, notes


def _freeze(backbone: nn.Module, names: Sequence[str]) -> None:
    stages: Mapping[str, Any] = getattr(backbone, "stages", {})
    for name in names:
        if name not in stages:
            raise EndocilError(
                f"network.freeze names '{name}'; this backbone has: {', '.join(stages) or 'no stages'}"
            )
    if names and len(set(names)) == len(stages):
        raise EndocilError(
            "network.freeze names every stage: nothing of the backbone would learn; leave one out"
        )
    backbone.frozen_stages = frozenset(names)  # type: ignore[assignment]


def trained_parts(backbone: nn.Module) -> tuple[nn.Module, ...]:
    """The modules of a backbone that learn: all of it, or its stages that are not frozen."""
    frozen: frozenset[str] = getattr(backbone, "frozen_stages", frozenset())
    if not frozen:
        return (backbone,)
    stages: Mapping[str, tuple[nn.Module, ...]] = backbone.stages  # type: ignore[assignment]
    return tuple(module for name, modules in stages.items() if name not in frozen for module in modules)
