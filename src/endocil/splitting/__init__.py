"""Which images train and which test: by image as the paper does it, by group, as given with the data, or by a file.

A split depends on the ids, classes and groups of the images and on the seed; not on their order or on the machine.
"""

from pathlib import Path

import numpy as np
import torch

from endocil.errors import EndocilError
from endocil.files import read_csv
from endocil.images.table import ImageTable
from endocil.randomness import generator
from endocil.splitting.groups import by_group, grouped_by_file, grouped_by_pattern, with_validation
from endocil.splitting.parts import TEST, TRAIN, VALIDATION, Folds, Split

__all__ = [
    "TEST",
    "TRAIN",
    "VALIDATION",
    "Folds",
    "Split",
    "by_file",
    "by_given",
    "by_group",
    "by_image",
    "grouped_by_file",
    "grouped_by_pattern",
]


def by_image(table: ImageTable, *, validation: float, folds: Folds, seed: int) -> Split:
    """Each class on its own, at random: 4n // 5 images train, the rest test (the paper's rule), or fold by fold."""
    part = np.empty(len(table), dtype="U10")
    order = np.array(sorted(range(len(table)), key=table.ids.__getitem__), np.int64)
    for label, name in enumerate(table.classes):
        rows = order[table.labels[order] == label]
        part[rows] = _class_by_image(name, len(rows), validation, folds, seed)
    return Split(part)


def _class_by_image(name: str, n: int, validation: float, folds: Folds, seed: int) -> np.ndarray:
    """Validation images are taken from the training images."""
    shuffled = torch.randperm(n, generator=generator(seed, "split", name)).numpy()
    if folds.number is None:
        learn, test = shuffled[: 4 * n // 5], shuffled[4 * n // 5 :]
    else:
        fold = np.arange(n) % folds.number
        learn, test = shuffled[fold != folds.test], shuffled[fold == folds.test]
    held = max(1, int(len(learn) * validation)) if validation and len(learn) > 1 else 0
    if len(learn) - held < 1:
        raise EndocilError(
            f"class '{name}' has {n} images: too few for a training and a test part; "
            f"raise scenario.minimum above {n} or list it in scenario.leave_out"
        )
    part = np.full(n, TRAIN, dtype="U10")
    part[test], part[learn[:held]] = TEST, VALIDATION
    return part


def by_given(table: ImageTable, *, validation: float, folds: Folds, seed: int) -> Split:
    """The split that comes with the data: parts by name, or the fold that is asked for."""
    known = set(table.parts)
    if "" in known:
        missing = table.parts.count("")
        raise EndocilError(
            f"scenario.split_by is 'given', but {missing:,} of {len(table):,} images have no part; "
            f"this data set, or this copy of it, comes with no whole split"
        )
    if known <= {TRAIN, VALIDATION, TEST}:
        if folds.number is not None:
            raise EndocilError("scenario.folds is set, but the given split has parts, not folds")
        part = np.array(table.parts, dtype="U10")
    elif str(folds.test) in known and folds.number in (None, len(known)):
        part = np.where(np.array(table.parts) == str(folds.test), TEST, TRAIN).astype("U10")
    else:
        raise EndocilError(
            f"the given split has the folds {', '.join(sorted(known))}; set scenario.folds = {len(known)} and "
            f"scenario.fold to one of them"
        )
    return Split(with_validation(table, part, validation, seed))


def by_file(table: ImageTable, path: Path) -> Split:
    """A split that a run has recorded: its split.csv, with the columns image, class and part."""
    rows = read_csv(path)
    if not rows or not {"image", "class", "part"} <= rows[0].keys():
        raise EndocilError(f"scenario.split {path} is no split; expected the columns image, class, part")
    recorded = {row["image"]: (row["class"], row["part"]) for row in rows}
    part = np.empty(len(table), dtype="U10")
    for row, (image, label) in enumerate(zip(table.ids, table.labels.tolist(), strict=True)):
        name, part[row] = recorded.get(image, ("", ""))
        if name != table.classes[label] or part[row] not in (TRAIN, VALIDATION, TEST):
            told = f"as '{name}', {part[row]}" if name else "not at all"
            raise EndocilError(
                f"scenario.split {path} has the image {image} of '{table.classes[label]}' {told}; "
                f"give the split.csv of a run on the same images"
            )
    extra = len(recorded.keys() - set(table.ids))
    return Split(part, (f"{extra:,} images of the split file are not here",) if extra else ())
