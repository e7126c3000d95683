"""Predictions of a model: files decoded in threads, one pass of the network, both heads, flags and reasons."""

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from endocil.data.inputs import Inputs
from endocil.data.readers import read_in_chunks
from endocil.errors import EndocilError
from endocil.io.files import write_csv
from endocil.learning.features import (
    Seen,
    batch_of,
    seen_in,
    unit,
)
from endocil.learning.memory import KeptImages
from endocil.methods import Method
from endocil.model.calibration import probabilities
from endocil.model.manifest import Manifest
from endocil.model.out_of_distribution import ood_scores

Progress = Callable[[int, int], None]
Watch = Callable[[tuple[str, ...], Tensor, Tensor], None]  # names, pixels and predicted classes of a batch


@dataclass(frozen=True, eq=False)
class Predicted:
    """What a model says of images, row for row; unreadable ones are listed beside."""

    images: tuple[str, ...]
    classes: tuple[str, ...]
    logits: Tensor  # (n, C) float32, of the softmax head
    probabilities: Tensor  # (n, C) of the softmax head
    mean_probabilities: Tensor | None  # (n, C) of the nearest-mean head; none for methods without class means
    out_of_distribution: Tensor | None  # (n,) bool: unlike all that was learned; none without a threshold
    ood_score: Tensor  # (n,)
    calibrated: bool
    nearest: tuple[tuple[int, ...], ...]  # rows of the model's exemplars, the nearest first
    unreadable: tuple[tuple[str, str], ...]  # (name, reason)
    nearest_distances: tuple[tuple[float, ...], ...] = ()  # of their features, made length 1
    shown: int = 3  # classes that `top` names

    def __len__(self) -> int:
        return len(self.images)

    @property
    def predicted(self) -> Tensor:
        """(n,) the class by the softmax head; ties go to the class learned first."""
        return self.logits.argmax(dim=1)

    def top(self, k: int | None = None) -> list[list[tuple[str, float]]]:
        """The k most probable classes of each image with their probabilities."""
        k = self.shown if k is None else k
        values, order = self.probabilities.sort(dim=1, descending=True, stable=True)
        rows = zip(order[:, :k].tolist(), values[:, :k].tolist(), strict=True)
        return [[(self.classes[i], p) for i, p in zip(own, ps, strict=True)] for own, ps in rows]


@dataclass(eq=False)
class _Gathered:
    """What the batches gave, before it is put together."""

    spread: Mapping[str, Tensor]
    names: list[str] = field(default_factory=list)
    logits: list[Tensor] = field(default_factory=list)
    distances: list[Tensor] = field(default_factory=list)
    scores: list[Tensor] = field(default_factory=list)
    nearest: list[tuple[int, ...]] = field(default_factory=list)
    how_near: list[tuple[float, ...]] = field(default_factory=list)

    def add(self, names: tuple[str, ...], seen: Seen, exemplars: Tensor, reasons: int) -> None:
        self.names += names
        self.logits.append(seen.logits)
        self.scores.append(ood_scores(seen, self.spread))
        if seen.distances is not None:
            self.distances.append(seen.distances)
        if reasons and len(exemplars):
            near = torch.cdist(unit(seen.features), exemplars).topk(
                min(reasons, len(exemplars)), largest=False
            )
            self.nearest += map(tuple, near.indices.tolist())
            self.how_near += map(tuple, near.values.tolist())


def predict(
    method: Method,
    manifest: Manifest,
    inputs: Inputs,
    *,
    exemplars: Tensor,
    spread: Mapping[str, Tensor],
    top: int = 3,
    reasons: int = 0,
    batch: int = 64,
    progress: Progress | None = None,
    watch: Watch | None = None,
) -> Predicted:
    """`exemplars`: (m, d) features of length 1, among which the nearest `reasons` are looked for.

    `spread`: how the features of exemplars spread (`out_of_distribution.spread_of`)."""
    found, unreadable = _Gathered(spread), list[tuple[str, str]]()
    method.eval()
    for names, pixels in _file_batches(inputs, manifest.preprocessing.size, batch, unreadable, progress):
        seen = seen_in(method, pixels)
        found.add(names, seen, exemplars, reasons)
        if watch is not None:
            watch(names, pixels, seen.logits.argmax(dim=1))
    if not found.names:
        listed = "; ".join(f"{name}: {reason}" for name, reason in unreadable[:3])
        more = "; ..." if len(unreadable) > 3 else ""
        raise EndocilError(f"none of the {len(unreadable)} images can be read ({listed}{more})")
    return _put_together(found, manifest, tuple(unreadable), top)


