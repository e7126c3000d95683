"""The page about exports says what is true: its example answers as the model does, its rules are those of the code."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import ExifTags, Image
from untrained import write_untrained

pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")


from endocil.data.resize import find_view  # noqa: E402
from endocil.model.model import Model  # noqa: E402
from endocil.model.onnx import FRAME, export  # noqa: E402

PAGE = (Path(__file__).parents[2] / "docs" / "deploy.md").read_text("utf-8").split("## Export to ONNX\n")[1]
(EXAMPLE,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
SMALL, LARGE = (48, 40), (500, 331)  # the large one is shrunk while it is decoded


def save_picture(path: Path, shape: tuple[int, int], orientation: int) -> None:
    """Blots of colour, so that a turned picture is another one."""
    blots = np.random.default_rng(0).integers(0, 256, (6, 5, 3), np.uint8)
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = orientation
    Image.fromarray(blots).resize(shape[::-1], Image.Resampling.BICUBIC).save(path, quality=90, exif=exif)


def run_example(code: str) -> np.ndarray:
    names: dict[str, Any] = {}
    exec(compile(code, "docs/deploy.md", "exec"), names)
    probabilities: np.ndarray = names["probabilities"][0]
    return probabilities


@pytest.mark.parametrize(("shape", "orientation"), [(SMALL, 1), (SMALL, 6), (SMALL, 5), (LARGE, 1), (LARGE, 8)])
def test_the_example_answers_as_the_model_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shape: tuple[int, int], orientation: int
) -> None:
    monkeypatch.chdir(tmp_path)
    model = write_untrained(tmp_path / "model.endocil")
    export(model, "model.onnx")
    save_picture(tmp_path / "image.jpg", shape, orientation)
    expected = Model.load(model).predict(["image.jpg"]).probabilities[0]
    assert run_example(EXAMPLE) == pytest.approx(expected, abs=0.005)
    if orientation != 1:  # the pictures are such that a picture on its side is answered otherwise
        lying = EXAMPLE.replace('ImageOps.exif_transpose(Image.open("image.jpg"))', 'Image.open("image.jpg")')
        assert np.abs(run_example(lying) - expected).max() > 0.01


def test_the_example_refuses_a_model_whose_frames_must_be_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_untrained(tmp_path / "model.endocil", "finetune", crop_frame=True)
    export("model.endocil", "model.onnx")
    with pytest.raises(AssertionError, match="the black frame must be cut off first"):
        run_example(EXAMPLE)
    session = onnxruntime.InferenceSession("model.onnx", providers=["CPUExecutionProvider"])
    said = json.loads(session.get_modelmeta().custom_metadata_map["preprocessing"])
    assert "shrinking" not in said  # such pictures are decoded whole
    for name, value in said["frame"].items():
        assert name in ("rules", "how") or f"`{name}`" in PAGE
        assert name in ("rules", "how") or re.search(rf"\b{re.escape(str(value))}\b", PAGE), name
    for word in ("EXIF", "black", "257", "CMYK"):
        assert word in " ".join(said["decoding"])
        assert word in PAGE


def view_by_the_words(pixels: np.ndarray, said: dict[str, Any]) -> tuple[int, int, int, int]:
    """The rule of `frame.how`, written anew from its words and constants."""
    height, width = pixels.shape[:2]
    lit = pixels.max(axis=2) > said["black"]
    side = int(np.ceil(max(height, width) / said["squares"]))
    squares = {
        (y, x)
        for y in range(0, height, side)
        for x in range(0, width, side)
        if lit[y : y + side, x : x + side].mean() >= 0.5
    }
    areas, left = [], set(squares)
    while left:
        area, border = set(), {left.pop()}
        while border:
            y, x = border.pop()
            area.add((y, x))
            near = {(y + side, x), (y - side, x), (y, x + side), (y, x - side)} & left
            left -= near
            border |= near
        areas.append(area)
    view = max(areas, key=len)
    top, bottom = min(y for y, _ in view) - side, max(y for y, _ in view) + 2 * side
    first, last = min(x for _, x in view) - side, max(x for _, x in view) + 2 * side
    top, bottom, first, last = max(0, top), min(height, bottom), max(0, first), min(width, last)
    while lit[top, first:last].mean() < said["edge"]:
        top += 1
    while lit[bottom - 1, first:last].mean() < said["edge"]:
        bottom -= 1
    while lit[top:bottom, first].mean() < said["edge"]:
        first += 1
    while lit[top:bottom, last - 1].mean() < said["edge"]:
        last -= 1
    whole = (bottom - top) * (last - first) < said["smallest"] * height * width
    return (0, 0, width, height) if whole else (first, top, last, bottom)


@pytest.mark.parametrize("seed", range(6))
def test_the_rule_of_the_frame_can_be_written_from_its_words(seed: int) -> None:
    random = np.random.default_rng(seed)
    height, width = random.integers(150, 400, 2)
    pixels = random.integers(0, 25, (height, width, 3)).astype(np.uint8)
    rows, columns = np.ogrid[:height, :width]
    y, x = random.uniform(0.35, 0.65, 2) * (height, width)
    reach = random.uniform(0.15, 0.5) * min(height, width)  # the smallest is not believed
    pixels[(rows - y) ** 2 + (columns - x) ** 2 < reach**2] = 120
    pixels[: height // 12, : width // 8] = 255  # a text in the corner
    assert find_view(pixels) == view_by_the_words(pixels, FRAME)
