"""Grad-CAM (Selvaraju et al., ICCV 2017): which regions of an image are evidence for the predicted class.

The feature maps of the last block are weighted by the mean gradient of the class's logit. Where a method has several
branches, each has feature maps of its own; the logit is a sum over them, and so is the evidence.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional

from endocil.data.augment import normalise
from endocil.data.resize import Fit, find_view, padded_box
from endocil.errors import EndocilError
from endocil.methods import Method
from endocil.networks import LastBlocks

STRENGTH = 0.5  # of the colours over the image, where the evidence is greatest
STRIP = 256  # rows that are coloured at once: in floats a large image would take gigabytes


def grad_cam(method: Method, pixels: Tensor, classes: Tensor) -> Tensor:
    """Grad-CAM maps (B, H, W) from 0 to 1, for (B, H, W, 3) uint8 images and a class for each."""
    images = normalise(pixels.to(method.device), method.normalisation).requires_grad_()
    with torch.enable_grad(), _last_maps(method) as maps:
        logits = method.eval()(images)
        asked = logits.gather(1, classes.to(logits.device)[:, None]).sum()
        gradients = torch.autograd.grad(asked, maps, allow_unused=True)
    evidence = torch.zeros(pixels.shape[:3], device=images.device)
    for feature_map, gradient in zip(maps, gradients, strict=True):
        if gradient is not None:  # a map that this class's logit does not depend on
            weighted = (gradient.mean(dim=(2, 3), keepdim=True) * feature_map.detach()).sum(dim=1, keepdim=True)
            evidence += functional.interpolate(weighted, pixels.shape[1:3], mode="bilinear")[:, 0]
    evidence = evidence.clamp_min(0)
    return (evidence / evidence.amax(dim=(1, 2), keepdim=True).clamp_min(1e-12)).cpu()


@contextmanager
def _last_maps(method: Method) -> Iterator[list[Tensor]]:
    """The feature maps of the last blocks of all networks that predict, filled by a forward pass in this context."""
    blocks = last_blocks(method)
    if not blocks:
        raise EndocilError(
            f"Grad-CAM needs the maps of a backbone's last block, but {type(method.backbone).__name__} has no "
            f"`last_block` (see networks/staged_backbone.py); take a ResNet or EfficientNet-Lite"
        )
    maps: list[Tensor] = []
    hooks = [block.register_forward_hook(lambda _, __, out: maps.append(out)) for block in blocks]
    try:
        yield maps
    finally:
        for hook in hooks:
            hook.remove()


def last_blocks(method: Method) -> list[nn.Module]:
    """The last block of every backbone that predicts."""
    found: dict[int, nn.Module] = {}
    for module in (part for predictor in method.predictors for part in predictor.modules()):
        ends = list(module) if isinstance(module, LastBlocks) else [getattr(module, "last_block", None)]
        found |= {id(end): end for end in ends if isinstance(end, nn.Module)}
    return list(found.values())


def overlay(pixels: np.ndarray, evidence: np.ndarray) -> np.ndarray:
    """An image (H, W, 3) with its Grad-CAM map over it, from black through red to yellow."""
    drawn = np.empty(pixels.shape, np.uint8)
    for rows in (slice(start, start + STRIP) for start in range(0, len(pixels), STRIP)):
        own = evidence[rows]
        colours = np.stack([np.minimum(1.0, 2 * own), np.maximum(0.0, 2 * own - 1), 0 * own], axis=2)
        share = STRENGTH * own[:, :, None]
        drawn[rows] = ((1 - share) * pixels[rows] + share * 255.0 * colours).round()
    return drawn


def over_original(image: Image.Image, evidence: np.ndarray, *, crop_frame: bool, fit: Fit) -> np.ndarray:
    """The whole image in its own size, with the map of what the network saw of it where that lies."""
    pixels = np.asarray(image)
    seen = Image.fromarray(evidence.astype(np.float32))
    left, top, right, bottom = find_view(pixels) if crop_frame else (0, 0, *image.size)
    if fit == "pad":
        seen = seen.crop(padded_box((right - left, bottom - top), len(evidence)))
    whole = np.zeros(pixels.shape[:2], np.float32)
    whole[top:bottom, left:right] = np.asarray(seen.resize((right - left, bottom - top), Image.Resampling.BILINEAR))
    return overlay(pixels, whole.clip(0, 1))


def draw(
    folder: Path,
    names: Sequence[str],
    method: Method,
    pixels: Tensor,
    classes: Tensor,
    *,
    original: Callable[[int], Image.Image | None] = lambda row: None,
    crop_frame: bool = False,
    fit: Fit = "stretch",
) -> None:
    """One PNG for each image of a batch; over the `original` of each row where there is one, at its own size."""
    maps = grad_cam(method, pixels, classes).numpy()
    for row, (name, image, evidence) in enumerate(zip(names, pixels.numpy(), maps, strict=True)):
        whole = original(row)
        if whole is None:
            drawn = overlay(image, evidence)
        else:
            drawn = over_original(whole, evidence, crop_frame=crop_frame, fit=fit)
        Image.fromarray(drawn).save(folder / name, "PNG")
