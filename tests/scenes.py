"""Pictures with known duplicates: synthetic endoscopy, and what people and programs do to copies of a picture."""

import io
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import numpy as np
from PIL import Image

from endocil.data import fingerprints as measure
from endocil.data.fingerprints import Fingerprints
from endocil.data.table import ImageTable
from endocil.datasets import synthetic

SIZE = 128


@cache
def originals(n: int) -> tuple[Image.Image, ...]:
    """Different pictures of all classes, from several devices."""
    table = synthetic.load(images=600, imbalance=1.0)
    step = len(table) // n
    return tuple(Image.fromarray(table.reader.read(table.ids[k * step], SIZE)) for k in range(n))


def _encoded(picture: Image.Image, quality: int) -> Image.Image:
    file = io.BytesIO()
    picture.save(file, "JPEG", quality=quality)
    return Image.open(io.BytesIO(file.getvalue())).convert("RGB")


def _moved(picture: Image.Image, x: int, y: int) -> Image.Image:
    moved = Image.new("RGB", picture.size)
    moved.paste(picture, (x, y))
    return moved


COPIES: dict[str, Callable[[Image.Image], Image.Image]] = {
    "re-encoded": lambda picture: _encoded(picture, 40),
    "resized": lambda picture: picture.resize((100, 120), Image.Resampling.BILINEAR),
    "brighter": lambda picture: picture.point(lambda value: min(255, round(1.15 * value))),
    "darker": lambda picture: _encoded(picture.point(lambda value: round(0.85 * value)), 70),
    "shifted": lambda picture: _moved(picture, 4, -4),
}


def write_folder(root: Path, pictures: dict[str, Image.Image]) -> Path:
    """Files below `root`; a name ends in .png, or in .jpg for quality 95."""
    for name, picture in pictures.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        picture.save(path, quality=95)
    return root


class NoPixels:
    """A reader where nothing is to be read."""

    def read(self, image_id: str, size: int) -> np.ndarray:
        raise AssertionError("nothing is read")

    def fingerprint(self, ids: Sequence[str]) -> str:
        return "none"


def table_of(
    labels: Sequence[int],
    groups: Sequence[str] | None = None,
    frames: Sequence[int] = (),
    sources: Sequence[str] | None = None,
) -> ImageTable:
    """A table without pictures; image i is called 000i.png."""
    n = len(labels)
    return ImageTable(
        ids=tuple(f"{i:04d}.png" for i in range(n)),
        labels=np.array(labels),
        classes=tuple(f"class-{label}" for label in range(max(labels, default=0) + 1)),
        reader=NoPixels(),
        groups=tuple(groups or ("",) * n),
        sources=tuple(sources or ("",) * n),
        frames=tuple(frames),
    )


def prints_of(ids: Sequence[str], pixels: np.ndarray) -> Fingerprints:
    """Fingerprints of (N, 64, 64, 3) pixels in memory."""
    gray = measure.gray_values(pixels)
    return Fingerprints(
        ids=tuple(ids),
        digests=np.array([measure.digest(picture, 64, 64) for picture in pixels], dtype="U32"),
        details=measure.detail(gray),
        colours=measure.colour(pixels, gray).astype(np.float32),
        sizes=np.full((len(ids), 2), 64, np.int32),
        unreadable=(),
    )


def random_prints(n: int, seed: int = 0, copies: int = 3) -> Fingerprints:
    """Smooth random pictures, each with some noisy copies: pairs at every strength around the thresholds."""
    random = np.random.default_rng(seed)
    base = random.normal(0, 1, (-(-n // copies), 12, 12, 3))
    coarse = base.repeat(copies, axis=0)[:n] + random.normal(0, 0.34, (n, 12, 12, 3))
    pixels = np.empty((n, 64, 64, 3), np.uint8)
    for i, picture in enumerate((128 + 45 * coarse).clip(0, 255).astype(np.uint8)):
        pixels[i] = np.asarray(Image.fromarray(picture).resize((64, 64), Image.Resampling.BICUBIC))
    return prints_of([f"{i:05d}" for i in random.permutation(n)], pixels)
