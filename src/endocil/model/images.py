"""The images inside a model file, exemplars and held-out ones: lossless PNGs, each with its provenance."""

import csv
import io
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import astuple, fields
from typing import Literal

import numpy as np
import torch
from PIL import Image

from endocil.errors import FileFormatError
from endocil.io.files import ENCODING, ENCODING_ERRORS, LARGEST
from endocil.learning.memory import KeptImages, Provenance, no_images

Kind = Literal["exemplars", "held-out"]
MOST_BYTES = 2 * LARGEST  # of all pixels of a kind: a small file of PNGs can claim to hold far more
LONGEST_CELL = 4096  # characters


def pack(kind: Kind, images: KeptImages) -> dict[str, bytes]:
    """Files of an archive: a table, and a PNG for each of its rows."""
    if images.pixels.numel() > MOST_BYTES:
        raise FileFormatError(
            f"{len(images):,} {kind} images are {images.pixels.numel():,} bytes; at most {MOST_BYTES:,} can be "
            f"read again: keep fewer"
        )
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([field.name for field in fields(Provenance)])
    writer.writerows(astuple(one) for one in images.provenance)
    files = {f"{kind}.csv": text.getvalue().encode(ENCODING, ENCODING_ERRORS)}
    for row, pixels in enumerate(images.pixels.numpy()):
        png = io.BytesIO()
        Image.fromarray(pixels).save(png, "PNG")
        files[f"{kind}/{row:06d}.png"] = png.getvalue()
    return files


def unpack(kind: Kind, files: Mapping[str, bytes], size: int) -> KeptImages:
    """The images of an archive; raises ValueError with the reason where they are not as `pack` writes them."""
    table = files.get(f"{kind}.csv")
    pngs = [name for name in files if name.startswith(f"{kind}/")]
    if table is None:
        if pngs:
            raise ValueError(f"{kind} has images but no table")
        return no_images(size)
    provenance = _provenance(kind, table)
    if len(pngs) != len(provenance):
        raise ValueError(f"{kind} has {len(provenance)} rows but {len(pngs)} images")
    if len(provenance) * size * size * 3 > MOST_BYTES:
        raise ValueError(
            f"{len(provenance):,} {kind} images of {size} x {size} take more than {MOST_BYTES:,} bytes"
        )
    pixels = np.empty((len(provenance), size, size, 3), np.uint8)
    for row in range(len(provenance)):
        name = f"{kind}/{row:06d}.png"
        if name not in files:
            raise ValueError(f"{name} is missing")
        pixels[row] = _pixels(name, files[name], size)
    return KeptImages(torch.from_numpy(pixels), provenance)


def _provenance(kind: Kind, table: bytes) -> tuple[Provenance, ...]:
    names = [field.name for field in fields(Provenance)]
    header, *rows = csv.reader(io.StringIO(table.decode(ENCODING, ENCODING_ERRORS), newline=""))
    if header != names or any(len(row) != len(names) for row in rows):
        raise ValueError(f"{kind}.csv has other columns")
    if any(len(cell) > LONGEST_CELL for row in rows for cell in row):
        raise ValueError(f"{kind}.csv has a cell of more than {LONGEST_CELL} characters")
    provenance = tuple(Provenance(row[0], row[1], int(row[2]), int(row[3]), *row[4:]) for row in rows)
    if any(one.order < 0 or one.task < 0 for one in provenance):
        raise ValueError(f"{kind}.csv has a negative number")
    return provenance


def _pixels(name: str, png: bytes, size: int) -> np.ndarray:
    """Looked at before it is decoded: a small file can claim to be a large image."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        image = Image.open(io.BytesIO(png), formats=["PNG"])
    with image:
        if image.size != (size, size) or image.mode != "RGB":
            width, height = image.size
            raise ValueError(f"{name} is {image.mode} of {width} x {height}, expected RGB of {size} x {size}")
        return np.asarray(image)


def refuse_unknown(kind: Kind, images: KeptImages, classes: Sequence[str], n_tasks: int) -> None:
    """Images of what was never learned."""
    unknown = sorted({one.class_name for one in images.provenance} - set(classes))
    if unknown:
        shown = ascii(unknown[0][:80])
        raise FileFormatError(f"{kind}: images of {shown}, which is none of the {len(classes)} classes")
    if any(one.task >= n_tasks for one in images.provenance):
        raise FileFormatError(f"{kind}: an image of a task that was never learned; there were {n_tasks}")
