"""From Python, in the manner of scikit-learn: `learner.learn(images, labels)`, `learner.predict(images)`, again."""

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from endocil.assembly import complete
from endocil.bundle.content import Content, read_content, write_content
from endocil.bundle.given import Pictures, read_given, several
from endocil.bundle.learn_checks import refuse_what_never_learns
from endocil.bundle.learned import Beginning, content_after
from endocil.bundle.learning import refuse_existing, take_step
from endocil.bundle.manifest import terms_of
from endocil.bundle.model import Bundle
from endocil.bundle.newcomers import parted
from endocil.bundle.predicting import Predicted
from endocil.bundle.restoring import restored, settings_of
from endocil.bundle.step import changed, step_of
from endocil.errors import EndocilError
from endocil.images.cache import Images
from endocil.journal import Show
from endocil.report.names import portable
from endocil.settings import DataSettings, Settings, load_settings


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
