"""(P) with a cap: the overflow probability, the two analyses, and the smallest B."""

import math

import dp_accounting as dp
import mpmath as mp
import pytest

from truebatch import Poisson, TruncatedPoisson, accounting
from truebatch.accounting import Adjacency
from truebatch.accounting.truncation import (
    log_delta_truncated,
    log_overflow_prob,
    max_batch_size_by_rule,
    smallest_max_batch_size,
    truncated_poisson_curves,
)
from truebatch.errors import InvalidArgument

N, S = 36_672_493, 35_813


def exact_tail(n: int, b: int, B: int) -> float:
    with mp.workdps(50):
        q = mp.mpf(b) / n
        total = mp.fsum(
            mp.binomial(n, k) * q**k * (1 - q) ** (n - k) for k in range(B + 1, min(n, B + 400) + 1)
        )
        return float(mp.log(total)) if total else -math.inf


@pytest.mark.parametrize(
    ("n", "b", "B"),
    [(10, 5, 5), (10, 5, 9), (200, 20, 19), (200, 20, 45), (10**6, 1000, 1300), (200, 200, 199)],
)
def test_overflow_prob_equals_the_sum(n: int, b: int, B: int) -> None:
    want = exact_tail(n, b, B) if b < n else 0.0
    assert log_overflow_prob(num_examples=n, batch_size=b, max_batch_size=B) == pytest.approx(want, abs=1e-8)


def test_overflow_prob_keeps_its_digits_far_below_the_smallest_float() -> None:
    value = log_overflow_prob(num_examples=N, batch_size=1024, max_batch_size=6000)
    assert value == pytest.approx(exact_tail(N, 1024, 6000), rel=1e-9)
    assert value < -1000


def test_a_cap_of_everything_costs_nothing() -> None:
    spec = TruncatedPoisson(num_examples=500, batch_size=50, num_steps=20, max_batch_size=500)
    free = Poisson(num_examples=500, batch_size=50, num_steps=20)
    capped, plain = (accounting.delta(s, sigma=1.0, epsilon=1.0) for s in (spec, free))
    assert capped.upper.value == plain.upper.value
    assert capped.lower.value == plain.lower.value


def both(B: int, sigma: float) -> dict[str, float]:
    curves = truncated_poisson_curves(
        num_examples=N, batch_size=1024, max_batch_size=B, num_steps=S, adjacency=Adjacency.ZERO_OUT
    )
    names = ("union", "tight", "lower")
    return {name: curve.log_delta(sigma, 5.0) for name, curve in zip(names, curves, strict=True)}


def test_the_tighter_analysis_is_tighter_and_above_no_cap() -> None:
    plain = Poisson(num_examples=N, batch_size=1024, num_steps=S)
    free = math.log(accounting.delta(plain, sigma=0.4156, epsilon=5.0).lower.value)
    for B in (1216, 1280):
        values = both(B, 0.4156)
        assert free <= values["tight"] <= values["union"] + 1e-8
        assert values["lower"] <= free
    assert both(1216, 0.4156)["union"] - both(1216, 0.4156)["tight"] > 10


def test_tighter_analysis_agrees_with_an_independent_accountant() -> None:
    accountant = dp.pld.PLDAccountant(
        neighboring_relation=dp.NeighboringRelation.REPLACE_SPECIAL, value_discretization_interval=1e-3
    )
    step = dp.TruncatedSubsampledGaussianDpEvent(
        dataset_size=10_000, sampling_probability=0.01, truncated_batch_size=115, noise_multiplier=1.0
    )
    accountant.compose(dp.SelfComposedDpEvent(step, 100))
    ours = log_delta_truncated(
        num_examples=10_000,
        batch_size=100,
        max_batch_size=115,
        num_steps=100,
        sigma=1.0,
        epsilon=2.0,
        adjacency=Adjacency.ZERO_OUT,
    )
    assert math.log(accountant.get_delta(2.0)) == pytest.approx(ours, abs=3e-3)


def test_the_rule_spends_its_share() -> None:
    B = max_batch_size_by_rule(num_examples=N, batch_size=1024, num_steps=S, epsilon=5.0, delta=2.7e-8)
    allowed = math.log(1e-5 * 2.7e-8 / S) - math.log1p(math.exp(5.0))
    assert log_overflow_prob(num_examples=N, batch_size=1024, max_batch_size=B) <= allowed
    assert log_overflow_prob(num_examples=N, batch_size=1024, max_batch_size=B - 1) > allowed


def test_the_smallest_cap_for_an_overhead_is_the_smallest() -> None:
    common = {"num_examples": 100_000, "batch_size": 500, "num_steps": 200}
    B = smallest_max_batch_size(**common, epsilon=3.0, delta=1e-6, sigma_overhead=1e-3)
    free = accounting.sigma(Poisson(**common), epsilon=3.0, delta=1e-6).upper.value

    def needed(cap: int) -> float:
        return accounting.sigma(
            TruncatedPoisson(**common, max_batch_size=cap), epsilon=3.0, delta=1e-6
        ).upper.value

    assert needed(B) <= free * 1.001 * (1 + 1e-8)
    assert needed(B - 1) > free * 1.001
    rule = max_batch_size_by_rule(**common, epsilon=3.0, delta=1e-6)
    assert B < rule


def test_six_standard_deviations_cost_little() -> None:
    spec = TruncatedPoisson(num_examples=N, batch_size=1024, num_steps=S, max_batch_size=1216)
    free = Poisson(num_examples=N, batch_size=1024, num_steps=S)
    ratio = (
        accounting.sigma(spec, epsilon=5.0, delta=2.7e-8).upper.value
        / accounting.sigma(free, epsilon=5.0, delta=2.7e-8).upper.value
    )
    assert 1.0003 < ratio < 1.0005


def test_ignoring_the_cut_would_be_noticed() -> None:
    """The twin that accounts a tight cap as if nothing were cut is far below the bound."""
    assert both(1064, 0.4156)["tight"] - both(1328, 0.4156)["tight"] > 5


@pytest.mark.parametrize("overhead", [0.0, -1.0, math.nan, math.inf])
def test_bad_overheads_are_refused(overhead: float) -> None:
    with pytest.raises(InvalidArgument):
        smallest_max_batch_size(
            num_examples=100, batch_size=10, num_steps=5, epsilon=1.0, delta=1e-5, sigma_overhead=overhead
        )


def test_a_cut_too_rare_to_cap_its_loss_is_accounted_at_every_sigma() -> None:
    """The probability left to the cut is 1 up to rounding, which once had no root to search for."""
    spec = TruncatedPoisson(num_examples=700, batch_size=100, num_steps=7, max_batch_size=200)
    free = Poisson(num_examples=700, batch_size=100, num_steps=7)
    for sigma in [0.9 + 0.001 * i for i in range(12)]:
        cut = accounting.epsilon(spec, sigma=sigma, delta=1e-5).upper.value
        assert cut == pytest.approx(accounting.epsilon(free, sigma=sigma, delta=1e-5).upper.value, rel=1e-7)
