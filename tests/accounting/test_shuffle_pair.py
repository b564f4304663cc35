import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq

from truebatch.accounting import lattice
from truebatch.accounting.bounds import Adjacency
from truebatch.accounting.shuffle import (
    dynamic_shuffle_lower_curves,
    log_delta_max_event,
    persistent_shuffle_lower_curves,
)
from truebatch.accounting.shuffle_hull import hull, log_delta_composed, log_delta_one_epoch
from truebatch.accounting.shuffle_max import MaxStatistic
from truebatch.accounting.shuffle_pair import pair_tests
from truebatch.accounting.shuffle_partition import log_delta_partition

EPSILON, DELTA = 5.0, 2.7e-8


def best_delta(stat, level):
    tests = pair_tests(stat, level)
    return float(np.max(tests.p - math.exp(level) * tests.q))


def delta_of_two_coordinates(stat, epsilon):
    """The pair's own delta at S = 2, by a sum over a fine grid of the plane."""
    s, c = stat.scale, stat.lowered_centre
    w = np.arange(-9 * s, 2 + 10 * s, s / 120)

    def density(centre):
        return np.exp(-(((w - centre) / s) ** 2) / 2) / (s * math.sqrt(2 * math.pi)) * (s / 120)

    plain = density(0.0)
    P = (np.outer(density(2.0), plain) + np.outer(plain, density(2.0))) / 2
    Q = (np.outer(density(c), plain) + np.outer(plain, density(c))) / 2
    return float(np.maximum(P - math.exp(epsilon) * Q, 0.0).sum())


def sampled_losses(stat, rng, size):
    """Losses of the pair at w drawn from P."""
    s, c, S = stat.scale, stat.lowered_centre, stat.steps_per_epoch
    w = s * rng.standard_normal((size, S))
    w[:, 0] += 2.0
    numerator = np.exp(2 * (w - 1) / s**2).sum(axis=1)
    return np.log(numerator) - np.log(np.exp(c * (w - c / 2) / s**2).sum(axis=1))


# A second road


@pytest.mark.parametrize("adjacency", [Adjacency.ZERO_OUT, Adjacency.REPLACE_ONE])
@pytest.mark.parametrize(("s", "epsilon"), [(1.0, 0.0), (1.0, 1.0), (0.6, 5.0), (2.0, 0.5), (1.0, 4.0)])
def test_certified_tests_of_two_coordinates_come_close_to_the_pairs_own_delta(s, epsilon, adjacency):
    stat = MaxStatistic(steps_per_epoch=2, scale=s, adjacency=adjacency)
    exact = delta_of_two_coordinates(stat, epsilon)
    found = math.exp(log_delta_one_epoch(stat, epsilon))
    assert exact * 0.998 < found < exact * 1.0005  # the grid itself is good to 2e-4


@pytest.mark.parametrize(("S", "s", "epsilon"), [(560, 1.28, 0.0), (560, 1.28, 0.3), (30, 1.5, 0.5)])
def test_certified_delta_agrees_with_sampling(S, s, epsilon):
    """Null: the pair's delta is at least the certified value and at most 1.5% above it. Rejects at 1e-6."""
    stat = MaxStatistic(steps_per_epoch=S, scale=s)
    losses = np.concatenate([sampled_losses(stat, np.random.default_rng(seed), 10_000) for seed in range(16)])
    payoffs = np.maximum(-np.expm1(epsilon - losses), 0.0)
    mean, error = payoffs.mean(), payoffs.std() / math.sqrt(len(payoffs))
    certified = best_delta(stat, epsilon)
    assert certified <= mean + 4.9 * error
    assert certified * 1.015 >= mean - 4.9 * error
    assert math.exp(stat.log_delta(epsilon)) * 1.015 < mean - 4.9 * error  # the maximum alone would fail


