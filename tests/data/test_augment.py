"""Whole-batch augmentation is what a loop over the images would give."""

from math import exp, log, sqrt
from random import Random
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import interpolate

from endocil.data.augment import IMAGENET, Augmentation, draw_crops, normalise
from endocil.errors import EndocilError


def pixels(n: int = 7, size: int = 12) -> Tensor:
    return torch.randint(0, 256, (n, size, size, 3), generator=torch.Generator().manual_seed(1)).to(torch.uint8)


def plainly_normalised(image: Tensor) -> Tensor:
    """(H, W, 3) from 0 to 1 -> (3, H, W)."""
    mean, std = (torch.tensor(values)[:, None, None] for values in (IMAGENET.mean, IMAGENET.std))
    return (image.permute(2, 0, 1) - mean) / std


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_normalised_images_are_those_of_torchvision_in_channels_last_memory() -> None:
    out = normalise(pixels())
    assert out.shape == (7, 3, 12, 12)
    assert out.dtype == torch.float32
    assert out.is_contiguous(memory_format=torch.channels_last)
    for image, result in zip(pixels(), out, strict=True):
        torch.testing.assert_close(result, plainly_normalised(image / 255), atol=2e-6, rtol=1e-6)


def test_the_given_pixels_stay_as_they_are() -> None:
    given = pixels()
    Augmentation(crop=True)(given, generator())
    normalise(given)
    assert torch.equal(given, pixels())


def test_flips_and_brightness_equal_a_loop_over_the_images() -> None:
    out = Augmentation(flip=0.4, brightness=0.6)(pixels(), generator(3))
    draws = generator(3)
    flipped = torch.rand(7, generator=draws) < 0.4
    factors = 0.4 + 1.2 * torch.rand(7, generator=draws)
    assert flipped.any()
    assert not flipped.all()
    for image, flip, factor, result in zip(pixels(), flipped, factors, out, strict=True):
        bright = (image / 255 * factor).clamp(0, 1)
        plain = plainly_normalised(bright.flip(1) if flip else bright)
        torch.testing.assert_close(result, plain, atol=2e-6, rtol=1e-6)


def test_brightness_above_one_never_turns_an_image_negative() -> None:
    white = torch.full((2000, 1, 1, 3), 100, dtype=torch.uint8)
    out = Augmentation(flip=0, brightness=1.5)(white, generator())
    values = (out[:, 0, 0, 0] * IMAGENET.std[0] + IMAGENET.mean[0]) * 255
    assert values.min() >= -1e-3
    assert values.max() <= 100 * 2.5 + 1e-3
    assert values.max() > 240


def test_crops_equal_cutting_out_and_enlarging_each_image() -> None:
    augmentation = Augmentation(flip=0, brightness=0, crop=True)
    out = augmentation(pixels(40), generator(5))
    draws = generator(5)
    torch.rand(40, generator=draws), torch.rand(40, generator=draws)
    boxes = draw_crops(40, 12, 12, (0.08, 1.0), draws)
    for image, box, result in zip(pixels(40), boxes, out, strict=True):
        top, left, height, width = (int(edge) for edge in box)
        cut = image[top : top + height, left : left + width].permute(2, 0, 1)[None] / 255
        enlarged = interpolate(cut, (12, 12), mode="bilinear", align_corners=False)[0]
        plain = plainly_normalised(enlarged.permute(1, 2, 0))
        torch.testing.assert_close(result, plain, atol=1e-5, rtol=1e-5)


def test_a_crop_of_the_whole_image_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("endocil.data.augment.RATIOS", (1.0, 1.0))
    cropped = Augmentation(crop=True, crop_scale=(1.0, 1.0))(pixels(), generator())
    assert torch.equal(cropped, Augmentation()(pixels(), generator()))


def test_no_augmentation_is_normalisation() -> None:
    out = Augmentation(flip=0, brightness=0)(pixels(), generator())
    assert torch.equal(out, normalise(pixels()))
    mirrored = Augmentation(flip=1, brightness=0)(pixels(), generator())
    assert torch.equal(mirrored, out.flip(3))


@pytest.mark.parametrize("crop", [False, True])
def test_the_same_generator_gives_the_same_images_and_another_does_not(crop: bool) -> None:
    augmentation = Augmentation(crop=crop)
    first = augmentation(pixels(), generator(1))
    assert torch.equal(first, augmentation(pixels(), generator(1)))
    assert not torch.equal(first, augmentation(pixels(), generator(2)))


def plain_crop(size: int, random: Random) -> tuple[int, int, int, int]:
    """torchvision's RandomResizedCrop.get_params for a square image, scale 0.08 to 1, ratio 3/4 to 4/3."""
    for _ in range(10):
        area = size * size * random.uniform(0.08, 1.0)
        ratio = exp(random.uniform(log(3 / 4), log(4 / 3)))
        width, height = round(sqrt(area * ratio)), round(sqrt(area / ratio))
        if 0 < width <= size and 0 < height <= size:
            return random.randint(0, size - height), random.randint(0, size - width), height, width
    return 0, 0, size, size


def test_crops_are_distributed_as_those_of_torchvision() -> None:
    random = Random(0)
    ours = draw_crops(20_000, 96, 96, (0.08, 1.0), generator())
    plain = torch.tensor([plain_crop(96, random) for _ in range(20_000)], dtype=torch.float64)
    assert (ours == ours.round()).all()
    assert ours.min() >= 0
    assert (ours[:, :2] + ours[:, 2:]).max() <= 96
    for quantile in (0.01, 0.25, 0.5, 0.75, 0.99):  # of top, left, height and width
        torch.testing.assert_close(ours.quantile(quantile, 0), plain.quantile(quantile, 0), atol=1.5, rtol=0)
    areas = [(boxes[:, 2] * boxes[:, 3]).mean() / 96**2 for boxes in (ours, plain)]
    spreads = [torch.log(boxes[:, 3] / boxes[:, 2]).std() for boxes in (ours, plain)]
    assert abs(areas[0] - areas[1]) < 0.01
    assert abs(spreads[0] - spreads[1]) < 0.005


@pytest.mark.parametrize(
    "options",
    [{"flip": 1.1}, {"flip": -0.1}, {"brightness": -1}, {"crop_scale": (0.5, 0.4)}, {"crop_scale": (0.0, 1.0)}],
)
def test_options_out_of_range_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(EndocilError, match=next(iter(options))):
        Augmentation(**options)
