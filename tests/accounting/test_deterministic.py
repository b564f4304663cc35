"""(D) against 50-digit arithmetic, its limits, and a broken twin."""

import math

import mpmath as mp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from truebatch.accounting import Adjacency
from truebatch.accounting.deterministic import delta_deterministic, deterministic_curves, log_delta_gaussian

SIGMAS = [0.05, 0.3, 1.0, 7.0, 100.0, 1e4]
EPSILONS = [0.0, 1e-3, 0.1, 1.0, 5.0, 60.0, 256.0]


def exact(sigma: float, epsilon: float) -> mp.mpf:
    with mp.workdps(60):
        s, e = mp.mpf(sigma), mp.mpf(epsilon)
        return mp.log(mp.ncdf(1 / (2 * s) - s * e) - mp.exp(e) * mp.ncdf(-1 / (2 * s) - s * e))


# Beyond sigma * epsilon = 1400 mpmath's own cdf gives up, and the leading term is the test.
CASES = [(s, e) for s in SIGMAS for e in EPSILONS if s * e < 1400]


@pytest.mark.parametrize(("sigma", "epsilon"), CASES)
def test_equals_high_precision_formula(sigma: float, epsilon: float) -> None:
    assert log_delta_gaussian(sigma=sigma, epsilon=epsilon) == pytest.approx(
        float(exact(sigma, epsilon)), rel=1e-10, abs=1e-10
    )


def test_far_tail_follows_the_leading_term() -> None:
    sigma, epsilon = 1e4, 1.0
    a = sigma * epsilon - 0.5 / sigma
    leading = -0.5 * a * a - 0.5 * math.log(2 * math.pi) - math.log(sigma) - 2 * math.log(a)
    assert log_delta_gaussian(sigma=sigma, epsilon=epsilon) == pytest.approx(leading, abs=1e-6)


@given(st.floats(0.05, 100), st.floats(0, 50), st.floats(1.0001, 3))
def test_does_not_increase_with_sigma_nor_epsilon(sigma: float, epsilon: float, factor: float) -> None:
    here = log_delta_gaussian(sigma=sigma, epsilon=epsilon)
    slack = 1e-9
    assert log_delta_gaussian(sigma=sigma * factor, epsilon=epsilon) <= here + slack
    assert log_delta_gaussian(sigma=sigma, epsilon=epsilon * factor) <= here + slack


def test_depends_on_sigma_and_epochs_only_through_their_ratio() -> None:
    assert delta_deterministic(epsilon=1.0, sigma=3.0, num_epochs=9) == delta_deterministic(
        epsilon=1.0, sigma=1.0, num_epochs=1
    )


def test_replacing_one_example_doubles_the_sensitivity() -> None:
    (zero_out,) = deterministic_curves(num_epochs=4, adjacency=Adjacency.ZERO_OUT)
    (replace,) = deterministic_curves(num_epochs=4, adjacency=Adjacency.REPLACE_ONE)
    assert replace.log_delta(2.0, 1.0) == zero_out.log_delta(1.0, 1.0)


def test_the_check_would_notice_a_missing_factor() -> None:
    """The twin without e^eps is off by far more than the tolerance above."""
    twin = mp.log(mp.ncdf(mp.mpf(0.5) - 1) - mp.ncdf(mp.mpf(-0.5) - 1))
    assert abs(float(twin) - log_delta_gaussian(sigma=1.0, epsilon=1.0)) > 0.1
