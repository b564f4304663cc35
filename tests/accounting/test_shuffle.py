import math

import mpmath
import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq
from scipy.special import log_ndtr

from truebatch.accounting.bounds import Adjacency, Direction
from truebatch.accounting.lattice import LatticeLoss
from truebatch.accounting.shuffle import (
    dynamic_shuffle_lower_curves,
    log_delta_dynamic_partition,
    log_delta_max_event,
    persistent_shuffle_lower_curves,
)
from truebatch.accounting.shuffle_max import MaxStatistic
from truebatch.accounting.shuffle_partition import log_delta_partition, partition
from truebatch.errors import InvalidArgument, UnknownAnalysis

CRITEO = 36_672_494
DELTA, EPSILON = 2.7e-8, 5.0

sigmas = st.floats(0.1, 20.0)
epsilons = st.floats(0.0, 30.0)
steps = st.sampled_from([1, 2, 7, 560, 35813, 10**9])
epochs = st.sampled_from([1, 2, 5, 40])


def log_delta_gaussian(*, sigma, epsilon, num_epochs=1, sensitivity=1.0):
    """Theorem 3.1, as printed; good where the two terms do not cancel to nothing."""
    s = sigma / math.sqrt(num_epochs) / sensitivity
    log_first, log_second = log_ndtr(0.5 / s - s * epsilon), log_ndtr(-0.5 / s - s * epsilon)
    return log_first + math.log(-math.expm1(epsilon + log_second - log_first))


def calibrated(log_delta, *, steps_per_epoch, num_epochs):
    def excess(sigma):
        return log_delta(
            sigma=sigma, epsilon=EPSILON, steps_per_epoch=steps_per_epoch, num_epochs=num_epochs
        ) - math.log(DELTA)

    return brentq(excess, 0.4, 5.0, xtol=1e-10)


# Printed and closed forms


@pytest.mark.parametrize(
    ("batch_size", "num_epochs", "sigma"),
    [
        (1024, 1, 0.823258),
        (1024, 5, 1.840862),
        (65536, 1, 1.010783),
        (CRITEO, 1, 1.106383),
        (CRITEO, 5, 2.473947),
    ],
)
def test_persistent_sigma_meets_the_anchors(batch_size, num_epochs, sigma):
    found = calibrated(log_delta_max_event, steps_per_epoch=round(CRITEO / batch_size), num_epochs=num_epochs)
    assert found == pytest.approx(sigma, abs=6e-7)


@pytest.mark.parametrize(("batch_size", "num_epochs", "sigma"), [(1024, 5, 0.856300), (CRITEO, 5, 2.473946)])
def test_dynamic_sigma_meets_the_anchors(batch_size, num_epochs, sigma):
    found = calibrated(
        log_delta_dynamic_partition, steps_per_epoch=round(CRITEO / batch_size), num_epochs=num_epochs
    )
    assert sigma <= found < sigma + 3e-6


@pytest.mark.parametrize("num_epochs", [1, 3, 10**4])
@pytest.mark.parametrize(("sigma", "epsilon"), [(0.3, 0.0), (1.0, 1.0), (2.5, 5.0), (40.0, 0.1), (0.7, 20.0)])
def test_both_shuffles_meet_deterministic_when_one_step_per_epoch(sigma, epsilon, num_epochs):
    exact = log_delta_gaussian(sigma=sigma, epsilon=epsilon, num_epochs=num_epochs)
    for log_delta in (log_delta_max_event, log_delta_dynamic_partition):
        found = log_delta(sigma=sigma, epsilon=epsilon, steps_per_epoch=1, num_epochs=num_epochs)
        assert found == pytest.approx(exact, rel=1e-12, abs=1e-10)


@pytest.mark.parametrize("adjacency", [Adjacency.ZERO_OUT, Adjacency.REPLACE_ONE])
@pytest.mark.parametrize(("sigma", "num_epochs", "epsilon"), [(1.3, 4, 3.0), (2.47, 5, 5.0), (0.9, 2, 0.2)])
def test_the_partition_itself_comes_close_to_the_gaussian_when_one_step_per_epoch(
    sigma, num_epochs, epsilon, adjacency
):
    stat = MaxStatistic(steps_per_epoch=1, scale=sigma, adjacency=adjacency)
    found = log_delta_partition(stat, copies=num_epochs, epsilon=epsilon)
    sensitivity = 2.0 - stat.lowered_centre
    exact = log_delta_gaussian(sigma=sigma, epsilon=epsilon, num_epochs=num_epochs, sensitivity=sensitivity)
    assert exact - 1e-5 < found < exact


