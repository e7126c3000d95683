"""Padding keeps an image's proportions, for every kind of file, in runs, predictions, learning and serving alike."""

from pathlib import Path

import numpy as np
import pytest
from pictures import NoReader
from PIL import Image

from endocil.data.cache import load_images
from endocil.data.inputs import inputs_of
from endocil.data.resize import Cropped, pad, prepared
from endocil.data.table import ImageTable
from endocil.datasets.folder import load
from endocil.errors import EndocilError
from endocil.model.manifest import Preprocessing
from endocil.model.model import Model
from endocil.serve.uploads import decode_image

WHITE = (255, 255, 255)


def box_of(pixels: np.ndarray) -> tuple[int, int, int, int]:
    """First and last lit column and row of a white image on black, and behind them."""
    rows, columns = np.flatnonzero(pixels.any(axis=(1, 2))), np.flatnonzero(pixels.any(axis=(0, 2)))
    assert (pixels[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1] == 255).all()
    return int(columns[0]), int(rows[0]), int(columns[-1]) + 1, int(rows[-1]) + 1


@pytest.mark.parametrize(
    ("shape", "box"),
    [
        ((64, 32), (0, 8, 32, 24)),
        ((32, 64), (8, 0, 24, 32)),
        ((50, 50), (0, 0, 32, 32)),
        ((320, 90), (0, 11, 32, 20)),  # 9 rows: of 23 left over, 11 above and 12 below
        ((1000, 1), (0, 15, 32, 16)),  # never less than a row
        ((8, 6), (0, 4, 32, 28)),  # enlarged
    ],
)
def test_the_image_lies_in_the_middle_in_its_own_proportions(
    shape: tuple[int, int], box: tuple[int, int, int, int]
) -> None:
    assert box_of(pad(Image.new("RGB", shape, WHITE), 32)) == box


def test_a_square_image_is_the_same_stretched_or_padded() -> None:
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 40, 3), np.uint8))
    np.testing.assert_array_equal(pad(noise, 32), np.asarray(noise.resize((32, 32), Image.Resampling.BILINEAR)))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for label in ("a", "b"):
        (tmp_path / "images" / label).mkdir(parents=True)
        for i, kind in enumerate(("png", "jpg", "bmp", "webp", "tiff", "png")):
            Image.new("RGB", (640, 320), WHITE).save(tmp_path / "images" / label / f"{i}.{kind}")
    return tmp_path / "images"


def test_files_of_every_kind_are_padded_alike_and_kept_apart_in_the_cache(folder: Path) -> None:
    plain = load(root=str(folder))
    table = prepared(plain, crop_frame=False, fit="pad")
    assert table.digest(32) != plain.digest(32)
    for shown, box in ((plain, (0, 0, 32, 32)), (table, (0, 8, 32, 24)), (plain, (0, 0, 32, 32))):
        images = load_images(shown, 32)
        assert {box_of(np.asarray(pixels)) for pixels in images.pixels} == {box}


def test_the_black_frame_is_cut_away_before_padding(tmp_path: Path) -> None:
    framed = Image.new("RGB", (400, 400))
    framed.paste(WHITE, (0, 100, 400, 300))
    framed.save(tmp_path / "a.png")
    (one,) = inputs_of(tmp_path / "a.png", crop_frame=True, fit="pad").ids
    reader = inputs_of(tmp_path / "a.png", crop_frame=True, fit="pad").reader
    assert isinstance(reader.reader, Cropped)  # type: ignore[attr-defined]
    assert box_of(reader.read(one, 32)) == (0, 8, 32, 24)


def test_a_reader_without_whole_images_cannot_pad() -> None:
    none = ImageTable((), np.zeros(0), (), NoReader(), (), ())
    with pytest.raises(EndocilError, match=r"data\.fit is 'pad', but NoReader gives no image in its own size"):
        prepared(none, crop_frame=False, fit="pad")


def test_learning_predicting_and_serving_see_the_same_pixels(folder: Path, tmp_path: Path) -> None:
    settings = {"data": {"size": 32, "fit": "pad"}, "network": {"width": 8}, "train": {"epochs": 1}}
    model = Model.create(settings, method="icarl")
    files = sorted(folder.rglob("*.*"))
    model.learn(files, [file.parent.name for file in files], validation=0.0)
    assert {box_of(np.asarray(pixels)) for pixels in model.exemplars.pixels} == {(0, 8, 32, 24)}
    model.save(tmp_path / "model.endocil")
    loaded = Model.load(tmp_path / "model.endocil")
    said = loaded.manifest.preprocessing
    assert said.fit == "pad"
    wide = folder / "a" / "0.png"
    served = decode_image(wide.read_bytes(), said, 10**7)
    assert box_of(served) == (0, 8, 32, 24)
    inputs = loaded.inputs([wide])
    np.testing.assert_array_equal(inputs.reader.read(inputs.ids[0], 32), served)
    assert Preprocessing.model_validate({**said.model_dump(), "fit": "stretch"}) != said
