"""The file of a model: a zip without compression whose comment is the sha256 of everything before it.

So a single wrong bit is seen before anything is read, nothing can unpack to more than the file's own size, and
the digest names the model. Only known names are accepted; nothing is ever extracted to the disk.
"""

import csv
import hashlib
import io
import json
import re
import struct
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any, NoReturn

import torch
from PIL import Image
from pydantic import ValidationError
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from endocil.data.augment import DEVIATION, MEAN
from endocil.data.scenario import Task
from endocil.errors import FileFormatError
from endocil.io.files import LARGEST, UnfitFileError, read_whole, write_atomically
from endocil.io.terminal import printable, refuse_control, refuse_control_in
from endocil.learning.memory import KeptImages
from endocil.model.images import pack, refuse_unknown, unpack
from endocil.model.manifest import FORMAT, Manifest
from endocil.model.out_of_distribution import MEANS, WHITENING
from endocil.settings.settings import Settings, load_settings

MANIFEST, WEIGHTS = "manifest.json", "weights.safetensors"
RUN_MODEL = "model.endocil"  # in the folder of a finished run
_NAMES = re.compile(r"manifest\.json|weights\.safetensors|(exemplars|held-out)(\.csv|/\d{6}\.png)")
_DIGITS = 64  # of a sha256
_WHEN = (1980, 1, 1, 0, 0, 0)  # the same content gives the same bytes
_BROKEN = (
    zipfile.BadZipFile,
    OSError,
    ValueError,
    KeyError,
    EOFError,
    NotImplementedError,
    RuntimeError,
    struct.error,
)


def write_archive(path: Path, content: Mapping[str, bytes]) -> str:
    """Write the file whole or not at all; its digest."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for name, data in content.items():
            assert _NAMES.fullmatch(name), name
            archive.writestr(zipfile.ZipInfo(name, _WHEN), data)
        archive.comment = b"0" * _DIGITS
    body = file.getvalue()[:-_DIGITS]
    if len(body) + _DIGITS > LARGEST:
        raise FileFormatError(
            f"the model would have {len(body):,} bytes; at most {LARGEST:,} can be read again"
        )
    digest = hashlib.sha256(body).hexdigest()
    write_atomically(path, body + digest.encode())
    return digest


def read_archive(path: Path) -> tuple[dict[str, bytes], str]:
    """The content by name, and the digest; a damaged or foreign file is refused in one line."""
    data = _bytes(path)
    body, digest = data[:-_DIGITS], data[-_DIGITS:]
    if not zipfile.is_zipfile(io.BytesIO(data)) or not re.fullmatch(rb"[0-9a-f]{64}", digest):
        raise FileFormatError(
            f"{path} is not a model file, or was cut; make one with 'endocil bundle RUN -o {path.name}'"
        )
    if hashlib.sha256(body).hexdigest().encode() != digest:
        raise FileFormatError(
            f"the model {path} is damaged: its checksum is wrong; fetch it again from where it came"
        )
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            entries = archive.infolist()
            _refuse_strange(path, entries, len(data))
            return {entry.filename: archive.read(entry) for entry in entries}, digest.decode()
    except FileFormatError:  # a ValueError too
        raise
    except _BROKEN as error:
        raise FileFormatError(f"the model {path} is damaged: {_line(error)}") from error


def _bytes(path: Path) -> bytes:
    try:
        return read_whole(path)
    except FileNotFoundError as error:
        raise FileFormatError(f"there is no model {path}") from error
    except UnfitFileError as error:
        raise FileFormatError(f"{path} is not a model file: {error.strerror}") from error
    except OSError as error:
        raise FileFormatError(f"the model {path} cannot be read: {error.strerror or error}") from error


def _refuse_strange(path: Path, entries: list[zipfile.ZipInfo], size: int) -> None:
    """What no model has: other names, a name twice, compression, encryption, more bytes than the file."""
    names = [entry.filename for entry in entries]
    strange = [name for name in names if not _NAMES.fullmatch(name)]
    if strange:
        raise FileFormatError(
            f"the model {path} holds {_shown(strange[0])}, which no model has; it is refused"
        )
    if len(set(names)) < len(names):
        raise FileFormatError(f"the model {path} holds a file twice; it is refused")
    for entry in entries:
        if (
            entry.compress_type != zipfile.ZIP_STORED
            or entry.flag_bits & 1
            or entry.file_size != entry.compress_size
        ):
            raise FileFormatError(
                f"the model {path} holds {entry.filename} compressed or encrypted; it is refused"
            )
    if sum(entry.file_size for entry in entries) > size:
        raise FileFormatError(f"the model {path} claims to hold more bytes than it has; it is refused")


def _shown(name: str) -> str:
    """A name from outside, as harmless text of bounded length."""
    return repr(name[:80].encode("ascii", "backslashreplace").decode())


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__


# Parts of a model that do not fit together are refused before a network of any size is built.


def refuse_parts_that_do_not_fit(
    manifest: Manifest,
    state: Mapping[str, Tensor],
    statistics: Mapping[str, Tensor],
    spread: Mapping[str, Tensor],
    exemplars: KeptImages,
    held_out: KeptImages,
) -> None:
    """Each refusal says what is wrong, without the name of the file."""
    _refuse_control(manifest, statistics, exemplars, held_out)
    if not manifest.keeps_images and (len(exemplars) or len(held_out)):
        raise FileFormatError("the model says that no image is inside, but holds some")
    _refuse_tasks(manifest)
    _refuse_preprocessing(manifest)
    names = [learned.name for learned in manifest.classes]
    refuse_unknown("exemplars", exemplars, names, len(manifest.increments))
    refuse_unknown("held-out", held_out, names, len(manifest.increments))
    _refuse_spread(spread, len(names))
    for part in (state, statistics, spread):
        broken = [name for name, value in part.items() if not bool(value.isfinite().all())]
        if broken:
            raise FileFormatError(f"numbers that are not finite in {broken[0][:80]!a}")


def _refuse_control(
    manifest: Manifest, statistics: Mapping[str, Tensor], exemplars: KeptImages, held_out: KeptImages
) -> None:
    """Weights have the names of the network's own."""
    refuse_control_in("manifest.json", manifest.model_dump(mode="json"))
    for name in statistics:
        refuse_control("the name of a statistic", name)
    for kind, images in (("exemplars.csv", exemplars), ("held-out.csv", held_out)):
        for one in images.provenance:
            for name, value in vars(one).items():
                refuse_control(f"{kind}, {name}", str(value))


