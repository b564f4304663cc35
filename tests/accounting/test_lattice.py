import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import log_ndtr

from truebatch.accounting import lattice
from truebatch.accounting.lattice import LatticeLoss, convolution_power

losses = st.lists(st.floats(0.001, 1.0), min_size=1, max_size=5)


def delta_by_enumeration(loss, *, copies, epsilon):
    """Every sequence of outcomes, one by one."""
    log_prob, points = loss.log_prob, loss.first + loss.spacing * np.arange(len(loss.log_prob))
    terms = []
    for outcome in itertools.product(range(len(points)), repeat=copies):
        total = math.fsum(points[i] for i in outcome)
        terms.append(
            math.exp(math.fsum(log_prob[i] for i in outcome)) * max(-math.expm1(epsilon - total), 0.0)
        )
    return math.fsum(terms)


def gaussian(*, sigma, spacing, upward):
    """The loss of N(1, sigma^2) against N(0, sigma^2) is N(1/(2 sigma^2), 1/sigma^2)."""
    edges = spacing * np.arange(math.floor(-14 / sigma / spacing), math.ceil((20 / sigma + 3) / spacing))
    z = sigma * (edges - 0.5 / sigma**2)
    big = np.where(z[1:] > 0, log_ndtr(-z[:-1]), log_ndtr(z[1:]))
    small = np.where(z[1:] > 0, log_ndtr(-z[1:]), log_ndtr(z[:-1]))
    log_prob = big + np.log(-np.expm1(small - big))
    log_top, log_bottom = log_ndtr(-z[-1]), log_ndtr(z[0])
    if upward:
        log_prob = np.concatenate(([log_bottom], log_prob))
        return LatticeLoss(log_prob=log_prob, first=edges[0], spacing=spacing, log_infinite=log_top)
    return LatticeLoss(log_prob=log_prob, first=edges[0], spacing=spacing)


def log_delta_gaussian(*, sigma, epsilon, copies):
    s = sigma / math.sqrt(copies)
    first, second = log_ndtr(0.5 / s - s * epsilon), log_ndtr(-0.5 / s - s * epsilon)
    return first + math.log(-math.expm1(epsilon + second - first))


@settings(max_examples=100, deadline=None)
@given(
    weights=losses,
    copies=st.integers(1, 4),
    epsilon=st.floats(0.0, 5.0),
    first=st.floats(-2.0, 2.0),
    spacing=st.floats(0.01, 2.0),
)
def test_lower_and_upper_bracket_the_enumerated_delta(weights, copies, epsilon, first, spacing):
    probs = np.array(weights) / math.fsum(weights)
    loss = LatticeLoss(log_prob=np.log(probs), first=first, spacing=spacing)
    exact = delta_by_enumeration(loss, copies=copies, epsilon=epsilon)
    low = math.exp(loss.log_delta(copies=copies, epsilon=epsilon, upward=False))
    high = math.exp(loss.log_delta(copies=copies, epsilon=epsilon, upward=True))
    assert low <= exact * (1 + 1e-12) + 1e-300
    assert exact <= high * (1 + 1e-12) + 1e-300
    if exact > 1e-12:  # not a difference of nearly equal losses
        assert low == pytest.approx(exact, rel=1e-9)
        assert high == pytest.approx(exact, rel=1e-9)


@pytest.mark.parametrize(
    ("sigma", "copies", "epsilon"),
    [(1.0, 1, 1.0), (2.47, 5, 5.0), (5.0, 50, 2.0), (5.0, 50, 30.0), (40.0, 300, 0.3), (8.0, 3, 8.0)],
)
def test_gaussian_composition_is_bracketed_and_close(sigma, copies, epsilon):
    exact = log_delta_gaussian(sigma=sigma, epsilon=epsilon, copies=copies)
    spacing = 2e-4 / sigma
    low, high = (
        gaussian(sigma=sigma, spacing=spacing, upward=upward).log_delta(
            copies=copies, epsilon=epsilon, upward=upward
        )
        for upward in (False, True)
    )
    shift = copies * spacing * (2 + epsilon * sigma**2 / copies)
    assert low < exact < high
    assert high - low < 2 * shift


@pytest.mark.parametrize("copies", [2, 7, 300])
def test_the_tilted_transform_equals_the_binomial_sum_at_tiny_deltas(copies):
    p = 1e-5
    coin = LatticeLoss(log_prob=np.log([1 - p, p]), first=-0.25, spacing=1.25)
    epsilon = copies * 1.0 - 1.0 if copies < 100 else 40.3
    terms = [
        math.lgamma(copies + 1) - math.lgamma(k + 1) - math.lgamma(copies - k + 1)
        + k * math.log(p) + (copies - k) * math.log1p(-p) + math.log(-math.expm1(epsilon - margin))
        for k in range(copies + 1)
        if (margin := -0.25 * copies + 1.25 * k) > epsilon
    ]  # fmt: skip
    exact = np.logaddexp.reduce(terms)
    low, high = (coin.log_delta(copies=copies, epsilon=epsilon, upward=up) for up in (False, True))
    assert low == pytest.approx(exact, abs=1e-8)
    assert low <= exact + 1e-11 <= high + 2e-11


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(0.0, 1.0), min_size=1, max_size=40).filter(lambda w: sum(w) > 0), st.integers(1, 9))
def test_convolution_power_equals_direct_convolution(weights, copies):
    probs = np.array(weights) / math.fsum(weights)
    factor = np.array([0.25, 0.0, 0.5])
    direct = np.array([1.0])
    for _ in range(copies):
        direct = np.convolve(direct, probs)
    laws = convolution_power(probs, copies) + convolution_power(probs, copies, factors=[factor, probs])
    wanted = (direct, np.convolve(direct, factor), np.convolve(direct, probs))
    for law, expected in zip(laws, wanted, strict=True):
        padded = np.zeros(law.first + len(law.probs))
        padded[: min(len(expected), len(padded))] = expected[: len(padded)]
        error = np.linalg.norm(law.probs - padded[law.first :])
        assert error <= law.noise + law.alias + 1e-15
        assert expected[: law.first].sum() + expected[law.first + len(law.probs) :].sum() <= law.alias + 1e-15


