"""Grad-CAM (Selvaraju et al., ICCV 2017): which places of a picture speak for the class that was predicted.

The last maps before their average are weighed by the gradient of the class's logit. Where a method has several
branches, each has last maps of its own; the logit is a sum over them, and so is the picture of what speaks for it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional

from endocil.data.augment import normalise
from endocil.errors import EndocilError
from endocil.methods import Method
from endocil.networks import LastBlocks

STRENGTH = 0.5  # of the colours over the picture, where the evidence is greatest


def attention(method: Method, pixels: Tensor, classes: Tensor) -> Tensor:
    """(B, H, W) from 0 to 1, of (B, H, W, 3) uint8 pictures and the class asked about in each."""
    images = normalise(pixels.to(method.device)).requires_grad_()
    with torch.enable_grad(), _last_maps(method) as maps:
        logits = method.eval()(images)
        asked = logits.gather(1, classes.to(logits.device)[:, None]).sum()
        gradients = torch.autograd.grad(asked, maps, allow_unused=True)
    evidence = torch.zeros(pixels.shape[:3], device=images.device)
    for found, gradient in zip(maps, gradients, strict=True):
        if gradient is not None:  # a map that this class's logit does not depend on
            weighed = (gradient.mean(dim=(2, 3), keepdim=True) * found.detach()).sum(dim=1, keepdim=True)
            evidence += functional.interpolate(weighed, pixels.shape[1:3], mode="bilinear")[:, 0]
    evidence = evidence.clamp_min(0)
    return (evidence / evidence.amax(dim=(1, 2), keepdim=True).clamp_min(1e-12)).cpu()


@contextmanager
def _last_maps(method: Method) -> Iterator[list[Tensor]]:
    """What comes out of the last blocks of all networks that predict, while the block lasts."""
    blocks = last_blocks(method)
    if not blocks:
        raise EndocilError(
            f"Grad-CAM needs the maps of a backbone's last block, but {type(method.backbone).__name__} has no "
            f"`last_block` (see ResNet in networks/resnet.py)"
        )
    maps: list[Tensor] = []
    hooks = [block.register_forward_hook(lambda _, __, out: maps.append(out)) for block in blocks]
    try:
        yield maps
    finally:
        for hook in hooks:
            hook.remove()


def last_blocks(method: Method) -> list[nn.Module]:
    """Of every backbone that predicts, whole or as a last block of its own."""
    found: dict[int, nn.Module] = {}
    for module in (part for predictor in method.predictors for part in predictor.modules()):
        ends = list(module) if isinstance(module, LastBlocks) else [getattr(module, "last_block", None)]
        found |= {id(end): end for end in ends if isinstance(end, nn.Module)}
    return list(found.values())


def overlay(pixels: np.ndarray, evidence: np.ndarray) -> np.ndarray:
    """A picture (H, W, 3) under colours from black over red to yellow, as strong as the evidence."""
    colours = np.stack(
        [np.minimum(1.0, 2 * evidence), np.maximum(0.0, 2 * evidence - 1), 0 * evidence], axis=2
    )
    share = STRENGTH * evidence[:, :, None]
    return np.asarray(((1 - share) * pixels + share * 255.0 * colours).round().astype(np.uint8))


def draw(folder: Path, names: list[str], method: Method, pixels: Tensor, classes: Tensor) -> None:
    """One PNG for each picture of a batch."""
    found = attention(method, pixels, classes).numpy()
    for name, picture, evidence in zip(names, pixels.numpy(), found, strict=True):
        Image.fromarray(overlay(picture, evidence)).save(folder / name, "PNG")
