"""Sets of images to learn from, and the batches cut from them."""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from endocil.data.augment import IMAGENET, Normalisation, normalise
from endocil.data.seeding import generator, torch_seeded
from endocil.errors import EndocilError


@dataclass(frozen=True)
class Batch:
    """Images ready for the network: a whole batch, or one process's share of it.

    Where a phase has replay batches, they and the phase's own images are mixed: `streams` tells which is which."""

    images: Tensor  # (B, 3, H, W) float32
    labels: Tensor  # (B,) int64
    from_memory: Tensor  # (B,) bool: exemplars
    batch_labels: Tensor  # labels of the whole batch
    batch_from_memory: Tensor  # which of the whole batch are exemplars
    key: tuple[int | str, ...] = ()  # seed, task, phase, epoch, step: all random numbers of a batch come from it
    start: int = 0  # where these images begin in the whole batch
    mixed_labels: Tensor | None = None  # (B,) of the images that these are mixed with (mixup)
    mix: float = 1.0  # how much of a mixed image is its own, at least a half
    batch_streams: Tensor | None = None  # of the whole batch: 0 the phase's images, 1 its first replay batch, ...
    batch_rows: Tensor | None = None  # of the whole batch: the place of each image in the image set of its stream
    kept: Mapping[str, Tensor] = field(default_factory=dict)  # (B, ...) kept with exemplars; zeros for new images
    more_views: tuple[Tensor, ...] = ()  # the same images, augmented otherwise

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def views(self) -> tuple[Tensor, ...]:
        """The images, and the same images augmented otherwise: as many as `Phase.views`."""
        return (self.images, *self.more_views)

    @property
    def streams(self) -> Tensor:
        """(B,) int64: 0 for images of the phase, 1 for those of its first replay batch, and so on."""
        return torch.zeros_like(self.labels) if self.batch_streams is None else self._own(self.batch_streams)

    @property
    def rows(self) -> Tensor:
        """(B,) int64: the place of each image in the image set that its stream is drawn from."""
        places = torch.arange(len(self.batch_labels), device=self.labels.device)
        return self._own(places if self.batch_rows is None else self.batch_rows)

    def stream_weights(self) -> Tensor:
        """(B,): with these a mean over the batch is the sum of the means over its streams."""
        whole = torch.zeros_like(self.batch_labels) if self.batch_streams is None else self.batch_streams
        return (len(whole) / torch.bincount(whole).clamp_min(1))[self.streams].to(self.images.dtype)

    def _own(self, whole: Tensor) -> Tensor:
        return whole[self.start : self.start + len(self)]

    def label_loss(self, loss: Callable[[Tensor], Tensor]) -> Tensor:
        """A loss by the images' labels, one per image; of mixed images, by both labels and as they are mixed."""
        own = loss(self.labels)
        return own if self.mixed_labels is None else self.mix * own + (1.0 - self.mix) * loss(self.mixed_labels)

    def uniform(self, columns: int, purpose: str) -> Tensor:
        """(B, columns) numbers from 0 to below 1, drawn for the whole batch so that all shares agree."""
        seed, *place = self.key
        drawn = torch.rand(len(self.batch_labels), columns, generator=generator(int(seed), *place, purpose))
        return drawn[self.start : self.start + len(self)].to(self.images.device)

    def torch_seeded(self) -> AbstractContextManager[None]:
        """While a network trains on these images: dropout and drop path, which draw from torch's own generator, draw
        the same numbers whenever this batch comes, and other ones for another share or piece of it."""
        seed, *place = self.key or (0,)
        return torch_seeded(int(seed), *place, "network", self.start)

    def pieces(self, n: int, processes: int = 1) -> "tuple[Batch, ...]":
        """Cut into n pieces of about the same size, or fewer, so that none of the whole batch has a single image.

        As many in every process: batch norm waits for all of them, piece by piece."""
        n = max(1, min(n, len(self.batch_labels) // (2 * processes)))
        return tuple(self.part(share_of(len(self), i, n)) for i in range(n)) if n > 1 else (self,)

    def part(self, mine: slice) -> "Batch":
        """Some of these images, one after the other."""
        return replace(
            self,
            images=self.images[mine],
            labels=self.labels[mine],
            from_memory=self.from_memory[mine],
            mixed_labels=None if self.mixed_labels is None else self.mixed_labels[mine],
            start=self.start + mine.start,
            kept={name: values[mine] for name, values in self.kept.items()},
            more_views=tuple(view[mine] for view in self.more_views),
        )


class PreparePixels(Protocol):
    """From what an image source gathers to input of the network: an augmentation."""

    def __call__(
        self, pixels: Tensor, generator: torch.Generator, normalisation: Normalisation, *, start: int, of: int
    ) -> Tensor: ...


class ImageSource(Protocol):
    """Where the pixels and labels of an image set come from."""

    @property
    def labels(self) -> Tensor: ...

    def gather(self, index: Tensor) -> Tensor: ...

    def describe(self, row: int) -> tuple[str, str, str]: ...


@dataclass(frozen=True, eq=False)
class JoinedSource:
    """Two sources one after the other: new images, which stay memory-mapped, and exemplars."""

    first: ImageSource
    second: ImageSource

    @property
    def labels(self) -> Tensor:
        return torch.cat([self.first.labels, self.second.labels])

    def gather(self, index: Tensor) -> Tensor:
        n = len(self.first.labels)
        from_second = index >= n
        if not bool(from_second.any()):
            return self.first.gather(index)
        second = self.second.gather(index[from_second] - n)
        pixels = second.new_empty(len(index), *second.shape[1:])
        pixels[from_second] = second
        pixels[~from_second] = self.first.gather(index[~from_second])
        return pixels

    def describe(self, row: int) -> tuple[str, str, str]:
        n = len(self.first.labels)
        return self.first.describe(row) if row < n else self.second.describe(row - n)


@dataclass(frozen=True, eq=False)
class ImageSet:
    """Rows of a source with their labels; which of them come from the memory is known."""

    images: ImageSource
    rows: Tensor  # (n,) int64 rows of the source
    from_memory: Tensor  # (n,) bool
    kept: Mapping[str, Tensor] = field(default_factory=dict)  # (n, ...) what the memory keeps with each exemplar

    @classmethod
    def of(cls, images: ImageSource, rows: Tensor, *, from_memory: bool = False) -> "ImageSet":
        return cls(images, rows, torch.full((len(rows),), from_memory))

    def __len__(self) -> int:
        return len(self.rows)

    @cached_property
    def labels(self) -> Tensor:
        return self.images.labels[self.rows]

    def __add__(self, other: "ImageSet") -> "ImageSet":
        from_memory = torch.cat([self.from_memory, other.from_memory])
        kept = join_rows(self.kept, len(self), other.kept, len(other))
        if self.images is other.images or not len(other):
            return ImageSet(self.images, torch.cat([self.rows, other.rows]), from_memory, kept)
        if not len(self):
            return ImageSet(other.images, other.rows, from_memory, kept)
        rows = torch.cat([self.rows, other.rows + len(self.images.labels)])
        return ImageSet(JoinedSource(self.images, other.images), rows, from_memory, kept)

    def gather(self, index: Tensor) -> Tensor:
        """Copies of the pixels of some of these images: (B, size, size, 3) uint8."""
        return self.images.gather(self.rows[index])

    def pixel_digests(self) -> list[bytes]:
        """The sha256 of the pixels of each image."""
        parts = torch.split(torch.arange(len(self)), 256)
        return [pixel_digest(pixels) for part in parts for pixels in self.gather(part)]

    def take(self, index: Tensor) -> "ImageSet":
        kept = {name: values[index] for name, values in self.kept.items()}
        return ImageSet(self.images, self.rows[index], self.from_memory[index], kept)

    def counts(self, n: int) -> Tensor:
        """Images of each of the first n classes."""
        return torch.bincount(self.labels, minlength=n)

    def classes(self) -> list[int]:
        return [int(label) for label in torch.unique(self.labels)]

    def balanced(self, generator: torch.Generator) -> "ImageSet":
        """Every class as often as the largest one, by images that are there several times."""
        mine = [torch.nonzero(self.labels == label).flatten() for label in self.classes()]
        most = max(map(len, mine), default=0)
        rounds = [
            torch.cat([own[torch.randperm(len(own), generator=generator)] for _ in range(-(-most // len(own)))])[:most]
            for own in mine
        ]
        return self.take(torch.cat(rounds).sort().values) if rounds else self

    def hold_out(self, per_class: int, generator: torch.Generator) -> tuple["ImageSet", "ImageSet"]:
        """(the rest, `per_class` images of each class drawn at random); never a class's only image."""
        labels, held = self.labels, torch.zeros(len(self), dtype=torch.bool)
        for label in self.classes():
            mine = torch.nonzero(labels == label).flatten()
            n = min(per_class, len(mine) - 1)
            held[mine[torch.randperm(len(mine), generator=generator)[:n]]] = True
        return self.take(torch.nonzero(~held).flatten()), self.take(torch.nonzero(held).flatten())


def join_rows(first: Mapping[str, Tensor], n: int, second: Mapping[str, Tensor], m: int) -> dict[str, Tensor]:
    """Tensors of n rows and of m rows under each other: zeros where one side has none, or is narrower (fewer classes
    were known then)."""
    joined = {}
    for name in {**first, **second}:
        parts = [part[name] for part in (first, second) if name in part]
        if len({part.ndim for part in parts}) > 1:
            raise EndocilError(f"'{name}' was kept with {parts[0].ndim} dimensions, and now with {parts[1].ndim}")
        widest = [max(sizes) for sizes in zip(*(part.shape[1:] for part in parts), strict=True)]
        joined[name] = parts[-1].new_zeros(n + m, *widest)
        for part, start in ((first, 0), (second, n)):
            if name in part:
                place = (slice(start, start + len(part[name])), *map(slice, part[name].shape[1:]))
                joined[name][place] = part[name]
    return joined


@dataclass(frozen=True, eq=False)
class Replay:
    """A batch that is drawn anew beside every batch of a phase's own images."""

    images: ImageSet
    batch_size: int
    balanced: bool = False  # as many of each class, or one more; else every image is as likely

    def __len__(self) -> int:
        """Images in a batch: fewer where there are fewer."""
        return min(self.batch_size, len(self.images))

    def draw(self, random: torch.Generator) -> Tensor:
        """Places of different images."""
        order = torch.randperm(len(self.images), generator=random)
        if self.balanced:  # the first of each class in this order, then the second of each, ...
            seen, turns = dict[int, int](), []
            for label in self.images.labels[order].tolist():
                turns.append(seen.setdefault(label, 0))
                seen[label] += 1
            order = order[torch.argsort(torch.tensor(turns, dtype=torch.int64), stable=True)]
        return order[: len(self)]


def pixel_digest(pixels: Tensor) -> bytes:
    return hashlib.sha256(pixels.numpy().tobytes()).digest()


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
    augmentation: PreparePixels | None,
    seed: int,
    key: Sequence[int | str],
    device: torch.device,
    shard: tuple[int, int] = (0, 1),
    *,
    normalisation: Normalisation = IMAGENET,
    mixup: float = 0.0,
    first: int = 0,
    replay: Sequence[Replay] = (),
    views: int = 1,
) -> Iterator[Batch]:
    """One epoch: every image once, shuffled and (if at all) augmented by the numbers that belong to this key.

    `shard` = (i, n): of every batch the i-th of n parts, which may be empty. `mixup`: alpha of the Beta distribution
    by which images are mixed with others of their batch (Zhang et al., ICLR 2018); 0: none is. `first`: the batches
    before this one are left out, as they were learned from already. `replay`: what is drawn beside each batch. `views`:
    how often each image is augmented."""
    order = torch.randperm(len(images), generator=generator(seed, *key, "order"))
    starts = np.cumsum([0, len(images), *(len(one.images) for one in replay)]).tolist()
    whole = images
    for one in replay:
        whole = whole + one.images
    all_labels = whole.labels
    for step, own in [*enumerate(cut(order, batch_size))][first:]:
        chosen, streams = own, torch.zeros_like(own)
        if any(map(len, replay)):
            drawn = [one.draw(generator(seed, *key, step, "replay", i)) for i, one in enumerate(replay)]
            parts = [own, *drawn]
            mixed = torch.randperm(sum(map(len, parts)), generator=generator(seed, *key, step, "streams"))
            streams = torch.cat([torch.full_like(part, i) for i, part in enumerate(parts)])[mixed]
            chosen = torch.cat([part + start for part, start in zip(parts, starts, strict=False)])[mixed]
        mine = share_of(len(chosen), *shard)
        seen = slice(0, len(chosen)) if mixup else mine  # an image may be mixed with one of another shard
        pixels = _moved(whole.images.gather(whole.rows[chosen[seen]]), device)
        pictures = []
        for view in range(views):
            if augmentation is None:
                pictures.append(normalise(pixels, normalisation))
                continue
            random = generator(seed, *key, step, "augmentation", *([view] if view else []))
            pictures.append(augmentation(pixels, random, normalisation, start=seen.start, of=len(chosen)))
        labels, known = all_labels[chosen].to(device), whole.from_memory[chosen].to(device)
        batch = Batch(
            pictures[0],
            labels[seen],
            known[seen],
            labels,
            known,
            (seed, *key, step),
            seen.start,
            batch_streams=streams.to(device),
            batch_rows=(chosen - torch.tensor(starts)[streams]).to(device),
            kept={name: values[chosen[seen]].to(device) for name, values in whole.kept.items()},
            more_views=tuple(pictures[1:]),
        )
        yield _mixed(batch, mixup, generator(seed, *key, step, "mixup")).part(mine) if mixup else batch


def _mixed(batch: Batch, alpha: float, random: torch.Generator) -> Batch:
    """Each image mixed with one other of its batch, all by one number, as the authors do it."""
    partner = torch.randperm(len(batch), generator=random).to(batch.images.device)
    draws = np.random.default_rng(int(torch.randint(2**62, (), generator=random)))
    mix = draws.beta(alpha, alpha)
    mix = max(mix, 1.0 - mix)  # the larger part is the image's own, so that losses by class are told of it
    images = torch.lerp(batch.images[partner], batch.images, mix).contiguous(memory_format=torch.channels_last)
    return replace(batch, images=images, mixed_labels=batch.labels[partner], mix=mix)


def prefetch(batches: Iterator[Batch], device: torch.device) -> Iterator[Batch]:
    """The same batches; on an accelerator, the next one is prepared while this one trains.

    On a CPU the same cores would do both, so nothing is gained."""
    if device.type == "cpu":
        yield from batches
        return
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(next, batches, None)
        while (batch := waiting.result()) is not None:
            waiting = pool.submit(next, batches, None)
            yield batch


def share_of(n: int, index: int, parts: int) -> slice:
    """The place of part `index` when n things are shared evenly among `parts`."""
    return slice(index * n // parts, (index + 1) * n // parts)


def _moved(pixels: Tensor, device: torch.device) -> Tensor:
    """To the device as bytes; from pinned memory the copy overlaps with computation."""
    if device.type == "cuda":
        return pixels.pin_memory().to(device, non_blocking=True)
    return pixels.to(device)


def plain_batches(
    images: ImageSet | Tensor, batch_size: int, device: torch.device, normalisation: Normalisation
) -> Iterator[Tensor]:
    """The images, or (n, H, W, 3) uint8, in their order, without augmentation: for features, scores and tests."""
    for part in torch.split(images.rows if isinstance(images, ImageSet) else images, batch_size):
        pixels = images.images.gather(part) if isinstance(images, ImageSet) else part
        yield normalise(_moved(pixels, device), normalisation)
