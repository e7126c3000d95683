"""Images given by a user: files, folders, lists and arrays, as names and a reader of their pixels."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageOps

from endocil.data.decode import BILINEAR, FileReader, to_rgb
from endocil.data.dicom import SUFFIXES, DicomReader, count_frames, read_header
from endocil.data.lists import LIST_SUFFIXES, Row, read_list, table_of
from endocil.data.readers import read_in_chunks
from endocil.data.resize import Fit, prepared, prepared_reader
from endocil.data.table import ImageTable, Reader, UnreadableImageError
from endocil.errors import DataError, EndocilError
from endocil.io.terminal import one_line
from endocil.io.walk import is_hidden, is_image, walk

PathsOrImages = str | Path | ImageTable | Sequence[Any]
ImageInputs = np.ndarray | Sequence[Any]  # (n, H, W, 3) uint8, or a sequence of arrays, PIL images and paths
Texts = np.ndarray | Sequence[str]


@dataclass(frozen=True)
class Inputs:
    """Images by their ids in a reader, and by the names that people know."""

    ids: tuple[str, ...]
    names: tuple[str, ...]
    reader: Reader
    files: tuple[Path, ...] = ()  # are read, and so must not be overwritten
    class_names: tuple[str, ...] = ()  # of each image, where known
    sources: tuple[str, ...] = ()  # of each image, where known


@dataclass(frozen=True)
class _MixedReader:
    """Files, frames of DICOM files and images in memory, each by its number."""

    items: tuple[Any, ...]  # paths and images
    in_processes: bool  # much of reading DICOM is Python: processes do it

    def read(self, image_id: str, size: int) -> np.ndarray:
        item = self.items[int(image_id)]
        with _as_unreadable():
            if isinstance(item, str):
                return _file_reader(item).read(item, size)
            return np.asarray(self.whole(image_id).resize((size, size), BILINEAR))

    def whole(self, image_id: str) -> Image.Image:
        item = self.items[int(image_id)]
        with _as_unreadable():
            if isinstance(item, str):
                return _file_reader(item).whole(item)
            image = item if isinstance(item, Image.Image) else Image.fromarray(item)
            return to_rgb(ImageOps.exif_transpose(image))

    def fingerprint(self, ids: Sequence[str]) -> str:
        raise AssertionError("these images are never cached")


@contextmanager
def _as_unreadable() -> Iterator[None]:
    """Whatever prevents one image from being read (a disk, a missing package) is reported for that image alone."""
    try:
        yield
    except UnreadableImageError:
        raise
    except (EndocilError, OSError, SyntaxError, ValueError) as error:
        raise UnreadableImageError(one_line(error)) from error


def _file_reader(path: str) -> FileReader | DicomReader:
    return DicomReader(Path()) if _is_dicom(path) else FileReader(Path())


def _is_dicom(path: str) -> bool:
    """By its ending; a frame's number may stand behind it."""
    return path.lower().rpartition("#")[0].endswith(SUFFIXES) or path.lower().endswith(SUFFIXES)


def inputs_of(wanted: PathsOrImages, *, crop_frame: bool, fit: Fit = "stretch") -> Inputs:
    """An image file, a folder, a list, a sequence of paths and images, or a table."""
    if isinstance(wanted, ImageTable):
        table = prepared(wanted, crop_frame=crop_frame, fit=fit)
        names = tuple(table.classes[label] for label in table.labels.tolist())
        return Inputs(table.ids, table.ids, table.reader, class_names=names, sources=table.sources)
    classes: Mapping[str, str] = {}
    if isinstance(wanted, str | Path):
        named: Sequence[tuple[str, Any]]
        named, classes = _images_at(Path(wanted))
    else:
        named = [pair for i, item in enumerate(wanted) for pair in _named_item(i, item)]
    if not named:
        raise DataError("there are no images to predict")
    items = tuple(item for _, item in named)
    paths = [item for item in items if isinstance(item, str)]
    reader = _MixedReader(items, in_processes=any(map(_is_dicom, paths)))
    files = [_file_reader(path).path(path) for path in paths]
    if isinstance(wanted, str | Path) and os.path.isfile(wanted):
        files.append(Path(wanted))  # a list
    return Inputs(
        ids=tuple(str(i) for i in range(len(items))),
        names=tuple(name for name, _ in named),
        reader=prepared_reader(reader, crop_frame=crop_frame, fit=fit),
        files=tuple(files),
        class_names=tuple(classes.get(name, "") for name, _ in named) if any(classes.values()) else (),
    )


def _images_at(path: Path) -> tuple[list[tuple[str, str]], dict[str, str]]:
    """(name, path) of each image of a folder at any depth, of a list, or of one file; and classes that a list gives.

    The paths of a list start at its own folder, unless they are absolute."""
    if path.is_dir():
        named = []
        for place in walk(path):
            if place.unreadable:  # one row, as for an image that cannot be read
                named.append(("/".join((*place.parts, "")), place.path))
            for name in place.files if not place.known else ():
                if is_image(name) or (_is_dicom(name) and not is_hidden(name)):
                    named += _frames(os.path.join(place.path, name), "/".join((*place.parts, name)))
        if not named:
            raise DataError(f"the folder {path} holds no image; give one with JPEG, PNG or DICOM files")
        return named, {}
    if not path.exists():
        raise DataError(f"{path} does not exist; give an image, a folder of images or a CSV file")
    if path.suffix.lower() not in LIST_SUFFIXES:
        return _frames(str(path), path.name), {}
    labels: dict[str, str] = {}
    for row in read_list(path, roles=("path", "label", "frame"), required=("path",), outside=True):
        one_frame = row.frame >= 0 and _is_dicom(row.path)  # elsewhere the number only tells which frame it is
        labels[f"{row.path}#{row.frame}" if one_frame else row.path] = row.label
    named = []
    classes: dict[str, str] = {}
    for name, label in labels.items():
        frames = _frames(str(path.parent / name), name)
        named += frames
        classes |= dict.fromkeys((frame for frame, _ in frames), label)
    return named, classes


