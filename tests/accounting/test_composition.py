"""The contour integral against closed forms, direct integration and an independent accountant."""

import math

import mpmath as mp
import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as pld
from scipy.special import ndtr

from truebatch.accounting.composition import LogInterval, MixtureOfModels, log_divergence
from truebatch.accounting.deterministic import log_delta_gaussian
from truebatch.accounting.mixtures import Mixture, MixturePair

ZERO = Mixture(prob=0.0, mean=0.0)


def remove(q: float, sigma: float) -> MixturePair:
    return MixturePair(p=Mixture(prob=q, mean=1.0), q=ZERO, sigma=sigma)


def add(q: float, sigma: float) -> MixturePair:
    return MixturePair(p=ZERO, q=Mixture(prob=q, mean=-1.0), sigma=sigma)


def one_step_exact(q: float, sigma: float, epsilon: float, *, reverse: bool) -> float:
    """log of the divergence of one step, by its threshold in x, with 60 digits."""
    with mp.workdps(60):
        ratio = (mp.exp(-epsilon if reverse else epsilon) - (1 - mp.mpf(q))) / mp.mpf(q)
        if ratio <= 0:
            return -math.inf
        x = mp.mpf(1) / 2 + mp.mpf(sigma) ** 2 * mp.log(ratio)
        s = mp.mpf(sigma)
        if reverse:
            v = mp.ncdf(x / s)
            u = (1 - q) * v + q * mp.ncdf((x - 1) / s)
            return float(mp.log(v - mp.exp(epsilon) * u))
        v = mp.ncdf(-x / s)
        u = (1 - q) * v + q * mp.ncdf((1 - x) / s)
        return float(mp.log(u - mp.exp(epsilon) * v))


@pytest.mark.parametrize("q", [1e-6, 1e-3, 0.1, 0.5, 0.9])
@pytest.mark.parametrize("sigma", [0.1, 0.5, 3.0])
@pytest.mark.parametrize("epsilon", [1e-3, 0.1, 1.0, 5.0])
def test_one_step_equals_its_closed_form(q: float, sigma: float, epsilon: float) -> None:
    for model, reverse in ((remove(q, sigma), False), (add(q, sigma), True)):
        ends = log_divergence(model=model, copies=1, epsilon=epsilon)
        want = one_step_exact(q, sigma, epsilon, reverse=reverse)
        if want == -math.inf:
            assert ends.upper == -math.inf
        elif want > -40:
            assert ends.lower == pytest.approx(want, abs=1e-7)
            assert ends.upper == pytest.approx(want, abs=1e-7)


@pytest.mark.parametrize("copies", [3, 10, 1000, 10**9])
@pytest.mark.parametrize("sigma", [0.3, 1.0, 10.0, 1e4])
@pytest.mark.parametrize("epsilon", [1e-3, 1.0, 5.0])
def test_full_batches_compose_to_one_gaussian(copies: int, sigma: float, epsilon: float) -> None:
    want = log_delta_gaussian(sigma=sigma, epsilon=epsilon)
    ends = log_divergence(model=remove(1.0, sigma * math.sqrt(copies)), copies=copies, epsilon=epsilon)
    if want > -600:
        assert ends.lower <= want + 1e-9
        assert want <= ends.upper + 1e-9
        assert ends.upper - ends.lower < 1e-6
    else:
        assert ends.upper >= want


def two_step_by_grid(q: float, sigma: float, epsilon: float) -> float:
    """Two steps by a plain sum over a fine two-dimensional grid: another road altogether."""
    x, h = np.linspace(-9 * sigma, 1 + 9 * sigma, 6001, retstep=True)
    v = np.exp(-0.5 * (x / sigma) ** 2) / (sigma * math.sqrt(2 * math.pi)) * h
    ratio = 1 - q + q * np.exp((2 * x - 1) / (2 * sigma**2))
    total = 0.0
    for vi, ri in zip(v, ratio, strict=True):
        total += vi * float(v @ np.maximum(ri * ratio - math.exp(epsilon), 0.0))
    return math.log(total)


@pytest.mark.parametrize(("q", "sigma", "epsilon"), [(0.3, 0.5, 1.0), (0.01, 0.5, 1.0), (0.1, 1.0, 0.3)])
def test_two_steps_equal_a_plane_sum(q: float, sigma: float, epsilon: float) -> None:
    ends = log_divergence(model=remove(q, sigma), copies=2, epsilon=epsilon)
    want = two_step_by_grid(q, sigma, epsilon)
    assert ends.lower - 2e-5 <= want <= ends.upper + 2e-5
    assert ends.upper - ends.lower < 1e-5