def _put_together(
    found: _Gathered, manifest: Manifest, unreadable: tuple[tuple[str, str], ...], top: int
) -> Predicted:
    fitted, logits, scores = manifest.calibration, torch.cat(found.logits), torch.cat(found.scores)
    limit = fitted.ood_threshold if fitted else None
    by_mean = None
    if found.distances:
        temperature = fitted.mean_temperature if fitted else None
        by_mean = probabilities(-torch.cat(found.distances), temperature).float()
    return Predicted(
        images=tuple(found.names),
        classes=tuple(learned.name for learned in manifest.classes),
        logits=logits,
        probabilities=probabilities(logits, fitted.temperature if fitted else None).float(),
        mean_probabilities=by_mean,
        out_of_distribution=None if limit is None else scores.double() > limit,
        ood_score=scores,
        calibrated=fitted is not None,
        nearest=tuple(found.nearest),
        unreadable=unreadable,
        nearest_distances=tuple(found.how_near),
        shown=top,
    )


def _file_batches(
    inputs: Inputs, size: int, batch: int, unreadable: list[tuple[str, str]], progress: Progress | None
) -> Iterator[tuple[tuple[str, ...], Tensor]]:
    """Names and pixels of the readable images, in their order; the next ones are decoded meanwhile."""
    wanted, done = batch_of(batch, size), 0
    names: list[str] = []
    waiting: list[np.ndarray] = []
    name_of = dict(zip(inputs.ids, inputs.names, strict=True))
    for pixels, failed in read_in_chunks(inputs.reader, inputs.ids, size, _workers()):
        ids = inputs.ids[done : done + len(pixels)]
        reasons = dict(failed)
        unreadable += [(name_of[image_id], reasons[image_id]) for image_id in ids if image_id in reasons]
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


def _workers() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def write_predicted(
    path: Path, predicted: Predicted, exemplars: KeptImages, drawn: tuple[str, ...] = ()
) -> None:
    """A CSV file with one line for each image, unreadable ones at the end.

    `drawn`: the file of each image's Grad-CAM overlay, where they were asked for."""
    shown = min(predicted.shown, len(predicted.classes))
    reasons = max((len(rows) for rows in predicted.nearest), default=0)
    header = ["image", "error", "calibrated"]
    header += [f"{what}_{i}" for i in range(1, shown + 1) for what in ("class", "probability")]
    header += ["mean_class", "mean_probability", "out_of_distribution", "ood_score"]
    header += [f"exemplar_{i}{what}" for i in range(1, reasons + 1) for what in ("", "_class", "_distance")]
    header += ["gradcam"] if drawn else []
    rows = [_row(predicted, i, exemplars, drawn) for i in range(len(predicted))]
    empty = [""] * (len(header) - 2)
    rows += [[name, reason, *empty] for name, reason in predicted.unreadable]
    write_csv(path, header, rows)


def _row(predicted: Predicted, i: int, exemplars: KeptImages, drawn: tuple[str, ...]) -> list[str]:
    row = [predicted.images[i], "", _yes(predicted.calibrated)]
    values, order = predicted.probabilities[i].sort(descending=True, stable=True)
    for label, value in list(zip(order.tolist(), values.tolist(), strict=True))[: predicted.shown]:
        row += [predicted.classes[label], _number(value)]
    row += _of_mean_head(predicted, i)
    row += ["" if predicted.out_of_distribution is None else _yes(bool(predicted.out_of_distribution[i]))]
    row += [_number(float(predicted.ood_score[i]))]
    if predicted.nearest:
        near = zip(predicted.nearest[i], predicted.nearest_distances[i], strict=True)
        for place, distance in near:
            one = exemplars.provenance[place]
            row += [one.image, one.class_name, _number(distance)]
    return [*row, drawn[i]] if drawn else row


def _of_mean_head(predicted: Predicted, i: int) -> list[str]:
    if predicted.mean_probabilities is None:
        return ["", ""]
    best = int(predicted.mean_probabilities[i].argmax())
    return [predicted.classes[best], _number(float(predicted.mean_probabilities[i, best]))]


def _number(value: float) -> str:
    return f"{value:.6g}"


def _yes(value: bool) -> str:
    return "yes" if value else "no"
