"""A patient's images taken out of a model: what can be measured again without them is; what cannot is said."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from difflib import get_close_matches
from importlib.metadata import version

import torch
from torch import Tensor

from endocil.errors import EndocilError
from endocil.learning.features import CLASS_MEANS, class_means, look
from endocil.learning.memory import KeptImages, Provenance
from endocil.model.calibration import calibrate, why_uncalibrated, why_unflagged
from endocil.model.file import ModelFile
from endocil.model.manifest import Calibration, Step
from endocil.model.out_of_distribution import spread_of
from endocil.model.restore import model_settings, restored_method

KINDS = {
    "group": "group",
    "image": "image",
    "source": "source",
}  # what may be asked for -> field of Provenance

UNKEPT = (
    "Images of it that were learned and not kept cannot be told from here: the weights may have seen them"
)


@dataclass(frozen=True)
class Forgotten:
    content: ModelFile
    exemplars: int  # images that are gone
    held_out: int
    lines: tuple[str, ...]  # what was measured again, and what still saw them


def forget(
    content: ModelFile,
    *,
    groups: Sequence[str] = (),
    images: Sequence[str] = (),
    sources: Sequence[str] = (),
    allow_empty: bool = False,
    trust: bool = False,
) -> Forgotten:
    """Without every image of these groups, ids or sources; a value that fits none is refused."""
    asked = {"group": set(groups), "image": set(images), "source": set(sources)}
    _refuse_unmatched(content, asked)
    exemplars, held_out = (_without(images, asked) for images in (content.exemplars, content.held_out))
    gone = len(content.exemplars) - len(exemplars), len(content.held_out) - len(held_out)
    emptied = _emptied(content.exemplars, exemplars)
    if emptied and not allow_empty:
        raise EndocilError(
            f"no exemplar would be left of {', '.join(emptied)}, and the model could not learn on unless new images "
            f"of it come along; say --allow-empty if that is meant"
        )
    found = replace(content, exemplars=_renumbered(exemplars), held_out=held_out)
    found, measured = _measured_again(found, content, emptied, gone, trust=trust)
    told = (*measured, *_still_saw(content, gone, asked))
    removed = _counted(content, asked)
    step_record = Step(
        made=datetime.now(UTC).isoformat(timespec="seconds"),
        by="forget",
        endocil=version("endocil"),
        parent=content.digest or None,
        removed=removed,
        note="; ".join(told),
    )
    manifest = found.manifest.model_copy(update={"history": (*content.manifest.history, step_record)})
    return Forgotten(replace(found, manifest=manifest, digest=""), *gone, told)


def _fits(one: Provenance, asked: dict[str, set[str]]) -> str:
    """By what a image was asked for; "" where it was not."""
    return next((kind for kind, values in asked.items() if getattr(one, KINDS[kind]) in values), "")


def _without(images: KeptImages, asked: dict[str, set[str]]) -> KeptImages:
    return images.take([row for row, one in enumerate(images.provenance) if not _fits(one, asked)])


def _counted(content: ModelFile, asked: dict[str, set[str]]) -> dict[str, int]:
    """By kind alone: the name of a patient who is to be forgotten does not go into the history."""
    kept = (*content.exemplars.provenance, *content.held_out.provenance)
    return dict(Counter(kind for one in kept if (kind := _fits(one, asked))))


def _refuse_unmatched(content: ModelFile, asked: dict[str, set[str]]) -> None:
    if not any(asked.values()):
        raise EndocilError("nothing is to be forgotten; name a --group, an --image or a --source")
    kept = (*content.exemplars.provenance, *content.held_out.provenance)
    for kind, values in asked.items():
        known = sorted({getattr(one, KINDS[kind]) for one in kept} - {""})
        for value in sorted(values - set(known)):
            near = get_close_matches(value, known, 3, 0.5)
            meant = (
                f"near to it: {', '.join(near)}" if near else "'endocil memory --list' shows what there is"
            )
            unkept = "" if kind == "image" else f". {UNKEPT}"
            raise EndocilError(f"no image of the model has the {kind} '{value}'; {meant}{unkept}")


def _emptied(before: KeptImages, after: KeptImages) -> list[str]:
    left = {one.class_name for one in after.provenance}
    return sorted({one.class_name for one in before.provenance} - left)


def _renumbered(images: KeptImages) -> KeptImages:
    """The order of choice stays, without gaps."""
    seen, kept = Counter[str](), []
    for one in images.provenance:
        kept.append(replace(one, order=seen[one.class_name]))
        seen[one.class_name] += 1
    return KeptImages(images.pixels, tuple(kept))


def _measured_again(
    found: ModelFile, before: ModelFile, emptied: list[str], gone: tuple[int, int], *, trust: bool
) -> tuple[ModelFile, list[str]]:
    settings = model_settings(before, trust=trust)
    told, method = [], restored_method(before, settings, torch.device("cpu"))
    batch = settings.run.evaluation_batch
    if gone[0] and CLASS_MEANS in before.statistics:
        touched = _touched(before.exemplars, found.exemplars) - set(emptied)
        if touched:
            means = _means(before, found, look(method, found.exemplars.pixels, batch).features, touched)
            found = replace(found, statistics={**before.statistics, CLASS_MEANS: means})
            method.statistics[CLASS_MEANS] = means
            told.append(f"measured again: the class means of {', '.join(sorted(touched))}")
        if emptied:
            told.append(f"still of the images that are gone: the class means of {', '.join(emptied)}")
    if gone[0] and before.spread:
        found = replace(found, spread=spread_of(method, found.exemplars, before.classes, batch=batch))
        told.append(
            "measured again: the spread of the exemplars' features"
            if found.spread
            else "the spread of the exemplars' features is gone: a plain distance measures what is out of distribution"
        )
    old, fitted = before.manifest.calibration, None
    if old is not None:
        fitted = calibrate(
            method, found.held_out, before.classes, found.spread, rate=old.ood_rate, batch=batch
        )
        told += _calibrated_again(found, fitted)
    update = {"calibration": fitted, "metrics": None if gone[0] else before.manifest.metrics}
    found = replace(found, manifest=before.manifest.model_copy(update=update))
    return found, told


def _calibrated_again(found: ModelFile, fitted: Calibration | None) -> list[str]:
    if fitted is None:
        return [f"the calibration is gone: {why_uncalibrated(found.held_out, found.classes)} are left"]
    told = [f"fitted again: the calibration, on {fitted.images} held-out images"]
    return [*told, why_unflagged(fitted)] if why_unflagged(fitted) else told


def _touched(before: KeptImages, after: KeptImages) -> set[str]:
    left = {one.image for one in after.provenance}
    return {one.class_name for one in before.provenance if one.image not in left}


def _means(before: ModelFile, found: ModelFile, features: Tensor, touched: set[str]) -> Tensor:
    """Those of other classes stay bit for bit."""
    labels = torch.tensor([before.classes.index(one.class_name) for one in found.exemplars.provenance])
    again = class_means(features, labels, len(before.classes))
    means = before.statistics[CLASS_MEANS].clone()
    for label in (before.classes.index(name) for name in touched):
        means[label] = again[label]
    return means


def _still_saw(before: ModelFile, gone: tuple[int, int], asked: dict[str, set[str]]) -> list[str]:
    """What was learned from the images cannot be made to forget them by taking them out."""
    if not gone[0]:
        known = f". {UNKEPT}" if asked["group"] or asked["source"] else ": nothing else saw them"
        return [f"held-out images were never learned from{known}"]
    others = sorted({name.partition(".")[0] for name in before.statistics} - {CLASS_MEANS})
    statistics = f", and the statistics {', '.join(others)}" if others else ""
    return [
        f"the weights still saw them{statistics}: taking images out does not make a network forget; "
        f"train anew without them where that is needed"
    ]
