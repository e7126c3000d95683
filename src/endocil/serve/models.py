"""The models that answer. Another bundle takes the place of one only when it has answered a question itself."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from endocil.data.inputs import Inputs
from endocil.errors import EndocilError
from endocil.model.inference import Predicted
from endocil.model.model import Model as Bundle
from endocil.serve.limits import Refusal, unknown
from endocil.serve.messages import Card, ModelSummary, shown

MOST_NEAREST = 8
SUFFIX = ".endocil"


@dataclass(frozen=True)
class _InMemory:
    """KeptImages that are decoded already."""

    pixels: Tensor  # (n, size, size, 3) uint8

    def read(self, image_id: str, size: int) -> np.ndarray:
        return self.pixels[int(image_id)].numpy()

    def fingerprint(self, ids: Sequence[str]) -> str:
        return ""  # nothing of them is kept


@dataclass(frozen=True, eq=False)
class Loaded:
    """A bundle that answers under an id. Requests hold on to the one they began with."""

    id: str
    bundle: Bundle
    file: str  # its name, without its folder

    def summary(self) -> ModelSummary:
        manifest = self.bundle.manifest
        return ModelSummary(
            id=self.id,
            name=manifest.name,
            bundle=self.file,
            digest=self.bundle.digest,
            classes=len(self.bundle.classes),
            calibrated=manifest.calibration is not None,
            made=manifest.history[-1].made,
        )

    def card(self) -> Card:
        manifest, content = self.bundle.manifest, self.bundle.content
        kept: dict[str, int] = dict.fromkeys(self.bundle.classes, 0)
        for origin in content.exemplars.provenance:
            kept[origin.class_name] += 1
        return Card(
            model=self.summary(),
            method=content.settings.method.name,
            backbone=content.settings.network.backbone,
            classes=[learned.model_dump(mode="json") for learned in manifest.classes],
            tasks=list(manifest.increments),
            exemplars=kept,
            preprocessing=manifest.preprocessing.model_dump(mode="json"),
            calibration=manifest.calibration and manifest.calibration.model_dump(mode="json"),
            results=manifest.metrics,
            terms=manifest.terms.model_dump(mode="json"),
            history=[version.model_dump(mode="json") for version in manifest.history],
        )


def ask(loaded: Loaded, pixels: Tensor, passed: Callable[[int], None] = lambda n: None) -> Predicted:
    """A forward pass, or several where the pictures are so large that one would fill the memory; `passed` counts."""
    ids = tuple(str(row) for row in range(len(pixels)))
    return loaded.bundle.predict(
        Inputs(ids, ids, _InMemory(pixels)),
        reasons=MOST_NEAREST,
        batch=len(pixels),
        watch=lambda names, *_: passed(len(names)),
    )


def load(id: str, path: Path, *, trust: bool = False) -> Loaded:
    """Read, check, build and try a bundle; whatever is wrong with it is an EndocilError."""
    loaded = Loaded(id, Bundle.load(path, trust=trust), path.name)
    size = loaded.bundle.manifest.preprocessing.size
    own = loaded.bundle.content.exemplars.pixels[:1]
    tried = ask(loaded, own if len(own) else torch.zeros(1, size, size, 3, dtype=torch.uint8))
    if not bool(tried.probabilities.isfinite().all()):
        raise EndocilError(f"the bundle {path.name} gives numbers that are not finite; it is refused")
    return loaded


class Served:
    """Models by their ids, and the folder that others may come from."""

    def __init__(self, loaded: Sequence[Loaded], folder: Path | None, *, trust: bool = False) -> None:
        self._models = {one.id: one for one in loaded}
        self.folder, self.trust = folder, trust
        self._swapping, self._loading = asyncio.Lock(), load

    @classmethod
    def of(cls, paths: Sequence[Path], folder: Path | None, *, trust: bool = False) -> "Served":
        if folder is not None and not folder.is_dir():
            raise EndocilError(f"--models: there is no folder {folder}")
        numbered = enumerate(paths, 1)
        return cls([load(f"model-{i}", path, trust=trust) for i, path in numbered], folder, trust=trust)

    def all(self) -> list[Loaded]:
        return list(self._models.values())

    def get(self, id: str) -> Loaded:
        if id not in self._models:
            raise unknown("model")
        return self._models[id]

    def first(self) -> Loaded:
        return next(iter(self._models.values()))

    def bundles(self) -> dict[str, Path]:
        """Files in the folder itself; a link could lead out of it and is none, nor is a name that is no text.

        A folder that has gone, or may not be read any more, has none."""
        try:
            found = sorted(self.folder.iterdir()) if self.folder else []
            return {path.name: path for path in found if _is_bundle(path)}
        except OSError:
            return {}

    async def swap(self, id: str, name: str) -> tuple[Loaded, Loaded]:
        """(before, now). Requests that are under way end with the model they began with."""
        self.get(id)
        path = (await asyncio.to_thread(self.bundles)).get(name)
        if path is None:
            raise unknown("bundle")
        if self._swapping.locked():
            raise Refusal(409, "swapping", "another bundle is being loaded; try again", {"Retry-After": "5"})
        async with self._swapping:
            before = self.get(id)
            try:
                now = await asyncio.to_thread(self._loading, id, path, trust=self.trust)
            except EndocilError as error:
                said = str(error).replace(str(path), path.name)  # where it lies is nobody's business
                raise Refusal(422, "refused-bundle", f"{said}; {before.file} goes on") from error
            self._models[id] = now
        return before, now


def _is_bundle(path: Path) -> bool:
    named = path.suffix == SUFFIX and shown(path.name) == path.name
    return named and path.is_file() and not path.is_symlink()
