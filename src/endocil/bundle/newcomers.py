"""New images for a bundle: read as its own were, and parted into those to learn from and those held out."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from endocil.audit.near import near_duplicate_groups
from endocil.bundle.inputs import folder_or_list
from endocil.bundle.manifest import Preprocessing
from endocil.datasets import load_table
from endocil.errors import EndocilError
from endocil.images.cache import Images, Progress, load_images
from endocil.images.frame import cropped
from endocil.images.table import ImageTable
from endocil.scenario import TEST, TRAIN, VALIDATION
from endocil.settings import DataSettings, Settings, load_settings
from endocil.splitting import Split, by_given, grouped_by_file, grouped_by_pattern
from endocil.splitting.groups import with_validation
from endocil.splitting.parts import Folds


@dataclass(frozen=True, eq=False)
class Newcomers:
    images: Images
    part: np.ndarray  # (N,) str: train, validation (held out) or test (left alone)
    notes: tuple[str, ...] = ()


def read_newcomers(
    path: Path,
    preprocessing: Preprocessing,
    settings: Settings,
    *,
    changes: Sequence[str] = (),
    validation: float | None = None,
    groups: str | None = None,
    progress: Progress | None = None,
) -> Newcomers:
    """The images of a folder, one folder for each class, or of a CSV list; `changes` are of [data], for reading them.

    `validation`: the share that is held out; by default that of the settings, or what a split column says.
    `groups`: as `scenario.groups` of a run, but told by whoever learns."""
    data = _data(path, settings, changes)
    table = load_table(data.name, data.options, progress)
    if preprocessing.crop_frame:
        table = cropped(table)
    images = load_images(table, preprocessing.size, skip_unreadable=data.skip_unreadable, progress=progress)
    skipped = (f"left out {name}: {reason}" for name, reason in images.skipped)
    names, told = _groups(images.table, groups, settings.scenario.groups, progress)
    images = replace(images, table=replace(images.table, groups=names))
    return parted(images, settings, validation, notes=(*table.notes, *skipped, *told))


def parted(
    images: Images, settings: Settings, validation: float | None = None, *, notes: tuple[str, ...] = ()
) -> Newcomers:
    """Which of the new images train and which are held out; depends on ids and groups, not on their order."""
    table, seed = images.table, settings.scenario.split_seed
    share = _share(table, settings, validation)
    if any(table.parts):
        _refuse_strange_parts(table)
        split = by_given(table, validation=share, folds=Folds(), seed=seed)
        unused = int((split.part == TEST).sum())
        notes += (f"{unused:,} images of the test part are left alone",) if unused else ()
    else:
        whole = np.full(len(table), TRAIN, dtype="U10")
        split = Split(with_validation(table, whole, share, seed))
    if share:
        split = split.telling_what_lacks_validation(table)
    return Newcomers(images, split.part, (*notes, *split.notes))


def _data(path: Path, settings: Settings, changes: Sequence[str]) -> DataSettings:
    """How the new images are read: folders named as the bundle's own were, or a list."""
    values = folder_or_list(path, "new")
    if values["name"] == settings.data.name == "folder":
        values["class_from"] = settings.data.options.get("class_from", "first")
    values["skip_unreadable"] = settings.data.skip_unreadable
    return load_settings({"data": values}, changes).data


def _groups(
    table: ImageTable, wanted: str | None, rule: str, progress: Progress | None
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What belongs together among the new images: as it is asked for, by the data, or by the rule of the bundle's run.

    A pattern of the bundle is never run: one can be written that does not come to an end."""
    if wanted is None and (any(table.groups) or rule == "given"):
        return table.groups, ()
    chosen = rule if wanted is None else wanted
    if chosen == "given":
        return table.groups, ()
    if chosen == "near-duplicates":
        return near_duplicate_groups(table, progress=progress), ()
    if wanted is not None:
        by_file = wanted.endswith(".csv")
        return (grouped_by_file(table, Path(wanted)) if by_file else grouped_by_pattern(table, wanted)), ()
    if rule.endswith(".csv"):
        note = "the run's file of groups is not in the bundle: no new image has a group (--groups FILE.csv tells them)"
        return table.groups, (note,)
    raise EndocilError(
        f"the bundle's images were grouped by the pattern {rule[:200]!r}, and the new ones have no groups; give "
        f"--groups with a pattern for them, or --groups given to learn them without"
    )


def _share(table: ImageTable, settings: Settings, validation: float | None) -> float:
    if validation is None:
        return 0.0 if VALIDATION in table.parts else settings.scenario.validation
    if not 0.0 <= validation < 1.0:
        raise EndocilError(f"--validation is {validation}; expected a share from 0 to below 1, such as 0.1")
    return validation


def _refuse_strange_parts(table: ImageTable) -> None:
    strange = sorted(set(table.parts) - {TRAIN, VALIDATION, TEST})
    if strange:
        told = f"'{strange[0]}'" if strange[0] else "nothing for some images"
        raise EndocilError(
            f"the split column of the new images says {told}; expected train, validation or test for each"
        )
