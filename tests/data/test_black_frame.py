"""The black frame around a scope's view is found and cut off; what is no frame stays."""

import io
from pathlib import Path

import numpy as np
import pytest
from pictures import NoReader
from PIL import Image, ImageDraw

from endocil.data.decode import FileReader, file_of
from endocil.data.resize import cropped, find_view, largest_area
from endocil.data.table import ImageTable, UnreadableImageError
from endocil.errors import EndocilError

SHAPES = ("ellipse", "octagon", "rectangle")


def scene(shape: str, box: tuple[int, int, int, int], size: tuple[int, int] = (720, 576)) -> Image.Image:
    """Smooth pink mucosa with a dark hole in the middle, seen through a view of this shape, black around it."""
    width, height = size
    y, x = np.mgrid[:height, :width]
    centre = ((box[0] + box[2]) / 2, (box[1] + box[3]) / 2)
    hole = np.clip(np.hypot(x - centre[0], y - centre[1]) / 80, 0, 1)
    colour = np.stack([210 * hole, (90 + 40 * np.sin(x / 30)) * hole, 80 * hole], axis=2)
    mask = Image.new("L", size)
    pen = ImageDraw.Draw(mask)
    left, top, right, bottom = box[0], box[1], box[2] - 1, box[3] - 1
    if shape == "ellipse":
        pen.ellipse((left, top, right, bottom), fill=1)
    elif shape == "rectangle":
        pen.rectangle((left, top, right, bottom), fill=1)
    else:
        corner = (right - left) // 5
        across = [left, left + corner, right - corner, right]
        down = [top, top + corner, bottom - corner, bottom]
        steps = [(1, 0), (2, 0), (3, 1), (3, 2), (2, 3), (1, 3), (0, 2), (0, 1)]
        pen.polygon([(across[i], down[j]) for i, j in steps], fill=1)
    return Image.fromarray((colour * np.asarray(mask)[..., None]).astype(np.uint8))


def off_by(found: tuple[int, int, int, int], wanted: tuple[int, int, int, int]) -> int:
    return max(abs(one - other) for one, other in zip(found, wanted, strict=True))


def with_noise(image: Image.Image, quality: int) -> Image.Image:
    """Noise of a camera, video black, then JPEG."""
    noise = np.random.default_rng(0).normal(16, 3, (image.height, image.width, 3))
    buffer = io.BytesIO()
    noisy = (np.asarray(image) * 0.9 + noise).clip(0, 255).astype(np.uint8)
    Image.fromarray(noisy).save(buffer, "JPEG", quality=quality)
    return Image.open(buffer).convert("RGB")


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("box", [(150, 20, 690, 556), (0, 40, 500, 540), (40, 0, 720, 576)])
def test_the_box_of_a_view_is_found(shape: str, box: tuple[int, int, int, int]) -> None:
    assert off_by(find_view(np.asarray(scene(shape, box))), box) <= 5
    assert off_by(find_view(np.asarray(with_noise(scene(shape, box), 60))), box) <= 6


@pytest.mark.parametrize("shape", SHAPES)
def test_text_and_a_small_picture_in_the_frame_are_cut_off(shape: str) -> None:
    box = (180, 20, 690, 556)
    image = scene(shape, box)
    pen = ImageDraw.Draw(image)
    for line in range(12):
        pen.text((8, 20 + 18 * line), "12/03/2020 14:55 CVP:3", fill=(255, 255, 255))
    pen.rectangle((10, 400, 140, 540), fill=(20, 200, 60))
    pen.text((300, 2), "Eh:A3", fill=(255, 255, 0))
    found = find_view(np.asarray(with_noise(image, 75)))
    assert found[0] >= 160
    assert off_by(found, box) <= 20


def test_a_picture_without_a_frame_stays_whole() -> None:
    image = scene("rectangle", (0, 0, 300, 200), (300, 200))
    assert find_view(np.asarray(image)) == (0, 0, 300, 200)


@pytest.mark.parametrize("size", [(1, 1), (3, 200), (64, 64), (700, 5)])
def test_black_pictures_of_any_size_stay_whole(size: tuple[int, int]) -> None:
    assert find_view(np.asarray(Image.new("RGB", size))) == (0, 0, *size)
    assert find_view(np.asarray(Image.new("RGB", size, (200, 9, 9)))) == (0, 0, *size)


def test_a_tiny_bright_spot_is_no_view() -> None:
    image = scene("ellipse", (300, 300, 360, 360))
    assert find_view(np.asarray(image)) == (0, 0, 720, 576)


def test_the_largest_area_is_connected_by_sides() -> None:
    cells = np.array([[1, 1, 0, 0], [1, 0, 1, 1], [0, 1, 1, 0], [1, 0, 1, 1]], bool)
    area = np.array([[0, 0, 0, 0], [0, 0, 1, 1], [0, 1, 1, 0], [0, 0, 1, 1]], bool)
    np.testing.assert_array_equal(largest_area(cells), area)


def table(root: Path, *ids: str) -> ImageTable:
    n = len(ids)
    return ImageTable(ids, np.zeros(n), ("a",), FileReader(root), ("",) * n, ("",) * n)


def test_the_reader_crops_at_full_resolution_and_then_resizes(tmp_path: Path) -> None:
    image = scene("rectangle", (150, 20, 690, 556))
    image.save(tmp_path / "a.png")
    plain = table(tmp_path, "a.png")
    shown = cropped(plain)
    wanted = image.crop((150, 20, 690, 556)).resize((32, 32), Image.Resampling.BILINEAR)
    np.testing.assert_array_equal(shown.reader.read("a.png", 32), np.asarray(wanted))
    assert shown.digest(32) != plain.digest(32)


def test_an_image_taken_upright_is_cropped_upright(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    image = scene("rectangle", (150, 20, 690, 556))
    image.save(tmp_path / "turned.png", exif=exif)
    wanted = image.rotate(-90, expand=True).crop((20, 150, 556, 690)).resize((16, 16), Image.Resampling.BILINEAR)
    np.testing.assert_array_equal(cropped(table(tmp_path)).reader.read("turned.png", 16), np.asarray(wanted))


def test_the_reason_of_an_unreadable_image_stays(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"nothing")
    with pytest.raises(UnreadableImageError, match="not a BMP, JPEG"):
        cropped(table(tmp_path, "a.png")).reader.read("a.png", 8)


def test_a_reader_without_whole_images_is_refused() -> None:
    none = ImageTable((), np.zeros(0), (), NoReader(), (), ())
    with pytest.raises(EndocilError, match=r"data\.crop_frame is set, but NoReader"):
        cropped(none)


def test_the_file_behind_a_cropped_image_is_known(tmp_path: Path) -> None:
    reader = cropped(table(tmp_path, "a.png")).reader
    assert file_of(reader, "a.png") == tmp_path / "a.png"
