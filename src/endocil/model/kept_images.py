"""The images inside a model: listed with their provenance, drawn on a contact sheet, removed, or packed for others.

When a patient's images are removed, class means and calibration are computed again; what cannot be is reported."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, fields, replace
from difflib import get_close_matches
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont

from endocil.data.batches import ImageSet, pixel_digest
from endocil.data.cache import Images
from endocil.errors import EndocilError
from endocil.io.files import write_atomically, write_csv
from endocil.learning.features import CLASS_MEANS, class_means, features_of, outputs_of
from endocil.learning.memory import KeptImages, Provenance, no_images
from endocil.methods import method_title
from endocil.methods.frozen import COUNTS, FrozenMethod
from endocil.model.calibration import RATE, spread_and_calibration, why_uncalibrated, why_unflagged
from endocil.model.file import ModelFile
from endocil.model.manifest import Terms, step_now
from endocil.model.model import Model
from endocil.model.restore import model_settings, restored_method

FORMATS = {".jpg": "JPEG", ".jpeg": "JPEG", ".png": "PNG"}
_COLUMNS, _SIZE, _GAP, _LINE = 10, 96, 3, 20
_PAPER, _INK = (255, 255, 255), (30, 30, 30)


def write_sheet(path: Path, content: ModelFile) -> list[Path]:
    """One picture of all classes, or a folder with one for each class."""
    blocks = _blocks(content)
    if path.suffix.lower() in FORMATS:
        _write(path, contact_sheet([block for mine in blocks.values() for block in mine]))
        return [path]
    if path.suffix or path.is_file():
        raise EndocilError(
            f"{path} is neither an image file nor a folder; expected a name that ends in .png or .jpg, or a folder"
        )
    files = []
    for number, name in enumerate(content.classes):
        if name in blocks:
            files.append(path / f"{number:03d}-{_plain(name)}.png")
            _write(files[-1], contact_sheet(blocks[name]))
    return files


def contact_sheet(blocks: Sequence[tuple[str, KeptImages]]) -> Image.Image:
    """A heading and rows of images for each block."""
    heights = [_LINE + -(-len(images) // _COLUMNS) * (_SIZE + _GAP) for _, images in blocks]
    font = ImageFont.load_default(13)
    width = max([_COLUMNS * (_SIZE + _GAP), *(int(font.getlength(name)) for name, _ in blocks)]) + 2 * _GAP
    sheet = Image.new("RGB", (width, sum(heights) + _GAP), _PAPER)
    draw, top = ImageDraw.Draw(sheet), 0
    for (name, images), height in zip(blocks, heights, strict=True):
        draw.text((2 * _GAP, top + _LINE // 2), name, fill=_INK, font=font, anchor="lm")
        for i, pixels in enumerate(images.pixels.numpy()):
            row, column = divmod(i, _COLUMNS)
            place = (_GAP + column * (_SIZE + _GAP), top + _LINE + row * (_SIZE + _GAP))
            sheet.paste(Image.fromarray(pixels).resize((_SIZE, _SIZE)), place)
        top += height
    return sheet


def write_list(path: Path, content: ModelFile) -> None:
    """Every image with its provenance, as a CSV file."""
    write_csv(path, ("kind", *(field.name for field in fields(Provenance))), listed(content))


def listed(content: ModelFile) -> list[tuple[object, ...]]:
    return [
        (kind, *astuple(one))
        for kind, images in (("exemplar", content.exemplars), ("held-out", content.held_out))
        for one in images.provenance
    ]


def counts(kept: Sequence[Provenance], field: str, most: int = 8) -> str:
    """How many images of each value, the most frequent first: "p07 3, p02 1"; many that occur once are only counted."""
    number = Counter(str(getattr(one, field)) or "unknown" for one in kept)
    order = sorted(number.items(), key=lambda item: (-item[1], item[0]))
    if len(order) > most and order[0][1] == 1:
        return f"{len(order):,} different ones, one image each"
    more = f" and {len(order) - most:,} more" if len(order) > most else ""
    return ", ".join(f"{name} {n:,}" for name, n in order[:most]) + more


def _blocks(content: ModelFile) -> dict[str, list[tuple[str, KeptImages]]]:
    """By class, a heading and images for each kind that it has."""
    blocks: dict[str, list[tuple[str, KeptImages]]] = {}
    for name in content.classes:
        for kind, images in (("exemplars", content.exemplars), ("held out", content.held_out)):
            rows = [row for row, one in enumerate(images.provenance) if one.class_name == name]
            if rows:
                blocks.setdefault(name, []).append((f"{name}: {len(rows)} {kind}", images.take(rows)))
    if not blocks:
        raise EndocilError("the model holds no images, so there is no sheet to draw")
    return blocks


def _write(path: Path, sheet: Image.Image) -> None:
    drawn = BytesIO()
    sheet.save(drawn, FORMATS[path.suffix.lower()], quality=85)
    write_atomically(path, drawn.getvalue())


def _plain(name: str) -> str:
    """A class's name as a file name that every system accepts."""
    return "".join(letter if letter.isalnum() or letter in "-_" else "-" for letter in name)[:60]


