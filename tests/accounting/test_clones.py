import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom

from truebatch.accounting import clones
from truebatch.accounting.clones import clones_upper_curves, log_delta_clones, sigma_clones_optimistic
from truebatch.accounting.deterministic import log_delta_gaussian
from truebatch.errors import InvalidArgument

DELTA = 2.7e-8


def clones_pair(eps0: float, num_reports: int) -> tuple[dict, dict]:
    """P and Q of Theorem 3.2, written out."""
    P, Q = {}, {}
    heads = math.exp(eps0) / (math.exp(eps0) + 1)
    for c in range(num_reports):
        for a in range(c + 1):
            mass = binom.pmf(c, num_reports - 1, math.exp(-eps0)) * binom.pmf(a, c, 0.5)
            for d, prob in ((1, heads), (0, 1 - heads)):
                for law, first, second in ((P, a + d, c - a + 1 - d), (Q, a + 1 - d, c - a + d)):
                    law[first, second] = law.get((first, second), 0.0) + mass * prob
    return P, Q


def hockey_stick(P: dict, Q: dict, epsilon: float) -> float:
    return sum(max(P.get(key, 0.0) - math.exp(epsilon) * Q.get(key, 0.0), 0.0) for key in P)


@pytest.mark.parametrize("num_reports", [1, 2, 5, 40])
@pytest.mark.parametrize(("eps0", "epsilon"), [(0.3, 0.1), (1.0, 0.0), (2.0, 1.5), (6.0, 2.0)])
def test_delta_is_that_of_the_pair_written_out(num_reports, eps0, epsilon):
    P, Q = clones_pair(eps0, num_reports)
    exact = hockey_stick(P, Q, epsilon)
    assert hockey_stick(Q, P, epsilon) == pytest.approx(exact, rel=1e-9, abs=1e-18)
    ours = math.exp(log_delta_clones(epsilon=epsilon, eps0=eps0, num_reports=num_reports))
    assert exact * (1 - 1e-12) <= ours <= exact * (1 + 1e-8) + 1e-18


def test_nothing_is_lost_when_the_reports_are_private_enough():
    assert log_delta_clones(epsilon=1.0, eps0=1.0, num_reports=100) == -math.inf


@settings(max_examples=40, deadline=None)
@given(
    num_reports=st.integers(1, 10**6),
    eps0=st.floats(0.05, 12.0),
    share=st.floats(0.0, 1.0),
    more=st.floats(1.001, 2.0),
)
def test_delta_falls_with_epsilon_and_reports_and_grows_with_eps0(num_reports, eps0, share, more):
    epsilon = share * eps0

    def value(e: float, e0: float, n: int) -> float:
        return log_delta_clones(epsilon=e, eps0=e0, num_reports=n)

    here, slack = value(epsilon, eps0, num_reports), 1e-3
    assert here <= 0
    assert value(epsilon * more, eps0, num_reports) <= here + slack
    assert value(epsilon, eps0, math.ceil(num_reports * more)) <= here + slack
    assert value(epsilon, eps0 * more, num_reports) >= here - slack


@pytest.mark.parametrize("cells", [5, 50, 500])
def test_ranges_of_clones_round_up(cells):
    exact = log_delta_clones(epsilon=0.3, eps0=3.0, num_reports=30_000, cells=10**6)
    ranged = log_delta_clones(epsilon=0.3, eps0=3.0, num_reports=30_000, cells=cells)
    assert exact <= ranged
    assert ranged - exact < 20 / cells


def test_taking_the_upper_end_of_a_range_breaks_the_bound(monkeypatch):
    """Twin: the published `max` of one quantity with itself keeps the upper end of each range of C."""
    exact = log_delta_clones(epsilon=0.3, eps0=3.0, num_reports=30_000, cells=10**6)
    honest = clones._clone_counts

    def slipped(trials: int, prob: float, cells: int):
        starts, log_weight = honest(trials, prob, cells)
        return np.append(starts[1:] - 1, trials), log_weight

    monkeypatch.setattr(clones, "_clone_counts", slipped)
    assert log_delta_clones(epsilon=0.3, eps0=3.0, num_reports=30_000, cells=500) < exact


