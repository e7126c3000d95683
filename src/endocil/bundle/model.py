"""A bundle from Python: `Bundle.load("model.endocil").predict(images)`."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from endocil.bundle.calibration import why_unflagged
from endocil.bundle.content import Content, read_content
from endocil.bundle.inputs import Inputs, Wanted, inputs_of
from endocil.bundle.looking import unit_features
from endocil.bundle.manifest import Manifest
from endocil.bundle.predicting import Predicted, Progress, Watch, predict
from endocil.bundle.restoring import restored
from endocil.errors import EndocilError
from endocil.images.decode import RULES
from endocil.methods import Method


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