# --- images removed

UNKEPT = "Images that were learned but not kept cannot be identified: the weights may have learned from some of them"


@dataclass(frozen=True)
class Forgotten:
    content: ModelFile
    exemplars: int  # removed images
    held_out: int
    lines: tuple[str, ...]  # what was computed again, and what still depends on the removed images
    subtracted: int = 0  # learned images that were taken out of the sums


def forget(
    content: ModelFile,
    *,
    groups: Sequence[str] = (),
    images: Sequence[str] = (),
    sources: Sequence[str] = (),
    learned: Images | None = None,
    allow_empty: bool = False,
    trust: bool = False,
) -> Forgotten:
    """Remove every image of these groups, ids or sources; a value that matches none is refused.

    `learned`: images that were learned and are at hand again. Those that were asked for, or all of them where nothing
    is, are subtracted from the sums of a method that learns by sums."""
    asked = {"group": set(groups), "image": set(images), "source": set(sources)}  # by fields of Provenance
    before = (*content.exemplars.provenance, *content.held_out.provenance)
    lines, subtracted = list[str](), 0
    if learned is not None:
        chosen = _asked_for(learned, asked, content.classes)
        content, lines, subtracted = _subtracted(content, chosen, allow_empty=allow_empty, trust=trust)
        asked = _kept_among(content, asked, set(chosen.pixel_digests()))
    if learned is None or any(asked.values()):
        _refuse_unmatched(before, asked)

    def field_of(one: Provenance) -> str:
        """By which field an image is to be removed; "" where it was not."""
        return next((field for field, values in asked.items() if getattr(one, field) in values), "")

    exemplars, held_out = (
        kept.take([row for row, one in enumerate(kept.provenance) if not field_of(one)])
        for kept in (content.exemplars, content.held_out)
    )
    touched = {one.class_name for one in content.exemplars.provenance if field_of(one)}
    emptied = sorted(touched - {one.class_name for one in exemplars.provenance})
    if emptied and not allow_empty:
        raise EndocilError(
            f"no exemplar would be left of {', '.join(emptied)}, and the model could learn further classes only "
            f"with new images of it; give --allow-empty if you want that"
        )
    gone = len(content.exemplars) - len(exemplars)
    measured, again = _measure_again(
        replace(content, exemplars=_renumbered(exemplars), held_out=held_out), touched, emptied, trust=trust
    )
    lines += again
    if gone and not subtracted:
        others = sorted({name.partition(".")[0] for name in content.statistics} - {CLASS_MEANS})
        statistics = f" and the statistics {', '.join(others)}" if others else ""
        lines.append(
            f"the weights{statistics} have learned from them: removing images does not make a network forget; "
            f"if that is needed, train a new model without them"
        )
    elif not subtracted:
        known = f". {UNKEPT}" if groups or sources else ": nothing else was computed from them"
        lines.append(f"held-out images were never learned from{known}")
    # by field alone: the name of a patient who is to be forgotten does not go into the history
    removed = dict(Counter(field for one in before if (field := field_of(one))))
    removed |= {"learned": subtracted} if subtracted else {}
    history = (*content.manifest.history, step_now("forget", content.digest, removed=removed, note="; ".join(lines)))
    metrics = None if gone else content.manifest.metrics
    manifest = measured.manifest.model_copy(update={"history": history, "metrics": metrics, "gate": None})
    forgotten = replace(measured, manifest=manifest, digest="")
    return Forgotten(forgotten, gone, len(content.held_out) - len(held_out), tuple(lines), subtracted)


