"""Images from a user: files, folders, lists and images in memory, as names and a reader of their pixels."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageOps

from endocil.data.decode import BILINEAR, FileReader, one_line, to_rgb
from endocil.data.dicom import DicomReader, count_frames, read_header
from endocil.data.frame import Cropped, cropped
from endocil.data.lists import LIST_SUFFIXES, read_list
from endocil.data.readers import read_in_chunks
from endocil.data.table import ImageTable, Reader, UnreadableImageError, WholeReader
from endocil.errors import DataError, EndocilError
from endocil.io.walk import is_hidden, is_image, walk

DICOM = (".dcm", ".dicom")
Picture = Image.Image | np.ndarray
Wanted = str | Path | ImageTable | Sequence[Any]


@dataclass(frozen=True)
class Inputs:
    """Images by their ids in a reader, and by the names that people know."""

    ids: tuple[str, ...]
    names: tuple[str, ...]
    reader: Reader
    files: tuple[Path, ...] = ()  # are read, and so must not be overwritten


@dataclass(frozen=True)
class _MixedReader:
    """Files, frames of DICOM files and images in memory, each by its number."""

    items: tuple[Any, ...]  # paths and images

    in_processes = False

    def read(self, image_id: str, size: int) -> np.ndarray:
        item = self.items[int(image_id)]
        with _as_unreadable():
            if isinstance(item, str):
                return _file_reader(item).read(item, size)
            return np.asarray(_upright(item).resize((size, size), BILINEAR))

    def whole(self, image_id: str) -> Image.Image:
        item = self.items[int(image_id)]
        with _as_unreadable():
            return _file_reader(item).whole(item) if isinstance(item, str) else _upright(item)

    def fingerprint(self, ids: Sequence[str]) -> str:
        raise AssertionError("these images are never cached")


@dataclass(frozen=True)
class _MixedDicomReader(_MixedReader):
    """Much of reading DICOM is Python: processes do it."""

    in_processes = True


def inputs_of(wanted: Wanted, *, crop_frame: bool) -> Inputs:
    """An image file, a folder, a list, a sequence of paths and images, or a table."""
    if isinstance(wanted, ImageTable):
        table = cropped(wanted) if crop_frame else wanted
        return Inputs(table.ids, table.ids, table.reader)
    if isinstance(wanted, str | Path):
        named, files = _images_at(Path(wanted))
    else:
        named, files = [pair for i, item in enumerate(wanted) for pair in _item(i, item)], []
    if not named:
        raise DataError("there are no images to predict")
    items = tuple(item for _, item in named)
    dicom = any(isinstance(item, str) and _is_dicom(item) for item in items)
    reader: WholeReader = (_MixedDicomReader if dicom else _MixedReader)(items)
    files += [_file_reader(item).path(item) for item in items if isinstance(item, str)]
    return Inputs(
        ids=tuple(str(i) for i in range(len(items))),
        names=tuple(name for name, _ in named),
        reader=Cropped(reader) if crop_frame else reader,
        files=tuple(files),
    )


def _images_at(path: Path) -> tuple[list[tuple[str, str]], list[Path]]:
    """(name, path) of each image, and the list that names them, if there is one."""
    if path.is_dir():
        return _below(path), []
    if not path.exists():
        raise DataError(f"{path} does not exist; give an image, a folder of images or a CSV file")
    if path.suffix.lower() in LIST_SUFFIXES:
        return _listed(path), [path]
    return _frames(str(path), path.name), []


def _below(folder: Path) -> list[tuple[str, str]]:
    """Images and DICOM files at any depth, named by their path in the folder."""
    named = []
    for place in walk(folder):
        for name in place.files if not place.known else ():
            if is_image(name) or (_is_dicom(name) and not is_hidden(name)):
                named += _frames(os.path.join(place.path, name), "/".join((*place.parts, name)))
    if not named:
        raise DataError(f"the folder {folder} holds no image")
    return named


def _listed(file: Path) -> list[tuple[str, str]]:
    """The images of a list; its paths start at the list's own folder, unless they are absolute."""
    names = []
    for row in read_list(file, roles=("path", "frame"), required=("path",), outside=True):
        one_frame = row.frame >= 0 and _is_dicom(
            row.path
        )  # elsewhere the number only tells which frame it is
        names.append(f"{row.path}#{row.frame}" if one_frame else row.path)
    return [pair for name in dict.fromkeys(names) for pair in _frames(str(file.parent / name), name)]


def _item(number: int, item: object) -> list[tuple[str, Any]]:
    if isinstance(item, str | os.PathLike):
        if os.path.isdir(item):
            raise DataError(f"{os.fspath(item)} is a folder among several images; give it alone")
        return list(_frames(os.fspath(item), os.fspath(item)))
    if isinstance(item, Image.Image):
        return [(str(number), item)]
    if isinstance(item, np.ndarray) and item.dtype == np.uint8 and item.ndim == 3 and item.shape[2] == 3:
        return [(str(number), item)]
    kind = f"{item.dtype} of {item.shape}" if isinstance(item, np.ndarray) else type(item).__name__
    raise DataError(
        f"image {number} is {kind}; expected a path, a PIL image or a uint8 array (height, width, 3)"
    )


