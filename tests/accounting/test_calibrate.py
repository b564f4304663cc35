"""The three questions: round trips, order, grids, adjacency, and what is refused."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from truebatch import (
    BallsAndBins,
    Deterministic,
    DynamicShuffle,
    FixedSizeSampling,
    PersistentShuffle,
    Poisson,
    TruebatchError,
    TruncatedPoisson,
    accounting,
)
from truebatch.accounting import Adjacency, Direction
from truebatch.accounting.bounds import DeltaCurve
from truebatch.accounting.deterministic import log_delta_gaussian
from truebatch.accounting.solve import solve_epsilon, solve_sigma
from truebatch.errors import CalibrationFailed, InvalidArgument, InvalidSpec, UnknownAnalysis

KINDS = [Deterministic, Poisson, PersistentShuffle, DynamicShuffle, BallsAndBins, FixedSizeSampling]


def spec_of(kind, *, n=6400, b=64, T=100):
    if kind is TruncatedPoisson:
        return kind(num_examples=n, batch_size=b, num_steps=T, max_batch_size=2 * b)
    return kind(num_examples=n, batch_size=b, num_steps=T)


@pytest.mark.parametrize("kind", [*KINDS, TruncatedPoisson])
def test_round_trips(kind) -> None:
    spec = spec_of(kind)
    sigma = accounting.sigma(spec, epsilon=3.0, delta=1e-6)
    back = accounting.epsilon(spec, sigma=sigma.upper.value, delta=1e-6)
    delta = accounting.delta(spec, sigma=sigma.upper.value, epsilon=3.0)
    assert back.upper.value == pytest.approx(3.0, abs=2e-5)
    assert back.upper.value <= 3.0 + 1e-8
    assert delta.upper.value == pytest.approx(1e-6, rel=1e-3)
    assert delta.upper.value <= 1e-6 * (1 + 1e-9)


@pytest.mark.parametrize("delta", [1e-3, 1e-5, 2.7e-8])
@pytest.mark.parametrize("epsilon", [0.1, 0.5, 1.0, 2.0, 5.0])
def test_a_sigma_that_suffices_does_so_to_the_last_digit(epsilon: float, delta: float) -> None:
    """The search for one end begins at the other, which must not be returned in its place."""
    spec = spec_of(Deterministic, T=400)
    found = accounting.sigma(spec, epsilon=epsilon, delta=delta)
    upper, lower = (
        log_delta_gaussian(sigma=end.value / 2, epsilon=epsilon) for end in (found.upper, found.lower)
    )
    assert upper <= math.log(delta) <= lower


@pytest.mark.parametrize("kind", [*KINDS, TruncatedPoisson])
def test_lower_is_never_above_upper(kind) -> None:
    spec = spec_of(kind)
    for epsilon in (0.3, 2.0, 9.0):
        ends = accounting.sigma(spec, epsilon=epsilon, delta=1e-5)
        assert ends.lower.value <= ends.upper.value
        assert ends.lower.direction is Direction.LOWER
        assert ends.upper.direction is Direction.UPPER


@pytest.mark.parametrize("kind", [PersistentShuffle, DynamicShuffle, BallsAndBins])
def test_no_sampler_that_uses_a_row_once_an_epoch_needs_more_than_deterministic(kind) -> None:
    ends = accounting.sigma(spec_of(kind, T=300), epsilon=2.0, delta=1e-6)
    plain = accounting.sigma(spec_of(Deterministic, T=300), epsilon=2.0, delta=1e-6)
    assert ends.upper.value <= plain.upper.value * (1 + 1e-9)


@pytest.mark.parametrize(
    "kind", [PersistentShuffle, DynamicShuffle, BallsAndBins, FixedSizeSampling, Poisson]
)
def test_one_step_an_epoch_is_deterministic(kind) -> None:
    spec = spec_of(kind, n=64, b=64, T=6)
    plain = accounting.sigma(spec_of(Deterministic, n=64, b=64, T=6), epsilon=2.0, delta=1e-6)
    ends = accounting.sigma(spec, epsilon=2.0, delta=1e-6)
    assert ends.upper.value == pytest.approx(plain.upper.value, rel=1e-6)
    assert ends.lower.value == pytest.approx(plain.lower.value, rel=1e-5)


def test_grids_give_grids_and_equal_the_scalars() -> None:
    spec = spec_of(Poisson)
    epsilons = np.array([1.0, 2.0, 4.0])
    grid = accounting.sigma(spec, epsilon=epsilons, delta=1e-5)
    assert grid.upper.value.shape == (3,)
    assert np.all(np.diff(grid.upper.value) < 0)
    assert grid.upper.value[1] == pytest.approx(
        accounting.sigma(spec, epsilon=2.0, delta=1e-5).upper.value, rel=1e-9
    )
    table = accounting.delta(spec, sigma=np.array([[0.8], [1.2]]), epsilon=epsilons)
    assert table.upper.value.shape == (2, 3)


def test_a_bound_knows_its_source_and_adjacency() -> None:
    bound = accounting.epsilon(spec_of(DynamicShuffle), sigma=1.0, delta=1e-5).lower
    assert "Theorem 3" in bound.source or "max event" in bound.source
    assert bound.adjacency is Adjacency.ZERO_OUT


@pytest.mark.parametrize("kind", [Deterministic, PersistentShuffle, DynamicShuffle, FixedSizeSampling])
def test_add_remove_does_not_apply_where_n_is_fixed(kind) -> None:
    with pytest.raises(UnknownAnalysis, match="does not apply"):
        accounting.sigma(spec_of(kind), epsilon=1.0, delta=1e-5, adjacency="add-remove")


@pytest.mark.parametrize("kind", [Deterministic, PersistentShuffle, DynamicShuffle, Poisson])
def test_replacement_never_needs_less(kind) -> None:
    zero = accounting.sigma(spec_of(kind), epsilon=2.0, delta=1e-6)
    replace = accounting.sigma(spec_of(kind), epsilon=2.0, delta=1e-6, adjacency="replace-one")
    assert replace.upper.value >= zero.upper.value
    assert replace.lower.value >= zero.lower.value * (1 - 1e-9)


def test_an_unknown_end_says_why() -> None:
    ends = accounting.sigma(spec_of(BallsAndBins), epsilon=1.0, delta=1e-5, adjacency="replace-one")
    assert ends.lower.value is None
    assert "no lower bound is known" in ends.lower.source


def test_an_impossible_request_says_what_is_reachable() -> None:
    """At epsilon = 0 a Gaussian's delta falls like 1/sigma: 1e-12 would need a sigma near 1e12."""
    with pytest.raises(CalibrationFailed, match=r"no sigma in .* gives epsilon=0 .* delta is"):
        accounting.sigma(spec_of(Deterministic), epsilon=0.0, delta=1e-12)


