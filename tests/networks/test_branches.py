"""Networks with a branch for each task, and the classifier that widens with them."""

from collections.abc import Callable
from typing import Any, TypeVar

import pytest
import torch
from torch import Tensor, nn

from endocil import EndocilError
from endocil.data.seeding import generator
from endocil.networks import GrowingClassifier, LastBlocks, WholeBranches, build_backbone, concatenate_features
from endocil.networks.resnet import ResNet

M = TypeVar("M", bound=nn.Module)


def small(*, width: int = 8, **options: Any) -> ResNet:
    backbone, _ = build_backbone("resnet18", seed=0, options={"width": width}, **options)
    assert isinstance(backbone, ResNet)
    return backbone


def different(module: M, seed: int) -> M:
    """Other weights and batch-norm statistics, so that every branch has its own answer."""
    torch.manual_seed(seed)
    for value in module.state_dict().values():
        if value.is_floating_point():
            value.copy_(torch.rand_like(value) * 0.2 + 0.1)
    return module.eval()


def same(one: nn.Module, other: nn.Module) -> bool:
    first, second = one.state_dict(), other.state_dict()
    return set(first) == set(second) and all(torch.equal(first[name], second[name]) for name in first)


def parameters(modules: tuple[nn.Module, ...]) -> set[Tensor]:
    return {parameter for module in modules for parameter in module.parameters()}


def n_parameters(*modules: nn.Module) -> int:
    return sum(parameter.numel() for parameter in parameters(modules))


def general_parts(backbone: ResNet) -> tuple[nn.Module, ...]:
    return tuple(part for name, parts in backbone.stages.items() if name != "layer4" for part in parts)


@pytest.mark.parametrize(
    ("branches", "first"), [(WholeBranches(), lambda net: net), (LastBlocks(), lambda net: net.last_block)]
)
def test_a_new_branch_starts_as_a_copy_of_the_latest_and_goes_its_own_way(
    branches: WholeBranches | LastBlocks, first: Callable[[ResNet], nn.Module]
) -> None:
    backbone = different(small(), 1)
    branches.add(backbone)
    assert same(branches[0], first(backbone))
    different(branches[0], 2)
    assert not same(branches[0], first(backbone))
    branches.add(backbone)
    assert same(branches[1], branches[0])
    assert not parameters((branches[0],)) & parameters((branches[1], backbone))


def test_features_of_whole_branches_stand_in_the_order_of_the_tasks() -> None:
    backbone, branches, images = different(small(), 1), WholeBranches(), torch.randn(2, 3, 32, 32)
    for seed in (2, 3):
        branches.add(backbone)
        different(branches[-1], seed)
    found = branches.features(backbone, images)
    expected = [backbone(images), branches[0](images), branches[1](images)]
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
    assert torch.equal(concatenate_features(found), torch.cat(expected, dim=1))
    assert not torch.allclose(found[0], found[1])


def test_features_of_last_blocks_stand_in_the_order_of_the_tasks_on_the_same_maps() -> None:
    backbone, blocks, images = different(small(), 1), LastBlocks(), torch.randn(2, 3, 32, 32)
    for seed in (2, 3):
        blocks.add(backbone)
        different(blocks[-1], seed)
    runs: list[int] = []
    backbone.conv1.register_forward_hook(lambda *_: runs.append(1))
    found = blocks.features(backbone, images)
    assert len(runs) == 1
    expected = [backbone(images)]
    for block in blocks:
        backbone.last_block.load_state_dict(block.state_dict())
        expected.append(backbone(images))
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


def test_one_branch_alone_gives_the_features_of_the_backbone() -> None:
    backbone, images = small().eval(), torch.randn(2, 3, 32, 32)
    for branches in (WholeBranches(), LastBlocks()):
        (only,) = branches.features(backbone, images)
        assert concatenate_features([only]) is only
        assert torch.equal(only, backbone(images))


def test_of_whole_branches_the_newest_learns_without_its_frozen_stages() -> None:
    branches, backbone = WholeBranches(), small()
    assert branches.trained(backbone) == (backbone,)
    branches.add(backbone)
    branches.add(backbone)
    assert branches.trained(backbone) == (branches[1],)
    branches, backbone = WholeBranches(), small(freeze=("stem", "layer2"))
    branches.add(backbone)
    newest = branches[0]
    assert branches.trained(backbone) == (newest.layer1, newest.layer3, newest.layer4)