@pytest.mark.parametrize("adjacency", [Adjacency.ZERO_OUT, Adjacency.REPLACE_ONE])
def test_dynamic_equals_persistent_in_one_epoch(adjacency):
    for sigma, epsilon in ((0.5, 5.0), (1.0, 0.0), (30.0, 0.3)):
        case = {"sigma": sigma, "epsilon": epsilon, "steps_per_epoch": 560, "num_epochs": 1}
        persistent = log_delta_max_event(**case, adjacency=adjacency)
        assert log_delta_dynamic_partition(**case, adjacency=adjacency) == persistent


def test_the_partition_of_one_epoch_comes_close_to_the_max_event():
    for S, sigma, epsilon in ((560, 1.01, 5.0), (35813, 0.82, 5.0), (10, 2.0, 0.1)):
        stat = MaxStatistic(steps_per_epoch=S, scale=sigma)
        exact = stat.log_delta(epsilon)
        assert exact - 3e-5 < log_delta_partition(stat, copies=1, epsilon=epsilon) <= exact + 1e-12


# Order


@settings(max_examples=150, deadline=None)
@given(sigma=sigmas, epsilon=epsilons, S=steps, E=epochs, growth=st.floats(1.0, 2.0))
def test_persistent_bound_is_monotone_and_below_deterministic(sigma, epsilon, S, E, growth):
    case = {"steps_per_epoch": S, "num_epochs": E}
    here = log_delta_max_event(sigma=sigma, epsilon=epsilon, **case)
    slack = 1e-9 + 1e-14 * abs(here)
    assert log_delta_max_event(sigma=sigma * growth, epsilon=epsilon, **case) <= here + slack
    assert log_delta_max_event(sigma=sigma, epsilon=epsilon * growth, **case) <= here + slack
    exact = log_delta_max_event(sigma=sigma, epsilon=epsilon, steps_per_epoch=1, num_epochs=E)
    assert here <= exact + slack


@settings(max_examples=20, deadline=None)
@given(sigma=sigmas, epsilon=epsilons, S=steps, E=epochs, growth=st.floats(1.0, 2.0))
def test_dynamic_bound_is_monotone_and_below_deterministic(sigma, epsilon, S, E, growth):
    case = {"steps_per_epoch": S, "num_epochs": E}
    (curve,) = (c for c in dynamic_shuffle_lower_curves(**case) if not c.dear)

    def log_delta(sigma, epsilon):
        return max(
            curve.log_delta(sigma, epsilon), -900.0
        )  # below, only that it is a lower bound is promised

    here = log_delta(sigma, epsilon)
    slack = 2 * curve.tolerance * max(1.0, abs(here) / 20)
    assert log_delta(sigma * growth, epsilon) <= here + slack
    assert log_delta(sigma, epsilon * growth) <= here + slack
    exact = log_delta_max_event(sigma=sigma, epsilon=epsilon, steps_per_epoch=1, num_epochs=E)
    assert curve.log_delta(sigma, epsilon) <= exact + 1e-9 + 1e-14 * abs(exact)


def test_replace_one_gives_away_at_least_as_much_as_zero_out():
    for S, E, sigma, epsilon in ((560, 1, 1.0, 5.0), (560, 5, 1.1, 5.0), (35813, 5, 0.85, 1.0)):
        case = {"sigma": sigma, "epsilon": epsilon, "steps_per_epoch": S, "num_epochs": E}
        for log_delta in (log_delta_max_event, log_delta_dynamic_partition):
            assert log_delta(**case, adjacency=Adjacency.REPLACE_ONE) > log_delta(**case)


# A second road


def max_event_in_many_digits(*, S, s, epsilon, x, c):
    a, s, eps = mpmath.mpf(2), mpmath.mpf(s), mpmath.mpf(epsilon)
    C = (a + c) / 2 + s**2 * mpmath.mpf(x) / (a - c)
    others = mpmath.ncdf(C / s) ** (S - 1)
    P, Q = mpmath.ncdf((C - a) / s) * others, mpmath.ncdf((C - c) / s) * others
    return (1 - P) - mpmath.exp(eps) * (1 - Q), Q - mpmath.exp(eps) * P


@pytest.mark.parametrize("adjacency", [Adjacency.ZERO_OUT, Adjacency.REPLACE_ONE])
@pytest.mark.parametrize("S", [1, 2, 1000, 10**9])
def test_max_event_equals_a_sum_in_many_digits_down_to_1e_minus_300(S, adjacency):
    compared = 0
    with mpmath.workdps(400):
        for s in (0.05, 0.3, 1.0, 10.0, 1e4):
            for epsilon in (0.0, 1e-3, 0.01, 0.1, 1.0, 5.0, 50.0):
                stat = MaxStatistic(steps_per_epoch=S, scale=s, adjacency=adjacency)
                above, below = stat.solve(epsilon), stat.solve(-epsilon)
                case = {"S": S, "s": s, "epsilon": epsilon, "c": stat.lowered_centre}
                true_above, _ = max_event_in_many_digits(x=above, **case)
                _, true_below = max_event_in_many_digits(x=below, **case)
                for found, true in (
                    (stat.log_above(above, epsilon), true_above),
                    (stat.log_below(below, epsilon), true_below),
                ):
                    if true > mpmath.mpf(10) ** -350:
                        compared += 1
                        assert found == pytest.approx(float(mpmath.log(true)), abs=1e-9)
    assert compared > 25