def _frames(path: str, name: str) -> list[tuple[str, str]]:
    """The file, or each frame of a DICOM file that has several; one that cannot be read stays one image."""
    if not _is_dicom(path):
        return [(name, path)]
    try:
        n = count_frames(Path(path), read_header(Path(path)))
    except EndocilError:  # or without pydicom
        n = 1
    return [(name, path)] if n == 1 else [(f"{name}#{i}", f"{path}#{i}") for i in range(1, n + 1)]


def _is_dicom(path: str) -> bool:
    """By its ending; a frame's number may stand behind it."""
    return path.lower().rpartition("#")[0].endswith(DICOM) or path.lower().endswith(DICOM)


@contextmanager
def _as_unreadable() -> Iterator[None]:
    """Any reason that keeps one image from being read (a disk, a missing package) concerns that image alone."""
    try:
        yield
    except UnreadableImageError:
        raise
    except (EndocilError, OSError, SyntaxError, ValueError) as error:
        raise UnreadableImageError(one_line(error)) from error


def _file_reader(path: str) -> FileReader | DicomReader:
    return DicomReader(Path()) if _is_dicom(path) else FileReader(Path())


def _upright(image: Picture) -> Image.Image:
    whole = image if isinstance(image, Image.Image) else Image.fromarray(image)
    return to_rgb(ImageOps.exif_transpose(whole))


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


# Images, classes and groups as they are given from Python, into a table and pixels.

ImageInputs = np.ndarray | Sequence[Any]  # (n, H, W, 3) uint8, or a sequence of arrays, PIL images and paths
Texts = np.ndarray | Sequence[str]


def read_arrays(
    images: ImageInputs,
    labels: Texts,
    groups: Texts | None,
    sources: Texts | None,
    *,
    task: int,
    size: int,
    crop_frame: bool,
) -> tuple[ImageTable, torch.Tensor]:
    """`task`: names the images that have no name."""
    things = several(images)
    inputs = inputs_of(things, crop_frame=crop_frame) if len(things) else None
    n = len(inputs.ids) if inputs else 0
    for what, given in (("labels", labels), ("groups", groups), ("sources", sources)):
        if given is not None and len(given) != n:
            raise EndocilError(f"{n} images, but {len(given)} {what}; give one for each image")
    if inputs is None:
        raise EndocilError("there are no images to learn from")
    names = _texts(labels, "labels are the names of classes")
    if not all(names):
        raise EndocilError("labels are the names of classes: a text for each image, and none is empty")
    classes = tuple(sorted(set(names)))
    table = ImageTable(
        ids=_ids(things, inputs, task),
        labels=np.array([classes.index(name) for name in names], np.int64),
        classes=classes,
        reader=inputs.reader,
        groups=("",) * n if groups is None else _texts(groups, "groups are names of patients or videos"),
        sources=("",) * n if sources is None else _texts(sources, "sources are names of devices or centres"),
    )
    return table, _pixels(inputs, size)


def several(images: ImageInputs) -> Sequence[Any]:
    """Each on its own; a single array is a stack of pictures."""
    if isinstance(images, np.ndarray):
        if images.ndim != 4 or images.shape[3] != 3 or images.dtype != np.uint8:
            raise EndocilError(
                f"images are {images.dtype} of shape {images.shape}; expected uint8 (n, height, width, 3)"
            )
        return list(images)
    if isinstance(images, str | os.PathLike):
        raise EndocilError(f"images is the path {images}; expected a sequence of paths, pictures or arrays")
    return list(images)


def _ids(things: Sequence[Any], inputs: Inputs, task: int) -> tuple[str, ...]:
    """A path is its own name; a picture is named by the task and its number."""
    if len(things) != len(inputs.names):  # a file of several frames
        return inputs.names
    return tuple(
        name if isinstance(thing, str | os.PathLike) else f"task-{task}/{number:06d}"
        for number, (thing, name) in enumerate(zip(things, inputs.names, strict=True))
    )


def _pixels(inputs: Inputs, size: int) -> torch.Tensor:
    parts = []
    for pixels, failed in read_in_chunks(inputs.reader, inputs.ids, size, workers=os.cpu_count() or 1):
        if failed:
            number, reason = failed[0]
            raise EndocilError(f"the image {inputs.names[int(number)]} cannot be read: {reason}")
        parts.append(torch.from_numpy(np.array(pixels)))
    return torch.cat(parts)


def _texts(given: Texts, meaning: str) -> tuple[str, ...]:
    """Plain texts, also of an array of numpy."""
    for one in given:
        if not isinstance(one, str):
            raise EndocilError(f"{meaning}: a text for each image, but {one!r} is {type(one).__name__}")
    return tuple(str(one) for one in given)
