"""Features, logits and distances to the class means, by the one forward pass outside training."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from endocil.data.batches import ImageSet, plain_batches, share_of
from endocil.errors import EndocilError
from endocil.learning.feature_store import FeatureStore, frozen_features
from endocil.learning.parallel import all_gather
from endocil.methods.base import Method
from endocil.networks import uncompiled

if TYPE_CHECKING:
    from lightning_fabric import Fabric

CLASS_MEANS = "class_means"  # in method.statistics: (n_seen, d), rows of length 1


def l2_normalise(features: Tensor) -> Tensor:
    """L2-normalise features as iCaRL and PyCIL do (zero stays zero)."""
    lengths: Tensor = features.norm(dim=1, keepdim=True)
    return features / (lengths + 1e-8)


@dataclass(frozen=True)
class Outputs:
    """What a method computes for images, row for row; on the CPU."""

    features: Tensor  # (n, d)
    logits: Tensor  # (n, n_seen) of the softmax head
    distances: Tensor | None = None  # (n, n_seen) squared, to the class means; none without class means
    for_selection: Tensor | None = None  # (n, d') the features that exemplars are chosen by, where asked for


@torch.no_grad()
def outputs_of(
    method: Method,
    images: ImageSet | Tensor,
    batch: int = 64,
    *,
    for_selection: bool = False,
    fabric: "Fabric | None" = None,
    store: FeatureStore | None = None,
) -> Outputs:
    """One pass over the images, (n, H, W, 3) uint8 or an image set, without augmentation, the method in eval mode.

    `for_selection`: exemplars are about to be selected, and the class means are still those of the previous task.
    `fabric`: each of its processes computes a part of the images, and all get the whole.
    `store`: where the features of a frozen backbone are kept."""
    method.eval()
    by_features = not for_selection or type(method).selection_features is Method.selection_features
    with uncompiled(method):  # train.compile is for training: results come from the code as it is written
        if method.frozen and by_features:
            features = chosen_by = features_of(method, images, batch, fabric=fabric, store=store)
            rows = torch.split(features, batch)
            logits = torch.cat([method.classify(part.to(method.classifier.weight)).float().cpu() for part in rows])
        else:
            if fabric is None or fabric.world_size == 1:
                parts = list(_pass(method, images, batch, for_selection))
            else:
                every = all_gather(fabric, list(_pass(method, _own_share(images, fabric), batch, for_selection)))
                parts = [part for share in every for part in share]
            features, logits, chosen_by = (torch.cat(part) for part in zip(*parts, strict=True))
    if for_selection:
        return Outputs(features, logits, for_selection=chosen_by)
    if not bool(logits.isfinite().all() and features.isfinite().all()):
        raise EndocilError(
            "the network gives numbers that are not finite; lower train.learning_rate, or use another model"
        )
    means = method.statistics.get(CLASS_MEANS)
    return Outputs(features, logits, None if means is None else mean_distances(features, means))


@torch.no_grad()
def features_of(
    method: Method,
    images: ImageSet | Tensor,
    batch: int = 64,
    *,
    fabric: "Fabric | None" = None,
    store: FeatureStore | None = None,
    wait: bool = True,
) -> Tensor:
    """(n, d) on the CPU: the features alone; of a frozen backbone one image at a time (feature_store.py)."""
    method.eval()
    if fabric is not None and fabric.world_size > 1:  # each process its share, none waits for another's
        own = _own_share(images, fabric)
        return torch.cat(all_gather(fabric, features_of(method, own, batch, store=store, wait=False)))
    with uncompiled(method):
        if method.frozen:
            return frozen_features(method, images, store, wait=wait)
        return torch.cat([method.embed(pixels).float().cpu() for pixels in _batches(method, images, batch)])


def _own_share(images: ImageSet | Tensor, fabric: "Fabric") -> ImageSet | Tensor:
    mine = torch.arange(len(images))[share_of(len(images), fabric.global_rank, fabric.world_size)]
    return images.take(mine) if isinstance(images, ImageSet) else images[mine]


def _pass(
    method: Method, images: ImageSet | Tensor, batch: int, for_selection: bool
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Features, logits and the features for selection of each batch."""
    for pixels in _batches(method, images, batch):
        features = method.embed(pixels)
        on_cpu = features.float().cpu()
        other = method.selection_features(pixels, features) if for_selection else features
        yield on_cpu, method.classify(features).float().cpu(), on_cpu if other is features else other.float().cpu()


def _batches(method: Method, images: ImageSet | Tensor, batch: int) -> Iterator[Tensor]:
    at_once = batch if isinstance(images, ImageSet) else batch_of(batch, images.shape[1])
    return plain_batches(images, at_once, method.device, method.normalisation)


MOST_PIXELS = 2**22  # in a batch: 64 images of 256 x 256; larger images come in smaller batches


def batch_of(wanted: int, size: int) -> int:
    """The batch size, reduced for large images so that they fit in memory."""
    return max(1, min(wanted, MOST_PIXELS // size**2))


def class_means(features: Tensor, labels: Tensor, n_classes: int) -> Tensor:
    """Mean of the L2-normalised features of each class, normalised again: (n_classes, d)."""
    unit_features = l2_normalise(features)
    sums: Tensor = features.new_zeros(n_classes, features.shape[1]).index_add_(0, labels, unit_features)
    lengths: Tensor = sums.norm(dim=1, keepdim=True).clamp_min(1e-12)
    return sums / lengths


def mean_distances(features: Tensor, means: Tensor) -> Tensor:
    """Squared distances of L2-normalised features to the class means: (n, n_classes)."""
    return torch.cdist(l2_normalise(features), means.to(features)).square()
