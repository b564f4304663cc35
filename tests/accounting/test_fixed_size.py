"""Fixed-size batches: order, limits, an explicit pair, and why Poisson's numbers do not hold."""

import math

import numpy as np
import pytest
from scipy.special import ndtr

from truebatch import FixedSizeSampling, Poisson, accounting
from truebatch.accounting import Adjacency
from truebatch.accounting.bounds import Direction
from truebatch.accounting.fixed_size import SymmetricPair, fixed_size_curves


def ends(q: float, T: int, sigma: float, epsilon: float, adjacency: Adjacency) -> tuple[float, float]:
    curves = fixed_size_curves(sampling_prob=q, num_steps=T, adjacency=adjacency)
    by = {curve.direction: curve.log_delta(sigma, epsilon) for curve in curves}
    return by[Direction.LOWER], by[Direction.UPPER]


@pytest.mark.parametrize("adjacency", [Adjacency.ZERO_OUT, Adjacency.REPLACE_ONE])
@pytest.mark.parametrize(("q", "T"), [(0.01, 100), (0.001, 5000), (0.2, 10)])
def test_lower_is_below_upper(q: float, T: int, adjacency: Adjacency) -> None:
    for sigma in (0.8, 1.5):
        lower, upper = ends(q, T, sigma, 2.0, adjacency)
        assert lower <= upper


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 3.0])
def test_one_replaced_step_is_met_exactly_from_both_sides(epsilon: float) -> None:
    q, sigma = 0.1, 0.9
    x = 1 + sigma**2 / 2 * math.log1p(math.expm1(epsilon) / q)
    v = float(ndtr(-x / sigma))
    u = (1 - q) * v + q * float(ndtr((2 - x) / sigma))
    lower, upper = ends(q, 1, sigma, epsilon, Adjacency.REPLACE_ONE)
    want = math.log(u - math.exp(epsilon) * v)
    assert lower == pytest.approx(want, abs=1e-9)
    assert upper == pytest.approx(want, abs=1e-9)


def test_the_symmetric_pair_is_two_probability_laws() -> None:
    """Its weights sum to 1 under P, and to 1 under Q = P e^(-loss)."""
    nodes = SymmetricPair.of(sampling_prob=0.2, sensitivity=2.0, sigma=0.7).nodes(tilt=0.0, max_frequency=0.0)
    assert np.exp(nodes.log_weight).sum() == pytest.approx(1.0, abs=1e-12)
    assert np.exp(nodes.log_weight - nodes.loss).sum() == pytest.approx(1.0, abs=1e-12)


def test_accounting_it_as_poisson_is_refuted() -> None:
    """The twin: Poisson's upper bound is below what is proven against fixed-size batches."""
    common = {"num_examples": 100_000, "batch_size": 1000, "num_steps": 500}
    fixed = accounting.delta(FixedSizeSampling(**common), sigma=0.8, epsilon=4.0)
    poisson = accounting.delta(Poisson(**common), sigma=0.8, epsilon=4.0)
    assert poisson.upper.value < fixed.lower.value / 10


def test_whole_data_set_batches_are_deterministic() -> None:
    spec = FixedSizeSampling(num_examples=50, batch_size=50, num_steps=4)
    both = accounting.delta(spec, sigma=2.0, epsilon=1.0)
    assert both.lower.value == pytest.approx(0.126937, abs=1e-6)
    assert both.upper.value == pytest.approx(both.lower.value, rel=1e-9)