@pytest.mark.parametrize("S", [2, 560, 10**9])
def test_no_other_event_of_the_maximum_does_better(S):
    for s, epsilon in ((0.3, 5.0), (1.0, 1.0), (5.0, 0.1), (1.0, 0.0)):
        stat = MaxStatistic(steps_per_epoch=S, scale=s)
        best = stat.log_delta(epsilon)
        for x in np.linspace(-epsilon - 5, epsilon + math.log(S) + 5, 200):
            assert stat.log_above(float(x), epsilon) <= best + 1e-9
            assert stat.log_below(float(x), epsilon) <= best + 1e-9


@pytest.mark.parametrize("adjacency", [Adjacency.ZERO_OUT, Adjacency.REPLACE_ONE])
def test_the_loss_of_the_maximum_increases_and_stays_in_its_bracket(adjacency):
    for S in (2, 560, 10**9):
        for s in (0.05, 0.5, 3.0, 100.0):
            stat = MaxStatistic(steps_per_epoch=S, scale=s, adjacency=adjacency)
            x = np.linspace(-30.0, 60.0, 4001)
            loss = stat.loss(x)
            assert np.all(np.diff(loss) >= -1e-12)
            assert np.all(loss <= x + 1e-9)
            assert np.all(loss >= x - math.log(S) - 1e-9)


@pytest.mark.parametrize(("S", "E", "sigma", "epsilon"), [(1000, 3, 0.9, 3.0), (20, 5, 1.5, 2.0)])
def test_pld_of_the_same_partition_brackets_the_composed_bound(S, E, sigma, epsilon):
    stat = MaxStatistic(steps_per_epoch=S, scale=sigma)
    cells = partition(stat, stat.lone_loss(np.linspace(-2.0, 14.0, 4000)))
    kept = np.minimum(cells.log_p, cells.log_q) > -200.0  # the library's logsumexp overflows far below
    masses = [dict(enumerate(log_mass[kept])) for log_mass in (cells.log_p, cells.log_q)]
    low, high = (
        privacy_loss_distribution.from_two_probability_mass_functions(
            masses[1], masses[0], pessimistic_estimate=pessimistic, value_discretization_interval=1e-4
        )
        .self_compose(E)
        .get_delta_for_epsilon(epsilon)
        for pessimistic in (False, True)
    )
    log_prob, loss = cells.one_way(reverse=False)
    lattice = LatticeLoss.rounded(log_prob=log_prob, loss=loss, spacing=1e-5, upward=False)
    found = math.exp(lattice.log_delta(copies=E, epsilon=epsilon, upward=False))
    assert low <= found * (1 + 1e-6)
    assert found <= high
    uncut = math.exp(log_delta_partition(stat, copies=E, epsilon=epsilon))
    assert low * (1 - 1e-5) <= uncut <= high


@pytest.mark.parametrize(("batch_size", "num_epochs"), [(1024, 5), (65536, 5), (65536, 50)])
def test_dynamic_sigma_is_within_1e_5_of_that_of_the_uncut_maximum(batch_size, num_epochs):
    """Each cell split between the losses at its two ends, P and Q kept, bounds the maximum from above."""
    S = round(CRITEO / batch_size)
    sigma = calibrated(log_delta_dynamic_partition, steps_per_epoch=S, num_epochs=num_epochs) * (1 + 1e-5)
    stat = MaxStatistic(steps_per_epoch=S, scale=sigma)
    spacing = 1e-3
    losses = spacing * np.arange(-2_000, 25_000)
    low, high = losses, losses + math.log(S)
    for _ in range(50):
        middle = (low + high) / 2
        above = stat.loss(middle) > losses
        low, high = np.where(above, low, middle), np.where(above, middle, high)
    cuts = (low + high) / 2
    cells = partition(stat, cuts)
    assert len(cells.log_p) == len(cuts) + 1
    p, q = np.exp(cells.log_p), np.exp(cells.log_q)
    raised = (p[1:-1] - q[1:-1] * np.exp(losses[:-1])) / -np.expm1(-spacing)
    split = np.zeros(len(losses))
    split[1:] += raised
    split[:-1] += p[1:-1] - raised
    split[0] += p[0]
    with np.errstate(divide="ignore"):
        log_prob = np.log(np.maximum(split, 0.0))
    lattice = LatticeLoss(
        log_prob=log_prob, first=float(losses[0]), spacing=spacing, log_infinite=float(cells.log_p[-1])
    )
    assert lattice.log_delta(copies=num_epochs, epsilon=EPSILON, upward=True) < math.log(DELTA)


