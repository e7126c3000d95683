"""Features, logits and distances to the class means, by the one forward pass outside training.

Features of a frozen backbone are computed one image at a time, with a store or without: in a batch an image's last
digits may depend on the other images. So a stored feature equals a computed one bit for bit.
"""

import dataclasses
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load, save
from torch import Tensor, nn

from endocil.data.augment import Normalisation
from endocil.data.batches import ImageSet, pixel_digest, plain_batches, share_of
from endocil.errors import EndocilError, ResourceError
from endocil.io.files import lock, make_private_folder, private, read_whole, write_atomically
from endocil.learning.first_task import code_of, digest_of, machine_of
from endocil.learning.parallel import Processes, all_gather
from endocil.methods.base import Method
from endocil.networks import uncompiled

CLASS_MEANS = "class_means"  # in method.statistics: (n_seen, d), rows of length 1


def l2_normalise(features: Tensor) -> Tensor:
    """L2-normalise features as iCaRL and PyCIL do (zero stays zero)."""
    lengths: Tensor = features.norm(dim=1, keepdim=True)
    return features / (lengths + 1e-8)


@dataclass(frozen=True)
class Outputs:
    """What a method computes for images, row for row; on the CPU."""

    features: Tensor  # (n, d)
    logits: Tensor  # (n, n_seen) of the softmax head
    distances: Tensor | None = None  # (n, n_seen) squared, to the class means; none without class means
    for_selection: Tensor | None = None  # (n, d') the features that exemplars are chosen by, where asked for


@torch.no_grad()
def outputs_of(
    method: Method,
    images: ImageSet | Tensor,
    batch: int = 64,
    *,
    for_selection: bool = False,
    fabric: Processes | None = None,
    store: "FeatureStore | None" = None,
) -> Outputs:
    """One pass over the images, (n, H, W, 3) uint8 or an image set, without augmentation, the method in eval mode.

    `for_selection`: exemplars are about to be selected, and the class means are still those of the previous task.
    `fabric`: each of its processes computes a part of the images, and all get the whole.
    `store`: where the features of a frozen backbone are kept."""
    method.eval()
    by_features = not for_selection or type(method).selection_features is Method.selection_features
    with uncompiled(method):  # train.compile is for training: results come from the code as it is written
        if method.frozen and by_features:
            features = chosen_by = features_of(method, images, batch, fabric=fabric, store=store)
            rows = torch.split(features, batch)
            logits = torch.cat([method.classify(part.to(method.classifier.weight)).float().cpu() for part in rows])
        else:
            if fabric is None or fabric.world_size == 1:
                parts = list(_pass(method, images, batch, for_selection))
            else:
                every = all_gather(fabric, list(_pass(method, _own_share(images, fabric), batch, for_selection)))
                parts = [part for share in every for part in share]
            features, logits, chosen_by = (torch.cat(part) for part in zip(*parts, strict=True))
    if for_selection:
        return Outputs(features, logits, for_selection=chosen_by)
    if not bool(logits.isfinite().all() and features.isfinite().all()):
        raise EndocilError(
            "the network gives numbers that are not finite; lower train.learning_rate, or use another model"
        )
    means = method.statistics.get(CLASS_MEANS)
    return Outputs(features, logits, None if means is None else mean_distances(features, means))


@torch.no_grad()
def features_of(
    method: Method,
    images: ImageSet | Tensor,
    batch: int = 64,
    *,
    fabric: Processes | None = None,
    store: "FeatureStore | None" = None,
    wait: bool = True,
) -> Tensor:
    """(n, d) on the CPU: the features alone; `store` keeps those of image sets, a shared store those of plain pixels
    too."""
    method.eval()
    if fabric is not None and fabric.world_size > 1:  # each process its share, none waits for another's
        own = _own_share(images, fabric)
        return torch.cat(all_gather(fabric, features_of(method, own, batch, store=store, wait=False)))
    with uncompiled(method):
        if method.frozen:
            kept_in = _shared_store.get() if store is None or isinstance(images, Tensor) else store
            if kept_in is None or not len(images):
                return embed_each(method, images)
            return kept_in.features(method, images, wait=wait)
        return torch.cat([method.embed(pixels).float().cpu() for pixels in _batches(method, images, batch)])


