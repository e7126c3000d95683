"""Splits that keep the images of a patient, a video or a set of near duplicates on one side."""

import re
from collections import Counter, defaultdict
from collections.abc import Sequence

import numpy as np

from endocil.errors import EndocilError
from endocil.images.table import ImageTable
from endocil.randomness import generator
from endocil.splitting.parts import TEST, TEST_SHARE, TRAIN, VALIDATION, Folds, Split

Counts = dict[str, Counter[str]]  # group -> class -> images


def by_group(
    table: ImageTable, groups: Sequence[str], *, validation: float, folds: Folds, seed: int
) -> Split:
    """No group on two sides; each class as near to its shares as whole groups allow. "" is a group of one image.

    A class that lies in one group trains and is not tested.
    """
    if not any(groups):
        raise EndocilError(
            "scenario.split_by is 'group', but no image has a group; give groups with the data (data.groups, or a "
            "column of a CSV), or set scenario.groups to 'near-duplicates' or to a pattern on the file name"
        )
    names = [group or f"image {image}" for group, image in zip(groups, table.ids, strict=True)]
    counts = _group_counts(table, names)
    part_of = _test_or_train(counts, folds, seed)
    _cover(part_of, counts, TRAIN)
    if folds.number is None:
        _cover(part_of, counts, TEST)
    if validation:
        learning = {group: counts[group] for group, part in part_of.items() if part == TRAIN}
        part_of |= _binned(learning, {TRAIN: 1.0 - validation, VALIDATION: validation}, seed)
        _cover(part_of, counts, TRAIN, taking=VALIDATION)
    part = np.array([part_of[name] for name in names], dtype="U10")
    return Split(part, _untested(table, names, part))


def _group_counts(table: ImageTable, groups: Sequence[str]) -> Counts:
    counts: Counts = defaultdict(Counter)
    for group, label in zip(groups, table.labels.tolist(), strict=True):
        counts[group][table.classes[label]] += 1
    return dict(counts)


def _test_or_train(counts: Counts, folds: Folds, seed: int) -> dict[str, str]:
    if folds.number is None:
        return _binned(counts, {TRAIN: 1.0 - TEST_SHARE, TEST: TEST_SHARE}, seed)
    fold_of = _binned(counts, {str(fold): 1.0 / folds.number for fold in range(folds.number)}, seed)
    return {group: TEST if fold == str(folds.test) else TRAIN for group, fold in fold_of.items()}


def _binned(counts: Counts, shares: dict[str, float], seed: int) -> dict[str, str]:
    """Groups into bins, the hardest to place first, each where the classes' shares stay nearest to the wanted."""
    totals = sum(counts.values(), Counter())
    have = {name: Counter[str]() for name in shares}
    chosen = {}
    for group in _hardest_first(counts, totals, seed):

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


def _hardest_first(counts: Counts, totals: Counter[str], seed: int) -> list[str]:
    """By the largest share of a class that a group holds; equals in an order that seed and name decide."""

    def key(group: str) -> tuple[float, int, str]:
        largest = max(n / totals[one] for one, n in counts[group].items())
        return (-largest, generator(seed, "group", group).initial_seed(), group)

    return sorted(counts, key=key)


def _cover(part_of: dict[str, str], counts: Counts, part: str, taking: str | None = None) -> None:
    """Where a class has no group in a part, give it the smallest that no other class of it needs where it is."""
    for one in sorted({name for counted in counts.values() for name in counted}):
        mine = sorted((counts[group][one], group) for group in counts if one in counts[group])
        if any(part_of[group] == part for _, group in mine):
            continue
        movable = (
            group
            for _, group in mine
            if taking in (None, part_of[group]) and (part == TRAIN or _spared(group, part_of, counts))
        )
        found = next(movable, None)
        if found is not None:
            part_of[found] = part


def _spared(group: str, part_of: dict[str, str], counts: Counts) -> bool:
    """Every class of the group has another group where this one is."""
    return all(
        any(
            other != group and one in counted and part_of[other] == part_of[group]
            for other, counted in counts.items()
        )
        for one in counts[group]
    )


def _untested(table: ImageTable, groups: Sequence[str], part: np.ndarray) -> tuple[str, ...]:
    said = []
    for label, name in enumerate(table.classes):
        rows = np.flatnonzero(table.labels == label)
        if not (part[rows] == TEST).any():
            n = len({groups[row] for row in rows.tolist()})
            said.append(
                f"class '{name}' lies in {n} group{'s' if n > 1 else ''}: all its images train, and none tests it"
            )
    return tuple(said)


def grouped_by_pattern(table: ImageTable, pattern: str) -> tuple[str, ...]:
    """The first bracket of a pattern, sought in each image's id; an image without it is a group of its own."""
    try:
        sought = re.compile(pattern)
    except re.error as error:
        raise EndocilError(f"scenario.groups '{pattern}' is no pattern: {error}") from error
    if sought.groups != 1:
        raise EndocilError(
            f"scenario.groups '{pattern}' has {sought.groups} brackets; expected one, around the group's name, "
            f"such as '([^/_]+)_[0-9]+[.]jpg$'"
        )
    found = [sought.search(image) for image in table.ids]
    if not any(found):
        raise EndocilError(f"scenario.groups '{pattern}' fits no image, such as {table.ids[0]}")
    return tuple(match[1] or "" if match else "" for match in found)
