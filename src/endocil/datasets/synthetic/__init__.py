"""Synthetic endoscopy: drawn by a program, the same for the same (seed, class, index), with no patient behind it.

The counts are long-tailed: they fall geometrically along `FINDINGS`. Each four consecutive images are of one patient:
same device, same mucosa. So a split by image leaks between the parts, as it does with video frames, and a split by
group does not.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image, ImageDraw, ImageFont

from endocil.data.cache import Images, Progress
from endocil.data.lists import Row, table_of
from endocil.data.table import ImageTable, UnreadableImageError
from endocil.datasets.synthetic.classes import CLASSES, FINDINGS, add_debris
from endocil.datasets.synthetic.drawing import draw_vessels, random_source
from endocil.datasets.synthetic.scene import (
    DEVICES,
    add_tube,
    draw_device,
    draw_patient,
    empty_scene,
    illuminate,
    photograph,
)
from endocil.errors import ResourceError, SettingsError
from endocil.io.files import filling_folder

__all__ = ["CLASSES", "DEVICES", "SyntheticReader", "contact_sheet", "load", "render", "small_images", "write_folder"]

RENDERER_VERSION = 1
IMAGES_PER_PATIENT = 4

_GAP = 3  # pixels between the images of a contact sheet
_PAPER, _INK = (255, 255, 255), (30, 30, 30)


def render(seed: int, finding: str, index: int, size: int) -> npt.NDArray[np.uint8]:
    """(size, size, 3) RGB; the same arguments give the same bytes, in any order and in any process."""
    kind = FINDINGS[finding]
    patient = draw_patient(seed, finding, index // IMAGES_PER_PATIENT, kind.organs)
    random = random_source(seed, "image", finding, index)
    scene = empty_scene(patient, random, size, kind.reach)
    scene.stain(0.35 * draw_vessels(random, size, patient.vessels), (0.82, 0.42, 0.45))
    add_tube(scene, random.uniform(*kind.depth))
    kind.add(scene, random)
    add_debris(scene, random)
    return photograph(illuminate(scene), DEVICES[patient.device], random)


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


def load(*, seed: int = 0, images: int = 2000, imbalance: float = 10.0, classes: int = len(CLASSES)) -> ImageTable:
    """`images` images of the `classes` most frequent classes; the largest has `imbalance` times the smallest."""
    if not 2 <= classes <= len(CLASSES):
        raise SettingsError(f"data.classes is {classes}; expected 2 to {len(CLASSES)}")
    if imbalance < 1.0:
        raise SettingsError(f"data.imbalance is {imbalance}; expected 1 (all classes equal) or more")
    by_class = dict(zip(tuple(FINDINGS)[:classes], long_tailed_counts(images, classes, imbalance), strict=True))
    rows = []
    for name, n in sorted(by_class.items()):
        for index in range(n):
            patient = index // IMAGES_PER_PATIENT
            group, device = f"{name}-{patient:04d}", draw_device(seed, name, patient)
            rows.append(Row(f"{name}/{index:05d}.png", name, group, device))
    return table_of(rows, SyntheticReader(seed))


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
    folder: Path, *, seed: int, size: int, images: int, imbalance: float, progress: Progress | None = None
) -> None:
    """Write `<class>/<index>.png`; the folder appears when all images are in it, or not at all."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ResourceError(f"{folder} is not empty; expected a new or an empty folder, choose another one")
    table = load(seed=seed, images=images, imbalance=imbalance)
    with filling_folder(folder.absolute(), public=True) as unfinished:
        for name in table.classes:
            (unfinished / name).mkdir(parents=True)
        for done, image_id in enumerate(table.ids, start=1):
            Image.fromarray(table.reader.read(image_id, size)).save(unfinished / image_id)
            if progress is not None:
                progress(done, len(table))


def contact_sheet(seed: int, size: int, per_class: int) -> Image.Image:
    """A row for each class with its name and `per_class` images of `size` pixels, of different patients, by device."""
    font = ImageFont.load_default(max(9, size // 7))
    devices = sorted(DEVICES)
    names_width = int(max(font.getlength(name) for name in CLASSES)) + 4 * _GAP
    width = names_width + per_class * (size + _GAP)
    sheet = Image.new("RGB", (width, len(CLASSES) * (size + _GAP) + _GAP), _PAPER)
    draw = ImageDraw.Draw(sheet)
    for row, name in enumerate(CLASSES):
        top = row * (size + _GAP) + _GAP
        draw.text((2 * _GAP, top + size // 2), name, fill=_INK, font=font, anchor="lm")
        patients = sorted(range(per_class), key=lambda patient: devices.index(draw_device(seed, name, patient)))
        for column, patient in enumerate(patients):
            image = Image.fromarray(render(seed, name, patient * IMAGES_PER_PATIENT, size))
            sheet.paste(image, (names_width + column * (size + _GAP), top))
    return sheet


def small_images(counts: Sequence[int], size: int) -> Images:
    """So many images of each class, of size x size pixels, in memory: no file, no cache. For checks of methods."""
    labels = np.repeat(np.arange(len(counts)), counts)
    kinds = sorted(CLASSES)[: len(counts)]
    pixels = np.stack([render(0, kinds[label], i, size) for i, label in enumerate(labels)])
    ids = tuple(f"{kinds[label]}/{i:03d}" for i, label in enumerate(labels))
    unknown = ("",) * len(labels)
    table = ImageTable(ids, labels, tuple(kinds), SyntheticReader(0), groups=unknown, sources=unknown)
    return Images(table, torch.from_numpy(pixels), torch.arange(len(labels)), ())
