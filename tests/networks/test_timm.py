"""Models of timm as backbones: features, stages, sizes, weights, and a whole life of a tiny untrained ViT."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm_here
import torch
from pictures import TINY, run_files
from timm_here import timm_or_skip

import endocil
from endocil import EndocilError
from endocil.data.augment import Normalisation
from endocil.errors import ResourceError
from endocil.learning.checkpoint import Position, load_checkpoint
from endocil.model.model import Model
from endocil.model.onnx import export
from endocil.networks import build_backbone, normalisation_of, trained_parts
from endocil.networks.timm_models import TimmBackbone
from endocil.registry import is_foreign, resolve

timm = timm_or_skip()
TINY_VIT = {"embed_dim": 24, "depth": 2, "num_heads": 2, "patch_size": 8}
VIT = {"backbone": "timm:vit_tiny_patch16_224", "arguments": {**TINY_VIT, "drop_path_rate": 0.2}}


def tiny_vit(size: int = 32, **options: Any) -> TimmBackbone:
    arguments = {"arguments": TINY_VIT}
    backbone, _ = build_backbone("timm:vit_tiny_patch16_224", seed=0, size=size, options=arguments, **options)
    assert isinstance(backbone, TimmBackbone)
    return backbone


@pytest.mark.parametrize(
    ("name", "size", "arguments"),
    [
        ("vit_tiny_patch16_224", 48, {"embed_dim": 24, "depth": 2, "num_heads": 2}),
        ("vit_small_patch14_dinov2", 28, {"embed_dim": 24, "depth": 2, "num_heads": 2}),
        ("resnet10t", 64, {}),
        ("mobilenetv3_small_050", 64, {}),  # a layer between its pooled maps and its classifier
        ("convnext_atto", 64, {}),
    ],
)
def test_features_are_what_the_models_own_classifier_would_get(name: str, size: int, arguments: dict[str, Any]) -> None:
    backbone: Any = build_backbone(f"timm:{name}", seed=0, size=size, options={"arguments": arguments})[0]
    sized = {"img_size": size} if "vit" in name else {}
    whole = timm.create_model(name, num_classes=7, **sized, **arguments).eval()
    whole.load_state_dict(backbone.model.state_dict(), strict=False)
    images = torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        features = backbone.eval()(images)
        expected = whole.forward_head(whole.forward_features(images), pre_logits=True)
    assert features.shape == (2, backbone.n_features)
    torch.testing.assert_close(features, expected)


def test_normalisation_is_that_of_the_models_configuration() -> None:
    assert normalisation_of(tiny_vit()) == Normalisation(mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))


@pytest.mark.parametrize(("name", "n"), [("vit_tiny_patch16_224", 12), ("resnet10t", 4), ("convnext_atto", 5)])
def test_stages_are_timms_groups_and_hold_every_parameter_once(name: str, n: int) -> None:
    backbone: Any = build_backbone(f"timm:{name}", seed=0, freeze=["stem", "stage1"])[0]
    assert list(backbone.stages) == ["stem", *(f"stage{i}" for i in range(1, n + 1))]
    inside = [parameter for parts in backbone.stages.values() for part in parts for parameter in part.parameters()]
    assert len(inside) == len(set(inside)) == len(list(backbone.parameters()))
    learning = {parameter for part in trained_parts(backbone) for parameter in part.parameters()}
    frozen = {name for name, parameter in backbone.named_parameters() if parameter not in learning}
    assert 0 < len(frozen) < len(inside)
    if "vit" in name:  # parameters that belong to no module of the stem
        assert {"model.cls_token", "model.pos_embed", "model.blocks.0.attn.qkv.weight"} <= frozen
        assert "model.blocks.1.attn.qkv.weight" not in frozen


def test_all_of_a_model_can_be_frozen() -> None:
    assert trained_parts(tiny_vit(freeze=["all"])) == ()
    with pytest.raises(EndocilError, match="freeze names 'layer1'; this backbone has: stem, stage1, stage2; or 'all'"):
        tiny_vit(freeze=["layer1"])


def test_the_same_seed_gives_the_same_values() -> None:
    one, same = tiny_vit().state_dict(), tiny_vit().state_dict()
    assert all(torch.equal(one[name], same[name]) for name in one)


@pytest.mark.parametrize(
    ("name", "size", "reason"),
    [
        ("vit_tiny_patch16_224", 40, "cuts images into patches of 16 pixels, and data.size is 40; set a multiple"),
        ("mixer_s32_224", 40, "cuts images into patches of 32 pixels, and data.size is 40; set a multiple, such as 32"),
        ("botnet26t_256", 72, r"cannot take images of 72 x 72 \(.+\); it was made for 256: set data.size=256"),
        ("no_such_model", 32, r"'timm:no_such_model' is not a model of timm .*; try"),
        ("hf-hub:timm/resnet18", 32, "is not a model of timm"),
        ("local-dir:/tmp", 32, "is not a model of timm"),
    ],
)
def test_sizes_and_names_that_do_not_fit_are_refused_with_the_way_out(name: str, size: int, reason: str) -> None:
    with pytest.raises(EndocilError, match=reason):
        build_backbone(f"timm:{name}", seed=0, size=size)


def test_unknown_arguments_are_refused_as_timm_says_it() -> None:
    with pytest.raises(
        EndocilError, match=r"'timm:resnet10t' cannot be built: .* unexpected keyword argument 'nonsense'"
    ):
        build_backbone("timm:resnet10t", seed=0, options={"arguments": {"nonsense": 1}})


@pytest.mark.parametrize("key", ["pretrained", "checkpoint_path", "pretrained_cfg", "num_classes"])
def test_arguments_that_load_something_are_refused(key: str) -> None:
    with pytest.raises(EndocilError, match=f"network.arguments.{key} is not taken"):
        build_backbone("timm:resnet10t", seed=0, options={"arguments": {key: "x"}})


def test_arguments_of_absurd_size_are_refused_before_anything_is_built() -> None:
    with pytest.raises(EndocilError, match=r"network.arguments add up to 1,000,000,0.."):
        build_backbone("timm:vit_tiny_patch16_224", seed=0, options={"arguments": {"depth": 10**9, "x": [1, [2]]}})
    with pytest.raises(EndocilError, match=r"network.arguments: input should be a valid dictionary"):
        build_backbone("timm:resnet10t", seed=0, options={"arguments": 3})


def test_without_the_package_the_error_names_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(ResourceError, match=r"needs the package timm; install it by: pip install 'endocil\[timm\]'"):
        build_backbone("timm:resnet10t", seed=0)


def test_timm_is_known_and_only_a_backbone_comes_from_it() -> None:
    assert not is_foreign("timm:resnet10t")
    assert is_foreign("timm.models:resnet")
    with pytest.raises(EndocilError, match=r"unknown method.name 'timm:create_model'; known"):
        resolve("method.name", "timm:create_model", {"icarl": object})


def test_pretrained_weights_come_through_timm_and_what_fails_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, create = [], timm.create_model

    def hub(name: str, *, pretrained: bool, **options: Any) -> Any:
        asked.append(pretrained)
        if len(asked) > 1:
            raise OSError("no route to host")
        return create(name, **options)

    monkeypatch.setattr(timm, "create_model", hub)
    build_backbone("timm:resnet10t", seed=0, weights="pretrained")
    assert asked == [True]
    with pytest.raises(EndocilError, match=r"cannot get the weights of resnet10t: no route to host; fetch the file"):
        build_backbone("timm:resnet10t", seed=0, weights="pretrained")


@pytest.mark.parametrize("size", [32, 48])
def test_a_public_file_loads_and_its_position_embedding_fits_another_size(tmp_path: Path, size: int) -> None:
    source = tiny_vit().model.state_dict()
    source["blocks.1.mlp.fc1.bias"] = torch.full_like(source["blocks.1.mlp.fc1.bias"], 0.5)
    torch.save({**source, "head.weight": torch.zeros(5, 24)}, tmp_path / "public.pth")
    backbone: Any
    backbone, notes = build_backbone(
        "timm:vit_tiny_patch16_224",
        seed=9,
        size=size,
        weights=str(tmp_path / "public.pth"),
        options={"arguments": TINY_VIT},
    )
    assert [note.split()[0] for note in notes] == ["model.head.weight"]
    assert float(backbone.model.blocks[1].mlp.fc1.bias.detach().min()) == 0.5
    assert backbone.model.pos_embed.shape[1] == 1 + (size // 8) ** 2
    assert torch.equal(backbone.model.cls_token, source["cls_token"])


KILLED = """
import itertools, json, os, signal, sys
from timm_here import timm_or_skip
timm_or_skip()
import endocil
seen = itertools.count(1)
def kill(record):
    if record["event"] == sys.argv[3] and next(seen) == int(sys.argv[4]):
        os.kill(os.getpid(), signal.SIGKILL)
