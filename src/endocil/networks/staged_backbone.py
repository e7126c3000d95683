"""A backbone that runs stage by stage, and can begin behind its first stages: with the maps that they have given.

`stages` names the parts in the order of the flow. Methods may look between them (`before_stage`), and divide the
network before its last stage (`general`, `special`).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import takewhile

from torch import Tensor, nn

from endocil.networks.stages import backbones_of, frozen_stages, is_frozen

# from the name of a stage and its input to the input that it gets instead
BeforeStage = Callable[[str, Tensor], Tensor]


def unchanged(stage: str, x: Tensor) -> Tensor:
    return x


class StagedBackbone(nn.Module):
    """A stem, then stages that are modules of their own; the features are averaged over the last one's maps."""

    done: Sequence[str] = ()  # the first stages, whose maps come in place of images

    @property
    def stages(self) -> Mapping[str, tuple[nn.Module, ...]]:
        """The parts that `network.freeze` can name, in the order of the flow."""
        raise NotImplementedError(f"{type(self).__name__} does not name its stages")

    def stem_maps(self, images: Tensor) -> Tensor:
        raise NotImplementedError(f"{type(self).__name__} does not say what its stem does")

    def forward(self, images: Tensor, before_stage: BeforeStage = unchanged) -> Tensor:
        """`before_stage` may change the input of each stage after the stem."""
        maps = self.general(images, before_stage)
        return self.special(before_stage(self._last, maps), self.last_block)

    def general(self, images: Tensor, before_stage: BeforeStage = unchanged) -> Tensor:
        """The maps before the last stage: (B, c, h, w)."""
        return self.through([name for name in [*self.stages][:-1] if name not in self.done], images, before_stage)

    def through(self, stages: Sequence[str], x: Tensor, before_stage: BeforeStage = unchanged) -> Tensor:
        """The maps that these stages give, one after the other."""
        for name in stages:
            x = self.stem_maps(x) if name == "stem" else self.get_submodule(name)(before_stage(name, x))
        return x

    @property
    def last_block(self) -> nn.Module:
        return self.get_submodule(self._last)

    @property
    def _last(self) -> str:
        return [*self.stages][-1]

    @staticmethod
    def special(maps: Tensor, block: nn.Module) -> Tensor:
        """Features of the general maps through a last block: (B, d)."""
        return block(maps).mean(dim=(2, 3))  # type: ignore[no-any-return]


def frozen_prefix(backbone: nn.Module) -> tuple[str, ...]:
    """The stages before the first that learns, in the order of the flow, never the last one; none where a backbone
    cannot begin behind them."""
    own = StagedBackbone
    if not isinstance(backbone, own) or (type(backbone).forward, type(backbone).general) != (own.forward, own.general):
        return ()
    frozen, (*first, _) = frozen_stages(backbone), backbone.stages
    return tuple(takewhile(lambda name: is_frozen(backbone) or name in frozen, first))


@contextmanager
def beginning_behind(network: nn.Module, stages: Sequence[str]) -> Iterator[None]:
    """All backbones of a network take the maps that these first stages give in place of images."""
    backbones = backbones_of(network) if stages else []
    try:
        for backbone in backbones:
            backbone.done = tuple(stages)  # type: ignore[assignment]
        yield
    finally:
        for backbone in backbones:
            backbone.done = ()  # type: ignore[assignment]
