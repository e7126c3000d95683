"""Variants of a scenario: few images of later classes, a long tail, images that come in a later task than their class.

They change the training images alone: every variant of a split is tested on the same images. Which images are chosen
depends on scenario.split_seed and the ids, so all methods and seeds learn from the same ones.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from endocil.data.scenario import Scenario
from endocil.data.seeding import generator
from endocil.data.splits import TRAIN, UNUSED
from endocil.errors import SettingsError


def few_shot(scenario: Scenario, shots: int, seed: int) -> Scenario:
    """Keep `shots` training images of each class of the later tasks, as few-shot class-incremental learning does
    (Tao et al., CVPR 2020, 5 of each); the first task keeps all."""
    if len(scenario.tasks) == 1:
        raise SettingsError(
            "scenario.shots limits the classes of later tasks, but there is one task; set scenario.tasks"
        )
    first, n = scenario.tasks[0].n_new, len(scenario.table.classes)
    return _thinned(scenario, [None] * first + [shots] * (n - first), seed, f"scenario.shots = {shots}")


def long_tail(scenario: Scenario, factor: float, order: str, seed: int) -> Scenario:
    """Class k of C keeps n * factor^(-k / (C - 1)) training images, where n is the size of the largest class (Cui et
    al., CVPR 2019). A class that has fewer keeps all.

    order (Liu et al., ECCV 2022): "ordered", so that k counts in the order of learning; "shuffled", at random."""
    n = len(scenario.table.classes)
    most = int(scenario.counts(TRAIN).max())
    places = torch.randperm(n, generator=generator(seed, "long tail")).tolist() if order == "shuffled" else range(n)
    most_of = [max(1, int(most * factor ** (-k / max(1, n - 1)) + 1e-9)) for k in places]
    return _thinned(scenario, most_of, seed, f"scenario.imbalance = {factor:g}, {order}")


def _thinned(scenario: Scenario, most: Sequence[int | None], seed: int, reason: str) -> Scenario:
    """At most so many training images of each class (None: all)."""
    part = scenario.part.copy()
    for label, limit in enumerate(most):
        rows = _shuffled(scenario, label, seed, "fewer images")
        if limit is not None:
            part[rows[limit:]] = UNUSED
    dropped = int((part == UNUSED).sum() - (scenario.part == UNUSED).sum())
    note = f"{dropped:,} training images are not used: {reason}"
    return replace(scenario, part=part, notes=(*scenario.notes, note))


def blurry(scenario: Scenario, share: float, seed: int) -> Scenario:
    """A share of the training images of each class come later than their class, spread evenly over the tasks after
    it. So tasks overlap in classes as in the blurry protocol of Bang et al. (CVPR 2021), but no image comes before the
    task that brings its class: a model of one growing head has no output for it."""
    if len(scenario.tasks) == 1:
        raise SettingsError("scenario.blurry moves images to later tasks, but there is one task; set scenario.tasks")
    if scenario.arrivals is not None:
        raise SettingsError("scenario.blurry is set, but the data says when each image comes; leave out one of them")
    last = scenario.tasks[-1].index
    arrivals = scenario.class_tasks[scenario.table.labels]
    for task in scenario.tasks[:-1]:
        for label in range(task.n_old, task.n_seen):
            rows = _shuffled(scenario, label, seed, "blurry")
            later = rows[: int(len(rows) * share)]  # below all of them, as the share is below 1
            arrivals[later] = task.index + 1 + np.arange(len(later)) % (last - task.index)
    return replace(scenario, arrivals=arrivals)


def _shuffled(scenario: Scenario, label: int, seed: int, purpose: str) -> np.ndarray:
    """The rows of a class's training images in an order that depends on seed, class and ids."""
    ids, name = scenario.table.ids, scenario.table.classes[label]
    rows = scenario.rows(TRAIN, slice(label, label + 1)).tolist()
    order = torch.randperm(len(rows), generator=generator(seed, purpose, name)).tolist()
    by_id = sorted(rows, key=ids.__getitem__)
    return np.array([by_id[place] for place in order], np.int64)
