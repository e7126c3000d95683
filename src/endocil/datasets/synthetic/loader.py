"""Synthetic endoscopy as a table of images, and as a folder of PNG files.

The counts are long-tailed: they fall geometrically along `BY_FREQUENCY`, a fixed order with no relation to the
alphabet. Each four consecutive images are of one patient: same device, same mucosa. So a split by image leaks between
the parts, as it does with video frames, and a split by group does not.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import numpy.typing as npt
from PIL import Image

from endocil.data.table import ImageTable, UnreadableImageError
from endocil.datasets.synthetic.renderer import (
    CLASSES,
    IMAGES_PER_PATIENT,
    RENDERER_VERSION,
    device_of,
    render,
)
from endocil.errors import ResourceError, SettingsError
from endocil.io.files import filling_folder

BY_FREQUENCY = (
    "normal-mucosa",
    "erosion",
    "polyp",
    "oesophagitis",
    "z-line",
    "lymphangiectasia",
    "angiectasia",
    "ulcer",
    "dyed-lifted-polyp",
    "cecum",
    "bleeding",
    "dyed-resection-margin",
    "stool",
    "pylorus",
)


@dataclass(frozen=True)
class SyntheticReader:
    """Draws an image when it is read; there are no files."""

    seed: int
    in_processes: ClassVar[bool] = True  # drawing is mostly Python, which threads do not speed up

    def read(self, image_id: str, size: int) -> npt.NDArray[np.uint8]:
        finding, _, name = image_id.partition("/")
        number = name.removesuffix(".png")
        if finding not in CLASSES or not number.isdecimal():
            raise UnreadableImageError("no synthetic image has this name; expected one like polyp/00012.png")
        return render(self.seed, finding, int(number), size)

    def fingerprint(self, ids: Sequence[str]) -> str:
        names = hashlib.sha256("\0".join(ids).encode()).hexdigest()
        return f"synthetic endoscopy {RENDERER_VERSION}, seed {self.seed}, {names}"


def load(
    *, seed: int = 0, images: int = 2000, imbalance: float = 10.0, classes: int = len(CLASSES)
) -> ImageTable:
    """`images` images of the `classes` most frequent classes; the largest has `imbalance` times the smallest."""
    if not 2 <= classes <= len(CLASSES):
        raise SettingsError(f"data.classes is {classes}; expected 2 to {len(CLASSES)}")
    if imbalance < 1.0:
        raise SettingsError(f"data.imbalance is {imbalance}; expected 1 (all classes equal) or more")
    by_class = dict(zip(BY_FREQUENCY[:classes], long_tailed_counts(images, classes, imbalance), strict=True))
    names = tuple(sorted(by_class))
    rows = [(label, name, index) for label, name in enumerate(names) for index in range(by_class[name])]
    return ImageTable(
        ids=tuple(f"{name}/{index:05d}.png" for _, name, index in rows),
        labels=np.array([label for label, _, _ in rows], np.int64),
        classes=names,
        reader=SyntheticReader(seed),
        groups=tuple(f"{name}-{index // IMAGES_PER_PATIENT:04d}" for _, name, index in rows),
        sources=tuple(device_of(seed, name, index) for _, name, index in rows),
    )


def long_tailed_counts(images: int, classes: int, imbalance: float) -> list[int]:
    """Counts that fall geometrically by the factor `imbalance` in all and add up to `images`."""
    shares = imbalance ** (-np.arange(classes) / (classes - 1))
    exact = images * shares / shares.sum()
    counts = np.floor(exact).astype(int)
    largest_rests = np.argsort(counts - exact, kind="stable")[: images - counts.sum()]
    counts[largest_rests] += 1
    if counts.min() < 1:
        raise SettingsError(
            f"data.images is {images}: too few for {classes} classes with imbalance {imbalance}; "
            f"take more images, fewer classes or a smaller imbalance"
        )
    return [int(count) for count in counts]


def write_folder(
    folder: Path,
    *,
    seed: int,
    size: int,
    images: int,
    imbalance: float,
    progress: Callable[[int, int], None] | None = None,
) -> None:
    """Write `<class>/<index>.png`; the folder appears when all images are in it, or not at all."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ResourceError(f"{folder} is not empty; expected a new or an empty folder, choose another one")
    table = load(seed=seed, images=images, imbalance=imbalance)
    with filling_folder(folder.absolute()) as unfinished:
        _write_images(table, unfinished, size, progress)


def _write_images(
    table: ImageTable, folder: Path, size: int, progress: Callable[[int, int], None] | None
) -> None:
    for name in table.classes:
        (folder / name).mkdir(parents=True)
    for done, image_id in enumerate(table.ids, start=1):
        Image.fromarray(table.reader.read(image_id, size)).save(folder / image_id)
        if progress is not None:
            progress(done, len(table))
