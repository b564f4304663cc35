import dataclasses
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_runs import SPEC

from truebatch import (
    BallsAndBins,
    Deterministic,
    DynamicShuffle,
    PersistentShuffle,
    Poisson,
    TruncatedPoisson,
    accounting,
)
from truebatch.accounting import Adjacency, Bound, Direction, UnknownAnalysis
from truebatch.accounting.rounding import effective_sigma
from truebatch.accounting.several_runs import upper_sampler_of_runs
from truebatch.training.claim import Claim, shown
from truebatch.training.privacy import NoPrivacy, Privacy

LARGE = TruncatedPoisson(num_examples=1_000_000, batch_size=1000, num_steps=1000, max_batch_size=1300)


@pytest.mark.parametrize("num_parameters", [10, 78_000_000])
def test_calibrated_noise_holds_after_rounding_and_is_hardly_more(num_parameters: int) -> None:
    privacy = Privacy(spec=LARGE, clip_norm=2.0, delta=1e-8, epsilon=3.0)
    claim = Claim.of(privacy, LARGE, num_parameters=num_parameters)
    needed = accounting.sigma(LARGE, epsilon=3.0, delta=1e-8).upper.value
    left = effective_sigma(sigma=claim.sigma, clip_norm=2.0, num_coordinates=num_parameters)
    assert needed <= left <= needed * 1.0001
    assert claim.epsilon is not None
    assert 2.999 < claim.epsilon <= 3.0


def test_a_stated_sigma_is_added_as_it_is_and_accounted_after_rounding() -> None:
    privacy = Privacy(spec=LARGE, clip_norm=1.0, delta=1e-8, sigma=0.7)
    claim = Claim.of(privacy, LARGE, num_parameters=78_000_000)
    assert claim.sigma == 0.7
    alone = accounting.epsilon(LARGE, sigma=0.7, delta=1e-8).upper.value
    assert claim.epsilon is not None
    assert alone < claim.epsilon < alone * 1.01


def test_epsilon_so_far_grows_and_never_exceeds_the_runs() -> None:
    claim = Claim.of(Privacy(spec=LARGE, clip_norm=1.0, delta=1e-8, sigma=0.7), LARGE, num_parameters=10)
    found = [claim.epsilon_after(steps) for steps in (0, 1, 200, 999, 1000)]
    assert found[0] == 0
    assert found == sorted(found)  # type: ignore[type-var]
    assert found[-1] == claim.epsilon


def test_samplers_of_whole_epochs_are_accounted_for_the_epoch_they_are_in() -> None:
    spec = DynamicShuffle(num_examples=1000, batch_size=10, num_steps=300)
    claim = Claim.of(Privacy(spec=spec, clip_norm=1.0, delta=1e-6, sigma=1.0), spec, num_parameters=10)
    assert claim.epsilon_after(1) == claim.epsilon_after(100)
    assert claim.epsilon_after(100) < claim.epsilon_after(101) == claim.epsilon_after(200)  # type: ignore[operator]


def test_without_noise_epsilon_is_infinite_and_nothing_is_private() -> None:
    claim = Claim.of(Privacy(spec=SPEC, clip_norm=1.0, delta=1e-6, sigma=0.0), SPEC, num_parameters=10)
    assert claim.epsilon == math.inf
    assert not claim.is_private
    assert claim.as_dict()["epsilon"] is None


def test_where_no_upper_bound_is_known_nothing_is_claimed(monkeypatch: pytest.MonkeyPatch) -> None:
    unknown = Bound(
        value=None, direction=Direction.UPPER, source="none is known", adjacency=Adjacency.ZERO_OUT
    )
    interval = accounting.Interval(lower=unknown, upper=unknown)
    monkeypatch.setattr(accounting, "sigma", lambda *_, **__: interval)
    with pytest.raises(UnknownAnalysis, match="a run needs an upper bound to claim; none is known"):
        Claim.of(Privacy(spec=SPEC, clip_norm=1.0, delta=1e-6, epsilon=1.0), SPEC, num_parameters=10)


def test_what_is_claimed_is_written_with_its_direction() -> None:
    claim = Claim.of(Privacy(spec=LARGE, clip_norm=1.0, delta=1e-8, sigma=0.7), LARGE, num_parameters=10)
    said = claim.as_dict()
    assert said["private"]
    assert said["epsilon_direction"] == "upper"
    assert said["adjacency"] == "zero-out"
    wrong = dataclasses.replace(claim, drawn_by=SPEC).as_dict()
    assert not wrong["private"]
    assert wrong["epsilon_direction"] is None
    assert wrong["accounted_as"] == "truncated_poisson"
    nothing = Claim.of(NoPrivacy(), SPEC, num_parameters=1).as_dict()
    assert nothing["epsilon"] is nothing["epsilon_lower"] is None


def claim_for(spec, **more) -> Claim:
    return Claim.of(Privacy(spec=spec, clip_norm=1.0, delta=1e-6, **more), spec, num_parameters=10)