def _subtracted(
    content: ModelFile, chosen: ImageSet, *, allow_empty: bool, trust: bool
) -> tuple[ModelFile, list[str], int]:
    """The model as if the images had never been learned; lines on them, and how many they are."""
    settings = model_settings(content, trust=trust)
    method = restored_method(content, settings, torch.device("cpu"))
    if not isinstance(method, FrozenMethod):
        raise EndocilError(
            f"{method_title(settings.method.name)} does not learn by sums, so images cannot be subtracted from it; "
            f"leave out --images, or train again without them"
        )
    torch.set_num_threads(settings.run.threads or torch.get_num_threads())  # as it learned: to the same bits
    mask = method.subtract(chosen, features_of(method, chosen, settings.run.evaluation_batch))
    n = int(mask.sum())
    if not n:
        raise EndocilError(f"none of the {len(chosen):,} images was learned by this model, with these pixels and class")
    gone = chosen.take(torch.nonzero(mask).flatten()).counts(len(content.classes)).tolist()
    emptied = [name for name, left in zip(content.classes, method.statistics[COUNTS].tolist(), strict=True) if not left]
    if emptied and not allow_empty:
        raise EndocilError(
            f"no learned image would be left of {', '.join(emptied)}; give --allow-empty if you want that"
        )
    classes = tuple(
        one.model_copy(update={"images": one.images - less})
        for one, less in zip(content.manifest.classes, gone, strict=True)
    )
    listed = ", ".join(f"{less} of {name}" for name, less in zip(content.classes, gone, strict=True) if less)
    lines = [f"subtracted: {n:,} learned images ({listed}); the classifier is as if they had never been learned"]
    if method.trains_first_task:
        lines.append("still depends on them, if they came in the first task: the network, which was trained on it")
    if n < len(chosen):
        lines.append(f"{len(chosen) - n:,} of the given images were not learned by this model and are left alone")
    if method.chooses_penalty:
        lines.append("still depends on them: the penalty, which is not chosen again without them")
    lines.append("images of the same patients that were not given are still in the sums")
    manifest = content.manifest.model_copy(update={"classes": classes, "metrics": None})
    state = {name: value.detach().clone() for name, value in method.state_dict().items()}
    return replace(content, manifest=manifest, state=state, statistics=dict(method.statistics)), lines, n


def _asked_for(images: Images, asked: dict[str, set[str]], classes: Sequence[str]) -> ImageSet:
    """The given images that were asked for, with the model's labels; those of classes that it does not know are out."""
    table = images.table
    columns = {"group": table.groups, "image": table.ids, "source": table.sources}
    for kind, values in asked.items():
        if absent := sorted(values - set(columns[kind])):
            raise EndocilError(
                f"none of the given images has the {kind} '{absent[0]}'; a CSV list with a column {kind} names it, or "
                f"leave out --{kind} to take all of the given images"
            )
    known = table.keep_classes([name for name in classes if name in table.classes])
    row_of = {image: row for row, image in enumerate(table.ids)}
    rows = [
        place
        for place, image in enumerate(known.ids)
        if not any(asked.values()) or any(columns[kind][row_of[image]] in values for kind, values in asked.items())
    ]
    kept = known.take(rows)
    labels = np.array([classes.index(kept.classes[label]) for label in kept.labels.tolist()], np.int64)
    relabelled = replace(kept, labels=labels, classes=tuple(classes))
    pixels = images.rows[torch.tensor([row_of[image] for image in kept.ids], dtype=torch.int64)]
    return ImageSet.of(Images(relabelled, images.pixels, pixels, ()), torch.arange(len(kept)))


def _kept_among(content: ModelFile, asked: dict[str, set[str]], digests: set[bytes]) -> dict[str, set[str]]:
    """Of what is asked for, that which images inside the model have; and those with the pixels of given images."""
    both = content.exemplars + content.held_out
    found = {field: values & {getattr(one, field) for one in both.provenance} for field, values in asked.items()}
    same = zip(both.pixels, both.provenance, strict=True)
    found["image"] |= {one.image for pixels, one in same if pixel_digest(pixels) in digests}
    return found