def _refuse_spread(spread: Mapping[str, Tensor], n: int) -> None:
    """Whether it fits the network's features is seen once there is a network."""
    if not spread:
        return
    if set(spread) != {MEANS, WHITENING}:
        raise FileFormatError(f"a spread of {sorted(spread)[:5]!a}; expected {MEANS} and {WHITENING}")
    d = spread[MEANS].shape[-1] if spread[MEANS].ndim else 0
    for name, shape in ((MEANS, (n, d)), (WHITENING, (d, d))):
        found = spread[name]
        if tuple(found.shape) != shape or found.dtype != torch.float32:
            raise FileFormatError(f"the spread's {name} is {found.dtype} of shape {tuple(found.shape)}")


def _refuse_tasks(manifest: Manifest) -> None:
    names, sizes = [learned.name for learned in manifest.classes], manifest.increments
    if len(set(names)) < len(names):
        raise FileFormatError("a class is there twice")
    if sum(sizes) != len(names):
        raise FileFormatError(f"{len(names)} classes, but tasks of {list(sizes)[:10]}")
    tasks = [task for task, size in enumerate(sizes) for _ in range(size)]
    if [learned.task for learned in manifest.classes] != tasks:
        raise FileFormatError("the classes do not stand in the order of their tasks")


def _refuse_preprocessing(manifest: Manifest) -> None:
    said, settings = manifest.preprocessing, load_settings(manifest.settings)
    if (settings.data.size, settings.data.crop_frame) != (said.size, said.crop_frame):
        raise FileFormatError("its settings and its preprocessing name different sizes or frames")
    if (said.mean, said.deviation) != (MEAN, DEVIATION):
        raise FileFormatError(
            f"images are normalised by {said.mean} and {said.deviation}; this version of endocil knows "
            f"{MEAN} and {DEVIATION}"
        )


# A model: a learned model with all it needs to predict, to answer for itself, and to learn on.

LARGEST_MANIFEST = 8 * 2**20  # bytes; as objects of Python they take many times as much
_PARTS = ("method", "statistics", "spread")
_UNFIT = (
    SafetensorError,
    ArithmeticError,
    LookupError,
    OSError,
    RuntimeError,  # RecursionError too
    SyntaxError,  # Pillow's, of a broken PNG
    TypeError,
    ValueError,
    Image.DecompressionBombError,
    Image.DecompressionBombWarning,
    csv.Error,
)


@dataclass(frozen=True, eq=False)
class ModelFile:
    """What lies in the file of a model, read and checked; no network is built yet."""

    manifest: Manifest
    state: Mapping[str, Tensor]  # of the method
    statistics: Mapping[str, Tensor]  # class means and the like
    exemplars: KeptImages
    held_out: KeptImages
    digest: str = ""  # of the file it was read from
    spread: Mapping[str, Tensor] = field(
        default_factory=dict
    )  # of the exemplars' features: out_of_distribution.py

    @property
    def settings(self) -> Settings:
        return load_settings(self.manifest.settings)

    @property
    def classes(self) -> tuple[str, ...]:
        return tuple(learned.name for learned in self.manifest.classes)

    @property
    def tasks(self) -> tuple[Task, ...]:
        sizes = self.manifest.increments
        starts = (0, *accumulate(sizes))
        return tuple(
            Task(index, start, size) for index, (start, size) in enumerate(zip(starts, sizes, strict=False))
        )


