"""Features of a frozen backbone, computed once and kept on disk for all methods, seeds and sweeps.

    FOLDER/KEY/DIGEST.safetensors      images (n, 32): sha256 of their pixels;  features (n, d)

KEY is a digest of all that decides the features of given pixels: weights, normalisation, code, machine. DIGEST is that
of the file itself, so a damaged one is noticed, removed and computed again. Files are written whole or not at all and
never changed. One process computes at a time, under a lock that ends with it; others wait and read.

Features are computed one image at a time, with a store or without: in a batch an image's last digits may depend on the
other images. So a stored feature equals a computed one bit for bit.
"""

import dataclasses
import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch
from safetensors.torch import load, save
from torch import Tensor

from endocil.data.batches import ImageSet, pixel_digest, plain_batches
from endocil.errors import ResourceError
from endocil.io.files import lock, make_private_folder, private, read_whole, write_atomically
from endocil.learning.first_task import code_of, digest_of, machine_of
from endocil.methods.base import Method

CHUNK = 1024  # images in a file: a killed process loses the last of them at most
RULES = "one image at a time"  # change it when the same key would get other features


class FeatureStore:
    """A folder of features; what was read stays in memory until the backbone changes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._key = ""
        self._files: set[str] = set()  # read already
        self._rows: dict[bytes, Tensor] = {}

    def features(self, method: Method, images: ImageSet | Tensor, *, wait: bool = True) -> Tensor:
        """(n, d) of a frozen method; what is missing is computed and kept.

        Without `wait`, images are computed though another process may be computing them too."""
        key = key_of(method)
        if key != self._key:
            self._key, self._files, self._rows = key, set(), {}
        digests = [pixel_digest(one) for one in images] if isinstance(images, Tensor) else images.pixel_digests()
        self._read()
        if self._missing(digests):
            with self._locked(wait):
                self._read()  # what another process has computed meanwhile
                for part in torch.split(torch.tensor(self._missing(digests), dtype=torch.int64), CHUNK):
                    if len(part):
                        missing = images[part] if isinstance(images, Tensor) else images.take(part)
                        self._write([digests[place] for place in part.tolist()], embed_each(method, missing))
        return torch.stack([self._rows[digest] for digest in digests])

    def _missing(self, digests: list[bytes]) -> list[int]:
        """One place of each image that is not there."""
        places = {digest: place for place, digest in enumerate(digests) if digest not in self._rows}
        return sorted(places.values())

    def _read(self) -> None:
        for path in sorted((self.folder / self._key).glob("*.safetensors")):
            if path.name in self._files:
                continue
            with suppress(OSError):  # removed meanwhile
                content = read_whole(path)
                if hashlib.sha256(content).hexdigest() != path.stem:
                    path.unlink()
                    continue
                stored = load(content)
                images = (row.tobytes() for row in stored["images"].numpy())
                self._rows |= dict(zip(images, stored["features"], strict=True))
                self._files.add(path.name)

    def _write(self, digests: list[bytes], features: Tensor) -> None:
        images = torch.tensor([list(digest) for digest in digests], dtype=torch.uint8)
        content = save({"images": images, "features": features.contiguous()})
        path = self.folder / self._key / f"{hashlib.sha256(content).hexdigest()}.safetensors"
        with self._told():
            write_atomically(path, content)
        self._files.add(path.name)
        self._rows |= dict(zip(digests, features, strict=True))

    @contextmanager
    def _locked(self, wait: bool) -> Iterator[None]:
        with self._told():
            make_private_folder(self.folder)  # of patients' images
            make_private_folder(self.folder / self._key)
            file = open(self.folder / self._key / "lock", "ab", opener=private)  # noqa: SIM115
        with file:
            lock(file, wait=wait)
            yield

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except (OSError, ResourceError) as error:
            raise ResourceError(
                f"features cannot be kept in {self.folder}: {error}; set ENDOCIL_CACHE to another folder, or "
                f"run.features=false to keep none"
            ) from error


def frozen_features(
    method: Method, images: ImageSet | Tensor, store: FeatureStore | None, *, wait: bool = True
) -> Tensor:
    """(n, d) on the CPU, of a frozen method in eval mode; those of plain pixels are kept in a shared store alone."""
    store = _shared.get() if store is None or isinstance(images, Tensor) else store
    if store is None or not len(images):
        return embed_each(method, images)
    return store.features(method, images, wait=wait)


_shared: ContextVar[FeatureStore | None] = ContextVar("shared store of features", default=None)


@contextmanager
def sharing_features(store: FeatureStore | None) -> Iterator[None]:
    """Meanwhile this store serves every pass over images that has none, of a frozen backbone: `endocil learn` looks at
    the held-out images three times."""
    token = _shared.set(store)
    try:
        yield
    finally:
        _shared.reset(token)


@torch.no_grad()
def embed_each(method: Method, images: ImageSet | Tensor) -> Tensor:
    """(n, d): each image by itself."""
    singly = plain_batches(images, 1, method.device, method.normalisation)
    return torch.cat([method.embed(image).float().cpu() for image in singly])


def key_of(method: Method) -> str:
    """A digest of what decides the features of given pixels."""
    backbone, own = method.backbone, bool(method.embeds_by)
    packages = sorted({type(module).__module__.partition(".")[0] for module in backbone.modules()})
    decides = {
        "rules": RULES,
        "weights": digest_of(backbone.state_dict()),
        "network": repr(backbone),
        "normalisation": dataclasses.asdict(method.normalisation),
        "code": code_of(type(backbone), *[type(method)] * own),
        "embed": method.embeds_by,
        "packages": {package: _version(package) for package in packages},
        "machine": machine_of(method.device),
    }
    return hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:  # a user's own file
        return ""
