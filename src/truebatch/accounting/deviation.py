"""What it costs that a sampler is drawn from a key and a table, and not by ideal coins."""

import dataclasses
import math

from truebatch.accounting.bounds import DeltaCurve, Direction
from truebatch.errors import InvalidArgument


def with_deviation(curves: tuple[DeltaCurve, ...], distance: float) -> tuple[DeltaCurve, ...]:
    """The curves of a mechanism whose batches are within a statistical distance of the ideal ones.

    Proposition 3.2, both ways: delta moves by at most distance * (1 + e^eps). A schedule states its
    distance as `Schedule.statistical_distance`.
    """
    if not 0 <= distance < 1:
        raise InvalidArgument(f"statistical_distance must be in [0, 1); got {distance}.")
    if distance == 0:
        return curves
    moved = []
    for curve in curves:
        if curve.direction is not Direction.LOWER:
            moved.append(_moved(curve, distance, Direction.UPPER))
        if curve.direction is not Direction.UPPER:
            moved.append(_moved(curve, distance, Direction.LOWER))
    return tuple(moved)


def _moved(curve: DeltaCurve, distance: float, direction: Direction) -> DeltaCurve:
    def log_delta(sigma: float, epsilon: float) -> float:
        value = curve.log_delta(sigma, epsilon)
        extra = math.log(distance) + epsilon + math.log1p(math.exp(-epsilon))
        if direction is Direction.LOWER:
            return value + math.log(-math.expm1(extra - value)) if extra < value else -math.inf
        top = max(value, extra)
        return min(0.0, top + math.log(math.exp(value - top) + math.exp(extra - top)))

    return dataclasses.replace(curve, log_delta=log_delta, direction=direction)
