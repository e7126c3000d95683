"""A bundle from Python: `Bundle.load("model.endocil").predict(images)`."""

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from endocil.data.cache import Images
from endocil.data.decode import RULES
from endocil.data.inputs import Inputs, Pictures, Wanted, inputs_of, read_given, several
from endocil.errors import EndocilError
from endocil.learning.events import Show
from endocil.learning.features import unit_features
from endocil.methods import Method
from endocil.model.calibration import why_unflagged
from endocil.model.file import Content, read_content, write_content
from endocil.model.inference import Predicted, Progress, Watch, predict
from endocil.model.manifest import Manifest, terms_of
from endocil.model.restore import restored, settings_of
from endocil.runs.build import complete
from endocil.runs.experiments import portable
from endocil.runs.learn import (
    Beginning,
    changed,
    content_after,
    parted,
    refuse_existing,
    refuse_what_never_learns,
    step_of,
    take_step,
)
from endocil.runs.settings import DataSettings, Settings, load_settings


@dataclass(frozen=True, eq=False)
class Bundle:
    """A learned model with its classes, calibration and exemplars."""

    content: Content
    method: Method

    @classmethod
    def load(
        cls, path: str | Path, *, trust: bool = False, device: str | torch.device | None = None
    ) -> "Bundle":
        """Read and check a bundle's file; damaged and strange ones are refused in one line.

        `trust` lets it run code of other packages that it names; nothing in the file itself is ever run."""
        content = read_content(path)
        return cls(content, restored(content, torch.device(device or "cpu"), trust=trust))

    @property
    def manifest(self) -> Manifest:
        return self.content.manifest

    @property
    def classes(self) -> tuple[str, ...]:
        return self.content.classes

    @property
    def digest(self) -> str:
        """The sha256 of the file: the bundle's identity."""
        return self.content.digest

    @property
    def notes(self) -> tuple[str, ...]:
        """What is to be known before its predictions are used."""
        notes = []
        fitted = self.manifest.calibration
        if fitted is None:
            notes.append("not calibrated: probabilities are too sure, and nothing is flagged as unlike")
        elif why_unflagged(fitted):
            notes.append(why_unflagged(fitted))
        if self.manifest.preprocessing.rules != RULES:
            notes.append(
                f"made with {self.manifest.preprocessing.rules}, here are {RULES}: pixels may differ slightly"
            )
        return tuple(notes)

    @cached_property
    def exemplar_features(self) -> Tensor:
        """(m, d) of length 1, of the exemplars inside; measured when first asked for."""
        return unit_features(self.method, self.content.exemplars.pixels)

    def inputs(self, images: Wanted) -> Inputs:
        """What `predict` will read."""
        return inputs_of(images, crop_frame=self.manifest.preprocessing.crop_frame)

    def predict(
        self,
        images: Wanted | Inputs,
        *,
        top: int = 3,
        reasons: int = 0,
        batch: int = 64,
        progress: Progress | None = None,
        watch: Watch | None = None,
    ) -> Predicted:
        """Images: a file, a folder, a CSV file, an ImageTable, or a sequence of paths, PIL images and uint8 arrays.

        `top`: so many classes are named by `Predicted.top()`. `reasons`: so many nearest exemplars of each image.
        Images that cannot be read are listed in `unreadable`; where none can be read, that is an error. `watch`
        is called with each batch."""
        for name, value, least in (("top", top, 1), ("reasons", reasons, 0), ("batch", batch, 1)):
            if value < least:
                raise EndocilError(f"{name} is {value}; expected {least} or more")
        return predict(
            self.method,
            self.manifest,
            images if isinstance(images, Inputs) else self.inputs(images),
            exemplars=self.exemplar_features if reasons else torch.zeros(0, 0),
            spread=self.content.spread,
            top=top,
            reasons=reasons,
            batch=batch,
            progress=progress,
            watch=watch,
        )


# From Python, in the manner of scikit-learn: `learner.learn(images, labels)`, `learner.predict(images)`, again.


