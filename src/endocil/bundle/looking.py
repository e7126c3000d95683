"""What a method sees in pictures that are in memory: one pass, as in a test."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from endocil.errors import EndocilError
from endocil.evaluation import CLASS_MEANS, mean_distances
from endocil.images.augment import normalise
from endocil.memory import unit
from endocil.methods import Method

MOST_PIXELS = 2**22  # in a batch: 64 pictures of 256 x 256; larger pictures come in smaller batches


@dataclass(frozen=True)
class Seen:
    """Row for row, on the CPU."""

    features: Tensor  # (n, d)
    logits: Tensor  # (n, C) of the softmax head
    distances: Tensor | None  # (n, C) squared, to the class means


def batch_of(wanted: int, size: int) -> int:
    """So many pictures of size x size at a time, or fewer where they would fill the memory."""
    return max(1, min(wanted, MOST_PIXELS // size**2))


@torch.no_grad()
def seen_in(method: Method, pixels: Tensor) -> Seen:
    """One batch of (B, H, W, 3) uint8 pictures; the method is in eval mode."""
    features = method.embed(normalise(pixels.to(method.device)))
    logits = method.classify(features).float().cpu()
    features = features.float().cpu()
    if not bool(logits.isfinite().all() and features.isfinite().all()):
        raise EndocilError("the network gives numbers that are not finite; the bundle cannot be used")
    means = method.statistics.get(CLASS_MEANS)
    return Seen(features, logits, None if means is None else mean_distances(features, means))


def look(method: Method, pixels: Tensor, batch: int = 64) -> Seen:
    """All pictures, batch by batch."""
    parts = [seen_in(method, part) for part in _batches(pixels, batch)]
    distances = [part.distances for part in parts if part.distances is not None]
    return Seen(
        torch.cat([part.features for part in parts]),
        torch.cat([part.logits for part in parts]),
        torch.cat(distances) if distances else None,
    )


def unit_features(method: Method, pixels: Tensor, batch: int = 64) -> Tensor:
    """(n, d) of length 1; without pictures (0, 0)."""
    return unit(look(method, pixels, batch).features) if len(pixels) else torch.zeros(0, 0)


def _batches(pixels: Tensor, batch: int) -> Iterator[Tensor]:
    yield from torch.split(pixels, batch_of(batch, pixels.shape[1]))
