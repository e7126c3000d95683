"""A patient's pictures taken out of a bundle: what can be measured again without them is, and what cannot is told."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from difflib import get_close_matches

import torch
from torch import Tensor

import endocil
from endocil.errors import EndocilError
from endocil.learning.features import CLASS_MEANS, class_means, look
from endocil.model.calibration import calibrate, why_uncalibrated, why_unflagged
from endocil.model.file import Content
from endocil.model.manifest import Calibration, Version
from endocil.model.out_of_distribution import spread_of
from endocil.model.pictures import Origin, Pictures
from endocil.model.restore import restored, settings_of

KINDS = {"group": "group", "image": "image", "source": "source"}  # what may be asked for -> field of Origin

UNKEPT = (
    "Images of it that were learned and not kept cannot be told from here: the weights may have seen them"
)


@dataclass(frozen=True)
class Forgotten:
    content: Content
    exemplars: int  # pictures that are gone
    held_out: int
    lines: tuple[str, ...]  # what was measured again, and what still saw them


def forget(
    content: Content,
    *,
    groups: Sequence[str] = (),
    images: Sequence[str] = (),
    sources: Sequence[str] = (),
    allow_empty: bool = False,
    trust: bool = False,
) -> Forgotten:
    """Without every picture of these groups, ids or sources; a value that fits none is refused."""
    asked = {"group": set(groups), "image": set(images), "source": set(sources)}
    _refuse_unmatched(content, asked)
    exemplars, held_out = (_without(pictures, asked) for pictures in (content.exemplars, content.held_out))
    gone = len(content.exemplars) - len(exemplars), len(content.held_out) - len(held_out)
    emptied = _emptied(content.exemplars, exemplars)
    if emptied and not allow_empty:
        raise EndocilError(
            f"no exemplar would be left of {', '.join(emptied)}, and the bundle could not learn on unless new images "
            f"of it come along; say --allow-empty if that is meant"
        )
    found = replace(content, exemplars=_renumbered(exemplars), held_out=held_out)
    found, measured = _measured_again(found, content, emptied, gone, trust=trust)
    told = (*measured, *_still_saw(content, gone, asked))
    removed = _counted(content, asked)
    version = Version(
        made=datetime.now(UTC).isoformat(timespec="seconds"),
        by="forget",
        endocil=endocil.__version__,
        parent=content.digest or None,
        removed=removed,
        note="; ".join(told),
    )
    manifest = found.manifest.model_copy(update={"history": (*content.manifest.history, version)})
    return Forgotten(replace(found, manifest=manifest, digest=""), *gone, told)


def _fits(origin: Origin, asked: dict[str, set[str]]) -> str:
    """By what a picture was asked for; "" where it was not."""
    return next((kind for kind, values in asked.items() if getattr(origin, KINDS[kind]) in values), "")


def _without(pictures: Pictures, asked: dict[str, set[str]]) -> Pictures:
    return pictures.take([row for row, origin in enumerate(pictures.origins) if not _fits(origin, asked)])


def _counted(content: Content, asked: dict[str, set[str]]) -> dict[str, int]:
    """By kind alone: the name of a patient who is to be forgotten does not go into the history."""
    origins = (*content.exemplars.origins, *content.held_out.origins)
    return dict(Counter(kind for origin in origins if (kind := _fits(origin, asked))))


def _refuse_unmatched(content: Content, asked: dict[str, set[str]]) -> None:
    if not any(asked.values()):
        raise EndocilError("nothing is to be forgotten; name a --group, an --image or a --source")
    origins = (*content.exemplars.origins, *content.held_out.origins)
    for kind, values in asked.items():
        known = sorted({getattr(origin, KINDS[kind]) for origin in origins} - {""})
        for value in sorted(values - set(known)):
            near = get_close_matches(value, known, 3, 0.5)
            meant = (
                f"near to it: {', '.join(near)}" if near else "'endocil memory --list' shows what there is"
            )
            unkept = "" if kind == "image" else f". {UNKEPT}"
            raise EndocilError(f"no picture of the bundle has the {kind} '{value}'; {meant}{unkept}")


def _emptied(before: Pictures, after: Pictures) -> list[str]:
    left = {origin.class_name for origin in after.origins}
    return sorted({origin.class_name for origin in before.origins} - left)


def _renumbered(pictures: Pictures) -> Pictures:
    """The order of choice stays, without gaps."""
    seen, origins = Counter[str](), []
    for origin in pictures.origins:
        origins.append(replace(origin, order=seen[origin.class_name]))
        seen[origin.class_name] += 1
    return Pictures(pictures.pixels, tuple(origins))


def _measured_again(
    found: Content, before: Content, emptied: list[str], gone: tuple[int, int], *, trust: bool
) -> tuple[Content, list[str]]:
    told, method = [], restored(before, trust=trust)
    batch = settings_of(before, trust=trust).run.evaluation_batch
    if gone[0] and CLASS_MEANS in before.statistics:
        touched = _touched(before.exemplars, found.exemplars) - set(emptied)
        if touched:
            means = _means(before, found, look(method, found.exemplars.pixels, batch).features, touched)
            found = replace(found, statistics={**before.statistics, CLASS_MEANS: means})
            method.statistics[CLASS_MEANS] = means
            told.append(f"measured again: the class means of {', '.join(sorted(touched))}")
        if emptied:
            told.append(f"still of the pictures that are gone: the class means of {', '.join(emptied)}")
    if gone[0] and before.spread:
        found = replace(found, spread=spread_of(method, found.exemplars, before.classes, batch=batch))
        told.append(
            "measured again: the spread of the exemplars' features"
            if found.spread
            else "the spread of the exemplars' features is gone: a plain distance tells what is unlike"
        )
    old, fitted = before.manifest.calibration, None
    if old is not None:
        fitted = calibrate(
            method, found.held_out, before.classes, found.spread, rate=old.unlike_rate, batch=batch
        )
        told += _calibrated_again(found, fitted)
    update = {"calibration": fitted, "metrics": None if gone[0] else before.manifest.metrics}
    found = replace(found, manifest=before.manifest.model_copy(update=update))
    return found, told


def _calibrated_again(found: Content, fitted: Calibration | None) -> list[str]:
    if fitted is None:
        return [f"the calibration is gone: {why_uncalibrated(found.held_out, found.classes)} are left"]
    told = [f"fitted again: the calibration, on {fitted.images} held-out images"]
    return [*told, why_unflagged(fitted)] if why_unflagged(fitted) else told


def _touched(before: Pictures, after: Pictures) -> set[str]:
    left = {origin.image for origin in after.origins}
    return {origin.class_name for origin in before.origins if origin.image not in left}


def _means(before: Content, found: Content, features: Tensor, touched: set[str]) -> Tensor:
    """Those of other classes stay bit for bit."""
    labels = torch.tensor([before.classes.index(origin.class_name) for origin in found.exemplars.origins])
    again = class_means(features, labels, len(before.classes))
    means = before.statistics[CLASS_MEANS].clone()
    for label in (before.classes.index(name) for name in touched):
        means[label] = again[label]
    return means


def _still_saw(before: Content, gone: tuple[int, int], asked: dict[str, set[str]]) -> list[str]:
    """What was learned from the pictures cannot be made to forget them by taking them out."""
    if not gone[0]:
        known = f". {UNKEPT}" if asked["group"] or asked["source"] else ": nothing else saw them"
        return [f"held-out pictures were never learned from{known}"]
    others = sorted({name.partition(".")[0] for name in before.statistics} - {CLASS_MEANS})
    statistics = f", and the statistics {', '.join(others)}" if others else ""
    return [
        f"the weights still saw them{statistics}: taking pictures out does not make a network forget; "
        f"train anew without them where that is needed"
    ]