def _named_item(number: int, item: Any) -> Sequence[tuple[str, Any]]:
    """(name, path or image) of one item of a sequence."""
    if isinstance(item, str | os.PathLike):
        if os.path.isdir(item):
            raise DataError(f"{os.fspath(item)} is a folder among several images; give it alone")
        return _frames(os.fspath(item), os.fspath(item))
    is_array = isinstance(item, np.ndarray)
    if isinstance(item, Image.Image) or (is_array and item.dtype == np.uint8 and item.shape[2:] == (3,)):
        return [(str(number), item)]
    kind = f"{item.dtype} of {item.shape}" if is_array else type(item).__name__
    raise DataError(f"image {number} is {kind}; expected a path, a PIL image or a uint8 array (height, width, 3)")


def _frames(path: str, name: str) -> list[tuple[str, str]]:
    """The file, or each frame of a DICOM file that has several; one that cannot be read stays one image."""
    n = 1
    if _is_dicom(path):
        with suppress(EndocilError):  # also without pydicom
            n = count_frames(Path(path), read_header(Path(path)))
    return [(name, path)] if n == 1 else [(f"{name}#{i}", f"{path}#{i}") for i in range(1, n + 1)]


def folder_or_list(path: Path, purpose: str) -> dict[str, Any]:
    """The [data] settings of labelled images: a folder with one folder per class, or a list."""
    if path.is_dir():
        return {"name": "folder", "root": str(path)}
    if path.is_file() and path.suffix.lower() in LIST_SUFFIXES:
        return {"name": "csv", "file": str(path)}
    problem = "is neither a folder nor a list" if path.exists() else "is not there"
    raise DataError(
        f"the {purpose} images {path}: {problem}; expected a folder with one folder of images per class, or a CSV "
        f"file with the columns path and label"
    )


def lists_dicom(path: Path) -> bool:
    """Whether a list names DICOM files."""
    rows = read_list(path, roles=("path",), required=("path",), outside=True)
    return any(_is_dicom(row.path) for row in rows)


def read_arrays(
    images: ImageInputs,
    labels: Texts,
    groups: Texts | None,
    sources: Texts | None,
    *,
    task: int,
    size: int,
    crop_frame: bool,
    fit: Fit = "stretch",
) -> tuple[ImageTable, torch.Tensor]:
    """Images, classes and groups as they are given from Python, as a table and pixels.

    A path is its own name; an image in memory is named by `task` and its number."""
    if isinstance(images, np.ndarray) and (images.ndim != 4 or images.shape[3] != 3 or images.dtype != np.uint8):
        raise EndocilError(f"images are {images.dtype} of shape {images.shape}; expected uint8 (n, height, width, 3)")
    if isinstance(images, str | os.PathLike):
        raise EndocilError(f"images is the path {images}; expected a sequence of paths, PIL images or arrays")
    items = list(images)
    inputs = inputs_of(items, crop_frame=crop_frame, fit=fit) if items else None
    n = len(inputs.ids) if inputs else 0
    for name, texts in (("labels", labels), ("groups", groups), ("sources", sources)):
        if texts is not None and len(texts) != n:
            raise EndocilError(f"{n} images, but {len(texts)} {name}; give one for each image")
    if inputs is None:
        raise EndocilError("there are no images to learn from")
    columns = [
        [""] * n if texts is None else _texts(texts, meaning)
        for texts, meaning in (
            (labels, "labels are the names of classes"),
            (groups, "groups are names of patients or videos"),
            (sources, "sources are names of devices or centres"),
        )
    ]
    if not all(columns[0]):
        raise EndocilError("labels are the names of classes: a text for each image, and none is empty")
    ids = list(inputs.names)
    if len(items) == n:  # else a file has several frames, and all are files
        for number, item in enumerate(items):
            if not isinstance(item, str | os.PathLike):
                ids[number] = f"task-{task}/{number:06d}"
    parts = []
    for pixels, failed in read_in_chunks(inputs.reader, inputs.ids, size, workers=os.cpu_count() or 1):
        if failed:
            image_id, reason = failed[0]
            raise EndocilError(f"the image {inputs.names[int(image_id)]} cannot be read: {reason}")
        parts.append(torch.from_numpy(np.array(pixels)))
    rows = [Row(*row) for row in zip(ids, *columns, strict=True)]
    return table_of(rows, inputs.reader), torch.cat(parts)


def _texts(texts: Texts, meaning: str) -> list[str]:
    """Plain texts, also of an array of numpy."""
    for text in texts:
        if not isinstance(text, str):
            raise EndocilError(f"{meaning}: a text for each image, but {text!r} is {type(text).__name__}")
    return [str(text) for text in texts]