@pytest.mark.parametrize(
    ("q", "copies", "sigma", "epsilon"),
    [(0.01, 100, 1.0, 1.0), (0.001, 5000, 0.6, 3.0), (0.1, 50, 2.0, 0.5), (0.3, 10, 1.0, 4.0)],
)
def test_independent_accountant_brackets_it(q: float, copies: int, sigma: float, epsilon: float) -> None:
    model = log_divergence(model=remove(q, sigma), copies=copies, epsilon=epsilon)
    other = log_divergence(model=add(q, sigma), copies=copies, epsilon=epsilon)
    upper, lower = max(model.upper, other.upper), max(model.lower, other.lower)
    values = {}
    for pessimistic in (True, False):
        step = pld.from_gaussian_mechanism(
            sigma,
            sampling_prob=q,
            value_discretization_interval=1e-3,
            pessimistic_estimate=pessimistic,
            use_connect_dots=pessimistic,
        )
        values[pessimistic] = math.log(step.self_compose(copies).get_delta_for_epsilon(epsilon))
    assert values[False] <= upper
    assert lower <= values[True] + 1e-9
    assert values[True] - lower < 6e-3


def test_bracket_is_narrow_in_the_paper_setting() -> None:
    for b, sigma in ((1024, 0.4155628), (65536, 0.547116), (262144, 0.8)):
        n = 36_672_494
        ends = log_divergence(model=remove(b / n, sigma), copies=round(n / b), epsilon=5.0)
        assert 0 < ends.upper - ends.lower < 1e-7


def test_cost_does_not_grow_with_the_number_of_steps() -> None:
    """The same loss spread over 10^3 or 10^9 steps meets the same limit, from the same few nodes."""
    results = [
        log_divergence(model=remove(1 / math.sqrt(T) / 3, 1.0), copies=T, epsilon=1.0) for T in (10**5, 10**9)
    ]
    assert results[0].upper == pytest.approx(results[1].upper, abs=0.05)


def test_mixture_of_equal_models_is_the_model() -> None:
    one = remove(0.01, 0.7)
    mixed = MixtureOfModels(first=one, second=one, prob=0.25)
    a, b = (log_divergence(model=m, copies=200, epsilon=2.0) for m in (one, mixed))
    assert a.upper == pytest.approx(b.upper, abs=1e-8)


def test_a_floor_ends_early_and_stays_an_upper_bound() -> None:
    full = log_divergence(model=add(0.01, 1.0), copies=500, epsilon=1.0)
    quick = log_divergence(model=add(0.01, 1.0), copies=500, epsilon=1.0, at_least=-1.0)
    assert full.upper <= quick.upper + 1e-9
    assert quick.upper <= -1.0


def test_nodes_that_ignore_the_frequency_give_wrong_transforms() -> None:
    """The twin: a rule spaced for real arguments sees e^(i y l) revive."""
    model, tilt, y = remove(0.01, 0.5), 2.0, 300.0
    z = tilt + 1j * y

    def transform(max_frequency: float) -> complex:
        nodes = model.nodes(tilt=tilt, max_frequency=max_frequency)
        return complex(np.sum(np.exp(nodes.log_weight + z * nodes.loss)))

    right, finer, wrong = transform(y), transform(3 * y), transform(0.0)
    assert abs(right - finer) < 1e-12 * abs(transform(0.0)) + 1e-12
    assert abs(wrong - finer) > 1e-6


def test_extreme_requests_stay_ordered_and_finite() -> None:
    for q, T, sigma, epsilon in (
        (1e-9, 10**9, 0.5, 0.1),
        (1e-6, 10**6, 5.0, 0.001),
        (0.3, 2, 0.2, 50.0),
        (0.5, 10**9, 1.0, 1.0),
        (1e-9, 2, 5.0, 50.0),
    ):
        ends = log_divergence(model=remove(q, sigma), copies=T, epsilon=epsilon)
        assert isinstance(ends, LogInterval)
        assert ends.lower <= ends.upper <= 0.0
        assert not math.isnan(ends.upper)


def test_tails_of_a_pair_are_the_gaussians() -> None:
    pair = remove(0.2, 0.8)
    log_p, log_q = pair.tail(0.5)
    x = 0.5 + 0.64 * math.log1p(math.expm1(0.5) / 0.2)
    assert math.exp(log_q) == pytest.approx(float(ndtr(-x / 0.8)), rel=1e-12)
    assert math.exp(log_p) == pytest.approx(
        0.8 * float(ndtr(-x / 0.8)) + 0.2 * float(ndtr((1 - x) / 0.8)), rel=1e-12
    )
