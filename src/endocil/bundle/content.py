"""A bundle: a learned model with all it needs to predict, to answer for itself, and to learn on."""

import csv
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any, NoReturn

from PIL import Image
from pydantic import ValidationError
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from endocil.bundle.archive import MANIFEST, WEIGHTS, read_archive, write_archive
from endocil.bundle.checking import refuse_parts_that_do_not_fit
from endocil.bundle.manifest import FORMAT, Manifest
from endocil.bundle.pictures import Pictures, pack, unpack
from endocil.bundle.plain import printable, refuse_control_in
from endocil.errors import EndocilError
from endocil.scenario import Task
from endocil.settings import Settings, load_settings

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
class Content:
    """What lies in the file of a bundle, read and checked; no network is built yet."""

    manifest: Manifest
    state: Mapping[str, Tensor]  # of the method
    statistics: Mapping[str, Tensor]  # class means and the like
    exemplars: Pictures
    held_out: Pictures
    digest: str = ""  # of the file it was read from
    spread: Mapping[str, Tensor] = field(default_factory=dict)  # of the exemplars' features: unlike.py

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


def write_content(path: Path, content: Content) -> str:
    """Whole or not at all; the digest of the file."""
    _refuse_unfit(content)
    tensors = {f"method/{name}": value for name, value in content.state.items()}
    tensors |= {f"statistics/{name}": value for name, value in content.statistics.items()}
    tensors |= {f"spread/{name}": value for name, value in content.spread.items()}
    manifest = content.manifest.model_copy(update={"format": FORMAT})  # whatever it was read from
    text = json.dumps(manifest.model_dump(mode="json"), indent=2, allow_nan=False)
    if len(text) > LARGEST_MANIFEST:
        raise EndocilError(
            f"the bundle's {MANIFEST} would have {len(text):,} bytes; at most {LARGEST_MANIFEST:,} can be read"
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


def read_content(path: Path | str) -> Content:
    """Read and check a bundle's file. Runs none of its content as code; anything strange is refused in one line."""
    path = Path(path)
    files, digest = read_archive(path)
    try:
        manifest = _manifest(path, files)
        tensors = load_tensors(_required(files, WEIGHTS))
        _refuse_other_parts(tensors)
        size = manifest.preprocessing.size
        exemplars, held_out = (unpack(kind, files, size) for kind in ("exemplars", "held-out"))
        if manifest.format == 1 and not len(exemplars) and not len(held_out):  # it did not say so
            manifest = manifest.model_copy(update={"pictures": False})
        content = Content(
            manifest,
            _under("method", tensors),
            _under("statistics", tensors),
            exemplars,
            held_out,
            digest,
            _under("spread", tensors),
        )
        _refuse_unfit(content)
        return content
    except _RefusedError:
        raise
    except _UNFIT as error:  # an EndocilError is a ValueError
        raise _damaged(path, error) from error


def _refuse_unfit(content: Content) -> None:
    refuse_parts_that_do_not_fit(
        content.manifest,
        content.state,
        content.statistics,
        content.spread,
        content.exemplars,
        content.held_out,
    )


class _RefusedError(EndocilError):
    """Said in full already."""


def _manifest(path: Path, files: Mapping[str, bytes]) -> Manifest:
    text = _required(files, MANIFEST)
    if len(text) > LARGEST_MANIFEST:
        raise ValueError(f"{MANIFEST} has {len(text):,} bytes; at most {LARGEST_MANIFEST:,} are read")
    said = json.loads(text, parse_constant=_refuse_constant)
    newer = said.get("format") if isinstance(said, dict) else None
    if isinstance(newer, int) and newer > FORMAT:
        raise _RefusedError(
            f"the bundle {path} has format {str(newer)[:20]}; this version of endocil reads up to {FORMAT}: "
            f"update endocil"
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
        raise ValueError(f"{WEIGHTS} holds {others[0][:80]!a}, which no bundle has")


def _under(name: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {key[len(name) + 1 :]: value for key, value in tensors.items() if key.startswith(f"{name}/")}


def _damaged(path: Path, error: BaseException) -> EndocilError:
    reason = " ".join(str(error).split()) or type(error).__name__
    shown = printable(reason[:300]).encode("ascii", "backslashreplace").decode()
    return EndocilError(f"the bundle {path} is damaged: {shown}")
