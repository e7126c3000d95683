"""Predictions: what a model says of images, and the one pass of the network that makes them.

The pass gives both heads, out-of-distribution scores and nearest exemplars.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from endocil.data.batches import ImageSet
from endocil.data.inputs import Inputs
from endocil.data.readers import read_in_chunks
from endocil.errors import EndocilError, SettingsError
from endocil.learning.features import FeatureStore, batch_of, l2_normalise, outputs_of
from endocil.learning.parallel import Processes
from endocil.methods import Method
from endocil.model.calibration import probabilities
from endocil.model.manifest import Calibration, HeldOutScores
from endocil.model.operating_points import COVERAGE, OperatingPoint, decisions, operating_point, prediction_sets
from endocil.model.out_of_distribution import ood_scores

Head = Literal["softmax", "nearest_mean"]
HEADS: tuple[Head, ...] = get_args(Head)
Floats = NDArray[np.float32]
Progress = Callable[[int, int], None]
OnBatch = Callable[[tuple[str, ...], Tensor, Tensor], None]  # names, pixels and predicted classes of a batch
NO_EXEMPLARS = torch.zeros(0, 0)


@dataclass(frozen=True, eq=False)
class Predictions:
    """What a model says of images, row for row, among all classes that it knows.

    An image that cannot be read has its row too: its reason in `errors`, NaN for its numbers, -1 as its prediction.
    Predictions read from a file have no out-of-distribution scores, nearest exemplars or calibration."""

    images: tuple[str, ...]
    labels: NDArray[np.int64]  # (n,) into classes; -1 where the class of an image is unknown
    classes: tuple[str, ...]  # in the order of learning
    scores: Floats  # (n, C) logits of the softmax head; 1 for the predicted class where there are no `true_scores`
    distances: Floats | None  # (n, C) squared, to the class means; None without exemplars
    sources: tuple[str, ...]  # "" where unknown
    ood_score: Floats | None = None  # (n,) the larger, the farther from everything learned
    nearest: tuple[tuple[int, ...], ...] = ()  # rows of the model's exemplars, the nearest first
    nearest_distances: tuple[tuple[float, ...], ...] = ()  # of their features, made length 1
    calibration: Calibration | None = None
    errors: tuple[str, ...] = ()  # of each image, why it cannot be read, or ""; () where all can
    shown: int = 3  # classes that `top` names
    true_scores: bool = True  # false: a file gave the predicted classes alone

    def __post_init__(self) -> None:
        n, c = len(self.images), len(self.classes)
        if self.errors and len(self.errors) != n:
            raise unexpected("errors", f"{n}, one for each image", len(self.errors))
        if n == 0 or self.labels.shape != (n,) or len(self.sources) != n:
            got = f"{n} images, labels {self.labels.shape}, {len(self.sources)} sources"
            raise unexpected("predictions", "images, each with a label and a source", got)
        if len(set(self.classes)) < c or not -1 <= self.labels.min() <= self.labels.max() < c:
            got = f"{self.labels.min()} to {self.labels.max()} into {self.classes}"
            raise unexpected("labels", "indices into distinct classes", got)
        for name, matrix in {"scores": self.scores, "distances": self.distances}.items():
            if matrix is not None and matrix.shape != (n, c):
                raise unexpected(name, f"the shape {(n, c)}, images by classes", matrix.shape)
            if matrix is not None and not np.isfinite(matrix[self.readable]).all():
                raise unexpected(name, "finite numbers", "NaN or infinity: did training diverge?")

    def __len__(self) -> int:
        return len(self.images)

    @property
    def readable(self) -> NDArray[np.bool_]:
        """(n,) which images could be read."""
        return np.array([not error for error in self.errors or ("",) * len(self)])

    @property
    def unreadable(self) -> tuple[tuple[str, str], ...]:
        """(image, reason) of those that could not."""
        return tuple((image, error) for image, error in zip(self.images, self.errors, strict=False) if error)

    def take(self, rows: Sequence[int]) -> "Predictions":
        """Those of some images."""
        return replace(
            self,
            images=tuple(self.images[row] for row in rows),
            labels=self.labels[rows],
            scores=self.scores[rows],
            distances=None if self.distances is None else self.distances[rows],
            sources=tuple(self.sources[row] for row in rows),
            errors=tuple(self.errors[row] for row in rows) if self.errors else (),
            ood_score=None if self.ood_score is None else self.ood_score[rows],
            nearest=tuple(self.nearest[row] for row in rows) if self.nearest else (),
            nearest_distances=tuple(self.nearest_distances[row] for row in rows) if self.nearest_distances else (),
        )

    def predicted(self, head: Head = "softmax") -> NDArray[np.int64]:
        """The class each image is given by this head, (n,), -1 where it cannot be read; ties go to the class learned
        first."""
        return np.where(self.readable, np.argmax(self.outputs(head), axis=1), -1).astype(np.int64)

    def outputs(self, head: Head = "softmax") -> Floats:
        """(n, C) of this head; the class with the largest wins."""
        stored = {"softmax": self.scores, "nearest_mean": None if self.distances is None else -self.distances}
        if (matrix := stored.get(head)) is None:
            raise unexpected("head", "softmax, or nearest_mean where exemplars were kept", repr(head))
        return matrix

    @property
    def calibrated(self) -> bool:
        return self.calibration is not None and self.calibration.improved

    @cached_property
    def probabilities(self) -> Floats:
        """(n, C) of the softmax head."""
        fitted = self.calibration
        return _probabilities(self.scores, fitted.temperature if fitted else None)

    @cached_property
    def mean_probabilities(self) -> Floats | None:
        """(n, C) of the nearest-mean head; None for methods without class means."""
        if self.distances is None:
            return None
        fitted = self.calibration
        return _probabilities(-self.distances, fitted.mean_temperature if fitted else None)

    @cached_property
    def out_of_distribution(self) -> NDArray[np.bool_] | None:
        """(n,) which images are flagged; None without a threshold."""
        threshold = self.calibration.ood_threshold if self.calibration else None
        if threshold is None or self.ood_score is None:
            return None
        return np.asarray(self.ood_score.astype(np.float64) > threshold)

    @cached_property
    def _plain(self) -> NDArray[np.float64]:
        """(n, C) probabilities of the softmax head without a temperature."""
        return probabilities(torch.from_numpy(self.scores), None).numpy()

    def _held_out_scores(self) -> HeldOutScores:
        if self.calibration is None or self.calibration.scores is None:
            raise SettingsError(
                "the model has no held-out images of every class, so neither prediction sets nor operating points; set "
                "scenario.validation in its run, or give --validation to 'endocil learn'"
            )
        return self.calibration.scores

    def prediction_sets(self, coverage: float = COVERAGE, *, by_class: bool = True) -> list[tuple[str, ...]]:
        """A set of classes for each image that holds the right one with at least this probability, for images like the
        held-out ones (operating_points.py); none for images that cannot be read.

        `by_class`: for each class by itself, whatever its share; otherwise on average over the held-out images."""
        sets = prediction_sets(self._plain, self.classes, self._held_out_scores(), coverage, by_class=by_class)
        return [own if readable else () for own, readable in zip(sets, self.readable, strict=True)]

    def operating_points(self, sensitivities: Mapping[str, float]) -> dict[str, OperatingPoint]:
        """Thresholds for required sensitivities of some classes, with intervals."""
        scores = self._held_out_scores()
        return {name: operating_point(scores, name, required) for name, required in sensitivities.items()}

    def decisions(self, sensitivities: Mapping[str, float] | None = None) -> list[tuple[str, ...]]:
        """Of each image the classes whose required sensitivity makes it one of theirs; else the most probable class."""
        points = self.operating_points(sensitivities) if sensitivities else {}
        decided = decisions(self._plain, self.classes, points)
        return [own if readable else () for own, readable in zip(decided, self.readable, strict=True)]

    def top(self, k: int | None = None) -> list[list[tuple[str, float]]]:
        """The k most probable classes of each image with their probabilities; none where it cannot be read."""
        shown = self.shown if k is None else k
        rows = zip(self.probabilities, self.readable, strict=True)
        return [top_classes(row, self.classes, shown) if readable else [] for row, readable in rows]


def _probabilities(scores: Floats, temperature: float | None) -> Floats:
    return probabilities(torch.from_numpy(scores), temperature).float().numpy()


def top_classes(probabilities: Floats, classes: Sequence[str], k: int) -> list[tuple[str, float]]:
    """The k most probable classes of one image; ties go to the class learned first."""
    return [(classes[i], float(probabilities[i])) for i in np.argsort(-probabilities, kind="stable")[:k].tolist()]


def unexpected(where: object, expected: str, got: object) -> EndocilError:
    text = f"{where}: expected {expected}; got {got}"
    return EndocilError(text.encode("utf-8", "backslashreplace").decode())  # names need not be valid UTF-8


def predict(
    method: Method,
    images: ImageSet | Inputs,
    batch: int = 64,
    *,
    classes: tuple[str, ...],
    size: int = 0,
    calibration: Calibration | None = None,
    spread: Mapping[str, Tensor] | None = None,
    exemplars: Tensor = NO_EXEMPLARS,
    reasons: int = 0,
    top: int = 3,
    progress: Progress | None = None,
    on_batch: OnBatch | None = None,
    fabric: Processes | None = None,
    store: FeatureStore | None = None,
) -> Predictions:
    """Predict with both heads in one pass; images in memory, or files that are read at this `size`.

    `spread`: of the exemplars' features (`calibration.spread_of`). `exemplars`: (m, d) L2-normalised
    features; the nearest `reasons` of them are returned for each image. `fabric`: its processes divide an image set.
    `store`: where the features of an image set are kept if the backbone is frozen."""
    for option, value, least in (("top", top, 1), ("reasons", reasons, 0), ("batch", batch, 1)):
        if value < least:
            raise SettingsError(f"{option} is {value}; expected {least} or more")
    errors: list[str] = []  # of each image, "" where it was read
    names: list[str] = []
    logits, distances, scores, nearest = list[Tensor](), list[Tensor](), list[Tensor](), list[tuple[Tensor, Tensor]]()
    if isinstance(images, ImageSet):
        described = [images.images.describe(row) for row in images.rows.tolist()]
        batches: Iterator[tuple[tuple[str, ...], ImageSet | Tensor]]
        batches = iter([(tuple(name for name, _, _ in described), images)])
    else:
        batches = _file_batches(images, size, batch, errors, progress)
    for own_names, pixels in batches:
        outputs = outputs_of(method, pixels, batch, fabric=fabric, store=store)
        names += own_names
        logits.append(outputs.logits)
        scores.append(ood_scores(outputs, spread or {}))
        if outputs.distances is not None:
            distances.append(outputs.distances)
        if reasons and len(exemplars):
            between = torch.cdist(l2_normalise(outputs.features), exemplars)  # (B, m)
            closest = between.topk(min(reasons, len(exemplars)), largest=False)
            nearest.append((closest.indices, closest.values))
        if on_batch is not None and isinstance(pixels, Tensor):
            on_batch(own_names, pixels, outputs.logits.argmax(dim=1))
    if not names:
        assert isinstance(images, Inputs)
        pairs = list(zip(images.names, errors, strict=True))
        listed = "; ".join(f"{name}: {reason}" for name, reason in pairs[:3])
        more = "; ..." if len(pairs) > 3 else ""
        raise EndocilError(f"no image can be read, of {len(pairs):,} ({listed}{more})")
    if isinstance(images, ImageSet):
        labels, sources = images.labels.numpy(), tuple(source for _, _, source in described)
    else:
        names = list(images.names)
        label_of, unknown = {name: label for label, name in enumerate(classes)}, ("",) * len(names)
        labels = np.array([label_of.get(name, -1) for name in images.class_names or unknown], np.int64)
        sources = images.sources or unknown
    place = np.cumsum([not error for error in errors]) - 1  # of each image among those that were read
    row_of = [None if error else int(place[i]) for i, error in enumerate(errors)] or list(range(len(names)))
    return Predictions(
        images=tuple(names),
        labels=labels,
        classes=classes,
        scores=_in_place(logits, row_of),
        distances=_in_place(distances, row_of) if distances else None,
        sources=sources,
        ood_score=_in_place(scores, row_of),
        nearest=_tuples_in_place([rows for rows, _ in nearest], row_of),
        nearest_distances=_tuples_in_place([rows for _, rows in nearest], row_of),
        calibration=calibration,
        errors=tuple(errors) if any(errors) else (),
        shown=top,
    )


def _in_place(batches: Sequence[Tensor], row_of: Sequence[int | None]) -> np.ndarray:
    """One row for each image; NaN for those that were not read."""
    found = torch.cat(list(batches)).numpy()
    if len(found) == len(row_of):
        return found
    rows = np.full((len(row_of), *found.shape[1:]), np.nan, found.dtype)
    rows[[row is not None for row in row_of]] = found
    return rows


def _tuples_in_place(batches: Sequence[Tensor], row_of: Sequence[int | None]) -> tuple[tuple[Any, ...], ...]:
    """Likewise; empty for those that were not read, and () where nothing was looked for."""
    found = [tuple(row) for batch in batches for row in batch.tolist()]
    return tuple(() if row is None else found[row] for row in row_of) if found else ()


def _file_batches(
    inputs: Inputs, size: int, batch: int, errors: list[str], progress: Progress | None
) -> Iterator[tuple[tuple[str, ...], Tensor]]:
    """Names and pixels of the readable images, in their order; the next ones are decoded meanwhile.

    `errors` gets the reason of each image that cannot be read, and "" for the others."""
    wanted, done = batch_of(batch, size), 0
    names: list[str] = []
    waiting: list[np.ndarray] = []
    name_of = dict(zip(inputs.ids, inputs.names, strict=True))
    workers = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    for pixels, failed in read_in_chunks(inputs.reader, inputs.ids, size, workers):
        ids = inputs.ids[done : done + len(pixels)]
        reasons = dict(failed)
        errors += [(reasons[image_id] or "unreadable") if image_id in reasons else "" for image_id in ids]
        names += [name_of[image_id] for image_id in ids if image_id not in reasons]
        good = np.array([image_id not in reasons for image_id in ids])
        waiting.append(pixels if good.all() else pixels[good])
        done += len(pixels)
        if len(names) >= wanted or done == len(inputs.ids):
            rows = waiting[0] if len(waiting) == 1 else np.concatenate(waiting)
            full = len(names) if done == len(inputs.ids) else len(names) // wanted * wanted
            for start in range(0, full, wanted):
                end = min(start + wanted, full)
                yield tuple(names[start:end]), torch.from_numpy(rows[start:end])
            names, waiting = names[full:], [rows[full:]]
        if progress is not None:
            progress(done, len(inputs.ids))
