"""The pictures inside a bundle, exemplars and held-out images: lossless, each with where it comes from."""

import csv
import io
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, fields
from typing import Literal

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from endocil.errors import EndocilError
from endocil.io.files import ENCODING, ENCODING_ERRORS, LARGEST

Kind = Literal["exemplars", "held-out"]
MOST_BYTES = 2 * LARGEST  # of all pixels of a kind: a small file of PNGs can claim to hold far more
LONGEST_CELL = 4096  # characters


@dataclass(frozen=True)
class Origin:
    """Where a picture comes from, and what it is."""

    image: str  # its id in the data it was learned from
    class_name: str
    order: int  # of choice among the exemplars of its class; 0 for held-out images
    task: int  # in which it came
    group: str  # the patient or video; "" where unknown
    source: str  # the device or centre; "" where unknown
    licence: str = ""
    consent: str = ""


@dataclass(frozen=True, eq=False)
class Pictures:
    pixels: Tensor  # (n, size, size, 3) uint8, as the network saw them before normalisation
    origins: tuple[Origin, ...]

    def __len__(self) -> int:
        return len(self.origins)

    def take(self, rows: Sequence[int]) -> "Pictures":
        return Pictures(self.pixels[list(rows)], tuple(self.origins[row] for row in rows))


def no_pictures(size: int) -> Pictures:
    return Pictures(torch.zeros(0, size, size, 3, dtype=torch.uint8), ())


def pack(kind: Kind, pictures: Pictures) -> dict[str, bytes]:
    """Files of an archive: a table, and a PNG for each of its rows."""
    if pictures.pixels.numel() > MOST_BYTES:
        raise EndocilError(
            f"{len(pictures):,} {kind} pictures are {pictures.pixels.numel():,} bytes; at most {MOST_BYTES:,} can be "
            f"read again: keep fewer"
        )
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([field.name for field in fields(Origin)])
    writer.writerows(astuple(origin) for origin in pictures.origins)
    files = {f"{kind}.csv": text.getvalue().encode(ENCODING, ENCODING_ERRORS)}
    for row, pixels in enumerate(pictures.pixels.numpy()):
        png = io.BytesIO()
        Image.fromarray(pixels).save(png, "PNG")
        files[f"{kind}/{row:06d}.png"] = png.getvalue()
    return files


def unpack(kind: Kind, files: Mapping[str, bytes], size: int) -> Pictures:
    """The pictures of an archive; raises ValueError with the reason where they are not as `pack` writes them."""
    table = files.get(f"{kind}.csv")
    pngs = [name for name in files if name.startswith(f"{kind}/")]
    if table is None:
        if pngs:
            raise ValueError(f"{kind} has pictures but no table")
        return no_pictures(size)
    origins = _origins(kind, table)
    if len(pngs) != len(origins):
        raise ValueError(f"{kind} has {len(origins)} rows but {len(pngs)} pictures")
    if len(origins) * size * size * 3 > MOST_BYTES:
        raise ValueError(
            f"{len(origins):,} {kind} pictures of {size} x {size} take more than {MOST_BYTES:,} bytes"
        )
    pixels = np.empty((len(origins), size, size, 3), np.uint8)
    for row in range(len(origins)):
        name = f"{kind}/{row:06d}.png"
        if name not in files:
            raise ValueError(f"{name} is missing")
        pixels[row] = _pixels(name, files[name], size)
    return Pictures(torch.from_numpy(pixels), origins)


def _origins(kind: Kind, table: bytes) -> tuple[Origin, ...]:
    names = [field.name for field in fields(Origin)]
    header, *rows = csv.reader(io.StringIO(table.decode(ENCODING, ENCODING_ERRORS), newline=""))
    if header != names or any(len(row) != len(names) for row in rows):
        raise ValueError(f"{kind}.csv has other columns")
    if any(len(cell) > LONGEST_CELL for row in rows for cell in row):
        raise ValueError(f"{kind}.csv has a cell of more than {LONGEST_CELL} characters")
    origins = tuple(Origin(row[0], row[1], int(row[2]), int(row[3]), *row[4:]) for row in rows)
    if any(origin.order < 0 or origin.task < 0 for origin in origins):
        raise ValueError(f"{kind}.csv has a negative number")
    return origins


def _pixels(name: str, png: bytes, size: int) -> np.ndarray:
    """Looked at before it is decoded: a small file can claim to be a large picture."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        picture = Image.open(io.BytesIO(png), formats=["PNG"])
    with picture:
        if picture.size != (size, size) or picture.mode != "RGB":
            width, height = picture.size
            raise ValueError(
                f"{name} is {picture.mode} of {width} x {height}, expected RGB of {size} x {size}"
            )
        return np.asarray(picture)


def refuse_unknown(kind: Kind, pictures: Pictures, classes: Sequence[str], n_tasks: int) -> None:
    """Pictures of what was never learned."""
    unknown = sorted({origin.class_name for origin in pictures.origins} - set(classes))
    if unknown:
        shown = ascii(unknown[0][:80])
        raise EndocilError(f"{kind}: pictures of {shown}, which is none of the {len(classes)} classes")
    if any(origin.task >= n_tasks for origin in pictures.origins):
        raise EndocilError(f"{kind}: a picture of a task that was never learned; there were {n_tasks}")
