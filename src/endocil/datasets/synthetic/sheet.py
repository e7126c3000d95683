"""A contact sheet: one row per class, its name beside images of all three devices."""

from PIL import Image, ImageDraw, ImageFont

from endocil.datasets.synthetic.devices import DEVICES
from endocil.datasets.synthetic.picture import CLASSES, IMAGES_PER_PATIENT, device_of, render

_GAP = 3
_PAPER, _INK = (255, 255, 255), (30, 30, 30)


def contact_sheet(seed: int, size: int, per_class: int) -> Image.Image:
    """`per_class` images of `size` pixels for each class, a different patient each, sorted by device."""
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
