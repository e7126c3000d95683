"""Rebuilds the 5,003-image subset of Hyper-Kvasir (Borgli et al., 2020, CC BY 4.0) from an official download.

    python -m reproduction.subset experiments/hyper-kvasir-part.csv ROOT -o FOLDER

The list (path, group, box, thumbnail) names the images; images of one group are near duplicates. The rule was
recovered from the subset's images and is not verified against the official archive: cut out the middle
square, paint `box` black (it held the green picture of the scope's position, which gives some classes away), shrink to
128 x 128, save as JPEG. Seen in the images: quality 90 with halved colours; boxes painted before shrinking
(their edges are blended); no overshoot at sharp edges, as a bilinear filter leaves it. Not known: the filter
itself, and rounding. So each rebuilt image is compared with the recorded mean colours of its quarters.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from endocil.errors import DataError, EndocilError
from endocil.io.archives import Progress
from endocil.io.files import filling_folder, read_csv, write_csv

SIZE = 128
QUALITY = 90  # the quantisation tables of the subset's files
TOLERANCE = 4  # of 255, between recorded and rebuilt mean colours; shrinking hardly changes a mean


@dataclass(frozen=True)
class Entry:
    """One line of the list."""

    path: str  # below labeled-images
    group: str
    box: tuple[float, ...]  # (x0, y0, x1, y1) in pixels of the 128 x 128 image, or empty
    thumbnail: bytes  # mean RGB of the four quarters, row by row


@dataclass(frozen=True)
class Report:
    """The result of a rebuild, compared with the list."""

    folder: Path
    written: int
    differ: tuple[str, ...]  # written, but the mean colours of a quarter are off by more than the tolerance
    missing: tuple[str, ...]  # "path: reason" of images that were not found or not readable

    @property
    def agree(self) -> int:
        return self.written - len(self.differ)

    def __str__(self) -> str:
        text = f"{self.written} images written to {self.folder}; {self.agree} agree with their recorded colours"
        if self.differ:
            text += f"; {len(self.differ)} differ by more than {TOLERANCE} of 255, first {self.differ[0]}"
        if self.missing:
            text += f"; {len(self.missing)} are missing, first {self.missing[0]}"
        return text


def rebuild(list_file: Path, official_root: Path, out_folder: Path, progress: Progress | None = None) -> Report:
    """Writes labeled-images/... and groups.csv into a new folder: all of it, or nothing.

    `official_root` may be labeled-images, a folder above it, or one inside it."""
    entries = read_list(list_file)
    source = _find_source(official_root, {entry.path.split("/")[0] for entry in entries})
    if out_folder.exists() and (not out_folder.is_dir() or any(out_folder.iterdir())):
        raise DataError(f"{out_folder} exists and is not empty; choose a new folder")
    written, differ, missing = [], [], []
    with filling_folder(out_folder) as temporary, ThreadPoolExecutor() as pool:
        target = temporary / "labeled-images"
        for folder in {(target / entry.path).parent for entry in entries}:
            folder.mkdir(parents=True, exist_ok=True)
        try:
            results = pool.map(lambda entry: _convert_file(entry, source, target), entries)
            for done, (entry, result) in enumerate(zip(entries, results, strict=True), start=1):
                if isinstance(result, str):
                    missing.append(f"{entry.path}: {result}")
                else:
                    written.append((entry.path, entry.group))
                    differ += [entry.path] if result > TOLERANCE else []
                if progress:
                    progress(done, len(entries))
        finally:
            pool.shutdown(cancel_futures=True)  # a failure does not wait for the rest of the images
        if not written:
            raise DataError(f"none of the {len(entries)} images of {list_file} can be read in {source}")
        write_csv(temporary / "groups.csv", ("path", "group"), written)
    return Report(out_folder, len(written), tuple(differ), tuple(missing))


def read_list(path: Path) -> list[Entry]:
    """The lines of a list; a malformed line is refused."""
    entries = []
    for number, row in enumerate(read_csv(path), start=2):
        try:
            box = tuple(float(part) for part in row["box"].split())
            entry = Entry(row["path"], row["group"], box, bytes.fromhex(row["thumbnail"]))
        except (KeyError, ValueError) as error:
            raise DataError(f"{path}, line {number}: expected path, group, box, thumbnail") from error
        if len(entry.box) not in (0, 4) or len(entry.thumbnail) != 12:
            raise DataError(f"{path}, line {number}: a box has 4 numbers, a thumbnail 24 hexadecimal digits")
        entries.append(entry)
    return entries


def convert(original: Image.Image, box: Sequence[float]) -> Image.Image:
    """The middle square, with the box painted black, at 128 x 128."""
    side = min(original.size)
    left, top = (original.width - side) // 2, (original.height - side) // 2
    square = original.convert("RGB").crop((left, top, left + side, top + side))
    if box:
        x0, y0, x1, y1 = (round(edge * side / SIZE) for edge in box)
        square.paste((0, 0, 0), (x0, y0, x1, y1))
    return square.resize((SIZE, SIZE), Image.Resampling.BILINEAR)


def quarter_means(image: Image.Image) -> np.ndarray:
    """Mean RGB of the four quarters, row by row, as 12 numbers."""
    half = SIZE // 2
    pixels = np.asarray(image.convert("RGB"), np.float64).reshape(2, half, 2, half, 3)
    return np.asarray(pixels.mean(axis=(1, 3)).ravel())  # (12,)


def _find_source(root: Path, tops: set[str]) -> Path:
    """The folder that holds `tops` (lower-gi-tract, ...): root itself, above it or below it."""
    if not root.is_dir():
        raise DataError(f"{root} is not a folder; give the folder of the official Hyper-Kvasir download")
    for place in (root, *root.resolve().parents):
        if any((place / name).is_dir() for name in tops):
            return place
    for below, folders, _ in os.walk(root):
        if tops & set(folders):
            return Path(below)
        folders.sort()
    raise DataError(
        f"no folder {' or '.join(sorted(tops))} in or around {root}; give the folder of the official "
        f"Hyper-Kvasir download that holds labeled-images"
    )


def _convert_file(entry: Entry, source: Path, target: Path) -> float | str:
    """The largest difference to the recorded mean colours, or the reason why there is no image."""
    if not (source / entry.path).is_file():
        return "not found"
    try:
        with Image.open(source / entry.path) as original:
            image = convert(original, entry.box)
    except (OSError, SyntaxError, ValueError) as error:
        return f"not readable, {error}"
    image.save(target / entry.path, "JPEG", quality=QUALITY, subsampling="4:2:0")
    recorded = np.frombuffer(entry.thumbnail, np.uint8).astype(np.float64)
    return float(np.abs(quarter_means(image) - recorded).max())


def main(arguments: Sequence[str] | None = None) -> str | None:
    """The message of an error; None where the subset is complete."""
    parser = argparse.ArgumentParser(prog="python -m reproduction.subset", description="Rebuild the subset.")
    parser.add_argument("list", type=Path, help="The list of the subset: experiments/hyper-kvasir-part.csv.")
    parser.add_argument("root", type=Path, help="The folder of the official Hyper-Kvasir labelled images.")
    parser.add_argument("-o", "--output", type=Path, required=True, help="The folder to write; it must be new.")
    options = parser.parse_args(arguments)
    try:
        report = rebuild(options.list, options.root, options.output)
    except EndocilError as error:
        return str(error)
    print(report)
    incomplete = report.missing or report.differ
    return f"the subset in {options.output} is not complete: results on it cannot be compared" if incomplete else None


if __name__ == "__main__":
    sys.exit(main())