def test_composed_hull_agrees_with_sampling():
    """Null: two epochs of the pair have at least the composed delta, at most 2% above it. Rejects at 1e-6."""
    stat, epsilon = MaxStatistic(steps_per_epoch=100, scale=1.3), 0.5
    rng = np.random.default_rng(7)
    losses = sum(sampled_losses(stat, rng, 100_000) for _ in range(2))
    payoffs = np.maximum(-np.expm1(epsilon - losses), 0.0)
    mean, error = payoffs.mean(), payoffs.std() / math.sqrt(len(payoffs))
    composed = math.exp(log_delta_composed(stat, copies=2, epsilon=epsilon))
    assert composed <= mean + 4.9 * error
    assert composed * 1.02 >= mean - 4.9 * error
    assert math.exp(log_delta_partition(stat, copies=2, epsilon=epsilon)) * 1.02 < mean - 4.9 * error


def test_each_test_gives_the_probabilities_it_claims():
    """Null: thresholding the exact sum comes within 1% of each claimed P. Rejects at 1e-6."""
    stat, level = MaxStatistic(steps_per_epoch=200, scale=1.2), 0.2
    tests = pair_tests(stat, level)
    losses = np.concatenate([sampled_losses(stat, np.random.default_rng(seed), 20_000) for seed in range(5)])
    # At shift 0 the test is close to {loss > level}.
    i = int(np.argmax(tests.p - math.exp(level) * tests.q))
    freq = float((losses > level).mean())
    assert tests.p[i] == pytest.approx(freq, rel=0.02, abs=4.9 * math.sqrt(freq / len(losses)))


# Order


@settings(max_examples=25, deadline=None)
@given(
    S=st.sampled_from([2, 3, 560, 10**6]),
    s=st.floats(0.05, 30.0),
    level=st.floats(-3.0, 12.0),
    adjacency=st.sampled_from([Adjacency.ZERO_OUT, Adjacency.REPLACE_ONE]),
)
def test_no_test_beats_the_gaussian_that_shows_the_special_coordinate(S, s, level, adjacency):
    """Knowing which coordinate is special can only help, at every level, in both directions."""
    stat = MaxStatistic(steps_per_epoch=S, scale=s, adjacency=adjacency)
    lone = MaxStatistic(steps_per_epoch=1, scale=s, adjacency=adjacency)
    tests = pair_tests(stat, level)
    for epsilon in (0.0, 0.5, 2.0, 6.0):
        bound = math.exp(lone.log_delta(epsilon)) * (1 + 1e-9)
        assert np.all(tests.p - math.exp(epsilon) * tests.q <= bound)
        assert np.all((1 - tests.q) - math.exp(epsilon) * (1 - tests.p) <= bound + 1e-15)


@pytest.mark.parametrize("adjacency", [Adjacency.ZERO_OUT, Adjacency.REPLACE_ONE])
def test_dear_curves_are_at_least_the_cheap_ones_and_below_deterministic(adjacency):
    sensitivity = 1.0 if adjacency is Adjacency.ZERO_OUT else 2.0
    for S, E, sigma, epsilon in (
        (560, 1, 1.0, 5.0),
        (560, 5, 1.1, 5.0),
        (50, 20, 2.0, 1.0),
        (10, 3, 1.0, 0.0),
    ):
        for curves in (persistent_shuffle_lower_curves, dynamic_shuffle_lower_curves):
            cheap, dear = curves(steps_per_epoch=S, num_epochs=E, adjacency=adjacency)
            assert dear.dear
            assert not cheap.dear
            exact = log_delta_max_event(
                sigma=sigma / sensitivity, epsilon=epsilon, steps_per_epoch=1, num_epochs=E
            )
            assert cheap.log_delta(sigma, epsilon) <= dear.log_delta(sigma, epsilon) <= exact + 1e-9


def test_dear_curves_are_monotone_within_their_tolerance():
    _, dear = dynamic_shuffle_lower_curves(steps_per_epoch=100, num_epochs=4)
    by_sigma = [dear.log_delta(1.2 + 1e-5 * k, 2.0) for k in range(6)]
    by_epsilon = [dear.log_delta(1.2, 2.0 + 1e-5 * k) for k in range(6)]
    for values in (by_sigma, by_epsilon):
        assert np.all(np.diff(values) <= dear.tolerance)


