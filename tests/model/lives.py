"""A short life on small pictures as a model, and the images of its next task as newcomers."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from life import EPOCHS, QUOTA, SMALLER, Life
from torch import Tensor

from endocil.data.augment import IMAGENET
from endocil.data.decode import RULES
from endocil.data.table import ImageTable
from endocil.learning.memory import KeptImages, no_images
from endocil.model.file import ModelFile
from endocil.model.manifest import LearnedClass, Manifest, Preprocessing, Step
from endocil.model.new_images import NewImages

DIGEST = "0" * 64


def settings_of_life(life: Life, name: str) -> dict[str, Any]:
    """What says the same as the harness does."""
    budget = {"total": life.memory.total} if life.memory and life.memory.total else {"per_class": QUOTA}
    return {
        "seed": life.method.seed,
        "data": {"name": "synthetic", "size": 32},
        "network": {"width": 8},
        "method": {"name": name, **SMALLER.get(name, {})},
        "memory": {**budget, "select": life.method.default_selector},
        "train": {"epochs": EPOCHS, "milestones": [1], "batch_size": 8},
        "run": {"threads": torch.get_num_threads(), "accelerator": "cpu"},
    }


def content_of(life: Life, name: str, tasks: int) -> ModelFile:
    """The model of a life after so many tasks."""
    table, done = life.images.table, life.scenario.tasks[:tasks]
    counts = life.scenario.counts("train").tolist()
    classes = tuple(
        LearnedClass(name=table.classes[label], task=task.index, images=counts[label])
        for task in done
        for label in range(task.n_old, task.n_seen)
    )
    size = life.images.pixels.shape[1]
    version = Step(made="2026-01-01T00:00:00+00:00", by="run", endocil="0.1.0", parent=None)
    manifest = Manifest(
        name="life",
        settings=settings_of_life(life, name),
        classes=classes,
        increments=tuple(task.n_new for task in done),
        preprocessing=Preprocessing(
            size=size, crop_frame=False, mean=IMAGENET.mean, deviation=IMAGENET.std, rules=RULES
        ),
        calibration=None,
        metrics=None,
        environment={},
        history=(version,),
        learns=True,
    )
    state = {key: value.clone() for key, value in life.method.state_dict().items()}
    statistics = {key: value.clone() for key, value in life.method.statistics.items()}
    return ModelFile(manifest, state, statistics, exemplars_of(life), no_images(size), DIGEST)


def exemplars_of(life: Life) -> KeptImages:
    if life.memory is None:
        return no_images(life.images.pixels.shape[1])
    exemplars: KeptImages = life.memory.exemplars
    return exemplars


def newcomers_of(life: Life, classes: slice, extra: Sequence[int] = ()) -> NewImages:
    """The training images of these classes, as a folder of them alone would give them; and other rows."""
    rows = sorted([*life.scenario.rows("train", classes).tolist(), *extra])
    table = life.images.table.take(rows)
    present = sorted({table.classes[label] for label in table.labels})
    alone: ImageTable = table.keep_classes(present)
    images = replace(life.images, table=alone, rows=life.images.rows[rows])
    return NewImages(images, np.full(len(rows), "train", dtype="U10"))


def all_of(content: ModelFile) -> dict[str, Tensor]:
    """Weights and statistics."""
    return {**content.state, **{f"statistics/{name}": value for name, value in content.statistics.items()}}
