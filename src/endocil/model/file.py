"""The file of a model: a zip without compression whose comment is the sha256 of everything before it.

A single wrong bit is detected before anything is parsed, nothing can unpack to more than the file's own size, and the
digest identifies the model. Inside:

    manifest.json                               manifest.py
    weights.safetensors                         method/..., statistics/... (class means), spread/... (of features),
                                                exemplars/... (rows that the method keeps with each exemplar)
    exemplars.csv, exemplars/000000.png, ...    provenance (patient, source, licence, ...) and lossless pixels
    held-out.csv, held-out/000000.png, ...      the same for the held-out images

Only these names are accepted. Nothing is extracted to the disk, and no network is built here (restore.py does that):
parts that do not fit together are refused first.
"""

import csv
import hashlib
import io
import json
import re
import struct
import warnings
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import astuple, dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Literal, NoReturn

import numpy as np
import torch
from PIL import Image
from pydantic import ValidationError
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from endocil.data.scenario import Task
from endocil.errors import FileFormatError
from endocil.io.files import (
    ENCODING,
    ENCODING_ERRORS,
    LARGEST,
    UnfitFileError,
    csv_text,
    original,
    read_whole,
    write_atomically,
)
from endocil.io.terminal import one_line, printable, refuse_control, refuse_control_in
from endocil.learning.memory import KeptImages, Provenance, no_images
from endocil.model.manifest import FORMAT, LONGEST_CELL, Manifest
from endocil.model.out_of_distribution import wrong_shapes
from endocil.settings.settings import Settings, load_settings, resume_command

Kind = Literal["exemplars", "held-out"]
MANIFEST, WEIGHTS = "manifest.json", "weights.safetensors"
RUN_MODEL = "model.endocil"  # in the folder of a finished run
LARGEST_MANIFEST = 8 * 2**20  # bytes; as objects of Python they take many times as much
MOST_BYTES = 2 * LARGEST  # of all pixels of a kind: a small file of PNGs can claim to hold far more
_NAMES = re.compile(r"manifest\.json|weights\.safetensors|(exemplars|held-out)(\.csv|/\d{6}\.png)")
_DIGITS = 64  # of a sha256
_WHEN = (1980, 1, 1, 0, 0, 0)  # the same content gives the same bytes
_BROKEN = (
    SafetensorError,
    ArithmeticError,
    EOFError,
    LookupError,
    OSError,
    RuntimeError,  # RecursionError and NotImplementedError too
    SyntaxError,  # Pillow's, of a broken PNG
    TypeError,
    ValueError,
    Image.DecompressionBombError,
    Image.DecompressionBombWarning,
    csv.Error,
    struct.error,
    zipfile.BadZipFile,
)


class _RefusedError(FileFormatError):
    """An error whose message is complete: no file name is added."""


@dataclass(frozen=True, eq=False)
class ModelFile:
    """What lies in the file of a model, read and checked; no network is built yet."""

    manifest: Manifest
    state: Mapping[str, Tensor]  # of the method
    statistics: Mapping[str, Tensor]  # class means and the like
    exemplars: KeptImages
    held_out: KeptImages
    digest: str = ""  # of the file it was read from
    spread: Mapping[str, Tensor] = field(default_factory=dict)  # of the learned features: out_of_distribution.py

    @cached_property
    def settings(self) -> Settings:
        return load_settings(self.manifest.settings)

    @property
    def classes(self) -> tuple[str, ...]:
        return self.manifest.class_names

    @property
    def tasks(self) -> tuple[Task, ...]:
        return self.manifest.tasks


def model_path(path: Path) -> Path:
    """The model file itself, or that in the folder of a finished run."""
    if not path.is_dir():
        return path
    inside = path / RUN_MODEL
    if inside.is_file():
        return inside
    if (path / "settings.toml").is_file():
        raise FileFormatError(
            f"the run {path} has no {RUN_MODEL}: it is not finished, was imported, or was made by endocil 0.1; "
            f"continue with '{resume_command(path)}', or run it again"
        )
    raise FileFormatError(f"{path} is a folder without a model; expected a model file or the folder of a run")


def write_model_file(path: Path, content: ModelFile) -> str:
    """Write the model file atomically; returns its digest."""
    _refuse_unfit(content)
    text = json.dumps(content.manifest.model_dump(mode="json"), indent=2, allow_nan=False)
    if len(text) > LARGEST_MANIFEST:
        raise FileFormatError(
            f"the model's {MANIFEST} would have {len(text):,} bytes; at most {LARGEST_MANIFEST:,} can be read"
        )
    files = {
        MANIFEST: text.encode(),
        WEIGHTS: _tensor_bytes(content),
        **_pack("exemplars", content.exemplars),
        **_pack("held-out", content.held_out),
    }
    return write_archive(path, files)


