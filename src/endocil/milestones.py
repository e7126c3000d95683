"""When the learning rate falls: whole epochs, or shares of however many epochs a phase has."""

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any


def milestone_epochs(milestones: Sequence[float], epochs: int) -> tuple[int, ...]:
    """The epochs (from 0) at whose start the rate falls. A share is rounded up to the next whole epoch: 0.5 and 0.7
    are 50 and 70 of 100, 15 and 21 of 30, 2 and 3 of 4. It is taken as the decimal it is written as: 0.55 of 100
    is 55, though 0.55 * 100 is a little more."""
    return tuple(
        one if isinstance(one, int) else math.ceil(Fraction(repr(one)) * epochs) for one in milestones
    )


def refuse_other_milestones(value: Any) -> Any:
    """Whole epochs or shares, one kind for all."""
    given = list(value) if isinstance(value, list | tuple) else [value]
    whole = all(type(one) is int and one >= 1 for one in given)
    shares = all(type(one) is float and 0.0 < one < 1.0 for one in given)
    if not isinstance(value, list | tuple) or not (whole or shares):
        raise ValueError(
            "expected shares of the epochs, above 0 and below 1, such as [0.5, 0.7], or whole epochs of 1 or more, "
            "such as [50, 70], not both"
        )
    return value