@pytest.mark.parametrize("kind", [PersistentShuffle, DynamicShuffle])
def test_a_shuffle_says_both_ends_and_claims_the_upper(kind) -> None:
    claim = claim_for(kind(num_examples=1000, batch_size=10, num_steps=300), sigma=1.5)
    ends = accounting.epsilon(claim.drawn_by, sigma=1.5, delta=1e-6)
    assert claim.epsilon_lower == pytest.approx(ends.lower.value, rel=1e-6)
    assert claim.epsilon == pytest.approx(ends.upper.value, rel=1e-4)
    assert claim.is_interval
    upper = shown(claim.epsilon)
    assert f"at least {shown(claim.epsilon_lower, up=False)} and at most {upper} (may claim {upper})" in str(
        claim
    )
    assert claim.as_dict()["epsilon_lower"] < claim.as_dict()["epsilon"]


@pytest.mark.parametrize("kind", [Deterministic, Poisson])
def test_a_sampler_with_an_exact_bound_says_one_number(kind) -> None:
    claim = claim_for(kind(num_examples=1000, batch_size=10, num_steps=300), epsilon=3.0)
    assert not claim.is_interval
    assert str(claim).startswith("epsilon = 3 at delta = 1e-06 (zero-out), batches of")
    assert claim.epsilon_lower == pytest.approx(3.0, rel=1e-3)
    assert claim.epsilon_lower <= 3.0


def test_where_no_lower_bound_is_at_hand_the_claim_says_at_most() -> None:
    claim = claim_for(BallsAndBins(num_examples=1000, batch_size=10, num_steps=300), epsilon=3.0)
    assert claim.epsilon_lower is None
    assert "epsilon is at most 3 (may claim 3) at delta" in str(claim)


def test_the_wrong_pairing_says_what_holds_for_the_batches_that_were_drawn() -> None:
    shuffled = DynamicShuffle(num_examples=1000, batch_size=10, num_steps=100)
    poisson = Poisson(num_examples=1000, batch_size=10, num_steps=100)
    privacy = Privacy(spec=poisson, clip_norm=1.0, delta=1e-6, epsilon=3.0)
    claim = Claim.of(privacy, shuffled, num_parameters=10)
    ends = accounting.epsilon(shuffled, sigma=claim.sigma, delta=1e-6)
    assert claim.epsilon == 3.0 < claim.epsilon_lower < claim.epsilon_of_batches
    assert claim.epsilon_lower == pytest.approx(ends.lower.value, rel=1e-6)
    assert claim.epsilon_of_batches == pytest.approx(ends.upper.value, rel=1e-4)
    assert f"for which epsilon is at least {shown(claim.epsilon_lower, up=False)}" in str(claim)


@given(st.floats(1e-6, 1e6), st.integers(1, 8))
def test_bounds_are_shown_rounded_away_from_the_truth(value: float, digits: int) -> None:
    low, high = float(shown(value, digits=digits, up=False)), float(shown(value, digits=digits))
    assert low <= value <= high
    assert high - low <= 1.01 * 10.0 ** (1 - digits) * value


@pytest.mark.parametrize("kind", [Poisson, PersistentShuffle, DynamicShuffle, Deterministic])
def test_a_run_among_several_has_the_noise_that_all_of_them_need(kind) -> None:
    spec = kind(num_examples=1000, batch_size=10, num_steps=200)
    alone, among = claim_for(spec, epsilon=3.0), claim_for(spec, epsilon=3.0, num_runs=4)
    of_all = upper_sampler_of_runs(spec, num_runs=4)
    needed = accounting.sigma(of_all, epsilon=3.0, delta=1e-6).upper.value
    assert alone.sigma < needed <= among.sigma < 1.0001 * needed
    assert 2.999 < among.epsilon <= 3.0
    assert among.epsilon_lower <= among.epsilon
    assert "for 4 runs like this one together" in str(among)
    assert (alone.as_dict()["num_runs"], among.as_dict()["num_runs"]) == (1, 4)


def test_the_last_of_several_runs_starts_from_what_the_others_cost() -> None:
    spec = Poisson(num_examples=1000, batch_size=10, num_steps=200)
    claim = claim_for(spec, sigma=1.0, num_runs=3)
    others = accounting.epsilon(upper_sampler_of_runs(spec, num_runs=2), sigma=1.0, delta=1e-6).upper.value
    found = [claim.epsilon_after(steps) for steps in (0, 100, 200)]
    assert found == sorted(found)
    assert found[0] >= others * 0.999
    assert found[-1] == claim.epsilon


def test_what_is_drawn_deviates_in_every_run() -> None:
    one, three = (Privacy(spec=LARGE, clip_norm=1.0, delta=1e-8, sigma=0.7, num_runs=k) for k in (1, 3))
    assert three._statistical_distance(100) == 3 * one._statistical_distance(100) > 0