class LifelongLearner:
    """A model that learns classes as they come, and predicts among all it has learned.

    `settings`: a preset's name, a TOML file, a dictionary or Settings; what they say of data and tasks, sizes and
    `scenario.validation` excepted, plays no part."""

    def __init__(
        self,
        settings: str | Path | Mapping[str, Any] | Settings,
        *,
        name: str = "learner",
        trust: bool = False,
    ) -> None:
        chosen = load_settings(settings)
        data = DataSettings(name="synthetic", size=chosen.data.size, crop_frame=chosen.data.crop_frame)
        self._settings = complete(chosen.model_copy(update={"data": data}))
        self._beginning = Beginning(name, _recorded(self._settings))
        self._content: Content | None = None
        self._bundle: Bundle | None = None
        self._trust = trust

    @classmethod
    def load(cls, path: str | Path, *, changes: Sequence[str] = (), trust: bool = False) -> "LifelongLearner":
        """Go on with a bundle; `changes` such as "train.epochs=10" are as those of `endocil learn --set`."""
        content, reading = changed(read_content(path), changes)
        if reading:
            raise EndocilError(f"'{reading[0]}' is about reading files; images are given to learn() here")
        learner = cls.__new__(cls)
        learner._settings = settings_of(content, trust=trust)
        learner._beginning = Beginning(content.manifest.name, content.manifest.settings)
        learner._content, learner._bundle, learner._trust = content, None, trust
        return learner

    @property
    def classes_(self) -> np.ndarray:
        """The names of the classes in the order of learning, which is that of the columns of `predict_proba`."""
        return np.array(self._content.classes if self._content else (), dtype=object)

    @property
    def bundle(self) -> Bundle:
        """What it has learned, as a bundle that is not saved yet."""
        if self._content is None:
            raise EndocilError("nothing is learned yet; call learn(images, labels) first")
        if self._bundle is None:
            self._bundle = Bundle(self._content, restored(self._content, trust=self._trust))
        return self._bundle

    def learn(
        self,
        images: Pictures,
        labels: Sequence[str],
        *,
        groups: Sequence[str] | None = None,
        sources: Sequence[str] | None = None,
        licence: str = "",
        consent: str = "",
        show: Show = lambda record: None,
    ) -> "LifelongLearner":
        """One more task: these images of new classes, and of known ones if there are any among them.

        `groups` (patients, videos) and `sources` (devices, centres) go with the images that are kept."""
        terms = terms_of(licence, consent)
        if self._content is not None:
            refuse_what_never_learns(self._content, self._settings)
        task = len(self._content.tasks) if self._content else 0
        table, pixels = read_given(images, labels, groups, sources, task, self._settings.data)
        new = Images(table, pixels, torch.arange(len(table)), ())
        step = step_of(self._content, self._settings, parted(new, self._settings))
        with tempfile.TemporaryDirectory() as folder:
            parts = take_step(step, Path(folder), trust=self._trust, show=show)
        self._content, self._bundle = content_after(step, parts, terms, self._beginning), None
        return self

    def predict(self, images: Pictures) -> np.ndarray:
        """(n,) the names of the most probable classes."""
        found: np.ndarray = self.classes_[self._predicted(images).predicted.numpy()]
        return found

    def predict_proba(self, images: Pictures) -> np.ndarray:
        """(n, C) probabilities of `classes_`, calibrated where images were held out."""
        return self._predicted(images).probabilities.numpy()

    def save(self, path: str | Path) -> str:
        """Write a bundle; the digest of its file, which is the parent of what is learned from here on."""
        refuse_existing(Path(path))
        content = self.bundle.content
        digest = write_content(Path(path), content)
        self._content, self._bundle = replace(content, digest=digest), None
        return digest

    def _predicted(self, images: Pictures) -> Predicted:
        found = self.bundle.predict(several(images))
        if found.unreadable:
            name, reason = found.unreadable[0]
            raise EndocilError(f"{len(found.unreadable)} images cannot be read, first {name}: {reason}")
        return found


def _recorded(settings: Settings) -> dict[str, Any]:
    values = settings.model_dump(mode="json", exclude_none=True)
    data = {"name": "folder", "size": settings.data.size, "crop_frame": settings.data.crop_frame}
    return {**portable(values), "data": data}
