"""The served models, and the exchange of one for another model file while the server runs."""

import asyncio
import io
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from endocil.data.inputs import inputs_of
from endocil.errors import EndocilError, FileFormatError, SettingsError
from endocil.methods import method_title
from endocil.model.gradcam import grad_cam, last_blocks
from endocil.model.manifest import Preprocessing
from endocil.model.model import Model
from endocil.model.operating_points import COVERAGE
from endocil.model.predictions import Floats, Predictions, top_classes
from endocil.serve.in_service import Exchange, InService, exchange_of
from endocil.serve.schemas import (
    ApiError,
    ClassProbability,
    ModelCard,
    ModelSummary,
    NearestExemplar,
    Prediction,
    escape_invalid,
    not_found,
)

MAX_NEAREST = 8  # exemplars shown with a prediction
SUFFIX = ".endocil"


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
    def class_names(self) -> list[str]:
        """As the API tells them."""
        return [escape_invalid(name) for name in self.model.classes]

    def summary(self) -> ModelSummary:
        manifest = self.model.manifest
        return ModelSummary(
            id=self.id,
            name=manifest.name,
            version=manifest.version,
            file=self.file,
            digest=self.digest,
            classes=len(self.model.classes),
            calibrated=manifest.calibration is not None and manifest.calibration.improved,
            created=manifest.history[-1].made,
            gate=None if manifest.gate is None else "passed" if manifest.gate.passed else "refused",
            gradcam=bool(last_blocks(self.model.method)),
        )

    def card(self) -> ModelCard:
        manifest, settings = self.model.manifest, self.model.settings
        exemplars = Counter(one.class_name for one in self.model.exemplars.provenance)
        card = {
            "model": self.summary(),
            "method": method_title(settings.method.name),
            "backbone": settings.network.backbone,
            "tasks": manifest.increments,
            "exemplars": {name: exemplars[name] for name in self.model.classes},
            "results": manifest.metrics,
        }
        return ModelCard.model_validate(manifest.model_dump(mode="json") | card)

    def exemplar(self, row: int) -> bytes:
        """The pixels of an exemplar as PNG."""
        exemplars = self.model.exemplars
        if row >= len(exemplars):
            raise not_found("exemplar")
        file = io.BytesIO()
        Image.fromarray(exemplars.pixels[row].numpy()).save(file, "PNG")
        return file.getvalue()

    def predict(self, pixels: Tensor, on_pass: Callable[[int], None] = lambda n: None) -> Predictions:
        """`on_pass` gets the number of images of each forward pass; very large images need several."""
        return self.model.predict(
            inputs_of(list(pixels.numpy()), crop_frame=False),
            reasons=MAX_NEAREST,
            batch=len(pixels),
            on_batch=lambda names, *_: on_pass(len(names)),
        )

    def evidence(self, pixels: np.ndarray, class_name: str | None) -> tuple[np.ndarray, str]:
        """The Grad-CAM map of one image, from 0 to 1, and its class: this one, or the most probable."""
        classes = self.class_names
        image = torch.tensor(pixels)[None]
        label = int(self.predict(image).scores[0].argmax()) if class_name is None else classes.index(class_name)
        return grad_cam(self.model.method, image, torch.tensor([label]))[0].numpy(), classes[label]

    def prediction(self, batch: Predictions, row: int, top: int, nearest: int) -> Prediction:
        """The prediction for one image of a batch as the API returns it."""
        provenance = self.model.exemplars.provenance
        by_mean, flags = batch.mean_probabilities, batch.out_of_distribution
        exemplars = batch.nearest[row][:nearest] if batch.nearest else ()
        assert batch.ood_score is not None  # it has just been measured
        covered = batch.calibration is not None and batch.calibration.scores is not None
        return Prediction(
            model=self.id,
            digest=self.digest,
            calibrated=batch.calibrated,
            top=_top(batch.probabilities[row], batch.classes, top),
            nearest_mean=None if by_mean is None else _top(by_mean[row], batch.classes, top),
            out_of_distribution=None if flags is None else bool(flags[row]),
            ood_score=float(batch.ood_score[row]),
            prediction_set=list(batch.take([row]).prediction_sets(COVERAGE)[0]) if covered else None,
            coverage=COVERAGE,
            nearest=[
                NearestExemplar(
                    exemplar=exemplar,
                    class_name=provenance[exemplar].class_name,
                    url=f"/api/v1/models/{self.id}/exemplars/{self.digest[:16]}/{exemplar}.png",
                )
                for exemplar in exemplars
            ],
        )


def _top(probabilities: Floats, classes: Sequence[str], k: int) -> list[ClassProbability]:
    best = top_classes(probabilities, classes, k)
    return [ClassProbability(name=name, probability=probability) for name, probability in best]