def _refuse_unmatched(kept: Sequence[Provenance], asked: dict[str, set[str]]) -> None:
    if not any(asked.values()):
        raise EndocilError("nothing to forget was named; give a --group, an --image or a --source")
    for field, values in asked.items():
        known = sorted({getattr(one, field) for one in kept} - {""})
        for value in sorted(values - set(known)):
            near = get_close_matches(value, known, 3, 0.5)
            meant = f"similar: {', '.join(near)}" if near else "'endocil memory --list' lists them"
            unkept = "" if field == "image" else f". {UNKEPT}"
            raise EndocilError(f"no image of the model has the {field} '{value}'; {meant}{unkept}")


def _renumbered(images: KeptImages) -> KeptImages:
    """The order of selection without gaps."""
    seen, kept = Counter[str](), []
    for one in images.provenance:
        kept.append(replace(one, order=seen[one.class_name]))
        seen[one.class_name] += 1
    return replace(images, provenance=tuple(kept))


def _measure_again(
    left: ModelFile, touched: set[str], emptied: Sequence[str], *, trust: bool
) -> tuple[ModelFile, list[str]]:
    """Class means, spread and calibration from the remaining images, and a line about each for the user.

    `touched`: the classes that have lost exemplars. `emptied`: those of them that have none left."""
    settings, classes, lines = model_settings(left, trust=trust), left.classes, list[str]()
    method, batch = restored_method(left, settings, torch.device("cpu")), settings.run.evaluation_batch
    if CLASS_MEANS in left.statistics:
        if again := sorted(touched - set(emptied)):
            features = outputs_of(method, left.exemplars.pixels, batch).features
            measured = class_means(features, left.exemplars.labels(classes), len(classes))
            means = left.statistics[CLASS_MEANS].clone()
            for label in (classes.index(name) for name in again):  # those of other classes stay bit for bit
                means[label] = measured[label]
            left = replace(left, statistics={**left.statistics, CLASS_MEANS: means})
            method.statistics[CLASS_MEANS] = means
            lines.append(f"computed again: the class means of {', '.join(again)}")
        if emptied:
            lines.append(f"still computed from the removed images: the class means of {', '.join(emptied)}")
    old, had_spread = left.manifest.calibration, bool(left.spread)
    rate = old.ood_rate if old else RATE
    spread, fitted = spread_and_calibration(method, left.exemplars, left.held_out, classes, rate=rate, batch=batch)
    if had_spread and (touched or method.frozen):
        left = replace(left, spread=spread)
        lines.append(
            "computed again: the spread of the learned features"
            if left.spread
            else "removed: the spread of the learned features; out-of-distribution scores are plain distances"
        )
    if old is not None:
        left = replace(left, manifest=left.manifest.model_copy(update={"calibration": fitted}))
        if fitted is None:
            lines.append(f"the calibration was removed: {why_uncalibrated(left.held_out, classes)} are left")
        else:
            lines.append(f"fitted again: the calibration, on {fitted.images} held-out images")
            lines += [why_unflagged(fitted)] if why_unflagged(fitted) else []
    return left, lines


# --- packed for others


def pack(
    model: Model,
    *,
    name: str = "",
    metrics: Mapping[str, Any] | None = None,
    terms: Terms | None = None,
    held_out: int | None = None,
    with_exemplars: bool = True,
    ood_rate: float | None = None,
) -> None:
    """Prepare a model for others: add results and terms of use, and drop some or all images.

    `held_out`: at most this many held-out images of each class. Without exemplars no image is kept at all; the
    held-out ones are used for the calibration first."""
    terms = terms or Terms()
    if held_out is not None:
        model.held_out = model.held_out.first_of_each_class(held_out)
    model.calibrate(ood_rate)
    if terms != Terms():
        model.held_out = model.held_out.under_terms(terms.licence, terms.consent)
        if model.memory is not None:
            model.memory.exemplars = model.memory.exemplars.under_terms(terms.licence, terms.consent)
    if not with_exemplars:
        model.held_out = no_images(model.settings.data.size)
        if model.memory is not None:
            model.memory.load(no_images(model.settings.data.size), model.classes)
    model.name = name or model.name
    model.amend(
        name=model.name,
        metrics=None if metrics is None else dict(metrics),
        gate=None,  # the calibration may have changed
        terms=terms,
        learns=with_exemplars or not model.method.replay,
        keeps_images=with_exemplars,
    )
