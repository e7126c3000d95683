"""ResNets with torchvision's names, the growing classifier, weights from outside, frozen stages."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch.nn import functional

from endocil import EndocilError
from endocil.data.seeding import generator
from endocil.networks import GrowingClassifier, build_backbone, trained_parts
from endocil.networks.resnet import PaddedShortcut, ResNet, Shortcut
from endocil.networks.weights import load_weights
from endocil.registry import trust


def small(**options: Any) -> torch.nn.Module:
    return build_backbone("resnet18", seed=0, options={"width": 8, **options})[0]


def n_parameters(module: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def test_resnet18_with_sixteen_classes_has_the_papers_number_of_parameters() -> None:
    backbone, _ = build_backbone("resnet18", seed=0)
    assert isinstance(backbone, ResNet)
    classifier = GrowingClassifier(backbone.n_features)
    classifier.grow(16, generator(0))
    assert n_parameters(backbone) == 11_176_512
    assert n_parameters(backbone) + n_parameters(classifier) == 11_184_720


def test_a_small_stem_has_fewer_parameters_and_resnet34_more() -> None:
    assert n_parameters(build_backbone("resnet18", seed=0, options={"stem": "3x3"})[0]) == 11_168_832
    assert n_parameters(build_backbone("resnet34", seed=0)[0]) == 21_284_672


def test_parameter_names_are_those_of_torchvision() -> None:
    names = set(build_backbone("resnet18", seed=0, options={"width": 8})[0].state_dict())
    expected = {"conv1.weight", "bn1.running_var", "layer1.0.conv1.weight", "layer2.0.downsample.0.weight"}
    assert expected | {"layer4.1.bn2.num_batches_tracked", "layer2.0.downsample.1.bias"} <= names
    assert len(names) == 120


@pytest.mark.parametrize(("stem", "size"), [("7x7", 64), ("7x7", 32), ("3x3", 32), ("3x3-pool", 32)])
def test_features_are_one_vector_per_image_and_never_negative(stem: str, size: int) -> None:
    features = small(stem=stem)(torch.randn(3, 3, size, size))
    assert features.shape == (3, 64)
    assert float(features.detach().min()) >= 0.0


def test_the_same_seed_gives_the_same_backbone() -> None:
    first, again = small().state_dict(), small().state_dict()
    assert all(torch.equal(first[name], again[name]) for name in first)
    other = build_backbone("resnet18", seed=1, options={"width": 8})[0].state_dict()
    assert not torch.equal(first["conv1.weight"], other["conv1.weight"])


def test_growing_keeps_old_rows_and_draws_new_ones_within_the_bound() -> None:
    classifier = GrowingClassifier(12)
    classifier.grow(3, generator(0, 0))
    with torch.no_grad():
        classifier.bias.add_(1.0)
    weight, bias = classifier.weight.clone(), classifier.bias.clone()
    classifier.grow(2, generator(0, 1))
    assert torch.equal(classifier.weight[:3], weight)
    assert torch.equal(classifier.bias, torch.cat([bias, torch.zeros(2)]))
    assert float(classifier.weight[3:].detach().abs().max()) <= (3 / 12) ** 0.5
    assert classifier(torch.zeros(4, 12)).shape == (4, 5)


def test_unknown_backbones_options_and_stems_are_refused_with_the_known() -> None:
    with pytest.raises(
        EndocilError,
        match=r"unknown network.backbone 'vgg'; known: efficientnet-lite0, .* resnet32, resnet34, resnet50, timm:NAME",
    ):
        build_backbone("vgg", seed=0)
    with pytest.raises(EndocilError, match="unknown network key 'depth'; known: stem, width"):
        build_backbone("resnet18", seed=0, options={"depth": 3})
    with pytest.raises(EndocilError, match=r"network\.stem: input should be '7x7', '3x3' or '3x3-pool', got 'huge'"):
        small(stem="huge")


def test_a_backbone_of_ones_own_comes_by_its_import_path() -> None:
    name, nowhere = "endocil.networks.resnet:ResNet34", "endocil.nowhere:Net"
    with pytest.raises(EndocilError, match="only with --trust"):
        build_backbone(name, seed=0, options={"width": 8})
    trust([name, nowhere])
    backbone, _ = build_backbone(name, seed=0, options={"width": 8})
    assert backbone.n_features == 64
    with pytest.raises(EndocilError, match="cannot be imported"):
        build_backbone(nowhere, seed=0)


@pytest.mark.parametrize("kind", ["safetensors", "pth"])
def test_public_weights_load_and_mismatches_are_listed(tmp_path: Path, kind: str) -> None:
    source = small().state_dict()
    source["conv1.weight"] = torch.full_like(source["conv1.weight"], 0.5)
    source["fc.weight"] = torch.zeros(1000, 64)
    del source["bn1.weight"]
    source["layer1.0.conv1.weight"] = torch.zeros(9, 9, 3, 3)
    path = tmp_path / f"weights.{kind}"
    save_file(source, path) if kind == "safetensors" else torch.save(source, path)
    backbone, notes = build_backbone("resnet18", seed=5, weights=str(path), options={"width": 8})
    first = backbone.get_parameter("conv1.weight")
    assert torch.equal(first, torch.full_like(first, 0.5))
    assert [note.split()[0] for note in notes] == ["bn1.weight", "layer1.0.conv1.weight", "fc.weight"]


def test_weights_that_would_run_code_or_fit_nothing_are_refused(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> tuple[Any, ...]:
            return (Path.write_text, (tmp_path / "ran", "ran"))

    torch.save({"x": Evil()}, tmp_path / "evil.pth")
    with pytest.raises(EndocilError, match="refused: it holds more than tensors"):
        load_weights(small(), tmp_path / "evil.pth")
    assert not (tmp_path / "ran").exists()
    save_file({"x": torch.zeros(1)}, tmp_path / "other.safetensors")
    with pytest.raises(EndocilError, match="holds none of the backbone's 120 tensors"):
        load_weights(small(), tmp_path / "other.safetensors")
    (tmp_path / "broken.safetensors").write_bytes(b"12345678")
    with pytest.raises(EndocilError, match="cannot be read"):
        load_weights(small(), tmp_path / "broken.safetensors")
    with pytest.raises(EndocilError, match="is not a file"):
        load_weights(small(), tmp_path / "nothing.pth")


class OwnBackbone(torch.nn.Module):
    """A backbone that draws its first values itself."""

    n_features = 4

    def __init__(self) -> None:
        super().__init__()
        self.fixed = torch.nn.Conv2d(3, 4, 3)
        torch.nn.init.constant_(self.fixed.weight, 0.123)
        self.drawn = torch.nn.Linear(4, 4)


def test_a_backbone_of_ones_own_keeps_its_values_and_depends_on_the_seed_alone() -> None:
    name = "test_networks:OwnBackbone"
    trust([name])
    one, same, other = (build_backbone(name, seed=seed)[0] for seed in (0, 0, 1))
    assert float(one.get_parameter("fixed.weight").detach().mean()) == pytest.approx(0.123)
    drawn = [network.get_parameter("drawn.weight") for network in (one, same, other)]
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])


def test_weights_of_another_width_or_with_holes_are_refused(tmp_path: Path) -> None:
    save_file(build_backbone("resnet18", seed=0, options={"width": 16})[0].state_dict(), tmp_path / "w.safetensors")
    with pytest.raises(EndocilError, match="holds none"):
        load_weights(small(), tmp_path / "w.safetensors")
    broken = small().state_dict()
    broken["bn1.weight"] = torch.full_like(broken["bn1.weight"], torch.nan)
    save_file(broken, tmp_path / "nan.safetensors")
    with pytest.raises(EndocilError, match=r"not finite, first in bn1\.weight"):
        load_weights(small(), tmp_path / "nan.safetensors")


def test_frozen_stages_are_left_out_of_what_learns() -> None:
    backbone, _ = build_backbone("resnet18", seed=0, freeze=["stem", "layer1"], options={"width": 8})
    learning = {parameter for part in trained_parts(backbone) for parameter in part.parameters()}
    frozen = {name for name, parameter in backbone.named_parameters() if parameter not in learning}
    assert {name.split(".")[0] for name in frozen} == {"conv1", "bn1", "layer1"}
    with pytest.raises(EndocilError, match="freeze names 'head'; this backbone has: stem, layer1"):
        build_backbone("resnet18", seed=0, freeze=["head"], options={"width": 8})
    with pytest.raises(EndocilError, match=r"every stage: .* or write \['all'\]"):
        build_backbone(
            "resnet18", seed=0, freeze=["stem", "layer1", "layer2", "layer3", "layer4"], options={"width": 8}
        )


def test_a_narrow_network_learns_from_odd_batches_on_several_threads() -> None:
    """In a process of its own: where kernels write past their memory, it dies."""
    code = (
        "import torch; from endocil.networks import build_backbone; torch.set_num_threads(2)\n"
        "network = build_backbone('resnet18', seed=0, options={'width': 8})[0].train()\n"
        "network.to(memory_format=torch.channels_last)\n"
        "for n in (3, 7, 9, 15, 17, 23, 31) * 3:\n"
        "    images = torch.randn(n, 3, 48, 48).contiguous(memory_format=torch.channels_last)\n"
        "    network(images).square().sum().backward()\n"
        "assert all(p.grad.isfinite().all() for p in network.parameters())"
    )
    waiting = {**os.environ, "OMP_WAIT_POLICY": "passive"}  # its threads leave the cores to the other tests
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=200, env=waiting)
    assert done.returncode == 0, done.stderr[-500:]


def test_a_narrow_shortcut_is_the_convolution_with_its_stride() -> None:
    torch.manual_seed(0)
    shortcut, images = Shortcut(8, 16, 1, 2, bias=False), torch.randn(3, 8, 7, 7, dtype=torch.float64)
    weight = shortcut.double().weight
    expected = functional.conv2d(images, weight, stride=2)
    torch.testing.assert_close(shortcut(images), expected)
    (gradient,) = torch.autograd.grad(shortcut(images).square().sum(), weight)
    (other,) = torch.autograd.grad(expected.square().sum(), weight)
    torch.testing.assert_close(gradient, other)


def test_resnet32_has_the_parameters_of_the_literature_and_works_with_methods_that_divide_it() -> None:
    backbone, _ = build_backbone("resnet32", seed=0)
    assert n_parameters(backbone) == 463_504  # 464,154 with PyCIL's unused classifier of ten classes
    images = torch.randn(2, 3, 32, 32)
    features = backbone.eval()(images)
    assert features.shape == (2, 64)
    divided = backbone.special(backbone.general(images), backbone.last_block)  # type: ignore[operator]
    assert torch.equal(features, divided)
    assert list(backbone.stages) == ["stem", "layer1", "layer2", "layer3"]  # type: ignore[arg-type]
    assert [name for name in backbone.state_dict() if "downsample" in name] == []  # shortcuts without parameters
    with pytest.raises(EndocilError, match="expected a multiple of 8"):
        build_backbone("resnet32", seed=0, options={"width": 12})


def test_the_shortcut_of_resnet32_takes_every_other_pixel_and_adds_channels_of_zeros() -> None:
    x = torch.arange(32.0).reshape(1, 2, 4, 4)
    out = PaddedShortcut()(x)
    assert torch.equal(out[:, :2], functional.avg_pool2d(x, 1, 2))
    assert torch.equal(out[:, 2:], torch.zeros(1, 2, 2, 2))