def load(id: str, path: Path, *, trust: bool = False) -> ServedModel:
    """Load a model and run it once; whatever is wrong with it is an EndocilError."""
    served = ServedModel(id, Model.load(path, trust=trust), path.name)
    pixels = served.model.exemplars.pixels[:1]
    if not len(pixels):
        pixels = torch.zeros(1, served.preprocessing.size, served.preprocessing.size, 3, dtype=torch.uint8)
    if not np.isfinite(served.predict(pixels).probabilities).all():
        raise FileFormatError(f"the model {path.name} predicts numbers that are not finite; expected probabilities")
    return served


class NotGatedError(EndocilError):
    """A model without a passed gate, on a server that puts no other into service."""


def refuse_ungated(served: ServedModel) -> None:
    gate = served.model.manifest.gate
    if gate is None or not gate.passed:
        why = "holds no verdict of a release gate" if gate is None else f"was {gate.words}"
        raise NotGatedError(
            f"{served.file} {why}, and this server puts only models with a passed gate into service (--only-gated); "
            f"judge it by 'endocil compare OLD NEW TEST --rules FILE --keep NEW-FILE' and serve what that writes"
        )


class ServedModels:
    """Models by id, and the folder of model files that can replace them.

    `given`: the files that the command named, by id; with them and `kept`, exchanges survive a restart. `only_gated`:
    models whose release gate has not passed are refused."""

    def __init__(
        self,
        models: Sequence[ServedModel],
        folder: Path | None,
        *,
        trust: bool = False,
        given: Mapping[str, Path] = MappingProxyType({}),
        kept: InService | None = None,
        only_gated: bool = False,
    ) -> None:
        self.only_gated = only_gated
        self._models = {model.id: model for model in models}
        self.folder, self.trust, self.given, self.kept = folder, trust, given, kept
        self.notes: list[str] = []  # for the operator
        self._swapping, self._load = asyncio.Lock(), load

    @classmethod
    def load(
        cls,
        paths: Sequence[Path],
        folder: Path | None,
        *,
        trust: bool = False,
        kept: InService | None = None,
        only_gated: bool = False,
    ) -> "ServedModels":
        if folder is not None and not folder.is_dir():
            raise SettingsError(f"--models: there is no folder {folder}")
        given = {f"model-{number}": path for number, path in enumerate(paths, 1)}
        models = cls((), folder, trust=trust, given=given, kept=kept, only_gated=only_gated)
        exchanges = kept.read() if kept else {}
        models._models = {id: models._load_first(id, exchanges.get(id)) for id in given}
        return models

    def _load_first(self, id: str, exchange: Exchange | None) -> ServedModel:
        """The model that was in service last, or the given one."""
        given = self.given[id]
        if exchange is None or self.kept is None or exchange.given != str(given.resolve()):
            return self._load_fit(id, given)
        story = f"{id} was replaced by {exchange.file} ({exchange.since})"
        way_out = f"put it back, or delete {self.kept.path} to serve {given}"
        path = self.files().get(exchange.file)
        if path is None:
            raise FileFormatError(f"{story}, but {self.folder} has no such file now; {way_out}")
        current = self._load_fit(id, path)
        if current.digest != exchange.digest:
            raise FileFormatError(f"{story}, but that file has changed since; {way_out}")
        self.notes.append(f"{story}, which is served again; delete {self.kept.path} to serve {given}")
        return current

    def _load_fit(self, id: str, path: Path) -> ServedModel:
        """A model that may be served here; whatever is wrong with it is an EndocilError."""
        served = self._load(id, path, trust=self.trust)
        if self.only_gated:
            refuse_ungated(served)
        return served

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
                current = await asyncio.to_thread(self._load_fit, id, path)
            except NotGatedError as error:
                raise ApiError(422, "not-gated", f"{error}; {previous.file} stays in use") from error
            except EndocilError as error:
                message = str(error).replace(str(path), path.name)  # clients must not learn the folder
                raise ApiError(422, "invalid-model", f"{message}; {previous.file} stays in use") from error
            if self.kept is not None:  # before anyone is answered by it: what was seen survives a restart
                exchange = exchange_of(self.given[id], path.name, current.digest)
                try:
                    await asyncio.to_thread(self.kept.keep, id, exchange)
                except EndocilError as error:
                    reason = getattr(error.__cause__, "strerror", None) or "its file is damaged"
                    message = f"the exchange cannot be kept for a restart: {reason}; {previous.file} stays in use"
                    raise ApiError(503, "not-kept", message) from error
            self._models[id] = current
        return previous, current
