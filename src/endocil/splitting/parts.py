"""The parts of a split, and the folds it may be made of."""

from dataclasses import dataclass, replace

import numpy as np

from endocil.errors import EndocilError
from endocil.images.table import ImageTable

TRAIN, VALIDATION, TEST = "train", "validation", "test"
TEST_SHARE = 0.2  # of each class, as in the paper


@dataclass(frozen=True)
class Split:
    """The part of each image, and what has to be said about it."""

    part: np.ndarray  # (N,) str: train, validation or test
    notes: tuple[str, ...] = ()

    def telling_what_lacks_validation(self, table: ImageTable) -> "Split":
        """With a note of the classes that have no validation image though some were wanted."""
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
            raise EndocilError("scenario.fold is set, but scenario.folds is not; set both or none")
        if self.number is not None and (self.number < 2 or not 0 <= self.test < self.number):
            raise EndocilError(
                f"scenario.folds is {self.number} and scenario.fold {self.test}; "
                f"expected at least 2 folds, counted from 0"
            )
