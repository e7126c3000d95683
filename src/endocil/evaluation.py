"""From a method and images to features, scores and predictions: one pass serves everything."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from endocil.images.batch import ImageSet, plain_batches, share_of
from endocil.memory import unit
from endocil.methods.method import Method
from endocil.networks import uncompiled
from endocil.predictions import Predictions
from endocil.processes import gathered

if TYPE_CHECKING:
    from lightning_fabric import Fabric

CLASS_MEANS = "class_means"  # in method.statistics: (n_seen, d), rows of length 1


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
        other = method.choosing(batch, features) if to_choose else features
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


def predict(
    method: Method,
    images: ImageSet,
    batch_size: int,
    *,
    classes: tuple[str, ...],
    fabric: "Fabric | None" = None,
) -> Predictions:
    """Both heads on the same pass: the softmax head's logits and, with class means, the distances to them."""
    seen = view(method, images, batch_size, fabric=fabric)
    means = method.statistics.get(CLASS_MEANS)
    table, rows = images.images.table, images.rows.tolist()
    return Predictions(
        images=tuple(table.ids[row] for row in rows),
        labels=images.labels.numpy(),
        classes=classes,
        scores=seen.scores.numpy(),
        distances=None if means is None else mean_distances(seen.features, means).numpy(),
        sources=tuple(table.sources[row] for row in rows),
    )
