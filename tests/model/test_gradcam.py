"""Grad-CAM points at what decides: tried on networks whose answer is known to come from one place."""

from pathlib import Path

import numpy as np
import pytest
import torch
from commands import endocil
from life import ALL_METHODS, Life, new_method
from pictures import make_images
from PIL import Image
from present import present
from torch import nn
from untrained import write_untrained

from endocil.data.resize import Fit, pad
from endocil.data.seeding import generator
from endocil.errors import EndocilError
from endocil.methods.finetune import Finetune
from endocil.model.gradcam import draw, grad_cam, last_blocks, overlay


class Bright(nn.Module):
    """A map of brightness in two channels, light and dark, averaged: class 0 is light, class 1 is dark."""

    n_features = 2

    def __init__(self) -> None:
        super().__init__()
        self.last_block = nn.Conv2d(3, 2, 4, stride=4, bias=True)
        with torch.no_grad():
            self.last_block.weight[0].fill_(1 / 48)
            self.last_block.weight[1].fill_(-1 / 48)
            present(self.last_block.bias).fill_(3.0)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.last_block(images)).mean(dim=(2, 3))


def light_or_dark() -> Finetune:
    method = Finetune(Bright())
    method.classifier.grow(2, generator(0, "test"))
    with torch.no_grad():
        method.classifier.weight.copy_(torch.eye(2))
    return method.eval()


def spot(shade: int, background: int, top: int, left: int) -> torch.Tensor:
    pixels = torch.full((1, 32, 32, 3), background, dtype=torch.uint8)
    pixels[:, top : top + 8, left : left + 8] = shade
    return pixels


@pytest.mark.parametrize(("label", "shade", "background"), [(0, 255, 90), (1, 0, 120)])
def test_it_points_at_the_spot_that_speaks_for_the_class(label: int, shade: int, background: int) -> None:
    for top, left in ((0, 0), (8, 20), (24, 24)):
        found = grad_cam(light_or_dark(), spot(shade, background, top, left), torch.tensor([label]))[0]
        place = divmod(int(found.argmax()), 32)
        assert top <= place[0] < top + 8
        assert left <= place[1] < left + 8
        inside = found[top : top + 8, left : left + 8].mean()
        assert float(inside) > 1.3 * float(found.mean())


@pytest.mark.parametrize("name", ALL_METHODS)
def test_every_method_shows_where_its_logit_comes_from(name: str, tmp_path: Path) -> None:
    images = make_images([6, 5, 4])
    life = Life(images, tmp_path, new_method(name, epochs=1), increments=(2, 1)).live()
    pixels = images.pixels[:3].clone()
    found = grad_cam(life.method, pixels, torch.tensor([0, 1, 2]))
    assert found.shape == (3, 32, 32)
    assert bool(found.isfinite().all())
    assert 0 <= float(found.min()) <= float(found.max()) <= 1
    used = {"der": 2, "memo": 2, "foster": 2}
    assert len(last_blocks(life.method)) == used.get(name, 1)
    assert all(parameter.grad is None for parameter in life.method.parameters())


@pytest.mark.parametrize("name", ["der", "memo", "foster"])
def test_the_maps_of_all_branches_make_up_the_features(name: str, tmp_path: Path) -> None:
    images = make_images([6, 5, 4])
    method = Life(images, tmp_path, new_method(name, epochs=1), increments=(2, 1)).live().method.eval()
    maps: list[torch.Tensor] = []
    for block in last_blocks(method):
        block.register_forward_hook(lambda _, __, out: maps.append(out))
    features = method.embed(torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0)))
    assert len(maps) == 2
    joined = torch.cat([one.mean(dim=(2, 3)) for one in maps], dim=1)
    torch.testing.assert_close(joined, features, rtol=1e-4, atol=1e-4)


def test_a_backbone_without_maps_is_refused() -> None:
    class Flat(nn.Module):
        n_features = 3

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return images.mean(dim=(2, 3))

    method = Finetune(Flat())
    method.classifier.grow(2, generator(0, "test"))
    with pytest.raises(EndocilError, match="Flat has no `last_block`"):
        grad_cam(method, spot(0, 9, 0, 0), torch.tensor([0]))


def test_colours_are_laid_where_the_evidence_is(tmp_path: Path) -> None:
    picture = np.full((4, 4, 3), 100, np.uint8)
    evidence = np.zeros((4, 4))
    evidence[1, 2] = 1.0
    found = overlay(picture, evidence)
    assert (found == 100).all(axis=2).sum() == 15
    assert found[1, 2].tolist() == [178, 178, 50]
    draw(tmp_path, ["a.png"], light_or_dark(), spot(255, 90, 0, 0), torch.tensor([0]))
    assert [path.name for path in tmp_path.iterdir()] == ["a.png"]


@pytest.mark.parametrize("fit", ["stretch", "pad"])
def test_it_is_drawn_over_the_whole_image_at_its_own_size(fit: Fit, tmp_path: Path) -> None:
    """A bright spot in the view of a picture with a black frame: the colours lie on the spot and not on the frame."""
    whole = np.zeros((300, 500, 3), np.uint8)
    whole[40:280, 100:460] = 90  # the view, 360 x 240
    whole[160:220, 340:430] = 255
    image = Image.fromarray(whole)
    view = image.crop((100, 40, 460, 280))
    seen = pad(view, 32) if fit == "pad" else np.asarray(view.resize((32, 32), Image.Resampling.BILINEAR))
    one = torch.from_numpy(seen.copy())[None]
    draw(
        tmp_path,
        ["a.png"],
        light_or_dark(),
        one,
        torch.tensor([0]),
        original=lambda row: image,
        crop_frame=True,
        fit=fit,
    )
    found = np.asarray(Image.open(tmp_path / "a.png")).astype(int)
    assert found.shape == whole.shape
    assert (found[:40] == 0).all()
    assert (found[:, :100] == 0).all()
    blue = 255 - found[..., 2]  # the overlay has no blue: it takes most away where the evidence is greatest
    lost = np.where(whole[..., 2] == 255, blue, 0)
    assert lost[160:220, 340:430].mean() > 60
    place = np.unravel_index((whole[..., 2] - found[..., 2]).argmax(), whole.shape[:2])
    assert 160 <= place[0] < 220
    assert 340 <= place[1] < 430


def test_the_command_draws_over_the_files_themselves(tmp_path: Path) -> None:
    model = write_untrained(tmp_path / "m.endocil", crop_frame=True)
    (tmp_path / "images").mkdir()
    Image.new("RGB", (90, 60), (200, 120, 110)).save(tmp_path / "images" / "wide.png")
    done = endocil(
        "predict",
        model,
        tmp_path / "images",
        "-o",
        tmp_path / "p.csv",
        "--gradcam",
        tmp_path / "maps",
        "--reasons",
        "0",
    )
    assert done.returncode == 0, done.stderr
    (drawn,) = (tmp_path / "maps").iterdir()
    with Image.open(drawn) as image:
        assert image.size == (90, 60)
