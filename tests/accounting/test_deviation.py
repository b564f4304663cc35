"""A schedule's distance from the ideal sampler moves both ends outward by Proposition 3.2."""

import math

import pytest

from truebatch import Deterministic, Poisson, accounting
from truebatch.accounting.deterministic import log_delta_gaussian
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


@pytest.mark.parametrize("sigma", [0.5, 0.6, 0.7, 0.8, 1.0, 1.5, 4.0])
@pytest.mark.parametrize("distance", [1e-40, 1e-25, 1e-20, 1e-17, 1e-12, 1e-9])
def test_a_large_epsilon_is_found_before_the_deviation_overtakes_delta(sigma: float, distance: float) -> None:
    """delta(eps) falls, then rises with distance * e^eps: the first crossing is what may be claimed."""
    spec = Deterministic(num_examples=100, batch_size=10, num_steps=100)
    found = accounting.epsilon(spec, sigma=sigma, delta=1e-5, statistical_distance=distance).upper.value
    grid = [0.01 * i for i in range(12_000)]
    scale = sigma / math.sqrt(10)
    meets = (
        eps for eps in grid
        if math.exp(log_delta_gaussian(sigma=scale, epsilon=eps)) + distance * (1 + math.exp(eps)) <= 1e-5
    )  # fmt: skip
    expected = next(meets, math.inf)
    assert found == expected or expected - 0.0101 <= found <= expected
