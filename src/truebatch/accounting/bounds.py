"""A privacy number that knows its direction, and how the parts of the accountant hand curves on."""

import enum
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Number = float | npt.NDArray[np.float64]


class Direction(enum.StrEnum):
    """Which side of the truth a number is on."""

    EXACT = "exact"
    UPPER = "upper"
    LOWER = "lower"


class Adjacency(enum.StrEnum):
    """What two neighbouring data sets are.

    ZERO_OUT: one example is replaced by one whose gradient is zero (the paper's notion).
    ADD_REMOVE: one example is there or is not; n itself may change by one.
    REPLACE_ONE: one example is replaced by another.
    """

    ZERO_OUT = "zero-out"
    ADD_REMOVE = "add-remove"
    REPLACE_ONE = "replace-one"


@dataclass(frozen=True, kw_only=True)
class Bound:
    """A number, the side of the truth it is on, and where it comes from.

    `value` is None when nothing is known on this side; `source` then says why.
    """

    value: Number | None
    direction: Direction
    source: str
    adjacency: Adjacency


@dataclass(frozen=True, kw_only=True)
class Interval:
    """The best known lower and upper bound of one number.

    What a mechanism may claim is `upper`; what a critic may prove is `lower`.
    """

    lower: Bound
    upper: Bound


@dataclass(frozen=True, kw_only=True)
class DeltaCurve:
    """One bound on a mechanism's privacy loss curve, as a function of (sigma, epsilon).

    `log_delta(sigma, epsilon)` takes two floats, sigma > 0 and epsilon >= 0, and returns
    log(delta) in [-inf, 0]. It never increases with sigma nor with epsilon, up to the stated
    relative error `tolerance` in delta, which whoever rounds outward must add (upper) or take off (lower).
    `dear` curves take longer than about a second a calibration and are left out unless asked for.
    """

    log_delta: Callable[[float, float], float]
    direction: Direction
    source: str
    tolerance: float = 1e-9
    dear: bool = False

    def rounded(self, sigma: float, epsilon: float, *, upward: bool) -> float:
        """log(delta) moved outward by the tolerance: the value that keeps the bound's promise."""
        value = self.log_delta(sigma, epsilon)
        if math.isnan(value):
            raise ArithmeticError(f"{self.source}: log_delta is NaN at sigma={sigma!r}, epsilon={epsilon!r}")
        moved = value + (self.tolerance if upward else -self.tolerance)
        return min(moved, 0.0)


JSON = dict[str, Any]
