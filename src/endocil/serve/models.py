"""The served models, and the exchange of one for another model file while the server runs."""

import asyncio
import io
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from endocil.data.inputs import Inputs
from endocil.errors import EndocilError, FileFormatError, SettingsError
from endocil.model.inference import Predicted
from endocil.model.manifest import Preprocessing
from endocil.model.model import Model
from endocil.serve.errors import ApiError, not_found
from endocil.serve.schemas import (
    CalibrationSummary,
    ClassProbability,
    ModelCard,
    ModelSummary,
    NearestExemplar,
    Prediction,
    escape_invalid,
)

MAX_NEAREST = 8  # exemplars shown with a prediction
SUFFIX = ".endocil"


@dataclass(frozen=True)
class _PixelReader:
    """Reads images that are already decoded; an image's id is its row."""

    pixels: Tensor  # (n, size, size, 3) uint8

    def read(self, image_id: str, size: int) -> np.ndarray:
        return self.pixels[int(image_id)].numpy()

    def fingerprint(self, ids: Sequence[str]) -> str:
        return ""  # nothing is cached


@dataclass(frozen=True, eq=False)
class ServedModel:
    """A model under an id. A request keeps the one it began with."""

    id: str
    model: Model
    file: str  # name without folder

    @property
    def digest(self) -> str:
        return self.model.digest

    @property
    def preprocessing(self) -> Preprocessing:
        return self.model.manifest.preprocessing

    @property
    def notes(self) -> tuple[str, ...]:
        return self.model.notes

    def summary(self) -> ModelSummary:
        manifest = self.model.manifest
        return ModelSummary(
            id=self.id,
            name=manifest.name,
            file=self.file,
            digest=self.digest,
            classes=len(self.model.classes),
            calibrated=manifest.calibration is not None,
            created=manifest.history[-1].made,
        )

    def card(self) -> ModelCard:
        manifest, settings, fitted = self.model.manifest, self.model.settings, self.model.manifest.calibration
        exemplars = Counter(one.class_name for one in self.model.exemplars.provenance)
        return ModelCard(
            model=self.summary(),
            method=settings.method.name,
            backbone=settings.network.backbone,
            classes=[learned.model_dump(mode="json") for learned in manifest.classes],
            tasks=list(manifest.increments),
            exemplars={name: exemplars[name] for name in self.model.classes},
            preprocessing=manifest.preprocessing.model_dump(mode="json"),
            calibration=fitted
            and CalibrationSummary(
                images=fitted.images,
                temperature=fitted.temperature,
                error=fitted.error,
                error_before=fitted.error_before,
                ood_threshold=fitted.ood_threshold,
                ood_rate=fitted.ood_rate,
            ),
            results=manifest.metrics,
            terms=manifest.terms.model_dump(mode="json"),
            history=[version.model_dump(mode="json") for version in manifest.history],
        )

    def exemplar(self, row: int) -> bytes:
        """The pixels of an exemplar as PNG."""
        exemplars = self.model.exemplars
        if row >= len(exemplars):
            raise not_found("exemplar")
        file = io.BytesIO()
        Image.fromarray(exemplars.pixels[row].numpy()).save(file, "PNG")
        return file.getvalue()

    def predict(self, pixels: Tensor, on_pass: Callable[[int], None] = lambda n: None) -> "BatchPredictions":
        """`on_pass` gets the number of images of each forward pass; very large images need several."""
        ids = tuple(str(row) for row in range(len(pixels)))
        predictions = self.model.predict(
            Inputs(ids, ids, _PixelReader(pixels)),
            reasons=MAX_NEAREST,
            batch=len(pixels),
            watch=lambda names, *_: on_pass(len(names)),
        )
        return BatchPredictions(self, predictions)


