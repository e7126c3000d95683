"""What is to be predicted: files, folders, lists, pictures in memory, into names and a reader of their pixels."""

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
from endocil.data.frame import Cropped, WholeReader, cropped
from endocil.data.lists import ROLES
from endocil.data.readers import read_in_chunks
from endocil.data.table import ImageTable, Reader, UnreadableImageError
from endocil.errors import EndocilError
from endocil.io.archives import is_hidden, is_image
from endocil.io.files import read_fields
from endocil.io.walk import walk

DICOM = (".dcm", ".dicom")
LISTS = (".csv", ".tsv", ".txt")
Picture = Image.Image | np.ndarray
Wanted = str | Path | ImageTable | Sequence[Any]


@dataclass(frozen=True)
class Inputs:
    """Images by their ids in a reader, and the names that people know them by."""

    ids: tuple[str, ...]
    names: tuple[str, ...]
    reader: Reader
    files: tuple[Path, ...] = ()  # what is read, and so must not be written


@dataclass(frozen=True)
class _Several:
    """Files, frames of DICOM files and pictures, each by its number."""

    things: tuple[Any, ...]  # a path, or a picture

    in_processes = False

    def read(self, image_id: str, size: int) -> np.ndarray:
        thing = self.things[int(image_id)]
        with _unreadable():
            if isinstance(thing, str):
                return _reader_of(thing).read(thing, size)
            return np.asarray(_upright(thing).resize((size, size), BILINEAR))

    def whole(self, image_id: str) -> Image.Image:
        thing = self.things[int(image_id)]
        with _unreadable():
            return _reader_of(thing).whole(thing) if isinstance(thing, str) else _upright(thing)

    def fingerprint(self, ids: Sequence[str]) -> str:
        raise AssertionError("pictures to be predicted are not kept")


@dataclass(frozen=True)
class _Frames(_Several):
    """Much of reading DICOM is Python: processes do it."""

    in_processes = True


def inputs_of(wanted: Wanted, *, crop_frame: bool) -> Inputs:
    """An image file, a folder, a CSV file, a sequence of paths and pictures, or a table."""
    if isinstance(wanted, ImageTable):
        table = cropped(wanted) if crop_frame else wanted
        return Inputs(table.ids, table.ids, table.reader)
    if isinstance(wanted, str | Path):
        found, files = _found(Path(wanted))
    else:
        found, files = [pair for i, thing in enumerate(wanted) for pair in _named(i, thing)], []
    if not found:
        raise EndocilError("there are no images to predict")
    things = tuple(thing for _, thing in found)
    dicom = any(isinstance(thing, str) and _is_dicom(thing) for thing in things)
    reader: WholeReader = (_Frames if dicom else _Several)(things)
    files += [_reader_of(thing).path(thing) for thing in things if isinstance(thing, str)]
    ids = tuple(str(i) for i in range(len(things)))
    return Inputs(
        ids, tuple(name for name, _ in found), Cropped(reader) if crop_frame else reader, tuple(files)
    )


def _found(path: Path) -> tuple[list[tuple[str, str]], list[Path]]:
    """(name, path) of each image, and the list that names them."""
    if path.is_dir():
        return _below(path), []
    if not path.exists():
        raise EndocilError(f"{path} does not exist; give an image, a folder of images or a CSV file")
    if path.suffix.lower() in LISTS:
        return _listed(path), [path]
    return _frames(str(path), path.name), []


def _below(folder: Path) -> list[tuple[str, str]]:
    """Images and DICOM files at any depth, named by their path in the folder."""
    found = []
    for place in walk(folder):
        for name in place.files if not place.known else ():
            if is_image(name) or (_is_dicom(name) and not is_hidden(name)):
                found += _frames(os.path.join(place.path, name), "/".join((*place.parts, name)))
    if not found:
        raise EndocilError(f"the folder {folder} holds no image")
    return found


def _listed(file: Path) -> list[tuple[str, str]]:
    """The images of a list; its paths start at the list's own folder, unless they are absolute."""
    lines = read_fields(file, ",;\t", any_bytes=True)
    header = [name.strip().lower().replace("_", "").replace(" ", "") for name in lines[0][1]] if lines else []
    columns = [header.index(name) for name in ROLES["path"] if name in header]
    if not columns:
        raise EndocilError(f"{file} has no column of paths; name one of its columns 'path' or 'image'")
    names = []
    for number, fields in lines[1:]:
        if len(fields) != len(header) or not fields[columns[0]].strip():
            raise EndocilError(f"{file}, line {number}: expected {len(header)} fields, a path among them")
        names.append(fields[columns[0]].strip())
    return [pair for name in dict.fromkeys(names) for pair in _frames(str(_path(file, name)), name)]


def _path(file: Path, name: str) -> Path:
    written = file.parent / name
    return written if written.exists() else file.parent / name.replace("\\", "/")


def _named(number: int, thing: object) -> list[tuple[str, Any]]:
    if isinstance(thing, str | os.PathLike):
        if os.path.isdir(thing):
            raise EndocilError(f"{os.fspath(thing)} is a folder among several images; give it alone")
        return list(_frames(os.fspath(thing), os.fspath(thing)))
    if isinstance(thing, Image.Image):
        return [(str(number), thing)]
    if isinstance(thing, np.ndarray) and thing.dtype == np.uint8 and thing.ndim == 3 and thing.shape[2] == 3:
        return [(str(number), thing)]
    kind = f"{thing.dtype} of {thing.shape}" if isinstance(thing, np.ndarray) else type(thing).__name__
    raise EndocilError(
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
def _unreadable() -> Iterator[None]:
    """Whatever keeps one image from being read (a disk, a package that is missing) is said of that image alone."""
    try:
        yield
    except UnreadableImageError:
        raise
    except (EndocilError, OSError, SyntaxError, ValueError) as error:
        raise UnreadableImageError(one_line(error)) from error


def _reader_of(path: str) -> FileReader | DicomReader:
    return DicomReader(Path()) if _is_dicom(path) else FileReader(Path())


def _upright(picture: Picture) -> Image.Image:
    whole = picture if isinstance(picture, Image.Image) else Image.fromarray(picture)
    return to_rgb(ImageOps.exif_transpose(whole))


def folder_or_list(path: Path, what: str) -> dict[str, Any]:
    """The [data] section of labelled images: a folder with a folder for each class, or a CSV list."""
    if path.is_dir():
        return {"name": "folder", "root": str(path)}
    if path.is_file() and path.suffix.lower() in LISTS:
        return {"name": "csv", "file": str(path)}
    trouble = "is no folder and no list" if path.exists() else "is not there"
    raise EndocilError(
        f"the {what} images {path}: {trouble}; expected a folder with a folder of images for each class, or a CSV "
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