def _tensor_bytes(content: ModelFile) -> bytes:
    parts = {
        "method": content.state,
        "statistics": content.statistics,
        "spread": content.spread,
        "exemplars": content.exemplars.tensors,
    }
    tensors, storages = dict[str, Tensor](), set[int]()
    for part, values in parts.items():
        for name, value in values.items():
            tensor = value.detach().cpu().contiguous()
            storage = tensor.untyped_storage().data_ptr()
            tensors[f"{part}/{name}"] = tensor.clone() if storage in storages else tensor  # safetensors refuses shared
            storages.add(storage)
    return save_tensors(tensors)


def read_model_file(path: Path | str) -> ModelFile:
    """Read and check a model file. Runs none of its content as code; anything unexpected is refused in one line."""
    path = model_path(Path(path))
    files, digest = read_archive(path)
    try:
        manifest = _manifest(path, _required(files, MANIFEST))
        parts: dict[str, dict[str, Tensor]] = {"method": {}, "statistics": {}, "spread": {}, "exemplars": {}}
        for name, value in load_tensors(_required(files, WEIGHTS)).items():
            part, _, key = name.partition("/")
            if part not in parts:
                raise ValueError(f"{WEIGHTS} holds {name[:80]!a}, which no model has")
            parts[part][key] = value
        size = manifest.preprocessing.size
        exemplars, held_out = (_unpack(kind, files, size) for kind in ("exemplars", "held-out"))
        exemplars = replace(exemplars, tensors=parts["exemplars"])
        content = ModelFile(
            manifest, parts["method"], parts["statistics"], exemplars, held_out, digest, parts["spread"]
        )
        _refuse_unfit(content)
        data, recorded = content.settings.data, manifest.preprocessing
        if (data.size, data.crop_frame, data.fit) != (size, recorded.crop_frame, recorded.fit):
            raise FileFormatError("its settings and its preprocessing name different sizes, frames or ways to fit")
        return content
    except _RefusedError:
        raise
    except _BROKEN as error:  # a FileFormatError is a ValueError
        raise FileFormatError(f"the model {path} is damaged: {_one_line(error)}") from error


def _manifest(path: Path, text: bytes) -> Manifest:
    if len(text) > LARGEST_MANIFEST:
        raise ValueError(f"{MANIFEST} has {len(text):,} bytes; at most {LARGEST_MANIFEST:,} are read")
    values = json.loads(text, parse_constant=_refuse_constant)
    format_ = values.get("format") if isinstance(values, dict) else None
    if isinstance(format_, int) and format_ != FORMAT:
        way_out = "update endocil" if format_ > FORMAT else "make it again from its run, or use endocil 0.1"
        raise _RefusedError(
            f"the model {path} has format {str(format_)[:20]}; this version of endocil reads {FORMAT}: {way_out}"
        )
    refuse_control_in(MANIFEST, values)
    try:
        return Manifest.model_validate(values)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        place = ".".join([MANIFEST, *(str(part)[:50] for part in first["loc"])])
        raise ValueError(f"{place}: {first['msg']}") from None


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{MANIFEST} has {name}, which is no number")


def _required(files: Mapping[str, bytes], name: str) -> bytes:
    if name not in files:
        raise ValueError(f"it has no {name}")
    return files[name]


def _one_line(error: BaseException) -> str:
    """What an error says, as harmless text of bounded length."""
    return printable(one_line(error)[:300]).encode("ascii", "backslashreplace").decode()


# --- parts that do not fit together


def _refuse_unfit(content: ModelFile) -> None:
    """Each refusal says what is wrong, without the name of the file."""
    manifest, classes, n_tasks = content.manifest, set(content.classes), len(content.tasks)
    refuse_control_in(MANIFEST, manifest.model_dump(mode="json"))
    for name in (*content.statistics, *content.exemplars.tensors):  # weights have the names of the network's own
        refuse_control("the name of a statistic", name)
    for name, values in content.exemplars.tensors.items():
        if not values.ndim or len(values) != len(content.exemplars):
            raise FileFormatError(
                f"{name[:80]!a} of shape {tuple(values.shape)} is not kept with {len(content.exemplars)} exemplars"
            )
    if not manifest.keeps_images and (len(content.exemplars) or len(content.held_out)):
        raise FileFormatError("the model says that no image is inside, but holds some")
    for kind, images in (("exemplars", content.exemplars), ("held-out", content.held_out)):
        for one in images.provenance:
            for name, value in vars(one).items():
                refuse_control(f"{kind}.csv, {name}", str(value))
            if one.class_name not in classes:
                raise FileFormatError(
                    f"{kind}: images of {one.class_name[:80]!a}, which is none of the {len(classes)} classes"
                )
            if one.task >= n_tasks:
                raise FileFormatError(f"{kind}: an image of a task that was never learned; there were {n_tasks}")
    if content.spread and (wrong := wrong_shapes(content.spread, len(content.classes))):
        raise FileFormatError(wrong)
    for part in (content.state, content.statistics, content.spread, content.exemplars.tensors):
        broken = [name for name, value in part.items() if not _is_finite(value)]
        if broken:
            raise FileFormatError(f"numbers that are not finite in {broken[0][:80]!a}")