def write_model_file(path: Path, content: ModelFile) -> str:
    """Whole or not at all; the digest of the file."""
    _refuse_unfit(content)
    tensors = {f"method/{name}": value for name, value in content.state.items()}
    tensors |= {f"statistics/{name}": value for name, value in content.statistics.items()}
    tensors |= {f"spread/{name}": value for name, value in content.spread.items()}
    manifest = content.manifest.model_copy(update={"format": FORMAT})  # whatever it was read from
    text = json.dumps(manifest.model_dump(mode="json"), indent=2, allow_nan=False)
    if len(text) > LARGEST_MANIFEST:
        raise FileFormatError(
            f"the model's {MANIFEST} would have {len(text):,} bytes; at most {LARGEST_MANIFEST:,} can be read"
        )
    files = {
        MANIFEST: text.encode(),
        WEIGHTS: save_tensors(
            {name: value.detach().cpu().contiguous().clone() for name, value in tensors.items()}
        ),
        **(pack("exemplars", content.exemplars) if len(content.exemplars) else {}),
        **(pack("held-out", content.held_out) if len(content.held_out) else {}),
    }
    return write_archive(path, files)


def model_path(path: Path) -> Path:
    """The model file itself, or that in the folder of a finished run."""
    if not path.is_dir():
        return path
    inside = path / RUN_MODEL
    if inside.is_file():
        return inside
    if (path / "settings.toml").is_file():
        raise FileFormatError(
            f"the run {path} has no {RUN_MODEL}: it is not finished, or was made by endocil 0.1; "
            f"go on with 'endocil resume {path}', or run it again"
        )
    raise FileFormatError(f"{path} is a folder without a model; expected a model file or the folder of a run")


def read_model_file(path: Path | str) -> ModelFile:
    """Read and check a model's file. Runs none of its content as code; anything strange is refused in one line."""
    path = model_path(Path(path))
    files, digest = read_archive(path)
    try:
        manifest = _manifest(path, files)
        tensors = load_tensors(_required(files, WEIGHTS))
        _refuse_other_parts(tensors)
        size = manifest.preprocessing.size
        exemplars, held_out = (unpack(kind, files, size) for kind in ("exemplars", "held-out"))
        content = ModelFile(
            manifest,
            _without_prefix("method", tensors),
            _without_prefix("statistics", tensors),
            exemplars,
            held_out,
            digest,
            _without_prefix("spread", tensors),
        )
        _refuse_unfit(content)
        return content
    except _RefusedError:
        raise
    except _UNFIT as error:  # an FileFormatError is a ValueError
        raise _damaged(path, error) from error


def _refuse_unfit(content: ModelFile) -> None:
    refuse_parts_that_do_not_fit(
        content.manifest,
        content.state,
        content.statistics,
        content.spread,
        content.exemplars,
        content.held_out,
    )


class _RefusedError(FileFormatError):
    """Said in full already."""


def _manifest(path: Path, files: Mapping[str, bytes]) -> Manifest:
    text = _required(files, MANIFEST)
    if len(text) > LARGEST_MANIFEST:
        raise ValueError(f"{MANIFEST} has {len(text):,} bytes; at most {LARGEST_MANIFEST:,} are read")
    said = json.loads(text, parse_constant=_refuse_constant)
    format_ = said.get("format") if isinstance(said, dict) else None
    if isinstance(format_, int) and format_ != FORMAT:
        way_out = "update endocil" if format_ > FORMAT else "make it again from its run, or use endocil 0.1"
        raise _RefusedError(
            f"the model {path} has format {str(format_)[:20]}; this version of endocil reads {FORMAT}: {way_out}"
        )
    refuse_control_in(MANIFEST, said)
    try:
        return Manifest.model_validate(said)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        place = ".".join(str(part)[:50] for part in first["loc"])
        raise ValueError(f"{MANIFEST}, {place}: {first['msg']}") from None


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{MANIFEST} has {name}, which is no number")


def _required(files: Mapping[str, bytes], name: str) -> bytes:
    if name not in files:
        raise ValueError(f"it has no {name}")
    return files[name]


def _refuse_other_parts(tensors: Mapping[str, Any]) -> None:
    others = [name for name in tensors if name.partition("/")[0] not in _PARTS]
    if others:
        raise ValueError(f"{WEIGHTS} holds {others[0][:80]!a}, which no model has")


def _without_prefix(name: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {key[len(name) + 1 :]: value for key, value in tensors.items() if key.startswith(f"{name}/")}


def _damaged(path: Path, error: BaseException) -> FileFormatError:
    reason = " ".join(str(error).split()) or type(error).__name__
    shown = printable(reason[:300]).encode("ascii", "backslashreplace").decode()
    return FileFormatError(f"the model {path} is damaged: {shown}")
