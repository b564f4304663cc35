"""(P) without a cap: limits, order, and the paper's setting."""

import math

import dp_accounting as dp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from truebatch import Deterministic, Poisson, accounting
from truebatch.accounting import Adjacency
from truebatch.accounting.composition import log_divergence
from truebatch.accounting.poisson import log_delta_poisson, step_models

N = 36_672_494


def upper(**values: float) -> float:
    adjacency = values.pop("adjacency", Adjacency.ZERO_OUT)
    return log_delta_poisson(adjacency=adjacency, **values).upper  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("b", "epochs", "sigma"), [(1024, 1, 0.415563), (1024, 5, 0.432009), (65536, 1, 0.547116)]
)
def test_sigma_of_the_paper_setting(b: int, epochs: int, sigma: float) -> None:
    spec = Poisson(num_examples=N, batch_size=b, num_steps=epochs * round(N / b))
    ends = accounting.sigma(spec, epsilon=5.0, delta=2.7e-8)
    assert ends.upper.value == pytest.approx(sigma, abs=5.1e-7)
    assert 0 <= ends.upper.value - ends.lower.value < 1e-8


def test_batches_of_everything_are_deterministic() -> None:
    p = Poisson(num_examples=100, batch_size=100, num_steps=7)
    d = Deterministic(num_examples=100, batch_size=100, num_steps=7)
    assert accounting.sigma(p, epsilon=2.0, delta=1e-6).upper.value == pytest.approx(
        accounting.sigma(d, epsilon=2.0, delta=1e-6).upper.value, rel=1e-9
    )


@settings(deadline=None, max_examples=25)
@given(st.floats(1e-4, 0.5), st.integers(1, 10**5), st.floats(0.4, 5), st.floats(0.1, 8))
def test_does_not_increase_with_sigma_nor_epsilon(q: float, T: int, sigma: float, eps: float) -> None:
    here = log_delta_poisson(
        sampling_prob=q, num_steps=T, sigma=sigma, epsilon=eps, adjacency=Adjacency.ZERO_OUT
    )
    quieter = upper(sampling_prob=q, num_steps=T, sigma=sigma * 1.05, epsilon=eps)
    later = upper(sampling_prob=q, num_steps=T, sigma=sigma, epsilon=eps * 1.05)
    slack = 1e-6 + max(0.0, here.upper - here.lower)
    if here.lower > -400:
        assert quieter <= here.upper + slack
        assert later <= here.upper + slack


def test_replacement_costs_more_than_zeroing_out() -> None:
    common = {"sampling_prob": 0.01, "num_steps": 500, "sigma": 1.0, "epsilon": 1.0}
    assert upper(**common, adjacency=Adjacency.REPLACE_ONE) > upper(**common)
    assert upper(**common, adjacency=Adjacency.ADD_REMOVE) == upper(**common)


def test_replacement_agrees_with_an_independent_accountant() -> None:
    accountant = dp.pld.PLDAccountant(
        neighboring_relation=dp.NeighboringRelation.REPLACE_ONE, value_discretization_interval=1e-4
    )
    accountant.compose(dp.SelfComposedDpEvent(dp.PoissonSampledDpEvent(0.01, dp.GaussianDpEvent(1.0)), 500))
    ours = log_delta_poisson(
        sampling_prob=0.01, num_steps=500, sigma=1.0, epsilon=1.0, adjacency=Adjacency.REPLACE_ONE
    )
    theirs = math.log(accountant.get_delta(1.0))
    assert ours.lower <= theirs
    assert theirs == pytest.approx(ours.upper, abs=1e-4)


def test_composing_one_direction_only_would_be_too_low() -> None:
    """The twin that forgets a direction is caught where adding matters: few steps, large q, small eps."""
    forward, backward = step_models(sampling_prob=0.9, sigma=0.5, adjacency=Adjacency.ZERO_OUT)
    one = log_divergence(model=forward, copies=3, epsilon=0.2).upper
    two = log_divergence(model=backward, copies=3, epsilon=0.2).upper
    both = upper(sampling_prob=0.9, num_steps=3, sigma=0.5, epsilon=0.2)
    assert both == pytest.approx(max(one, two), abs=1e-8)
    assert abs(one - two) > 1e-6