# Broken twins


def test_without_e_to_the_epsilon_the_bound_would_exceed_deterministic():
    S, sigma = 1000, 0.6
    stat = MaxStatistic(steps_per_epoch=S, scale=sigma)
    x = np.linspace(-20.0, 40.0, 4001)
    as_printed = np.exp(stat.log_sf(x, centre=2.0)) - np.exp(stat.log_sf(x, centre=1.0))
    exact = math.exp(log_delta_gaussian(sigma=sigma, epsilon=EPSILON))
    ours = math.exp(log_delta_max_event(sigma=sigma, epsilon=EPSILON, steps_per_epoch=S, num_epochs=1))
    assert as_printed.max() == pytest.approx(0.318, abs=5e-4)
    assert exact == pytest.approx(0.0057, abs=5e-5)
    assert ours < exact < as_printed.max()


def test_losses_rounded_up_would_exceed_the_exact_gaussian():
    sigma, E, epsilon = 2.47, 5, 5.0
    stat = MaxStatistic(steps_per_epoch=1, scale=sigma)
    log_prob, loss = partition(stat, np.linspace(-4.0, 6.0, 2001)).one_way(reverse=False)
    exact = log_delta_gaussian(sigma=sigma, epsilon=epsilon, num_epochs=E)
    down, up = (
        LatticeLoss.rounded(log_prob=log_prob, loss=loss, spacing=0.004, upward=upward).log_delta(
            copies=E, epsilon=epsilon, upward=False
        )
        for upward in (False, True)
    )
    assert down < exact < up


# Corners


@pytest.mark.parametrize(("S", "E"), [(1, 10**4), (2, 2), (2, 10**4), (10**9, 2), (10**9, 10**4)])
@pytest.mark.parametrize("sigma", [0.05, 1.0, 1e4])
def test_corners_give_numbers_and_no_warnings(S, E, sigma):
    for epsilon in (0.0, 1e-3, 1000.0):
        case = {"sigma": sigma, "epsilon": epsilon, "steps_per_epoch": S, "num_epochs": E}
        exact = log_delta_max_event(sigma=sigma, epsilon=epsilon, steps_per_epoch=1, num_epochs=E)
        for log_delta in (log_delta_max_event, log_delta_dynamic_partition):
            assert log_delta(**case) <= exact + 1e-9 + 1e-12 * abs(exact)


def test_tiny_deltas_keep_their_digits():
    stat = MaxStatistic(steps_per_epoch=1, scale=10.0)
    found = log_delta_partition(stat, copies=3, epsilon=7.0)
    exact = log_delta_gaussian(sigma=10.0, epsilon=7.0, num_epochs=3)
    assert exact < -800
    assert exact * (1 + 1e-6) < found < exact


def test_curves_are_lower_bounds_and_say_where_they_come_from():
    for curves in (persistent_shuffle_lower_curves, dynamic_shuffle_lower_curves):
        for curve in curves(steps_per_epoch=560, num_epochs=5):
            assert curve.direction is Direction.LOWER
            assert "pair" in curve.source or "Theorem" in curve.source


def test_add_remove_adjacency_is_not_made_up():
    for curves in (persistent_shuffle_lower_curves, dynamic_shuffle_lower_curves):
        with pytest.raises(UnknownAnalysis, match="add-remove"):
            curves(steps_per_epoch=560, num_epochs=5, adjacency=Adjacency.ADD_REMOVE)


def test_counts_below_one_are_refused():
    with pytest.raises(InvalidArgument, match="num_epochs=0"):
        persistent_shuffle_lower_curves(steps_per_epoch=5, num_epochs=0)
    with pytest.raises(InvalidArgument, match="steps_per_epoch=0"):
        dynamic_shuffle_lower_curves(steps_per_epoch=0, num_epochs=2)


def test_many_epochs_have_a_bound_at_once_and_a_dearer_one_above_it() -> None:
    curves = dynamic_shuffle_lower_curves(steps_per_epoch=20, num_epochs=150)
    assert [curve.dear for curve in curves] == [False, True, True]
    at_once, composed = (curve.log_delta(2.0, 1.0) for curve in curves[:2])
    assert at_once < composed - 1
    assert at_once == persistent_shuffle_lower_curves(steps_per_epoch=20, num_epochs=1)[0].log_delta(2.0, 1.0)
    assert not dynamic_shuffle_lower_curves(steps_per_epoch=20, num_epochs=50)[0].dear
