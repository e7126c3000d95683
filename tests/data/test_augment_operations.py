"""Each operation of train.augment is what a loop over the images would give, the same whoever prepares an image."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from endocil import EndocilError, load_settings
from endocil.data.augment import (
    IMAGENET,
    OPERATIONS,
    Augmentation,
    Operation,
    Uniform,
    blur,
    color,
    cutout,
    normalise,
    rotate,
    shift,
    vertical_flip,
)
from endocil.data.seeding import generator
from endocil.learning.build import build_augmentation, complete
from endocil.registry import trust

trust(["test_augment_operations:darker", "test_augment_operations:broken"])

HEIGHT, WIDTH = 12, 20


def pixels(n: int = 7) -> Tensor:
    return torch.randint(0, 256, (n, HEIGHT, WIDTH, 3), dtype=torch.uint8, generator=generator(0, "pixels"))


def images(n: int = 7) -> Tensor:
    return pixels(n).float()


def numbers(*rows: list[float]) -> Any:
    """Numbers in place of random ones."""
    return lambda columns: torch.tensor(rows)[:, :columns]


def only(*operations: Operation) -> Augmentation:
    return Augmentation(flip=0.0, brightness=0.0, operations=operations)


@pytest.mark.parametrize("name", sorted(OPERATIONS))
def test_an_image_looks_the_same_whoever_prepares_it(name: str) -> None:
    augmentation = only(Operation(name))
    whole = augmentation(pixels(), generator(1))
    assert whole.shape == (7, 3, HEIGHT, WIDTH)
    assert not torch.equal(whole, normalise(pixels()))
    assert torch.equal(whole, augmentation(pixels(), generator(1)))
    assert not torch.equal(whole, augmentation(pixels(), generator(2)))
    shares = [(0, 3), (3, 3), (3, 7)]  # one of them empty
    parts = [augmentation(pixels()[a:b], generator(1), start=a, of=7) for a, b in shares]
    assert torch.equal(torch.cat(parts), whole)
    assert whole.is_contiguous(memory_format=torch.channels_last)


def test_no_operation_changes_the_numbers_of_those_before_it() -> None:
    plain = Augmentation()(pixels(), generator(1))
    hidden = Augmentation(operations=(Operation("cutout", {"p": 0.0}),))(pixels(), generator(1))
    assert torch.equal(plain, hidden)
    turned = only(Operation("rotate"))(pixels(), generator(1))
    both = only(Operation("rotate"), Operation("blur", {"p": 0.0}))(pixels(), generator(1))
    assert torch.equal(turned, both)
    twice = only(Operation("rotate"), Operation("rotate"))(pixels(), generator(1))  # by other numbers the second time
    again = only(Operation("rotate"))(pixels(), generator(1))
    assert not torch.equal(twice, again)


def test_a_vertical_flip_turns_images_upside_down() -> None:
    out = vertical_flip(images(2), numbers([0.1], [0.6]), p=0.5)
    assert torch.equal(out[0], images(2)[0].flip(0))
    assert torch.equal(out[1], images(2)[1])


def test_a_rotation_by_half_a_circle_turns_each_pixel_to_the_opposite_place() -> None:
    out = rotate(images(2), numbers([0.0], [0.5]), degrees=180.0)  # -180 degrees, and none
    torch.testing.assert_close(out[0], images(2)[0].flip(0, 1), rtol=0, atol=0.05)
    torch.testing.assert_close(out[1], images(2)[1], rtol=0, atol=0.05)


def test_a_rotation_keeps_lengths_in_images_that_are_not_square() -> None:
    picture = torch.zeros(1, 41, 81, 3)
    picture[0, 20, 50] = 255.0  # ten pixels to the right of the centre
    out = rotate(picture, numbers([0.75]), degrees=180.0)[0, :, :, 0]  # by 90 degrees
    row, column = divmod(int(out.argmax()), 81)
    assert column == 40
    assert abs(row - 20) == 10


def test_colours_change_by_the_formula_image_by_image() -> None:
    given = images(3)
    drawn = numbers([0.5, 0.5, 0.5], [1.0, 0.5, 0.5], [0.5, 0.0, 0.5])
    out = color(given, drawn, contrast=0.4, saturation=1.0, hue=0.1)
    torch.testing.assert_close(out[0], given[0], rtol=0, atol=1e-3)  # nothing drawn, nothing changed
    luma = torch.tensor([0.299, 0.587, 0.114])
    mean = (given[1] @ luma).mean()
    expected = (mean + 1.4 * (given[1] - mean)).clamp(0, 255)
    torch.testing.assert_close(out[1], expected, rtol=0, atol=1e-2)
    grey = (given[2] @ luma)[..., None].expand(-1, -1, 3)
    torch.testing.assert_close(out[2], grey, rtol=0, atol=1e-2)


def test_a_turn_of_the_hue_keeps_the_brightness() -> None:
    given = 100 + 20 * torch.rand(2, 8, 8, 3, generator=generator(0))  # nothing is cut off at 0 or 255
    out = color(given, numbers([0.5, 0.5, 0.9], [0.5, 0.5, 0.1]), hue=0.5)
    luma = torch.tensor([0.299, 0.587, 0.114])
    torch.testing.assert_close(out @ luma, given @ luma, rtol=0, atol=1e-3)
    assert (out - given).abs().max() > 5.0


def test_a_blur_is_the_gaussian_mean_of_the_neighbours() -> None:
    picture = torch.zeros(2, 15, 15, 3)
    picture[:, 7, 7] = 100.0
    out = blur(picture, numbers([0.0, 1.0], [0.9, 1.0]), p=0.5, sigma=1.0)
    weights = torch.exp(-0.5 * torch.arange(-3.0, 4.0) ** 2)
    weights /= weights.sum()
    torch.testing.assert_close(out[0, 4:11, 4:11, 0], 100 * torch.outer(weights, weights), rtol=1e-4, atol=1e-4)
    assert torch.equal(out[1], picture[1])
    flat = torch.full((1, 6, 6, 3), 80.0)  # edges are repeated: nothing darkens there
    torch.testing.assert_close(blur(flat, numbers([0.0, 1.0]), sigma=2.0), flat)


def test_a_shift_moves_images_by_whole_pixels_and_leaves_black_behind() -> None:
    out = shift(images(3), numbers([0.0, 0.5], [0.999, 0.999], [0.5, 0.5]), pixels=2)
    down = torch.zeros_like(images(1)[0])
    down[2:] = images(3)[0, :-2]
    assert torch.equal(out[0], down)  # a crop that begins two rows above the image
    up = torch.zeros_like(down)
    up[:-2, :-2] = images(3)[1, 2:, 2:]
    assert torch.equal(out[1], up)
    assert torch.equal(out[2], images(3)[2])


def test_cutout_hides_a_square_by_the_mean_colour() -> None:
    given = images(2)
    out = cutout(given, numbers([0.5, 0.5, 0.0], [0.5, 0.5, 0.9]), p=0.5, size=0.5)
    changed = (out[0] != given[0]).any(dim=2)
    rows, columns = changed.any(dim=1).nonzero().flatten(), changed.any(dim=0).nonzero().flatten()
    assert (rows.tolist(), columns.tolist()) == (list(range(3, 9)), list(range(7, 13)))
    torch.testing.assert_close(out[0, 5, 10], given[0].mean(dim=(0, 1)))
    assert torch.equal(out[1], given[1])


def darker(images: Tensor, uniform: Uniform, *, least: float = 0.5) -> Tensor:
    """An operation from outside."""
    return images * (least + (1 - least) * uniform(1))[:, :, None, None]


def broken(images: Tensor, uniform: Uniform) -> Tensor:
    return images[:, :4]


def test_an_operation_of_ones_own_is_named_by_module_and_function() -> None:
    overrides = ['train.augment=["rotate", {name="test_augment_operations:darker", least=0.1}]']
    settings = complete(load_settings("smoke", overrides))
    assert settings.train.augment == (
        {"name": "rotate", "degrees": 15.0},
        {"name": "test_augment_operations:darker", "least": 0.1},
    )
    assert complete(settings) == settings
    assert load_settings(settings.model_dump(mode="json", exclude_none=True)) == settings
    out = build_augmentation(settings.train)(pixels(), generator(1))
    assert out.shape == (7, 3, HEIGHT, WIDTH)
    assert out.mean() < normalise(pixels(), IMAGENET).mean()


def test_completed_operations_are_written_to_toml_and_read_back(tmp_path: Path) -> None:
    settings = complete(load_settings("smoke", ['train.augment=["color", "cutout"]', "train.optimizer=adamw"]))
    (tmp_path / "settings.toml").write_text(settings.to_toml(), "utf-8")
    assert load_settings(tmp_path / "settings.toml") == settings
    assert settings.train.augment[0] == {"name": "color", "contrast": 0.2, "saturation": 0.2, "hue": 0.02}


@pytest.mark.parametrize(
    ("augment", "message"),
    [
        ('["sharpen"]', "unknown train.augment 'sharpen'; known: blur, color, cutout, rotate, shift, vertical_flip"),
        ('["flip"]', "train.augment names 'flip', which has a setting of its own: train.flip"),
        ("[{degrees = 3}]", "expected a name, or a table with a name and options"),
        ('[{name = "rotate", angle = 3}]', "unknown train.augment 'rotate' key 'angle'; known: degrees"),
        ('[{name = "rotate", degrees = 300}]', "train.augment 'rotate': degrees is 300; expected above 0, at most 180"),
        ('[{name = "cutout", p = "often"}]', "train.augment 'cutout'.p: input should be a valid number"),
        ('["test_augment_operations:broken"]', "returned ((2, 4, 16, 3), torch.float32); expected images of"),
    ],
)
def test_an_operation_that_cannot_work_is_refused_before_anything_runs(augment: str, message: str) -> None:
    with pytest.raises(EndocilError) as refused:
        complete(load_settings("smoke", [f"train.augment={augment}"]))
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)