@pytest.mark.parametrize(("eps0", "num_reports", "epsilon"), [(1.0, 3, 0.4), (2.0, 6, 1.0), (0.5, 4, 0.1)])
def test_two_epochs_dominate_the_product_of_two_pairs(eps0, num_reports, epsilon):
    P, Q = clones_pair(eps0, num_reports)
    keys = list(itertools.product(P, P))
    exact = sum(max(P[k] * P[j] - math.exp(epsilon) * Q[k] * Q[j], 0.0) for k, j in keys)
    upper = math.exp(clones._composed(eps0, num_reports).log_delta(copies=2, epsilon=epsilon, upward=True))
    assert exact <= upper <= exact * 1.01


@pytest.mark.parametrize(("batch_size", "sigma"), [(1024, 1.0444), (2048, 1.1346), (4096, 1.2424)])
def test_optimistic_reading_gives_the_anchors(batch_size, sigma):
    S = round(36_672_494 / batch_size)
    ours = sigma_clones_optimistic(epsilon=5.0, delta=DELTA, steps_per_epoch=S, delta0=DELTA / S)
    assert ours == pytest.approx(sigma, abs=5e-5)


def test_optimistic_reading_is_vacuous_from_2048_on_and_read_literally_at_once():
    sigma_deterministic = 1.106383
    found = [
        sigma_clones_optimistic(epsilon=5.0, delta=DELTA, steps_per_epoch=S, delta0=DELTA / size)
        for S, size in ((35813, 35813), (17906, 17906), (35813, 36_672_494))
    ]
    assert found[0] < sigma_deterministic < min(found[1:])


def test_rigorous_bound_asks_for_more_noise_than_the_optimistic_reading():
    (curve,) = clones_upper_curves(steps_per_epoch=35813, num_epochs=1)
    optimistic = sigma_clones_optimistic(
        epsilon=5.0, delta=DELTA, steps_per_epoch=35813, delta0=DELTA / 35813
    )
    assert curve.log_delta(2 * optimistic, 5.0) > math.log(DELTA)


def test_rigorous_bound_amplifies_when_epsilon_is_small_and_steps_are_many():
    (curve,) = clones_upper_curves(steps_per_epoch=10**6, num_epochs=1)
    assert curve.log_delta(1.85, 1.0) < math.log(1e-8) < log_delta_gaussian(sigma=5.0, epsilon=1.0)


def test_rigorous_bound_is_the_best_over_delta0_and_pays_for_failure():
    (curve,) = clones_upper_curves(steps_per_epoch=10**4, num_epochs=1)
    best = curve.log_delta(3.0, 1.0)
    for log_delta0 in np.linspace(-60, -12, 25):
        eps0 = clones._gaussian_epsilon(sigma=1.5, log_delta=log_delta0)
        pure = log_delta_clones(epsilon=1.0, eps0=eps0, num_reports=10**4)
        failure = math.log((math.e + 1) * (1 + math.exp(-eps0) / 2) * 1e4) + log_delta0
        assert best <= np.logaddexp(pure, failure) + 1e-5


@pytest.mark.parametrize("epochs", [1, 3])
@pytest.mark.parametrize("sigma", [0.1, 0.7, 3.0, 1e4])
@pytest.mark.parametrize("epsilon", [0.0, 1e-3, 1.0, 256.0])
def test_extremes_give_numbers_that_epochs_do_not_lower(sigma, epsilon, epochs):
    (curve,) = clones_upper_curves(steps_per_epoch=1000, num_epochs=epochs)
    (one,) = clones_upper_curves(steps_per_epoch=1000, num_epochs=1)
    value = curve.log_delta(sigma, epsilon)
    assert value <= 0
    assert value >= one.log_delta(sigma, epsilon) - 1e-3


def test_bad_numbers_are_refused():
    with pytest.raises(InvalidArgument, match="at least 1"):
        clones_upper_curves(steps_per_epoch=5, num_epochs=0)
    with pytest.raises(InvalidArgument, match="delta0"):
        sigma_clones_optimistic(epsilon=1.0, delta=1e-6, steps_per_epoch=10, delta0=0.0)