@pytest.mark.parametrize("train_general", [True, False])
def test_of_last_blocks_the_newest_learns_and_the_general_part_if_wanted(train_general: bool) -> None:
    blocks, backbone = LastBlocks(train_general=train_general), small()
    assert blocks.trained(backbone) == (backbone,)
    blocks.add(backbone)
    blocks.add(backbone)
    general = general_parts(backbone) if train_general else ()
    assert blocks.trained(backbone) == (*general, blocks[1])


def test_frozen_stages_stay_frozen_in_last_blocks_too() -> None:
    for freeze, expected in [
        (("stem", "layer3"), ["layer1", "layer2", "newest"]),
        (("layer4",), ["conv1", "bn1", "layer1", "layer2", "layer3"]),
    ]:
        blocks, backbone = LastBlocks(), small(freeze=freeze)
        blocks.add(backbone)
        names = {module: name for name, module in backbone.named_children()} | {blocks[0]: "newest"}
        assert [names[module] for module in blocks.trained(backbone)] == expected


def test_a_backbone_without_a_last_block_is_refused_with_what_it_lacks() -> None:
    LastBlocks.check_divisible(small())
    with pytest.raises(
        EndocilError,
        match=r"network\.backbone Linear cannot be divided .* it has no general, last_block, special, stages",
    ):
        LastBlocks.check_divisible(nn.Linear(3, 3))


def test_resnet18_divides_into_a_general_part_and_a_last_block_of_the_stated_sizes() -> None:
    backbone = small(width=64)
    assert n_parameters(*general_parts(backbone)) == 2_782_784
    assert n_parameters(backbone.last_block) == 8_393_728
    assert n_parameters(backbone) == 2_782_784 + 8_393_728


def multiplications(backbone: ResNet, size: int) -> dict[str, int]:
    """Of the convolutions in each stage for one picture."""
    found: dict[str, int] = {}
    for stage, parts in backbone.stages.items():
        for convolution in (m for part in parts for m in part.modules() if isinstance(m, nn.Conv2d)):

            def count(conv: nn.Conv2d, _: object, maps: Tensor, stage: str = stage) -> None:
                found[stage] = found.get(stage, 0) + maps[0, 0].numel() * conv.weight.numel()

            convolution.register_forward_hook(count)
    backbone(torch.zeros(2, 3, size, size))
    return found


def test_the_last_block_makes_less_than_a_quarter_of_the_multiplications() -> None:
    found = multiplications(small(width=64), 32)
    assert found == {
        "stem": 2_408_448,
        "layer1": 9_437_184,
        "layer2": 8_388_608,
        "layer3": 8_388_608,
        "layer4": 8_388_608,
    }
    assert found["layer4"] / sum(found.values()) == pytest.approx(0.2266, abs=5e-5)


def widened(dtype: torch.dtype = torch.float32) -> tuple[GrowingClassifier, Tensor, Tensor]:
    classifier = GrowingClassifier(6).to(dtype)
    classifier.grow(3, generator(0, 0))
    with torch.no_grad():
        classifier.bias.add_(1.0)
    weight, bias = classifier.weight.detach().clone(), classifier.bias.detach().clone()
    classifier.grow(2, generator(0, 1), n_features=10)
    return classifier, weight, bias


def test_widening_keeps_the_old_block_and_biases_and_draws_the_rest_within_the_new_bound() -> None:
    classifier, weight, bias = widened()
    new = classifier.weight.detach()
    assert new.shape == (5, 10)
    assert torch.equal(new[:3, :6], weight)
    assert torch.equal(classifier.bias, torch.cat([bias, torch.zeros(2)]))
    fresh = torch.cat([new[:3, 6:].flatten(), new[3:].flatten()])
    assert float(fresh.abs().max()) <= (3 / 10) ** 0.5 < float(weight.abs().max())
    assert len(set(fresh.tolist())) == 32
    assert (classifier.in_features, classifier.out_features) == (10, 5)


def test_with_its_new_columns_at_zero_a_widened_classifier_gives_the_old_logits() -> None:
    classifier, weight, bias = widened(torch.float64)
    assert classifier.weight.dtype == torch.float64
    features = torch.randn(4, 10, dtype=torch.float64)
    with torch.no_grad():
        classifier.weight[:, 6:] = 0.0
    assert torch.allclose(classifier(features)[:, :3], features[:, :6] @ weight.T + bias, atol=1e-14)


def test_growing_to_the_same_width_is_growing_without_widening() -> None:
    plain, stated = GrowingClassifier(6), GrowingClassifier(6)
    for task in (0, 1):
        plain.grow(2, generator(0, task))
        stated.grow(2, generator(0, task), n_features=6)
    assert same(plain, stated)