@dataclass(frozen=True, eq=False)
class BatchPredictions:
    model: ServedModel
    predictions: Predicted

    def row(self, row: int, top: int, nearest: int) -> Prediction:
        """The prediction for one image as the API returns it."""
        all_rows, model = self.predictions, self.model
        provenance = model.model.exemplars.provenance
        by_mean, flags = all_rows.mean_probabilities, all_rows.out_of_distribution
        exemplars = all_rows.nearest[row][:nearest] if all_rows.nearest else ()
        return Prediction(
            model=model.id,
            digest=model.digest,
            calibrated=all_rows.calibrated,
            top=_top(all_rows.probabilities[row], all_rows.classes, top),
            nearest_mean=None if by_mean is None else _top(by_mean[row], all_rows.classes, top),
            out_of_distribution=None if flags is None else bool(flags[row]),
            ood_score=float(all_rows.ood_score[row]),
            nearest=[
                NearestExemplar(
                    exemplar=exemplar,
                    class_name=provenance[exemplar].class_name,
                    url=f"/api/v1/models/{model.id}/exemplars/{model.digest[:16]}/{exemplar}.png",
                )
                for exemplar in exemplars
            ],
        )


def _top(probabilities: Tensor, classes: Sequence[str], k: int) -> list[ClassProbability]:
    values, order = probabilities.sort(descending=True, stable=True)
    pairs = zip(order[:k].tolist(), values[:k].tolist(), strict=True)
    return [ClassProbability(name=classes[label], probability=value) for label, value in pairs]


def load(id: str, path: Path, *, trust: bool = False) -> ServedModel:
    """Load a model and run it once; whatever is wrong with it is an EndocilError."""
    served = ServedModel(id, Model.load(path, trust=trust), path.name)
    pixels = served.model.exemplars.pixels[:1]
    if not len(pixels):
        pixels = torch.zeros(1, served.preprocessing.size, served.preprocessing.size, 3, dtype=torch.uint8)
    if not bool(served.predict(pixels).predictions.probabilities.isfinite().all()):
        raise FileFormatError(
            f"the model {path.name} predicts numbers that are not finite; expected probabilities"
        )
    return served


class ServedModels:
    """Models by id, and the folder of model files that can replace them."""

    def __init__(self, models: Sequence[ServedModel], folder: Path | None, *, trust: bool = False) -> None:
        self._models = {model.id: model for model in models}
        self.folder, self.trust = folder, trust
        self._swapping, self._load = asyncio.Lock(), load

    @classmethod
    def load(cls, paths: Sequence[Path], folder: Path | None, *, trust: bool = False) -> "ServedModels":
        if folder is not None and not folder.is_dir():
            raise SettingsError(f"--models: there is no folder {folder}")
        numbered = enumerate(paths, 1)
        return cls([load(f"model-{i}", path, trust=trust) for i, path in numbered], folder, trust=trust)

    def all(self) -> list[ServedModel]:
        return list(self._models.values())

    def get(self, id: str | None) -> ServedModel:
        """The first one where no id is given."""
        if id is None:
            return next(iter(self._models.values()))
        if id not in self._models:
            raise not_found("model")
        return self._models[id]

    def files(self) -> dict[str, Path]:
        """Model files directly in the folder, by name; empty where it cannot be read any more.

        Links are left out, as they could lead out of the folder, and names that are not valid text."""
        try:
            return {
                path.name: path
                for path in (sorted(self.folder.iterdir()) if self.folder else ())
                if path.suffix == SUFFIX
                and escape_invalid(path.name) == path.name
                and path.is_file()
                and not path.is_symlink()
            }
        except OSError:
            return {}

    async def swap(self, id: str, name: str) -> tuple[ServedModel, ServedModel]:
        """(previous, current). A file that cannot be loaded changes nothing."""
        self.get(id)
        path = (await asyncio.to_thread(self.files)).get(name)
        if path is None:
            raise not_found("model file")
        if self._swapping.locked():
            raise ApiError(409, "swapping", "another model is being loaded; try again", {"Retry-After": "5"})
        async with self._swapping:
            previous = self.get(id)
            try:
                current = await asyncio.to_thread(self._load, id, path, trust=self.trust)
            except EndocilError as error:
                message = str(error).replace(str(path), path.name)  # clients must not learn the folder
                raise ApiError(422, "invalid-model", f"{message}; {previous.file} stays in use") from error
            self._models[id] = current
        return previous, current
