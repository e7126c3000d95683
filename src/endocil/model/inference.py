"""Inference: one pass of the network for both heads, out-of-distribution scores and nearest exemplars."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from endocil.data.batches import ImageSet
from endocil.data.inputs import Inputs
from endocil.data.readers import read_in_chunks
from endocil.errors import EndocilError
from endocil.learning.features import FeatureStore, batch_of, l2_normalise, outputs_of
from endocil.methods import Method
from endocil.model.manifest import Calibration
from endocil.model.out_of_distribution import ood_scores
from endocil.model.predictions import Predictions

if TYPE_CHECKING:
    from lightning_fabric import Fabric

Progress = Callable[[int, int], None]
OnBatch = Callable[[tuple[str, ...], Tensor, Tensor], None]  # names, pixels and predicted classes of a batch
NO_EXEMPLARS = torch.zeros(0, 0)


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
    fabric: "Fabric | None" = None,
    store: FeatureStore | None = None,
) -> Predictions:
    """Predict with both heads in one pass; images in memory, or files that are read at this `size`.

    `spread`: of the exemplars' features (`calibration.spread_of`). `exemplars`: (m, d) L2-normalised
    features; the nearest `reasons` of them are returned for each image. `fabric`: its processes divide an image set.
    `store`: where the features of an image set are kept if the backbone is frozen."""
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
        raise EndocilError(f"none of the {len(pairs)} images can be read ({listed}{more})")
    if isinstance(images, ImageSet):
        labels, sources = images.labels.numpy(), tuple(source for _, _, source in described)
    else:
        names = list(images.names)
        labels, sources = _known(images, classes)
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


def _known(inputs: Inputs, classes: Sequence[str]) -> tuple[np.ndarray, tuple[str, ...]]:
    """Labels and sources of the images, as far as the inputs tell them."""
    label_of = {name: label for label, name in enumerate(classes)}
    class_names = inputs.class_names or [""] * len(inputs.names)
    sources = inputs.sources or ("",) * len(inputs.names)
    return np.array([label_of.get(name, -1) for name in class_names], np.int64), tuple(sources)


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
