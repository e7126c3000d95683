"""Sets of images to learn from, and the batches cut from them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from endocil.errors import EndocilError
from endocil.images.augment import Augmentation, normalise
from endocil.images.cache import Images
from endocil.randomness import generator


@dataclass(frozen=True)
class Batch:
    """Images ready for the network: a whole batch, or one process's share of it."""

    images: Tensor  # (B, 3, H, W) float32
    labels: Tensor  # (B,) int64
    from_memory: Tensor  # (B,) bool: exemplars
    batch_labels: Tensor  # labels of the whole batch
    batch_from_memory: Tensor  # which of the whole batch are exemplars
    key: tuple[
        int | str, ...
    ] = ()  # seed, task, phase, epoch, step: all random numbers of a batch come from it
    start: int = 0  # where these images begin in the whole batch

    def __len__(self) -> int:
        return len(self.labels)

    def uniform(self, columns: int, purpose: str) -> Tensor:
        """(B, columns) numbers from 0 to below 1, drawn for the whole batch so that all shares agree."""
        seed, *place = self.key
        drawn = torch.rand(len(self.batch_labels), columns, generator=generator(int(seed), *place, purpose))
        return drawn[self.start : self.start + len(self)].to(self.images.device)


@dataclass(frozen=True, eq=False)
class ImageSet:
    """Rows of a run's images with their labels; which of them come from the memory is known."""

    images: Images
    rows: Tensor  # (n,) int64 rows of the images' table
    from_memory: Tensor  # (n,) bool

    @classmethod
    def of(cls, images: Images, rows: Tensor, *, from_memory: bool = False) -> "ImageSet":
        return cls(images, rows, torch.full((len(rows),), from_memory))

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def labels(self) -> Tensor:
        return torch.from_numpy(self.images.table.labels.copy())[self.rows]

    def __add__(self, other: "ImageSet") -> "ImageSet":
        return ImageSet(
            self.images, torch.cat([self.rows, other.rows]), torch.cat([self.from_memory, other.from_memory])
        )

    def take(self, index: Tensor) -> "ImageSet":
        return ImageSet(self.images, self.rows[index], self.from_memory[index])

    def counts(self, n: int) -> Tensor:
        """Images of each of the first n classes."""
        return torch.bincount(self.labels, minlength=n)

    def classes(self) -> list[int]:
        return [int(label) for label in torch.unique(self.labels)]

    def hold_out(self, per_class: int, generator: torch.Generator) -> tuple["ImageSet", "ImageSet"]:
        """(the rest, `per_class` images of each class drawn at random); never a class's only image."""
        labels, held = self.labels, torch.zeros(len(self), dtype=torch.bool)
        for label in self.classes():
            mine = torch.nonzero(labels == label).flatten()
            n = min(per_class, len(mine) - 1)
            held[mine[torch.randperm(len(mine), generator=generator)[:n]]] = True
        return self.take(torch.nonzero(~held).flatten()), self.take(torch.nonzero(held).flatten())


def cut(order: Tensor, batch_size: int) -> list[Tensor]:
    """Cut an order into batches; a remainder of one image joins the batch before (batch norm needs two)."""
    if batch_size < 2:
        raise EndocilError(f"train.batch_size is {batch_size}; batch norm needs at least 2 images")
    batches = list(torch.split(order, batch_size))
    if len(batches) > 1 and len(batches[-1]) == 1:
        batches[-2:] = [torch.cat(batches[-2:])]
    return batches


def training_batches(
    images: ImageSet,
    batch_size: int,
    augmentation: Augmentation | None,
    seed: int,
    key: Sequence[int | str],
    device: torch.device,
) -> Iterator[Batch]:
    """One epoch: every image once, shuffled and (if at all) augmented by the numbers that belong to this key."""
    order = torch.randperm(len(images), generator=generator(seed, *key, "order"))
    labels = images.labels
    for step, chosen in enumerate(cut(order, batch_size)):
        pixels = images.images.gather(images.rows[chosen]).to(device)
        if augmentation is None:
            picture = normalise(pixels)
        else:
            picture = augmentation(pixels, generator(seed, *key, step, "augmentation"))
        mine, known = labels[chosen].to(device), images.from_memory[chosen].to(device)
        yield Batch(picture, mine, known, mine, known, (seed, *key, step))


def plain_batches(images: ImageSet, batch_size: int, device: torch.device) -> Iterator[Tensor]:
    """The images in their order, without augmentation: for features, scores and tests."""
    for rows in torch.split(images.rows, batch_size):
        yield normalise(images.images.gather(rows).to(device))