endocil.run(json.loads(sys.argv[1]), sys.argv[2], show=kill)
"""


def test_an_untrained_vit_is_killed_resumed_predicts_learns_and_is_exported(tmp_path: Path) -> None:
    settings = {**TINY, "network": VIT, "method": {"name": "icarl"}}
    settings["run"] = {"threads": 1, "checkpoint_seconds": 0.0}
    endocil.run(settings, tmp_path / "straight")
    reached = {("epoch", 4): Position(task=1, epoch=1), ("learned", 2): Position(task=1, phase=1)}
    for (event, n), position in reached.items():  # in the middle of the second task, and after its last epoch
        folder = tmp_path / f"killed-{event}"
        typed = [sys.executable, "-c", KILLED, json.dumps(settings), str(folder), event, str(n)]
        ended = subprocess.run(typed, cwd=Path(timm_here.__file__).parent, capture_output=True, text=True, check=False)
        assert ended.returncode == -signal.SIGKILL, ended.stderr
        assert not (folder / "model.endocil").exists()
        checkpoint = load_checkpoint(folder)
        assert checkpoint is not None
        assert checkpoint.position == position
        endocil.resume(folder)
        assert run_files(folder) == run_files(tmp_path / "straight")

    model = Model.load(tmp_path / "killed-epoch")  # no trust is needed
    assert isinstance(model.method.backbone, TimmBackbone)
    assert model.manifest.preprocessing.mean == (0.5, 0.5, 0.5)
    picture = np.random.default_rng(0).integers(0, 256, (12, 20, 20, 3), np.uint8)
    before = model.predict(list(picture)).scores
    assert before.shape == (12, 5)
    model.learn(list(picture), ["sixth"] * 12, validation=0.0)
    model.save(tmp_path / "longer.endocil")
    after = Model.load(tmp_path / "longer.endocil").predict(list(picture))
    np.testing.assert_allclose(after.scores, model.predict(list(picture)).scores, rtol=1e-5, atol=1e-6)

    pytest.importorskip("onnxruntime")
    made = export(tmp_path / "longer.endocil", tmp_path / "model.onnx")
    assert made.difference < 1e-3  # beside outputs of about 10; export refuses more than float32 rounding


def test_a_network_with_values_outside_its_state_is_restored_whole(tmp_path: Path) -> None:
    """Swin's tables of relative positions are made by its constructor and stand in no file."""
    network = {
        "backbone": "timm:swin_tiny_patch4_window7_224",
        "arguments": {"embed_dim": 12, "depths": [1, 1], "num_heads": [2, 2], "window_size": 4},
        "freeze": ["all"],
    }
    model = Model.create({"data": {"size": 32}, "network": network, "train": {"epochs": 1}}, method="icarl")
    picture = np.random.default_rng(0).integers(0, 256, (8, 32, 32, 3), np.uint8)
    start = {name: value.clone() for name, value in model.method.backbone.state_dict().items()}
    model.learn(list(picture), ["a", "b"] * 4, validation=0.0)
    assert all(torch.equal(value, start[name]) for name, value in model.method.backbone.state_dict().items())
    model.save(tmp_path / "model.endocil")
    again = Model.load(tmp_path / "model.endocil")
    np.testing.assert_allclose(
        again.predict(list(picture)).scores, model.predict(list(picture)).scores, rtol=1e-5, atol=1e-6
    )
