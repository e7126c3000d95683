"""Splits: which images train, validate and test. By image as in the paper, by group, as given, or by a file.

A group is a patient, a video or a set of near duplicates: all its images are in the same part.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from endocil.data.lists import read_groups
from endocil.data.seeding import generator
from endocil.data.table import ImageTable
from endocil.errors import DataError, SettingsError
from endocil.io.files import read_csv

TRAIN, VALIDATION, TEST = "train", "validation", "test"
UNUSED = "unused"  # training images that a protocol leaves out: data/scenario.py
TEST_SHARE = 0.2  # of each class, as in the paper

Counts = dict[str, Counter[str]]  # group -> class -> images


@dataclass(frozen=True)
class Split:
    """The part of each image, and notes on it."""

    part: np.ndarray  # (N,) str: train, validation, test, or unused
    notes: tuple[str, ...] = ()

    def with_validation_note(self, table: ImageTable) -> "Split":
        """With a note of the classes that have no validation image though `validation` is set."""
        held = np.bincount(table.labels[self.part == VALIDATION], minlength=len(table.classes))
        lacking = [name for name, n in zip(table.classes, held, strict=True) if n == 0]
        note = f"no validation image, as there are too few images or groups: {', '.join(lacking)}"
        return replace(self, notes=(*self.notes, note)) if lacking else self


@dataclass(frozen=True)
class Folds:
    """Which of several equal folds is the test part; without a number of folds a fifth is, as in the paper."""

    number: int | None = None
    test: int = 0

    def __post_init__(self) -> None:
        if self.number is None and self.test:
            raise SettingsError("scenario.fold is set, but scenario.folds is not; set both or none")
        if self.number is not None and (self.number < 2 or not 0 <= self.test < self.number):
            raise SettingsError(
                f"scenario.folds is {self.number} and scenario.fold {self.test}; "
                f"expected at least 2 folds, counted from 0"
            )


def by_image(table: ImageTable, *, validation: float, folds: Folds, seed: int) -> Split:
    """Each class on its own, at random: 4n // 5 images train, the rest test (the paper's rule), or fold by fold."""
    part = np.empty(len(table), dtype="U10")
    order = np.array(sorted(range(len(table)), key=table.ids.__getitem__), np.int64)
    for label, name in enumerate(table.classes):
        rows = order[table.labels[order] == label]
        n = len(rows)
        shuffled = rows[torch.randperm(n, generator=generator(seed, "split", name)).numpy()]
        if folds.number is None:
            learn, test = shuffled[: 4 * n // 5], shuffled[4 * n // 5 :]
        else:
            fold = np.arange(n) % folds.number
            learn, test = shuffled[fold != folds.test], shuffled[fold == folds.test]
        held = max(1, int(len(learn) * validation)) if validation and len(learn) > 1 else 0  # of the training images
        if len(learn) - held < 1:
            raise DataError(
                f"class '{name}' has {n} images: too few for a training and a test part; "
                f"raise scenario.minimum above {n} or list it in scenario.leave_out"
            )
        part[test], part[learn[:held]], part[learn[held:]] = TEST, VALIDATION, TRAIN
    return Split(part)


def by_group(table: ImageTable, *, validation: float, folds: Folds, seed: int) -> Split:
    """No group in two parts; each class as close to its shares as whole groups allow. "" is a group of one image.

    A class of one group is trained and not tested."""
    if not any(table.groups):
        raise DataError(
            "scenario.split_by is 'group', but no image has a group; give groups with the data (a column of a CSV, "
            "data.groups), or set scenario.groups to 'near-duplicates', a CSV file, or a pattern on the file name"
        )
    names = _group_names(table)
    counts = _group_counts(table, names)
    if folds.number is None:
        part_of = _binned(counts, {TRAIN: 1.0 - TEST_SHARE, TEST: TEST_SHARE}, seed)
    else:
        fold_of = _binned(counts, {str(fold): 1.0 / folds.number for fold in range(folds.number)}, seed)
        part_of = {group: TEST if fold == str(folds.test) else TRAIN for group, fold in fold_of.items()}
    _cover(part_of, counts, TRAIN)
    if folds.number is None:
        _cover(part_of, counts, TEST)
    _set_aside(part_of, counts, validation, seed)
    part = np.array([part_of[name] for name in names], dtype="U10")
    notes = []
    for label, one in enumerate(table.classes):
        rows = np.flatnonzero(table.labels == label)
        if not (part[rows] == TEST).any():
            n = len({names[row] for row in rows.tolist()})
            reason = "it has one group" if n == 1 else f"none of its {n} groups is in the test part"
            notes.append(f"class '{one}' is learned and not tested: {reason}")
    return Split(part, tuple(notes))


def by_given(table: ImageTable, *, validation: float, folds: Folds, seed: int) -> Split:
    """The split that comes with the data: parts by name, or one of the folds as the test part."""
    known = set(table.parts)
    if "" in known:
        missing = table.parts.count("")
        raise DataError(
            f"scenario.split_by is 'given', but {missing:,} of {len(table):,} images have no part; "
            f"this data set, or this copy of it, comes with no whole split"
        )
    if known <= {TRAIN, VALIDATION, TEST}:
        if folds.number is not None:
            raise SettingsError("scenario.folds is set, but the given split has parts, not folds")
        part = np.array(table.parts, dtype="U10")
    elif str(folds.test) in known and folds.number in (None, len(known)):
        part = np.where(np.array(table.parts) == str(folds.test), TEST, TRAIN).astype("U10")
    else:
        raise SettingsError(
            f"the given split has the folds {', '.join(sorted(known))}; set scenario.folds = {len(known)} and "
            f"scenario.fold to one of them"
        )
    return Split(with_validation(table, part, validation, seed))


def by_file(table: ImageTable, path: Path) -> Split:
    """A split that a run has recorded: its split.csv, with the columns image, class and part."""
    rows = read_csv(path)
    if not rows or not {"image", "class", "part"} <= rows[0].keys():
        raise DataError(f"scenario.split {path} is not a split; expected the columns image, class, part")
    recorded = {row["image"]: (row["class"], row["part"]) for row in rows}
    part = np.empty(len(table), dtype="U10")
    for row, (image, label) in enumerate(zip(table.ids, table.labels.tolist(), strict=True)):
        name, part[row] = recorded.get(image, ("", ""))
        if name != table.classes[label] or part[row] not in (TRAIN, VALIDATION, TEST, UNUSED):
            entry = f"as '{name}', {part[row]}" if name else "not at all"
            raise DataError(
                f"scenario.split {path} has the image {image} of '{table.classes[label]}' {entry}; "
                f"give the split.csv of a run on the same images"
            )
    extra = len(recorded.keys() - set(table.ids))
    return Split(part, (f"{extra:,} images of the split file are not here",) if extra else ())


def grouped_by_pattern(table: ImageTable, pattern: str) -> tuple[str, ...]:
    """By the capturing group of a regular expression on each image's id; an image without a match is its own group."""
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise SettingsError(f"scenario.groups '{pattern}' is not a regular expression: {error}") from error
    if compiled.groups != 1:
        raise SettingsError(
            f"scenario.groups '{pattern}' has {compiled.groups} brackets; expected one, around the group's name, "
            f"such as '([^/_]+)_[0-9]+[.]jpg$'"
        )
    matches = [compiled.search(image) for image in table.ids]
    if not any(matches):
        raise SettingsError(
            f"scenario.groups '{pattern}' matches no image, such as {table.ids[0]}; it is searched in the path, and "
            f"its bracket is the group"
        )
    return tuple(match[1] or "" if match else "" for match in matches)


def grouped_by_file(table: ImageTable, path: Path) -> tuple[str, ...]:
    """By a list of paths (ids of images) and groups, as `endocil data audit --groups` writes it."""
    return read_groups(path, "scenario.groups", table.ids)


def with_validation(table: ImageTable, part: np.ndarray, share: float, seed: int) -> np.ndarray:
    """Set a share of the training part aside, by whole groups; an image without a group is one."""
    rows = np.flatnonzero(part == TRAIN)
    names = _group_names(table)
    counts = _group_counts(table, names, rows)
    part_of = dict.fromkeys(counts, TRAIN)
    _set_aside(part_of, counts, share, seed)
    result = part.copy()
    result[rows] = [part_of[names[row]] for row in rows]
    return result


def _set_aside(part_of: dict[str, str], counts: Counts, share: float, seed: int) -> None:
    """Validation groups out of the training groups; a class keeps one to learn from before it gets one to validate."""
    if not share:
        return
    learning = {group: counts[group] for group, part in part_of.items() if part == TRAIN}
    part_of |= _binned(learning, {TRAIN: 1.0 - share, VALIDATION: share}, seed)
    _cover(part_of, counts, TRAIN, taking=VALIDATION)
    _cover(part_of, counts, VALIDATION, taking=TRAIN)


def _group_names(table: ImageTable) -> list[str]:
    """The group of each image; one without a group is a group of its own."""
    return [group or f"image {image}" for group, image in zip(table.groups, table.ids, strict=True)]


def _group_counts(table: ImageTable, groups: Sequence[str], rows: Iterable[int] | None = None) -> Counts:
    """Of these rows of the table, or of all."""
    counts: Counts = defaultdict(Counter)
    for row in range(len(groups)) if rows is None else rows:
        counts[groups[row]][table.classes[table.labels[row]]] += 1
    return dict(counts)


def _binned(counts: Counts, shares: dict[str, float], seed: int) -> dict[str, str]:
    """Groups into bins, the hardest to place first, each where the shares of its classes stay nearest to `shares`.

    Hardest is what holds the largest share of a class; ties in an order that depends on seed and name."""
    totals = sum(counts.values(), Counter())
    have = {name: Counter[str]() for name in shares}
    chosen = {}

    def difficulty(group: str) -> tuple[float, int, str]:
        largest = max(n / totals[one] for one, n in counts[group].items())
        return (-largest, generator(seed, "group", group).initial_seed(), group)

    for group in sorted(counts, key=difficulty):

        def cost(name: str, group: str = group) -> float:
            """How much farther from its share each class of the group would be."""
            return sum(
                ((have[name][one] + n) / totals[one] - shares[name]) ** 2
                - (have[name][one] / totals[one] - shares[name]) ** 2
                for one, n in sorted(counts[group].items())
            )

        chosen[group] = min(shares, key=cost)
        have[chosen[group]] += counts[group]
    return chosen


def _cover(part_of: dict[str, str], counts: Counts, part: str, taking: str | None = None) -> None:
    """Where a class has no group in a part, move its smallest group there that no other class needs where it is."""
    for one in sorted({name for counted in counts.values() for name in counted}):
        groups = sorted((counts[group][one], group) for group in counts if one in counts[group])
        if any(part_of[group] == part for _, group in groups):
            continue
        for _, group in groups:
            if taking in (None, part_of[group]) and (part == TRAIN or _is_spare(group, part_of, counts)):
                part_of[group] = part
                break


def _is_spare(group: str, part_of: dict[str, str], counts: Counts) -> bool:
    """Every class of the group has another group where this one is."""
    return all(
        any(other != group and one in counted and part_of[other] == part_of[group] for other, counted in counts.items())
        for one in counts[group]
    )
