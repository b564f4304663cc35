"""K runs together: closed forms, an independent composition, and what would not hold."""

import math

import dp_accounting as dp
import pytest
from dp_accounting.pld import privacy_loss_distribution as pld

from truebatch import (
    BallsAndBins,
    Deterministic,
    DynamicShuffle,
    PersistentShuffle,
    Poisson,
    TruncatedPoisson,
    accounting,
)
from truebatch.accounting.deterministic import delta_deterministic
from truebatch.accounting.several_runs import lower_sampler_of_runs, upper_sampler_of_runs
from truebatch.accounting.truncation import log_overflow_prob
from truebatch.errors import InvalidArgument
from truebatch.specs import FixedSizeSampling

SHAPE = {"num_examples": 1000, "batch_size": 50, "num_steps": 60}  # three epochs of 20 steps
KINDS = (Deterministic, PersistentShuffle, DynamicShuffle, Poisson, BallsAndBins, FixedSizeSampling)
SPECS = (*(kind(**SHAPE) for kind in KINDS), TruncatedPoisson(**SHAPE, max_batch_size=100))


def upper(spec, runs: int, *, sigma: float = 3.0, epsilon: float = 1.0) -> float:
    of_runs = upper_sampler_of_runs(spec, num_runs=runs)
    return float(accounting.delta(of_runs, sigma=sigma, epsilon=epsilon).upper.value)


@pytest.mark.parametrize("kind", [Deterministic, PersistentShuffle])
def test_gaussian_releases_add_up_over_runs_as_over_epochs(kind) -> None:
    for runs in (1, 2, 7):
        expected = delta_deterministic(epsilon=1.0, sigma=3.0, num_epochs=3 * runs)
        assert upper(kind(**SHAPE), runs) == pytest.approx(expected, rel=1e-9)


def test_poisson_runs_compose_as_an_independent_library_composes_them() -> None:
    runs, sigma, delta = 5, 1.2, 1e-6
    one_step = pld.from_gaussian_mechanism(
        sigma, sampling_prob=0.05, value_discretization_interval=1e-4, pessimistic_estimate=True,
        neighboring_relation=dp.NeighboringRelation.ADD_OR_REMOVE_ONE,
    )  # fmt: skip
    one_run = one_step.self_compose(60)
    together = one_run.self_compose(runs).get_epsilon_for_delta(delta)
    ours = upper_sampler_of_runs(Poisson(**SHAPE), num_runs=runs)
    found = accounting.epsilon(ours, sigma=sigma, delta=delta).upper.value
    assert found == pytest.approx(together, rel=2e-3)
    assert one_run.get_epsilon_for_delta(delta) < 0.6 * found  # a run by itself is another number


def test_a_cut_batch_costs_in_every_run() -> None:
    """Theorem 3.3 for K T steps: the pair, and K T (1 + e^eps) Psi."""
    spec, runs = TruncatedPoisson(**SHAPE, max_batch_size=75), 6
    psi = math.exp(log_overflow_prob(num_examples=1000, batch_size=50, max_batch_size=75))
    cut = runs * 60 * (1 + math.exp(1.0)) * psi
    plain = upper(Poisson(**SHAPE), runs, sigma=1.0)
    assert plain < upper(spec, runs, sigma=1.0) <= plain + cut * (1 + 1e-6)
    assert upper(spec, runs, sigma=30.0) > upper(spec, 1, sigma=30.0)


def test_persistent_shuffles_of_one_epoch_are_a_dynamic_shuffle() -> None:
    spec = PersistentShuffle(num_examples=1000, batch_size=50, num_steps=20)
    expected = DynamicShuffle(num_examples=1000, batch_size=50, num_steps=80)
    assert upper_sampler_of_runs(spec, num_runs=4) == lower_sampler_of_runs(spec, num_runs=4) == expected


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_one_run_is_itself_more_leak_more_and_ends_do_not_cross(spec) -> None:
    assert upper_sampler_of_runs(spec, num_runs=1) == spec
    assert lower_sampler_of_runs(spec, num_runs=1) == spec
    found = [upper(spec, runs) for runs in (1, 2, 5)]
    assert found == sorted(found)
    assert found[0] < found[2]
    low = accounting.epsilon(lower_sampler_of_runs(spec, num_runs=3), sigma=3.0, delta=1e-6).lower.value
    high = accounting.epsilon(upper_sampler_of_runs(spec, num_runs=3), sigma=3.0, delta=1e-6).upper.value
    assert low is None or low <= high


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_a_run_that_is_not_done_counts_for_the_steps_it_took(spec) -> None:
    assert upper_sampler_of_runs(spec, num_runs=3, last_steps=20).num_steps == 2 * 60 + 20


def test_runs_that_share_their_coins_leak_more_than_is_accounted() -> None:
    """Why every run draws anew: K sums on one batch are one sum with sigma / sqrt(K), subsampled once."""
    one = Poisson(num_examples=1000, batch_size=10, num_steps=1)
    shared = accounting.delta(one, sigma=2.0 / math.sqrt(16), epsilon=0.5).lower.value
    assert shared > 50 * upper(one, 16, sigma=2.0, epsilon=0.5)


@pytest.mark.parametrize("runs", [0, -1, 1.5, True, "2"])
def test_a_number_of_runs_that_is_none_is_refused(runs) -> None:
    for of_runs in (upper_sampler_of_runs, lower_sampler_of_runs):
        with pytest.raises(InvalidArgument, match="num_runs must be a whole number"):
            of_runs(Poisson(**SHAPE), num_runs=runs)