def test_a_bound_that_cannot_be_met_leaves_the_question_to_the_others() -> None:
    """A cap at b itself: Theorem 3.3 adds more than 1 to delta, the analysis of a uniform cut answers."""
    spec = TruncatedPoisson(num_examples=1000, batch_size=100, num_steps=100, max_batch_size=100)
    ends = accounting.sigma(spec, epsilon=0.01, delta=1e-300)
    assert "uniform cut" in ends.upper.source
    assert accounting.delta(spec, epsilon=0.01, sigma=ends.upper.value).upper.value <= 1e-300


HOSTILE = st.one_of(
    st.floats(allow_nan=True, allow_infinity=True),
    st.sampled_from([0.0, -0.0, -1.0, 5e-324, 1e-300, 1.0, 1 - 1e-16, 1e308, math.inf, -math.inf, math.nan]),
)


@settings(max_examples=100, deadline=None)
@given(
    HOSTILE,
    HOSTILE,
    st.sampled_from([Deterministic, Poisson]),
    st.sampled_from(["sigma", "epsilon", "delta"]),
)
def test_hostile_numbers_give_a_clear_error_or_an_ordered_answer(a, b, kind, question) -> None:
    names = {"sigma": ("epsilon", "delta"), "epsilon": ("sigma", "delta"), "delta": ("sigma", "epsilon")}
    arguments = dict(zip(names[question], (a, b), strict=True))
    try:
        ends = getattr(accounting, question)(spec_of(kind), **arguments)
    except TruebatchError:
        return
    assert not math.isnan(ends.lower.value)
    assert 0 <= ends.lower.value <= ends.upper.value


@settings(max_examples=200, deadline=None)
@given(
    st.one_of(st.integers(-2, 200), st.floats(), st.text(max_size=3), st.none(), st.booleans()),
    st.one_of(st.integers(-2, 200), st.floats(), st.text(max_size=3), st.none(), st.booleans()),
    st.sampled_from([*KINDS, TruncatedPoisson]),
)
def test_hostile_specs_are_refused_when_made(n, b, kind) -> None:
    try:
        spec = (
            spec_of(kind, n=n, b=b)
            if kind is not TruncatedPoisson
            else kind(num_examples=n, batch_size=b, num_steps=100, max_batch_size=b)
        )
    except InvalidSpec:
        return
    assert 1 <= spec.batch_size <= spec.num_examples


@pytest.mark.parametrize("value", ["five", None, [], {}])
def test_values_that_are_no_numbers_are_refused(value) -> None:
    with pytest.raises(InvalidArgument):
        accounting.sigma(spec_of(Poisson), epsilon=value, delta=1e-5)


def test_the_end_that_keeps_the_promise_is_returned() -> None:
    curve = DeltaCurve(log_delta=lambda s, e: -s - e, direction=Direction.EXACT, source="toy", tolerance=0.0)
    up = solve_sigma(curve, epsilon=1.0, log_delta=-4.0, upward=True, guess=1.0)
    down = solve_sigma(curve, epsilon=1.0, log_delta=-4.0, upward=False, guess=1.0)
    assert down <= 3.0 <= up
    assert curve.log_delta(up, 1.0) <= -4.0 <= curve.log_delta(down, 1.0)
    assert up - down < 1e-8
    assert solve_epsilon(curve, sigma=1.0, log_delta=-4.0, upward=True) >= 3.0
    assert solve_epsilon(curve, sigma=5.0, log_delta=-4.0, upward=True) == 0.0


def test_a_nan_inside_a_search_is_raised() -> None:
    curve = DeltaCurve(log_delta=lambda s, e: math.nan, direction=Direction.UPPER, source="broken")
    with pytest.raises(ArithmeticError, match="broken"):
        solve_sigma(curve, epsilon=1.0, log_delta=-4.0, upward=True, guess=1.0)
