"""Features and scores of a set of images: the one pass over images outside training."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from endocil.data.augment import normalise
from endocil.data.batches import ImageSet, plain_batches, share_of
from endocil.errors import EndocilError
from endocil.learning.parallel import gathered
from endocil.methods.base import Method
from endocil.networks import uncompiled

if TYPE_CHECKING:
    from lightning_fabric import Fabric

CLASS_MEANS = "class_means"  # in method.statistics: (n_seen, d), rows of length 1


def unit(features: Tensor) -> Tensor:
    """Features of length 1, as iCaRL and PyCIL take them (and zero stays zero)."""
    lengths: Tensor = features.norm(dim=1, keepdim=True)
    return features / (lengths + 1e-8)


@dataclass(frozen=True)
class View:
    """What the method sees in a set of images, row for row; on the CPU."""

    features: Tensor  # (n, d)
    scores: Tensor  # (n, n_seen) logits of the reported head
    choosing: Tensor  # (n, d') what exemplars are chosen by: the features themselves, in most methods

    def take(self, rows: Tensor) -> "View":
        return View(self.features[rows], self.scores[rows], self.choosing[rows])


@torch.no_grad()
def view(
    method: Method,
    images: ImageSet,
    batch_size: int,
    *,
    to_choose: bool = False,
    fabric: "Fabric | None" = None,
) -> View:
    """One pass over the images, without augmentation, the method in eval mode.

    `to_choose`: exemplars will be chosen by it. `fabric`: its processes share the images, and all get the whole.
    """
    method.eval()
    with uncompiled(method):  # train.compile is for training: results come from the code as it is written
        if fabric is None or fabric.world_size == 1:
            return View(*_joined(_views(method, images, batch_size, to_choose)))
        mine = torch.arange(len(images))[share_of(len(images), fabric.global_rank, fabric.world_size)]
        seen = list(_views(method, images.take(mine), batch_size, to_choose))
    return View(*_joined(part for share in gathered(fabric, seen) for part in share))


def _joined(parts: Iterable[tuple[Tensor, Tensor, Tensor]]) -> tuple[Tensor, ...]:
    return tuple(torch.cat(part) for part in zip(*parts, strict=True))


def _views(
    method: Method, images: ImageSet, batch_size: int, to_choose: bool
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    for batch in plain_batches(images, batch_size, method.device):
        features = method.embed(batch)
        seen = features.float().cpu()
        other = method.selection_features(batch, features) if to_choose else features
        chosen_by = seen if other is features else other.float().cpu()
        yield seen, method.classify(features).float().cpu(), chosen_by


def class_means(features: Tensor, labels: Tensor, n_classes: int) -> Tensor:
    """Mean of the unit features of each class, made length 1 again: (n_classes, d)."""
    unit_features = unit(features)
    sums: Tensor = features.new_zeros(n_classes, features.shape[1]).index_add_(0, labels, unit_features)
    lengths: Tensor = sums.norm(dim=1, keepdim=True).clamp_min(1e-12)
    return sums / lengths


def mean_distances(features: Tensor, means: Tensor) -> Tensor:
    """Squared distances of unit features to the class means: (n, n_classes)."""
    return torch.cdist(unit(features), means.to(features)).square()


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
