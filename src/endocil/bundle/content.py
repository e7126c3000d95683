"""A bundle: a learned model with all it needs to predict, to answer for itself, and to learn on."""

import csv
import json
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

from pydantic import ValidationError
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from endocil.bundle.archive import MANIFEST, WEIGHTS, read_archive, write_archive
from endocil.bundle.manifest import FORMAT, Manifest
from endocil.bundle.pictures import Pictures, pack, refuse_unknown, unpack
from endocil.errors import EndocilError
from endocil.scenario import Task
from endocil.settings import Settings, load_settings

_UNFIT = (SafetensorError, ValueError, KeyError, TypeError, OSError, SyntaxError, RecursionError, csv.Error)


@dataclass(frozen=True, eq=False)
class Content:
    """What lies in the file of a bundle, read and checked; no network is built yet."""

    manifest: Manifest
    state: Mapping[str, Tensor]  # of the method
    statistics: Mapping[str, Tensor]  # class means and the like
    exemplars: Pictures
    held_out: Pictures
    digest: str = ""  # of the file it was read from

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
    tensors = {f"method/{name}": value for name, value in content.state.items()}
    tensors |= {f"statistics/{name}": value for name, value in content.statistics.items()}
    text = content.manifest.model_dump_json(indent=2)
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
    manifest = _manifest(path, files)
    try:
        tensors = load_tensors(files[WEIGHTS])
        size = manifest.preprocessing.size
        content = Content(
            manifest,
            _under("method", tensors),
            _under("statistics", tensors),
            unpack("exemplars", files, size),
            unpack("held-out", files, size),
            digest,
        )
    except _UNFIT as error:
        raise _damaged(path, error) from error
    _check(path, content)
    return content


def _manifest(path: Path, files: Mapping[str, bytes]) -> Manifest:
    if MANIFEST not in files:
        raise EndocilError(f"the bundle {path} is damaged: it has no {MANIFEST}")
    try:
        said = json.loads(files[MANIFEST])
        if isinstance(said, dict) and isinstance(said.get("format"), int) and said["format"] > FORMAT:
            raise EndocilError(
                f"the bundle {path} has format {said['format']}; this version of endocil reads up to {FORMAT}: "
                f"update endocil"
            )
        return Manifest.model_validate(said)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise _damaged(path, ValueError(f"{MANIFEST}, {place}: {first['msg']}")) from None
    except (ValueError, RecursionError) as error:
        raise _damaged(path, error) from error


def _check(path: Path, content: Content) -> None:
    """Parts that do not fit together are refused before a network of any size is built."""
    names = content.classes
    try:
        if len(set(names)) < len(names):
            raise EndocilError("a class is there twice")
        if any(size < 0 for size in content.manifest.increments) or sum(content.manifest.increments) != len(
            names
        ):
            raise EndocilError(f"{len(names)} classes, but tasks of {list(content.manifest.increments)[:10]}")
        refuse_unknown("exemplars", content.exemplars, names)
        refuse_unknown("held-out", content.held_out, names)
        content.settings  # noqa: B018 - raises where they are none
    except EndocilError as error:
        raise _damaged(path, error) from error


def _under(name: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {key[len(name) + 1 :]: value for key, value in tensors.items() if key.startswith(f"{name}/")}


def _damaged(path: Path, error: BaseException) -> EndocilError:
    reason = " ".join(str(error).split())[:300] or type(error).__name__
    return EndocilError(f"the bundle {path} is damaged: {reason}")