_shared_store: ContextVar["FeatureStore | None"] = ContextVar("shared store of features", default=None)


@contextmanager
def sharing_features(store: "FeatureStore | None") -> Iterator[None]:
    """Meanwhile this store serves every pass over images that has none, of a frozen backbone: `endocil learn` looks at
    the held-out images three times."""
    token = _shared_store.set(store)
    try:
        yield
    finally:
        _shared_store.reset(token)


def _own_share(images: ImageSet | Tensor, fabric: Processes) -> ImageSet | Tensor:
    mine = torch.arange(len(images))[share_of(len(images), fabric.global_rank, fabric.world_size)]
    return images.take(mine) if isinstance(images, ImageSet) else images[mine]


def _pass(
    method: Method, images: ImageSet | Tensor, batch: int, for_selection: bool
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Features, logits and the features for selection of each batch."""
    for pixels in _batches(method, images, batch):
        features = method.embed(pixels)
        on_cpu = features.float().cpu()
        other = method.selection_features(pixels, features) if for_selection else features
        yield on_cpu, method.classify(features).float().cpu(), on_cpu if other is features else other.float().cpu()


def _batches(method: Method, images: ImageSet | Tensor, batch: int) -> Iterator[Tensor]:
    at_once = batch if isinstance(images, ImageSet) else batch_of(batch, images.shape[1])
    return plain_batches(images, at_once, method.device, method.normalisation)


MOST_PIXELS = 2**22  # in a batch: 64 images of 256 x 256; larger images come in smaller batches


def batch_of(wanted: int, size: int) -> int:
    """The batch size, reduced for large images so that they fit in memory."""
    return max(1, min(wanted, MOST_PIXELS // size**2))


def class_means(features: Tensor, labels: Tensor, n_classes: int) -> Tensor:
    """Mean of the L2-normalised features of each class, normalised again: (n_classes, d)."""
    unit_features = l2_normalise(features)
    sums: Tensor = features.new_zeros(n_classes, features.shape[1]).index_add_(0, labels, unit_features)
    lengths: Tensor = sums.norm(dim=1, keepdim=True).clamp_min(1e-12)
    return sums / lengths


def mean_distances(features: Tensor, means: Tensor) -> Tensor:
    """Squared distances of L2-normalised features to the class means: (n, n_classes)."""
    return torch.cdist(l2_normalise(features), means.to(features)).square()


# --- the features of a frozen backbone, kept on disk


CHUNK = 1024  # images in a file: a killed process loses the last of them at most
CHUNK_BYTES = 2**26  # about, of what is kept of them: maps are larger than features
RULES = "one image at a time"  # change it when the same key would get other features
Compute = Callable[[ImageSet | Tensor], Tensor]  # of n images n rows


class FeatureStore:
    """Features of frozen backbones, computed once for all methods, seeds and sweeps.

        FOLDER/KEY/DIGEST.safetensors      images (n, 32): sha256 of their pixels;  features (n, d)

    KEY is a digest of all that decides the features of given pixels: weights and options of the backbone,
    normalisation, code, machine. DIGEST is that of the file itself, so a damaged one is noticed, removed and computed
    again. Files are written whole or not at all and never changed. One process computes at a time, under a lock that
    ends with it; others wait and read. What was read stays in memory until the backbone changes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._key = ""
        self._files: set[str] = set()  # read already
        self._rows: dict[bytes, Tensor] = {}

    def features(self, method: Method, images: ImageSet | Tensor, *, wait: bool = True) -> Tensor:
        """(n, d) of a frozen method; what is missing is computed and kept.

        Without `wait`, images are computed though another process may be computing them too."""
        return torch.stack(self.rows(key_of(method), images, lambda some: embed_each(method, some), wait=wait))

    def rows(
        self,
        key: str,
        images: ImageSet | Tensor,
        compute: Compute,
        *,
        wait: bool = True,
        alone: bool = False,
        row_bytes: int = 1,
    ) -> list[Tensor]:
        """What belongs to each image under a key. `alone`: of what is stored, the other images' is not kept in
        memory. `row_bytes`: of one image, so that no file gets too large."""
        if key != self._key:
            self._key, self._files, self._rows = key, set(), {}
        digests = _digests(images)
        wanted = set(digests) if alone else None
        self._read(wanted)
        if _missing(digests, self._rows):
            with self._locked(wait):
                self._read(wanted)  # what another process has computed meanwhile
                for part in _chunks(_missing(digests, self._rows), row_bytes):
                    self._write([digests[place] for place in part.tolist()], compute(_some(images, part)))
        return [self._rows[digest] for digest in digests]

    def _read(self, wanted: Set[bytes] | None) -> None:
        for path in sorted((self.folder / self._key).glob("*.safetensors")):
            if path.name in self._files:
                continue
            with suppress(OSError):  # removed meanwhile
                content = read_whole(path)
                if hashlib.sha256(content).hexdigest() != path.stem:
                    path.unlink()
                    continue
                stored = load(content)
                for image, row in zip(stored["images"].numpy(), stored["features"], strict=True):
                    if wanted is None:
                        self._rows[image.tobytes()] = row
                    elif image.tobytes() in wanted:
                        self._rows[image.tobytes()] = row.clone()  # not a part of the whole file
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


def rows_of(images: ImageSet, compute: Compute, key: str, store: FeatureStore | None, row_bytes: int) -> list[Tensor]:
    """What belongs to each image, `row_bytes` of it, once for equal images; kept in the folder of a store where there
    is one, and in memory as long as the caller keeps it."""
    if store is not None:
        return FeatureStore(store.folder).rows(key, images, compute, alone=True, row_bytes=row_bytes)
    digests, rows = _digests(images), dict[bytes, Tensor]()
    for part in _chunks(_missing(digests, rows), row_bytes):
        rows |= dict(zip([digests[place] for place in part.tolist()], compute(_some(images, part)), strict=True))
    return [rows[digest] for digest in digests]


def _digests(images: ImageSet | Tensor) -> list[bytes]:
    return [pixel_digest(one) for one in images] if isinstance(images, Tensor) else images.pixel_digests()


def _missing(digests: list[bytes], rows: Mapping[bytes, Tensor]) -> list[int]:
    """One place of each image that is not there."""
    return sorted({digest: place for place, digest in enumerate(digests) if digest not in rows}.values())


def _chunks(places: list[int], row_bytes: int) -> Sequence[Tensor]:
    n = max(1, min(CHUNK, CHUNK_BYTES // row_bytes))
    return torch.split(torch.tensor(places, dtype=torch.int64), n) if places else ()


def _some(images: ImageSet | Tensor, part: Tensor) -> ImageSet | Tensor:
    return images[part] if isinstance(images, Tensor) else images.take(part)


@torch.no_grad()
def embed_each(method: Method, images: ImageSet | Tensor) -> Tensor:
    """(n, d): each image by itself."""
    singly = plain_batches(images, 1, method.device, method.normalisation)
    return torch.cat([method.embed(image).float().cpu() for image in singly])


def key_of(method: Method) -> str:
    """A digest of what decides the features of given pixels."""
    backbone, own = method.backbone, bool(method.embeds_by)
    decides = {
        "weights": digest_of(backbone.state_dict()),
        "network": repr(backbone),
        "code": code_of(type(backbone), *[type(method)] * own),
        "embed": method.embeds_by,
    }
    return key_from(decides, backbone, method.normalisation, method.device)


def key_from(
    decides: Mapping[str, Any], backbone: nn.Module, normalisation: Normalisation, device: torch.device
) -> str:
    """A digest of this and of what decides all that a backbone computes from given pixels."""
    packages = sorted({type(module).__module__.partition(".")[0] for module in backbone.modules()})
    common = {
        "rules": RULES,
        "normalisation": dataclasses.asdict(normalisation),
        "options": getattr(backbone, "made_with", {}),
        "packages": {package: _version(package) for package in packages},
        "machine": machine_of(device),
    }
    return hashlib.sha256(json.dumps({**decides, **common}, sort_keys=True, default=str).encode()).hexdigest()


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:  # a user's own file
        return ""