def test_one_step_per_epoch_has_no_dear_curve_because_the_cheap_one_is_exact():
    for curves in (persistent_shuffle_lower_curves, dynamic_shuffle_lower_curves):
        (curve,) = curves(steps_per_epoch=1, num_epochs=7)
        assert not curve.dear


def test_hull_of_one_epoch_meets_the_best_test():
    stat = MaxStatistic(steps_per_epoch=560, scale=1.1)
    for epsilon in (0.0, 0.2, 3.0):
        composed = log_delta_composed(stat, copies=1, epsilon=epsilon)
        assert composed == pytest.approx(log_delta_one_epoch(stat, epsilon), abs=2e-3)


def test_hull_is_concave_and_above_its_points():
    rng = np.random.default_rng(0)
    q = rng.random(300) ** 3
    p = q ** rng.uniform(0.2, 1.0, 300)
    dp, dq = hull(p, q)
    assert np.all(np.diff(dp / dq) <= 0.0)
    assert dp.sum() == pytest.approx(1.0)
    assert dq.sum() == pytest.approx(1.0)
    assert np.all(np.interp(q, np.cumsum(dq), np.cumsum(dp)) >= p - 1e-12)


# What the tests gain


def calibrated(curve):
    return brentq(lambda sigma: curve.log_delta(sigma, EPSILON) - math.log(DELTA), 0.5, 3.0, xtol=1e-7)


@pytest.mark.parametrize(
    ("num_epochs", "least", "most"),
    [
        (1, 1e-4, 2e-4),
        pytest.param(5, 2.5e-3, 3.5e-3, marks=pytest.mark.slow),
        pytest.param(50, 0.02, 0.025, marks=pytest.mark.slow),
    ],
)
def test_gain_in_sigma_over_the_maximum(num_epochs, least, most):
    """At b = 65,536 of the paper's data: a hair in one epoch, 2% in fifty."""
    cheap, dear = (
        calibrated(c) for c in dynamic_shuffle_lower_curves(steps_per_epoch=560, num_epochs=num_epochs)
    )
    assert least < dear / cheap - 1 < most


# Broken twins


def test_an_unguarded_short_window_claims_probabilities_that_are_not_there(monkeypatch):
    stat, level = MaxStatistic(steps_per_epoch=50, scale=1.0), 0.5
    bounded = lattice._window

    def short(weights, copies, log_alias, *, widest):
        first, size, _ = bounded(weights, copies, log_alias, widest=widest)
        return first + size // 3, size // 2, 1.0

    def tests(window):
        pair_tests.cache_clear()
        monkeypatch.setattr(lattice, "_window", window)
        return pair_tests(stat, level)

    true, guarded, unguarded = tests(bounded), tests(short), tests(lambda *a, **k: (*short(*a, **k)[:2], 0.0))
    pair_tests.cache_clear()
    assert len(true.p) == len(guarded.p) == len(unguarded.p)
    assert np.all(guarded.p <= true.p + 1e-9)
    assert np.all(guarded.q >= true.q - 1e-9)
    assert np.any(unguarded.p > true.p + 1e-3) or np.any(unguarded.q < true.q - 1e-3)


# Corners


@pytest.mark.parametrize("S", [2, 10**9])
@pytest.mark.parametrize("sigma", [0.05, 0.2, 1e4])
def test_corners_give_numbers_and_no_warnings(S, sigma):
    for E, epsilon in ((1, 0.0), (1, 1000.0), (10**4, 3.0)):
        for curves in (persistent_shuffle_lower_curves, dynamic_shuffle_lower_curves):
            cheap, *_, dear = curves(steps_per_epoch=S, num_epochs=E)
            assert cheap.log_delta(sigma, epsilon) <= dear.log_delta(sigma, epsilon) <= 0.0
