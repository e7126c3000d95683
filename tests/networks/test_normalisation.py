"""The network says how its input is normalised, and everything that shows it images does so."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from endocil.data.augment import IMAGENET, Augmentation, Normalisation, normalise
from endocil.errors import EndocilError
from endocil.model.gradcam import grad_cam
from endocil.model.model import Model
from endocil.networks import build_backbone, normalisation_of

SEEN: list[tuple[float, float]] = []


class Halves(nn.Module):
    """Wants values from -1 to 1 and writes down what it gets."""

    n_features, mean, std = 8, (0.5, 0.5, 0.5), (0.5, 0.5, 0.5)

    def __init__(self) -> None:
        super().__init__()
        self.last_block = nn.Conv2d(3, 8, 3, 2)

    def forward(self, images: Tensor) -> Tensor:
        SEEN.append((float(images.detach().min()), float(images.detach().max())))
        return self.last_block(images).relu().mean((2, 3))  # type: ignore[no-any-return]


def test_a_backbone_without_mean_and_std_gets_those_of_imagenet() -> None:
    assert normalisation_of(nn.Identity()) == IMAGENET
    assert normalisation_of(build_backbone("resnet18", seed=0, options={"width": 8})[0]) == IMAGENET


def test_a_backbones_own_mean_and_std_are_taken_also_as_tensors() -> None:
    own: Any = nn.Identity()
    own.mean, own.std = torch.tensor([0.5, 0.25, 0.125]), [1, 2, 4]
    assert normalisation_of(own) == Normalisation(mean=(0.5, 0.25, 0.125), std=(1.0, 2.0, 4.0))


@pytest.mark.parametrize("std", [(1.0, 0.0, 1.0), (1.0, 1.0), (1.0, float("nan"), 1.0)])
def test_an_impossible_std_is_refused(std: tuple[float, ...]) -> None:
    own: Any = nn.Identity()
    own.std = std
    with pytest.raises(EndocilError, match="expected three numbers each, of values from 0 to 1, and std above 0"):
        normalisation_of(own)


def test_each_channel_has_its_own_mean_and_std() -> None:
    pixels = torch.randint(0, 256, (2, 5, 4, 3), generator=torch.Generator().manual_seed(0)).to(torch.uint8)
    chosen = Normalisation(mean=(0.5, 0.25, 0.125), std=(1.0, 2.0, 4.0))
    expected = (pixels / 255 - torch.tensor(chosen.mean)) / torch.tensor(chosen.std)
    torch.testing.assert_close(normalise(pixels, chosen).permute(0, 2, 3, 1), expected)
    unchanged = Augmentation(flip=0.0, brightness=0.0)(pixels, torch.Generator(), chosen)
    assert torch.equal(unchanged, normalise(pixels, chosen))


@pytest.mark.parametrize("method", ["endocil", "ewc"])
def test_training_and_prediction_show_the_network_what_it_wants(method: str, tmp_path: Path) -> None:
    """Black and white pixels: -1 and 1 by the network's own normalisation, below -1.8 and above 2.2 by ImageNet's."""
    SEEN.clear()
    settings = {
        "data": {"size": 16},
        "network": {"backbone": "test_normalisation:Halves"},
        "train": {"epochs": 1, "batch_size": 4, "brightness": 0.0},
        "run": {"threads": 1, "accelerator": "cpu"},
    }
    model = Model.create(settings, method=method)
    noise = np.random.default_rng(0).integers(0, 2, (12, 16, 16, 3), dtype=np.uint8) * np.uint8(255)
    model.learn(list(noise), ["a"] * 6 + ["b"] * 6, validation=0.3)
    model.predict(list(noise))
    grad_cam(model.method, torch.from_numpy(noise), torch.zeros(12, dtype=torch.int64))
    assert len(SEEN) >= 5
    assert set(SEEN) <= {(-1.0, 1.0), (-1.0, -1.0)}  # the second: the one black image that a model is tried with
    model.save(tmp_path / "model.endocil")
    said = Model.load(tmp_path / "model.endocil", trust=True).manifest.preprocessing
    assert (said.mean, said.deviation) == (Halves.mean, Halves.std)
    assert set(SEEN) <= {(-1.0, 1.0), (-1.0, -1.0)}


def test_a_model_whose_network_wants_another_normalisation_now_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"data": {"size": 16}, "network": {"backbone": "test_normalisation:Halves"}, "train": {"epochs": 1}}
    model = Model.create(settings, method="icarl")
    model.learn(list(np.zeros((4, 16, 16, 3), np.uint8)), ["a", "b", "a", "b"], validation=0.0)
    model.save(tmp_path / "model.endocil")
    monkeypatch.setattr(Halves, "mean", (0.25, 0.25, 0.25))
    with pytest.raises(EndocilError, match=r"images were normalised by \(0.5, .*; the network expects \(0.25"):
        Model.load(tmp_path / "model.endocil", trust=True)
