"""The parts of a split, and the folds it may be made of."""

from dataclasses import dataclass

import numpy as np

from endocil.errors import EndocilError

TRAIN, VALIDATION, TEST = "train", "validation", "test"
TEST_SHARE = 0.2  # of each class, as in the paper


@dataclass(frozen=True)
class Split:
    """The part of each image, and what has to be said about it."""

    part: np.ndarray  # (N,) str: train, validation or test
    notes: tuple[str, ...] = ()


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