def _is_finite(values: Tensor) -> bool:
    """A finite sum has finite terms; an infinite one may have overflowed."""
    return bool(values.sum().isfinite()) or bool(values.isfinite().all())


# --- the zip


def write_archive(path: Path, content: Mapping[str, bytes]) -> str:
    """Write the complete file or none; its digest."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for name, data in content.items():
            assert _NAMES.fullmatch(name), name
            archive.writestr(zipfile.ZipInfo(name, _WHEN), data)
        archive.comment = b"0" * _DIGITS
    body = file.getbuffer()[:-_DIGITS]  # not a copy: the sums of a method may take hundreds of megabytes
    if len(body) + _DIGITS > LARGEST:
        raise FileFormatError(f"the model would have {len(body):,} bytes; at most {LARGEST:,} can be read again")
    digest = hashlib.sha256(body).hexdigest()
    write_atomically(path, body, digest.encode())
    return digest


def read_archive(path: Path) -> tuple[dict[str, bytes], str]:
    """The content by name, and the digest; a damaged or foreign file is refused in one line."""
    try:
        data = read_whole(path)
    except FileNotFoundError as error:
        raise FileFormatError(
            f"there is no model {path}; expected a model file (.endocil) or the folder of a finished run"
        ) from error
    except UnfitFileError as error:
        raise FileFormatError(f"{path} is not a model file: {error.strerror}") from error
    except OSError as error:
        raise FileFormatError(f"the model {path} cannot be read: {error.strerror or error}") from error
    body, digest = memoryview(data)[:-_DIGITS], data[-_DIGITS:]
    if not zipfile.is_zipfile(io.BytesIO(data)) or not re.fullmatch(rb"[0-9a-f]{64}", digest):
        raise FileFormatError(
            f"{path} is not a model file, or was cut; make one with 'endocil bundle RUN -o {path.name}'"
        )
    if hashlib.sha256(body).hexdigest().encode() != digest:
        raise FileFormatError(f"the model {path} is damaged: its checksum is wrong; fetch it again from where it came")
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            entries = archive.infolist()
            _refuse_strange(path, entries, len(data))
            return {entry.filename: archive.read(entry) for entry in entries}, digest.decode()
    except FileFormatError:  # a ValueError too
        raise
    except _BROKEN as error:
        raise FileFormatError(f"the model {path} is damaged: {_one_line(error)}") from error


def _refuse_strange(path: Path, entries: list[zipfile.ZipInfo], size: int) -> None:
    """What no model has: other names, a name twice, compression, encryption, more bytes than the file."""
    names = [entry.filename for entry in entries]
    strange = [name for name in names if not _NAMES.fullmatch(name)]
    if strange:
        raise FileFormatError(f"the model {path} holds {strange[0][:80]!a}, which no model has; it is refused")
    if len(set(names)) < len(names):
        raise FileFormatError(f"the model {path} holds a file twice; it is refused")
    for entry in entries:
        if entry.compress_type != zipfile.ZIP_STORED or entry.flag_bits & 1 or entry.file_size != entry.compress_size:
            raise FileFormatError(f"the model {path} holds {entry.filename} compressed or encrypted; it is refused")
    if sum(entry.file_size for entry in entries) > size:
        raise FileFormatError(f"the model {path} claims to hold more bytes than it has; it is refused")


# --- the images


def _pack(kind: Kind, images: KeptImages) -> dict[str, bytes]:
    """Files of an archive: a table, and a PNG for each of its rows; nothing without images."""
    if not len(images):
        return {}
    if images.pixels.numel() > MOST_BYTES:
        raise FileFormatError(
            f"{len(images):,} {kind} images are {images.pixels.numel():,} bytes; at most {MOST_BYTES:,} can be "
            f"read again: keep fewer"
        )
    text = csv_text([[field.name for field in fields(Provenance)], *map(astuple, images.provenance)])
    files = {f"{kind}.csv": text.encode(ENCODING, ENCODING_ERRORS)}
    for row, pixels in enumerate(images.pixels.numpy()):
        png = io.BytesIO()
        Image.fromarray(pixels).save(png, "PNG", compress_type=zlib.Z_RLE)  # a third of the time, 1 % larger
        files[f"{kind}/{row:06d}.png"] = png.getvalue()
    return files


def _unpack(kind: Kind, files: Mapping[str, bytes], size: int) -> KeptImages:
    """The images of an archive; raises ValueError with the reason where they are not as `_pack` writes them."""
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
        raise ValueError(f"{len(provenance):,} {kind} images of {size} x {size} take more than {MOST_BYTES:,} bytes")
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
    texts = ([original(cell) for cell in row] for row in rows)
    provenance = tuple(Provenance(row[0], row[1], int(row[2]), int(row[3]), *row[4:]) for row in texts)
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
