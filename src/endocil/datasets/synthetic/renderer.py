"""One image, from its (seed, finding, index) to its pixels; and a contact sheet of images of all classes."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont

from endocil.datasets.synthetic import findings
from endocil.datasets.synthetic.devices import DEVICES, draw_device, draw_patient, photograph
from endocil.datasets.synthetic.drawing import (
    Canvas,
    draw_bubbles,
    draw_vessels,
    noise,
    random_source,
    smoothstep,
)
from endocil.datasets.synthetic.scene import Scene, add_tube, empty_scene, illuminate

RENDERER_VERSION = 1
IMAGES_PER_PATIENT = 4

_GAP = 3  # pixels between the images of a contact sheet
_PAPER, _INK = (255, 255, 255), (30, 30, 30)


@dataclass(frozen=True)
class Finding:
    """How a class is drawn, in which organs it occurs, how far off the lumen is and how deep the tube goes on."""

    add: Callable[[Scene], None]
    organs: tuple[str, ...]
    reach: tuple[float, float] = (0.4, 1.2)
    depth: tuple[float, float] = (0.4, 1.0)


ANYWHERE = ("oesophagus", "stomach", "small-bowel", "colon")

FINDINGS: dict[str, Finding] = {
    "angiectasia": Finding(findings.angiectasia, ("small-bowel", "colon")),
    "bleeding": Finding(findings.bleeding, ANYWHERE),
    "cecum": Finding(findings.cecum, ("colon",), reach=(0.0, 0.4), depth=(0.1, 0.4)),
    "dyed-lifted-polyp": Finding(findings.dyed_lifted_polyp, ("colon", "stomach")),
    "dyed-resection-margin": Finding(findings.dyed_resection_margin, ("colon", "stomach")),
    "erosion": Finding(findings.erosion, ("stomach", "small-bowel", "colon")),
    "lymphangiectasia": Finding(findings.lymphangiectasia, ("small-bowel",)),
    "normal-mucosa": Finding(findings.normal_mucosa, ANYWHERE),
    "oesophagitis": Finding(findings.oesophagitis, ("oesophagus",), reach=(0.0, 0.4)),
    "polyp": Finding(findings.polyp, ("colon", "colon", "stomach")),
    "pylorus": Finding(findings.pylorus, ("stomach",), reach=(0.0, 0.4), depth=(0.1, 0.4)),
    "stool": Finding(findings.stool, ("colon",)),
    "ulcer": Finding(findings.ulcer, ("stomach", "small-bowel", "colon")),
    "z-line": Finding(findings.z_line, ("oesophagus",), reach=(0.0, 0.4)),
}


CLASSES: tuple[str, ...] = tuple(sorted(FINDINGS))


def device_of(seed: int, finding: str, index: int) -> str:
    """The device that took this image."""
    return draw_device(seed, finding, index // IMAGES_PER_PATIENT)


def render(seed: int, finding: str, index: int, size: int) -> npt.NDArray[np.uint8]:
    """(size, size, 3) RGB; the same arguments give the same bytes, in any order and in any process."""
    kind = FINDINGS[finding]
    patient = draw_patient(seed, finding, index // IMAGES_PER_PATIENT, kind.organs)
    random = random_source(seed, "image", finding, index)
    scene = empty_scene(patient, random, size, kind.reach)
    scene.stain(0.35 * draw_vessels(random, size, patient.vessels), (0.82, 0.42, 0.45))
    add_tube(scene, random.uniform(*kind.depth))
    kind.add(scene)
    _add_debris(scene)
    light = illuminate(scene)
    return photograph(light, DEVICES[patient.device], random)


def _add_debris(scene: Scene) -> None:
    """What may be in any image: specks of food or stool, red spots, foam."""
    random, size = scene.random, scene.size
    if random.random() < 0.2:
        canvas = Canvas(size)
        for _ in range(int(random.integers(1, 9))):
            x, y = random.uniform(-0.8, 0.8, 2)
            canvas.dot((x, y), random.uniform(0.01, 0.05))
        colour = [(0.62, 0.48, 0.15), (0.72, 0.2, 0.18), (0.85, 0.8, 0.7)][int(random.integers(3))]
        scene.paint(0.6 * canvas.field(), colour)
    if random.random() < 0.12:
        mist = smoothstep(noise(random, size, 3), 0.6, 2.0)
        scene.paint(0.5 * mist, (0.75, 0.66, 0.36))
    if random.random() < 0.2:
        scene.paint(0.7 * draw_bubbles(random, size), (0.95, 0.92, 0.85))


def contact_sheet(seed: int, size: int, per_class: int) -> Image.Image:
    """A row for each class with its name and `per_class` images of `size` pixels, of different patients, by device."""
    names_width = int(max(_font(size).getlength(name) for name in CLASSES)) + 4 * _GAP
    width = names_width + per_class * (size + _GAP)
    sheet = Image.new("RGB", (width, len(CLASSES) * (size + _GAP) + _GAP), _PAPER)
    draw = ImageDraw.Draw(sheet)
    for row, name in enumerate(CLASSES):
        top = row * (size + _GAP) + _GAP
        draw.text((2 * _GAP, top + size // 2), name, fill=_INK, font=_font(size), anchor="lm")
        for column, index in enumerate(_one_image_per_patient(seed, name, per_class)):
            image = Image.fromarray(render(seed, name, index, size))
            sheet.paste(image, (names_width + column * (size + _GAP), top))
    return sheet


def _one_image_per_patient(seed: int, finding: str, n: int) -> list[int]:
    order = sorted(DEVICES)
    indices = [number * IMAGES_PER_PATIENT for number in range(n)]
    return sorted(indices, key=lambda index: order.index(device_of(seed, finding, index)))


def _font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(max(9, size // 7))
