"""The images inside a model file: a contact sheet, and a list of where they come from."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import astuple, fields
from io import BytesIO
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

from endocil.errors import EndocilError
from endocil.io.files import write_atomically, write_csv
from endocil.learning.memory import KeptImages, Provenance
from endocil.model.file import ModelFile

KINDS = {".jpg": "JPEG", ".jpeg": "JPEG", ".png": "PNG"}
_COLUMNS, _SIZE, _GAP, _LINE = 10, 96, 3, 20
_PAPER, _INK = (255, 255, 255), (30, 30, 30)


def write_sheet(path: Path, content: ModelFile) -> list[Path]:
    """One picture of all classes, or a folder with one for each class."""
    blocks = _blocks(content)
    if path.suffix.lower() in KINDS:
        _write(path, contact_sheet([block for mine in blocks.values() for block in mine]))
        return [path]
    if path.suffix or path.is_file():
        raise EndocilError(f"{path} is no picture's name and no folder's; expected .png, .jpg or a folder")
    files = []
    for number, name in enumerate(content.classes):
        if name in blocks:
            files.append(path / f"{number:03d}-{_plain(name)}.png")
            _write(files[-1], contact_sheet(blocks[name]))
    return files


def contact_sheet(blocks: Sequence[tuple[str, KeptImages]]) -> Image.Image:
    """A heading and rows of images for each block."""
    heights = [_LINE + -(-len(images) // _COLUMNS) * (_SIZE + _GAP) for _, images in blocks]
    font = ImageFont.load_default(13)
    width = max([_COLUMNS * (_SIZE + _GAP), *(int(font.getlength(name)) for name, _ in blocks)]) + 2 * _GAP
    sheet = Image.new("RGB", (width, sum(heights) + _GAP), _PAPER)
    draw, top = ImageDraw.Draw(sheet), 0
    for (name, images), height in zip(blocks, heights, strict=True):
        draw.text((2 * _GAP, top + _LINE // 2), name, fill=_INK, font=font, anchor="lm")
        for i, pixels in enumerate(images.pixels.numpy()):
            row, column = divmod(i, _COLUMNS)
            place = (_GAP + column * (_SIZE + _GAP), top + _LINE + row * (_SIZE + _GAP))
            sheet.paste(Image.fromarray(pixels).resize((_SIZE, _SIZE)), place)
        top += height
    return sheet


def write_list(path: Path, content: ModelFile) -> None:
    """Every picture with where it comes from, as a CSV file."""
    names = ["image", *(field.name for field in fields(Provenance) if field.name != "image")]
    write_csv(path, ("kind", *names), listed(content))


def listed(content: ModelFile) -> list[tuple[object, ...]]:
    return [
        (kind, *astuple(one))
        for kind, images in (("exemplar", content.exemplars), ("held-out", content.held_out))
        for one in images.provenance
    ]


def counts(kept: Sequence[Provenance], field: str, most: int = 8) -> str:
    """How many images of each value, the most frequent first: "p07 3, p02 1"."""
    found = Counter(str(getattr(one, field)) or "not told" for one in kept)
    order = sorted(found.items(), key=lambda item: (-item[1], item[0]))
    more = f" and {len(order) - most:,} more" if len(order) > most else ""
    return ", ".join(f"{name} {n:,}" for name, n in order[:most]) + more


def _blocks(content: ModelFile) -> dict[str, list[tuple[str, KeptImages]]]:
    """By class, a heading and images for each kind that it has."""
    found: dict[str, list[tuple[str, KeptImages]]] = {}
    for name in content.classes:
        for kind, images in (("exemplars", content.exemplars), ("held out", content.held_out)):
            rows = [row for row, one in enumerate(images.provenance) if one.class_name == name]
            if rows:
                found.setdefault(name, []).append((f"{name}: {len(rows)} {kind}", images.take(rows)))
    if not found:
        raise EndocilError("the model holds no images, so there is no sheet to draw")
    return found


def _write(path: Path, sheet: Image.Image) -> None:
    drawn = BytesIO()
    sheet.save(drawn, KINDS[path.suffix.lower()], quality=85)
    write_atomically(path, drawn.getvalue())


def _plain(name: str) -> str:
    """As much of a class's name as any system takes for a file."""
    return "".join(letter if letter.isalnum() or letter in "-_" else "-" for letter in name)[:60]
