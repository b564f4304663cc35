"""A schedule's distance from the ideal sampler moves both ends outward by Proposition 3.2."""

import math

import pytest

from truebatch import Deterministic, Poisson, accounting
from truebatch.errors import InvalidArgument

SPEC = Poisson(num_examples=10_000, batch_size=100, num_steps=100)


def test_delta_moves_by_the_proposition() -> None:
    plain = accounting.delta(SPEC, sigma=1.0, epsilon=1.0)
    moved = accounting.delta(SPEC, sigma=1.0, epsilon=1.0, statistical_distance=1e-8)
    extra = 1e-8 * (1 + math.e)
    assert moved.upper.value == pytest.approx(plain.upper.value + extra, rel=1e-8)
    assert moved.lower.value == pytest.approx(plain.lower.value - extra, rel=1e-7)


def test_an_exact_curve_becomes_two() -> None:
    spec = Deterministic(num_examples=100, batch_size=10, num_steps=10)
    moved = accounting.delta(spec, sigma=1.0, epsilon=1.0, statistical_distance=1e-3)
    assert moved.lower.value < 0.126937 < moved.upper.value


def test_no_distance_changes_nothing_and_a_large_one_leaves_nothing_to_claim() -> None:
    plain = accounting.sigma(SPEC, epsilon=2.0, delta=1e-6)
    assert accounting.sigma(SPEC, epsilon=2.0, delta=1e-6, statistical_distance=0.0) == plain
    assert accounting.delta(SPEC, sigma=1.0, epsilon=2.0, statistical_distance=0.5).upper.value == 1.0


@pytest.mark.parametrize("distance", [-1e-9, 1.0, math.nan])
def test_impossible_distances_are_refused(distance: float) -> None:
    with pytest.raises(InvalidArgument, match="statistical_distance"):
        accounting.delta(SPEC, sigma=1.0, epsilon=1.0, statistical_distance=distance)
