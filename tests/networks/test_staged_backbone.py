"""A backbone that begins behind its first stages gives the features that it gives for the images."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from endocil.networks import beginning_behind, build_backbone, frozen_prefix
from endocil.networks.resnet import ResNet18

KINDS: list[tuple[str, dict[str, Any]]] = [
    ("resnet18", {"width": 8}),
    ("resnet18", {"width": 8, "stem": "3x3"}),
    ("resnet32", {"width": 8}),
    ("resnet50", {"width": 8, "stem": "3x3-pool"}),
    ("efficientnet-lite0", {}),
]


@pytest.mark.parametrize(("name", "options"), KINDS)
def test_maps_of_the_first_stages_in_place_of_images_give_the_same_features(name: str, options: dict[str, Any]) -> None:
    backbone: Any = build_backbone(name, seed=0, options=options)[0].eval()
    images, network = torch.rand(2, 3, 32, 32), nn.Sequential(backbone)
    with torch.no_grad():
        expected, names = backbone(images), [*backbone.stages]
        for n in range(len(names)):
            maps = backbone.through(names[:n], images)
            with beginning_behind(network, names[:n]):
                assert torch.equal(backbone(maps), expected)
        assert torch.equal(backbone(images), expected)


def test_the_frozen_beginning_ends_before_the_first_stage_that_learns_and_before_the_last() -> None:
    def prefix(*freeze: str, name: str = "resnet18") -> tuple[str, ...]:
        return frozen_prefix(build_backbone(name, seed=0, freeze=freeze)[0])

    assert prefix() == prefix("layer1", "layer2") == ()
    assert prefix("layer1", "stem", "layer3") == ("stem", "layer1")
    assert prefix("stem", "layer1", "layer2", "layer3") == prefix("all") == ("stem", "layer1", "layer2", "layer3")
    assert prefix("stem", "stage1", name="efficientnet-lite0") == ("stem", "stage1")


class Own(ResNet18):
    def general(self, images: Tensor, *given: Any) -> Tensor:
        return super().general(images * 2, *given)


def test_backbones_that_cannot_begin_behind_a_stage_have_no_frozen_beginning() -> None:
    for backbone in (Own(width=8), nn.Linear(2, 2)):
        backbone.frozen_stages = frozenset(["all"])  # type: ignore[assignment]
        assert frozen_prefix(backbone) == ()
