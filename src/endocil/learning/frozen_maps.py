"""The maps that a backbone's frozen stages give, computed once for each image of a phase instead of in every epoch.

Where the first stages of a backbone do not learn (`network.freeze`), and an image looks in every epoch as it is or as
its mirror image, these stages give the same maps again and again, and a teacher's frozen stages are the student's own.
So a phase that allows it (`Phase.takes_maps`) trains on the maps, by the flips that it would draw for the images.
The maps are computed one image at a time, as features of a frozen backbone are, and kept beside them.

What decides are the settings, the phase and its images, so that a resumed run decides alike.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn

from endocil.data.augment import IMAGENET, Augmentation, Normalisation
from endocil.data.batches import ImageSet, PreparePixels, plain_batches
from endocil.errors import ResourceError
from endocil.io.process import available_memory
from endocil.learning.features import FeatureStore, key_from, rows_of
from endocil.learning.first_task import code_of, digest_of
from endocil.methods.base import Method, Phase
from endocil.networks import backbones_of, frozen_prefix

LIMIT = 4 * 2**30  # bytes that the maps of a phase's images may take; with more the phase trains on the images


@dataclass(frozen=True)
class Inputs:
    """What a phase trains on: its images, or their maps behind these stages."""

    phase: Phase
    prepare: PreparePixels
    stages: Sequence[str] = ()


def inputs_of(
    phase: Phase,
    method: Method,
    augmentation: Augmentation,
    *,
    store: FeatureStore | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> Inputs:
    """Maps where they can be and save work, else images. To be called in the mode in which the phase trains.

    `stop`: whether the process is told to stop, which it does between two images."""
    flip = augmentation.flip if phase.augmented else 0.0
    views = [mirrored for mirrored in (False, True) if (flip > 0 if mirrored else flip < 1)]
    stages = shared_prefix(method) if phase.takes_maps else ()
    if (
        not (stages and len(phase.images))
        or (phase.augmented and not augmentation.mirrors_alone)
        or phase.schedule.epochs * phase.views < len(views)  # there would be more to compute than without
        or phase.after_step is not None  # it may write to frozen stages
    ):
        return Inputs(phase, augmentation)
    maker = MapMaker(method, stages, stop, phase.images)
    every = [phase.images, *(one.images for one in phase.replay)]
    need, free = maker.bytes_of_map * len(views) * sum(map(len, every)), available_memory()
    if need > LIMIT:
        return Inputs(phase, augmentation)
    if free is not None and need > free:  # not on the images then: a resumed run has to decide alike
        raise ResourceError(
            f"the maps of the frozen stages need {need / 1e9:,.1f} GB of memory, and {free / 1e9:,.1f} GB are free; "
            f"free some, lower data.size, or freeze a stage less or more (network.freeze)"
        )
    images, *replayed = maker.with_maps(every, views, store)
    replay = [replace(one, images=maps) for one, maps in zip(phase.replay, replayed, strict=True)]
    return Inputs(replace(phase, images=images, replay=replay, augmented=True), ChooseMaps(flip), stages)


def shared_prefix(method: nn.Module) -> tuple[str, ...]:
    """The first stages that do not learn now and are alike, bit for bit, in all backbones of a method."""
    first, *others = backbones_of(method)
    stages = frozen_prefix(first)
    parts = _parts(first, stages)
    learns = any(parameter.requires_grad for parameter in parts.parameters())
    if learns or any(module.training for part in parts for module in part.modules()):
        return ()
    alike = all(
        (type(other), repr(other), frozen_prefix(other)) == (type(first), repr(first), stages)
        and _same(parts.state_dict(), _parts(other, stages).state_dict())
        for other in others
    )
    return stages if alike else ()


def _parts(backbone: nn.Module, stages: Sequence[str]) -> nn.ModuleList:
    named: Mapping[str, Sequence[nn.Module]] = getattr(backbone, "stages", {})
    return nn.ModuleList(part for name in stages for part in named[name])


def _same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@dataclass(frozen=True, eq=False)
class MapSource:
    """The maps of an image set, in its order: an image source."""

    of: ImageSet
    views: Sequence[Sequence[Tensor]]  # of the images as they are, of their mirror images, or of both: (h, w, C) each

    @property
    def labels(self) -> Tensor:
        return self.of.labels

    def gather(self, index: Tensor) -> Tensor:
        """(B, views, h, w, C)."""
        return torch.stack([torch.stack([view[i] for view in self.views]) for i in index.tolist()])

    def describe(self, row: int) -> tuple[str, str, str]:
        return self.of.images.describe(int(self.of.rows[row]))


@dataclass(frozen=True)
class ChooseMaps:
    """Stands where the augmentation of the images would, and draws the same flips."""

    flip: float

    def __call__(
        self,
        pixels: Tensor,
        generator: torch.Generator,
        normalisation: Normalisation = IMAGENET,
        *,
        start: int = 0,
        of: int | None = None,
    ) -> Tensor:
        """Maps (B, views, h, w, C) -> (B, C, h, w), of the image or of its mirror image."""
        n = len(pixels)
        flipped = Augmentation(flip=self.flip).draw_flips(of or n, generator)[start : start + n].to(pixels.device)
        chosen = pixels[torch.arange(n, device=pixels.device), flipped.long()] if pixels.shape[1] > 1 else pixels[:, 0]
        return chosen.permute(0, 3, 1, 2)


class MapMaker:
    """The maps that the first stages of a method's backbone give."""

    def __init__(self, method: Method, stages: Sequence[str], stop: Callable[[], bool], images: ImageSet) -> None:
        self.backbone: Any = backbones_of(method)[0]
        self.device, self.normalisation = method.device, method.normalisation
        self.stages, self.stop = stages, stop
        one = self._maps(images.take(torch.arange(1)), mirrored=False)
        self.bytes_of_map = one.numel() * one.element_size()

    def with_maps(self, every: Sequence[ImageSet], views: Sequence[bool], store: FeatureStore | None) -> list[ImageSet]:
        """The same image sets, whose pixels are maps; an image that is in several of them is computed once."""
        first, *others = every
        whole = sum(others, start=first)
        found = [self._view(whole, mirrored, store) for mirrored in views]
        ends = list(accumulate(map(len, every)))
        return [
            replace(
                one, images=MapSource(one, [view[end - len(one) : end] for view in found]), rows=torch.arange(len(one))
            )
            for one, end in zip(every, ends, strict=True)
        ]

    def _view(self, images: ImageSet, mirrored: bool, store: FeatureStore | None) -> list[Tensor]:
        compute = partial(self._maps, mirrored=mirrored)
        return rows_of(images, compute, self.key(mirrored), store, self.bytes_of_map)

    @torch.no_grad()
    def _maps(self, images: ImageSet | Tensor, *, mirrored: bool) -> Tensor:
        """(n, h, w, C) on the CPU: each image by itself."""
        maps = []
        for image in plain_batches(images, 1, self.device, self.normalisation):
            if self.stop():
                raise KeyboardInterrupt  # nothing has been learned since the last checkpoint
            seen = image.flip(3).contiguous(memory_format=torch.channels_last) if mirrored else image
            maps.append(self.backbone.through(self.stages, seen).permute(0, 2, 3, 1).cpu())
        return torch.cat(maps)

    def key(self, mirrored: bool) -> str:
        """A digest of what decides the maps of given pixels."""
        parts = _parts(self.backbone, self.stages)
        decides = {
            "maps": list(self.stages),
            "mirrored": mirrored,
            "weights": digest_of(parts.state_dict()),
            "network": repr(self.backbone),
            "code": code_of(type(self.backbone)),
        }
        return key_from(decides, self.backbone, self.normalisation, self.device)
