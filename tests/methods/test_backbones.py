"""Every method learns on every kind of backbone, and on one that is frozen as a whole."""

from pathlib import Path

import pytest
import torch
from life import ALL_METHODS, FIRST_TASK_ALONE, Life, new_method
from pictures import make_images

from endocil.methods import build_method
from endocil.methods.base import shared_schedule
from endocil.networks import build_backbone


@pytest.mark.parametrize("name", [name for name in ALL_METHODS if name not in FIRST_TASK_ALONE])  # which refuse it
def test_a_frozen_backbone_stays_as_it_is_while_the_classifier_learns(name: str, tmp_path: Path) -> None:
    """Values and batch norm's statistics alike, and those of the copies that a method makes of it."""
    images = make_images([8, 8, 8])
    method = new_method(name, epochs=1, freeze=("all",))
    start = {key: value.clone() for key, value in method.backbone.state_dict().items()}
    life = Life(images, tmp_path, method, increments=(2, 1)).live()
    assert set(start) == set(life.method.backbone.state_dict())
    state = life.method.state_dict()
    fresh = new_method(name, freeze=("all",))
    for task in life.scenario.tasks:
        fresh.grow(task)
    assert not torch.equal(fresh.classifier.weight, life.method.classifier.weight)
    for key, value in start.items():
        copies = [name for name in state if name.endswith(f".{key}") and state[name].shape == value.shape]
        assert copies
        # layer1.0.conv1.weight also ends in conv1.weight
        same = [copy for copy in copies if copy.removesuffix(f".{key}").count("layer") == 0]
        assert all(torch.equal(state[copy], value) for copy in same), key


@pytest.mark.parametrize("name", ["endocil", "memo", "mrfa", "der", "foster", "dgr"])
def test_methods_that_look_into_the_backbone_learn_on_efficientnet_lite(name: str, tmp_path: Path) -> None:
    images = make_images([6, 6, 6], size=64)
    backbone, _ = build_backbone("efficientnet-lite0", seed=0)
    schedule = shared_schedule(epochs=1, milestones=(1,), batch_size=6, learning_rate=1e-3)
    method = build_method(name, backbone, {}, schedule=schedule, seed=0)
    life = Life(images, tmp_path, method, increments=(2, 1)).live()
    assert life.method(torch.zeros(2, 3, 64, 64)).shape == (2, 3)
    if name == "mrfa":
        assert life.method.sites == (*(f"stage{i}" for i in range(1, 8)), "classifier")