def test_an_unguarded_short_window_shows_privacy_loss_that_is_not_there(monkeypatch):
    sigma, copies, epsilon = 2.47, 5, 5.0
    loss = gaussian(sigma=sigma, spacing=1e-3, upward=False)
    exact = log_delta_gaussian(sigma=sigma, epsilon=epsilon, copies=copies)
    monkeypatch.setattr(lattice, "_MAX_POINTS", 2200)
    guarded = loss.log_delta(copies=copies, epsilon=epsilon, upward=False)
    bounded = lattice._window
    monkeypatch.setattr(lattice, "_window", lambda *a, **k: (*bounded(*a, **k)[:2], 0.0))
    unguarded = loss.log_delta(copies=copies, epsilon=epsilon, upward=False)
    assert guarded < exact < unguarded


def test_a_short_window_makes_the_upper_bound_larger_and_never_wrong(monkeypatch):
    sigma, copies, epsilon = 2.47, 5, 5.0
    loss = gaussian(sigma=sigma, spacing=1e-3, upward=True)
    exact = log_delta_gaussian(sigma=sigma, epsilon=epsilon, copies=copies)
    wide = loss.log_delta(copies=copies, epsilon=epsilon, upward=True)
    monkeypatch.setattr(lattice, "_MAX_POINTS", 2200)
    assert exact < wide < loss.log_delta(copies=copies, epsilon=epsilon, upward=True)


def test_any_tilt_is_valid_and_the_saddle_point_is_the_sharp_one():
    sigma, copies, epsilon = 3.0, 20, 8.0
    loss = gaussian(sigma=sigma, spacing=1e-3, upward=False)
    sharp = loss.log_delta(copies=copies, epsilon=epsilon, upward=False)
    exact = log_delta_gaussian(sigma=sigma, epsilon=epsilon, copies=copies)
    for tilt in (0.01, 0.5, 3.0, 10.0, 60.0):
        assert loss.log_delta(copies=copies, epsilon=epsilon, upward=False, tilt=tilt) <= sharp + 1e-6 < exact


def test_without_tilting_a_tiny_delta_drowns_in_the_transform():
    loss = gaussian(sigma=8.0, spacing=1e-3, upward=False)
    tilted = loss.log_delta(copies=3, epsilon=4.0, upward=False)
    assert tilted < -100
    assert loss.log_delta(copies=3, epsilon=4.0, upward=False, tilt=1e-6) == -math.inf


def test_rounding_moves_every_loss_one_way_and_keeps_the_mass():
    rng = np.random.default_rng(0)
    loss = rng.normal(size=1000)
    log_prob = np.log(np.full(1000, 1e-3))
    low, high = (
        LatticeLoss.rounded(log_prob=log_prob, loss=loss, spacing=0.3, offset=0.07, upward=up)
        for up in (False, True)
    )
    for rounded in (low, high):
        assert np.exp(rounded.log_prob).sum() == pytest.approx(1.0, rel=1e-12)
    assert low.first <= loss.min() < low.first + 0.3
    last = high.first + 0.3 * (len(high.log_prob) - 1)
    assert last - 0.3 < loss.max() <= last
    for epsilon in (0.0, 1.0):
        exact = 1e-3 * np.maximum(-np.expm1(epsilon - loss), 0.0).sum()
        assert math.exp(low.log_delta(copies=1, epsilon=epsilon, upward=False)) < exact
        assert math.exp(high.log_delta(copies=1, epsilon=epsilon, upward=True)) > exact


def test_mass_at_infinity_counts_once_per_copy():
    loss = LatticeLoss(log_prob=np.log([0.9]), first=-1.0, spacing=1.0, log_infinite=math.log(0.1))
    assert loss.log_delta(copies=3, epsilon=1.0, upward=True) == pytest.approx(math.log(1 - 0.9**3))
    tiny = LatticeLoss(log_prob=np.array([0.0]), first=-1.0, spacing=1.0, log_infinite=-800.0)
    assert tiny.log_delta(copies=4, epsilon=1.0, upward=True) == pytest.approx(-800.0 + math.log(4))


def test_no_loss_above_epsilon_gives_zero():
    loss = LatticeLoss(log_prob=np.log([0.5, 0.5]), first=-0.5, spacing=1.0)
    for upward in (False, True):
        assert loss.log_delta(copies=10, epsilon=5.0, upward=upward) == -math.inf
