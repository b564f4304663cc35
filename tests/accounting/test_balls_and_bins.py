import dataclasses
import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import ndtr

from truebatch import BallsAndBins, accounting
from truebatch.accounting import allocation_epoch as epoch
from truebatch.accounting.allocation_epoch import _log_rest_reaches, log_calls, log_puts_upper
from truebatch.accounting.allocation_lattice import LatticeVariable, lattice_lower, lattice_upper
from truebatch.accounting.balls_and_bins import balls_and_bins_curves, balls_and_bins_monte_carlo
from truebatch.accounting.bounds import Direction
from truebatch.accounting.deterministic import log_delta_gaussian
from truebatch.accounting.lognormal import LogNormal
from truebatch.errors import InvalidArgument

CASES = [(2, 1.0, 0.5), (2, 0.5, 3.0), (2, 10.0, 0.01), (3, 0.8, 1.0), (3, 1.5, 2.0), (2, 0.3, 5.0)]


def quadrature(steps: int, sigma: float, epsilon: float) -> tuple[float, float]:
    """D_eps(P || Q) and D_eps(Q || P) for two or three steps: a trapezoid rule over all steps but one.

    The last step is integrated in closed form, so the integrand is smooth and the rule converges fast.
    """
    z = np.arange(-12.0, 12.0 + 1 / sigma, 1e-4 if steps == 2 else 0.02)
    step, weight = z[1] - z[0], np.exp(-0.5 * z**2) / math.sqrt(2 * math.pi)
    x = np.exp(z / sigma - 0.5 / sigma**2)
    given, mass = (
        (x, weight * step) if steps == 2 else (np.add.outer(x, x), np.outer(weight, weight) * step**2)
    )

    def call_and_put(strike: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        positive = np.maximum(strike, 1e-300)
        at = sigma * np.log(positive) + 0.5 / sigma
        call = ndtr(1 / sigma - at) - positive * ndtr(-at)
        put = positive * ndtr(at) - ndtr(at - 1 / sigma)
        return np.where(strike > 0, call, 1 - strike), np.where(strike > 0, put, 0.0)

    call = call_and_put(steps * math.exp(epsilon) - given)[0]
    put = call_and_put(steps * math.exp(-epsilon) - given)[1]
    return float((mass * call).sum()) / steps, math.exp(epsilon) * float((mass * put).sum()) / steps


def both_ends(steps: int, epochs: int, sigma: float, epsilon: float) -> tuple[float, float]:
    upper, lower = balls_and_bins_curves(steps_per_epoch=steps, num_epochs=epochs)
    return lower.log_delta(sigma, epsilon), upper.log_delta(sigma, epsilon)


@pytest.mark.parametrize("epochs", [1, 3])
@pytest.mark.parametrize(
    ("sigma", "epsilon"), [(0.1, 1e-3), (1.0, 1.0), (30.0, 0.3), (1e4, 1e-3), (0.5, 256.0)]
)
def test_one_step_per_epoch_is_the_gaussian_mechanism(sigma, epsilon, epochs):
    exact = log_delta_gaussian(sigma=sigma / math.sqrt(epochs), epsilon=epsilon)
    assert both_ends(1, epochs, sigma, epsilon) == (exact, exact)


@pytest.mark.parametrize(("steps", "sigma", "epsilon"), CASES)
def test_ends_bracket_the_integral_over_two_or_three_steps(steps, sigma, epsilon):
    truth = math.log(max(quadrature(steps, sigma, epsilon)))
    lower, upper = both_ends(steps, 1, sigma, epsilon)
    assert lower <= truth + 1e-9
    assert truth <= upper + 1e-9
    assert upper - lower < 1e-4


@pytest.mark.parametrize(("steps", "sigma", "epsilon"), CASES)
def test_the_other_direction_of_adjacency_is_bounded_too(steps, sigma, epsilon):
    truth = math.log(quadrature(steps, sigma, epsilon)[1])
    at = np.asarray([-epsilon])
    bound = log_puts_upper(sigma=sigma, copies=steps, epsilons=at, accuracy=1e-6)[0] + epsilon
    assert truth - 1e-9 <= bound <= truth + 1e-3 * abs(truth) + 1e-4


@settings(max_examples=25, deadline=None)
@given(
    steps=st.integers(2, 10**6),
    log_sigma=st.floats(math.log(0.1), math.log(1e4)),
    log_epsilon=st.floats(math.log(1e-3), math.log(256.0)),
)
def test_lower_is_below_upper_is_below_deterministic(steps, log_sigma, log_epsilon):
    sigma, epsilon = math.exp(log_sigma), math.exp(log_epsilon)
    lower, upper = both_ends(steps, 1, sigma, epsilon)
    assert lower <= upper <= log_delta_gaussian(sigma=sigma, epsilon=epsilon)


@settings(max_examples=15, deadline=None)
@given(
    steps=st.sampled_from([2, 30, 560]),
    sigma=st.floats(0.4, 3.0),
    epsilon=st.floats(0.1, 8.0),
    more=st.floats(1.002, 1.5),
)
def test_delta_falls_with_sigma_and_with_epsilon(steps, sigma, epsilon, more):
    upper, _ = balls_and_bins_curves(steps_per_epoch=steps, num_epochs=1)
    here = upper.log_delta(sigma, epsilon)
    assert upper.log_delta(sigma * more, epsilon) <= here + 1e-6
    assert upper.log_delta(sigma, epsilon * more) <= here + 1e-6


@pytest.mark.parametrize("steps", [2, 37, 10**4, 10**6])
@pytest.mark.parametrize("sigma", [0.1, 0.6, 4.0, 1e4])
@pytest.mark.parametrize("epsilon", [0.0, 1e-3, 1.0, 30.0, 256.0])
def test_extremes_give_numbers(steps, sigma, epsilon):
    lower, upper = both_ends(steps, 1, sigma, epsilon)
    assert not math.isnan(lower)
    assert lower <= upper <= 0.0


def test_tiny_deltas_keep_their_digits():
    lower, upper = both_ends(560, 1, 1.0, 8.0)
    assert upper < -90
    assert upper - lower < 1e-3


@pytest.mark.parametrize(
    ("steps", "epochs", "sigma"),
    [(35813, 1, 0.4151147), (560, 1, 0.5399233), (140, 1, 0.6038325), (560, 5, 0.579663)],
)
def test_anchors_meet_delta_from_both_sides(steps, epochs, sigma):
    lower, upper = both_ends(steps, epochs, sigma, 5.0)
    assert upper == pytest.approx(math.log(2.7e-8), abs=1e-3)
    assert upper - lower < 5e-4


def test_sigma_is_a_thousandth_below_poisson_at_the_smallest_batch():
    poisson = 0.415563
    upper, lower = balls_and_bins_curves(steps_per_epoch=35813, num_epochs=1)
    assert upper.log_delta(poisson, 5.0) < math.log(2.7e-8) < lower.log_delta(poisson * 0.998, 5.0)


@pytest.mark.parametrize(
    ("steps", "epochs", "sigma", "epsilon"), [(560, 1, 0.4, 1.0), (30, 1, 1.0, 0.2), (30, 4, 1.0, 0.2)]
)
def test_monte_carlo_interval_covers_both_ends(steps, epochs, sigma, epsilon):
    estimate = balls_and_bins_monte_carlo(
        sigma=sigma, epsilon=epsilon, steps_per_epoch=steps, num_epochs=epochs,
        num_samples=10**7 // (steps * epochs), confidence=1 - 1e-6, seed=20240501,
    )  # fmt: skip
    lower, upper = (math.exp(value) for value in both_ends(steps, epochs, sigma, epsilon))
    assert estimate.lower <= lower <= upper <= estimate.upper
    assert estimate.upper - estimate.lower < 0.5 * estimate.estimate


def test_monte_carlo_without_the_shifted_step_misses():
    """Twin: under Q in place of P, no step is shifted and the event is hardly ever seen."""

    class Unshifted:
        def __init__(self, seed):
            self.generator = np.random.Generator(np.random.PCG64(seed))

        def standard_normal(self, shape):
            z = self.generator.standard_normal(shape)
            z[:, 0] -= 2.0  # takes back 1 / sigma
            return z

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(np.random, "default_rng", Unshifted)
        estimate = balls_and_bins_monte_carlo(
            sigma=0.5, epsilon=1.0, steps_per_epoch=560, num_epochs=1,
            num_samples=20_000, confidence=1 - 1e-6, seed=20240501,
        )  # fmt: skip
    assert estimate.upper < math.exp(both_ends(560, 1, 0.5, 1.0)[0])


def rounded_down(
    variable: LogNormal, *, low: float, cap: float, spacing: float, tilt: float
) -> LatticeVariable:
    """A broken upper lattice: the mass of each cell goes to its lower end."""
    index = np.arange(math.ceil(cap / spacing) + 1)
    mass = np.append(np.diff(ndtr(variable.z(spacing * index))), ndtr(-variable.z(spacing * index[-1:])))
    weight = mass * np.exp(tilt * spacing * index)
    return LatticeVariable(
        start=0.0, spacing=spacing, index=index, weight=weight / weight.sum(), tilt=tilt,
        log_mgf=math.log(weight.sum()),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("name", "replacement", "upper"),
    [("lattice_upper", rounded_down, True), ("lattice_lower", lattice_upper, False)],
)
def test_a_lattice_without_the_convex_order_breaks_the_bound(monkeypatch, name, replacement, upper):
    steps, sigma, epsilon = 3, 1.5, 2.0
    truth = math.log(quadrature(steps, sigma, epsilon)[0])
    at, coarse = np.asarray([epsilon]), 1e-3

    def excess() -> float:
        return log_calls(sigma=sigma, copies=steps, epsilons=at, upper=upper, accuracy=coarse)[0][0] - truth

    assert excess() >= 0 if upper else excess() <= 0
    monkeypatch.setattr(epoch, name, replacement)
    assert excess() < -1e-6 if upper else excess() > 1e-6


def test_without_the_one_big_jump_the_upper_bound_breaks(monkeypatch):
    truth = math.log(quadrature(2, 0.3, 5.0)[0])
    monkeypatch.setattr(LogNormal, "log_call", lambda self, k: -math.inf if k >= 1 else -1e3)
    broken = log_calls(sigma=0.3, copies=2, epsilons=np.asarray([5.0]), upper=True, accuracy=1e-6)[0][0]
    assert broken < truth - 0.1


@pytest.mark.parametrize("call", [True, False])
def test_a_window_that_is_too_short_weakens_bounds_and_keeps_them(monkeypatch, call):
    steps, sigma, epsilon = 3, 1.5, 0.5
    truth = [math.log(value) for value in quadrature(steps, sigma, epsilon)]
    honest = epoch.make_plan

    def short(*args, **kwargs):
        plan = honest(*args, **kwargs)
        low, high = plan.window
        middle, half = 0.5 * (low + high), 0.2 * (high - low)
        return dataclasses.replace(plan, window=(middle - half, middle + half), size=int(0.4 * plan.size))

    monkeypatch.setattr(epoch, "make_plan", short)
    if call:
        low, high = (
            log_calls(sigma=sigma, copies=steps, epsilons=np.asarray([epsilon]), upper=upper, accuracy=1e-5)[
                0
            ][0]
            for upper in (False, True)
        )
        assert low <= truth[0] <= high
        assert high - low > 1e-3
    else:
        at = np.asarray([-epsilon])
        high = log_puts_upper(sigma=sigma, copies=steps, epsilons=at, accuracy=1e-5)[0] + epsilon
        assert truth[1] <= high


@pytest.mark.parametrize(
    ("tau", "log_unit", "spacing"),
    [(2.4, 15.3, 1e-2), (2.4, 15.3, 1e-3), (0.5, 1.0, 1e-2), (10.0, 3.0, 1e-2), (1e-4, 0.1, 2e-6)],
)
@pytest.mark.parametrize("tilt", [0.0, 20.0])
def test_lattices_are_ordered_at_every_strike(tau, log_unit, spacing, tilt):
    variable = LogNormal(mu=-0.5 * tau**2 - log_unit, tau=tau)
    low = math.exp(variable.mu - 12 * tau)
    for on_lattice, sign in ((lattice_upper, 1), (lattice_lower, -1)):
        step = on_lattice(variable, low=low, cap=1.0, spacing=spacing, tilt=tilt)
        mass = step.weight * np.exp(step.log_mgf - tilt * step.points)
        beyond = math.exp(variable.log_call(float(step.points[-1])))
        assert mass.min() >= 0
        assert mass.sum() == pytest.approx(1, rel=1e-12)
        for strike in np.geomspace(max(low, spacing), 0.97, 40):
            exact = math.exp(variable.log_call(strike)) - beyond
            ours = float(mass @ np.maximum(step.points - strike, 0.0))
            assert sign * (ours - exact) >= -1e-9 * exact - 1e-14 * beyond - 1e-17


@pytest.mark.parametrize(("steps", "sigma", "epsilon"), [(2, 1.0, 1.0), (30, 0.7, 3.0), (560, 0.5, 2.0)])
def test_epochs_add_up_and_stay_below_deterministic(steps, sigma, epsilon):
    ends = [both_ends(steps, epochs, sigma, epsilon) for epochs in (1, 2, 5)]
    for (_, fewer), (lower, upper) in itertools.pairwise(ends):
        assert fewer <= upper
        assert lower <= upper
        assert upper - lower < 2e-3
    assert ends[-1][1] <= log_delta_gaussian(sigma=sigma / math.sqrt(5), epsilon=epsilon)


def test_curves_say_their_direction_and_what_is_dear():
    upper, lower = balls_and_bins_curves(steps_per_epoch=10, num_epochs=2)
    assert (upper.direction, lower.direction) == (Direction.UPPER, Direction.LOWER)
    assert upper.dear
    assert not balls_and_bins_curves(steps_per_epoch=10, num_epochs=1)[0].dear


def test_counts_below_one_are_refused():
    with pytest.raises(InvalidArgument, match="at least 1"):
        balls_and_bins_curves(steps_per_epoch=0, num_epochs=1)
    with pytest.raises(InvalidArgument, match="confidence"):
        balls_and_bins_monte_carlo(
            sigma=1.0, epsilon=1.0, steps_per_epoch=2, num_epochs=1, num_samples=10, confidence=1.0, seed=1
        )


@pytest.mark.parametrize(
    ("steps", "epsilon"), [(122_456, 0.0348), (137_577, 0.19), (14, 0.001475), (2, 0.0014)]
)
def test_upper_bound_falls_with_sigma_far_beyond_what_a_lattice_resolves(steps, epsilon):
    upper, _ = balls_and_bins_curves(steps_per_epoch=steps, num_epochs=1)
    values = [upper.log_delta(sigma, epsilon) for sigma in np.geomspace(1.0, 1e4, 13)]
    assert all(later <= earlier + 1e-6 for earlier, later in itertools.pairwise(values) if earlier > -60)
    assert values[-1] < -20


@pytest.mark.parametrize(
    ("steps", "epochs", "sigma", "width"),
    [(560, 1, 1.0, 1.1e-5), (35_813, 1, 2.0, 1.3e-5), (560, 1, 50.0, 1.3e-5), (560, 5, 2.0, 5e-5)],
)
def test_epsilon_is_bracketed_where_noise_is_large(steps, epochs, sigma, width):
    spec = BallsAndBins(num_examples=steps, batch_size=1, num_steps=steps * epochs)
    ends = accounting.epsilon(spec, sigma=sigma, delta=2.7e-8, dear=True)
    assert ends.lower.value <= ends.upper.value <= ends.lower.value * (1 + width)


@pytest.mark.parametrize("sigma", [0.01, 0.03, 0.044])
@pytest.mark.parametrize(("steps", "epochs"), [(2, 3), (560, 2)])
def test_several_epochs_of_hardly_any_noise_give_numbers(steps, epochs, sigma):
    for epsilon in (0.0, 5.0, 256.0, 2000.0):
        lower, upper = both_ends(steps, epochs, sigma, epsilon)
        assert lower <= upper <= log_delta_gaussian(sigma=sigma / math.sqrt(epochs), epsilon=epsilon)
        assert lower > -math.inf


def test_a_sum_of_nothing_reaches_no_level_above_zero():
    variable = LogNormal.step(sigma=1.0, log_unit=0.0)
    found = _log_rest_reaches(variable, 1, 2.0, np.array([-1.0, 0.0, 0.5]))
    assert found.tolist() == [0.0, 0.0, -math.inf]
