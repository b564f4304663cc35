"""Scores are log-likelihood ratios: held against the accountant, on sums drawn from the paper's pairs."""

import math

import numpy as np
import pytest

from truebatch import (
    BallsAndBins,
    Deterministic,
    DynamicShuffle,
    FixedSizeSampling,
    PersistentShuffle,
    Poisson,
    TruncatedPoisson,
    accounting,
)
from truebatch.audit import BufferShuffle, attack, attacks_of
from truebatch.specs import Sampler

N, B, T = 32, 4, 16  # eight steps an epoch, two epochs
S, E, SIGMA = N // B, 2, 1.0
DRAWS = 100_000


def spec(kind: type[Sampler]) -> Sampler:
    more = {"max_batch_size": 10} if kind is TruncatedPoisson else {}
    return kind(num_examples=N, batch_size=B, num_steps=T, **more)


def places(kind: type[Sampler], rng: np.random.Generator) -> np.ndarray:
    """Where a canary is, [steps, draws]."""
    if kind in (Poisson, FixedSizeSampling):
        return rng.random((T, DRAWS)) < B / N
    if kind is Deterministic:
        return np.repeat((np.arange(T) % S == S - 1)[:, None], DRAWS, axis=1)
    slot = rng.integers(0, S, size=(E, DRAWS))
    if kind is PersistentShuffle:
        slot[1] = slot[0]
    return (np.arange(S)[None, :, None] == slot[:, None]).reshape(T, DRAWS)


def scores(kind: type[Sampler], name: str, *, present: bool, seed: int) -> np.ndarray:
    """Of sums from the model of the sampler: the mean where the canary is, and noise."""
    rng = np.random.default_rng(seed)
    attacker = attack(name, spec(kind), sigma=SIGMA, clip_norm=2.0, num_canaries=1)
    crowd = name == "crowd"
    sums = SIGMA * rng.normal(size=(T, DRAWS)) + places(kind, rng) * (crowd + present) - B * crowd
    return attacker.scores(2.0 * sums)


CASES = [
    (Deterministic, "alone"),
    (Poisson, "alone"),
    (BallsAndBins, "alone"),
    (DynamicShuffle, "crowd"),
    (PersistentShuffle, "crowd"),
    (FixedSizeSampling, "crowd"),
]


@pytest.mark.parametrize(("kind", "name"), CASES)
def test_scores_are_log_likelihood_ratios(kind: type[Sampler], name: str) -> None:
    """P(score in I) = E_Q[e^score; score in I], for intervals that hold most of both."""
    p, q = (scores(kind, name, present=present, seed=seed) for seed, present in enumerate((True, False)))
    for low, high in ((-3, 0), (0, 1), (1, 3)):
        in_p, in_q = ((x >= low) & (x < high) for x in (p, q))
        got, weights = in_p.mean(), np.exp(np.where(in_q, q, -np.inf))
        error = math.hypot(in_p.std(), weights.std()) / math.sqrt(DRAWS)
        assert abs(got - weights.mean()) < 5.5 * error


@pytest.mark.parametrize(("kind", "name"), CASES)
def test_the_best_event_reaches_what_is_proven_and_no_more(kind: type[Sampler], name: str) -> None:
    """P(score > eps) - e^eps Q(score > eps), or the other way round, is the delta of the pair."""
    p, q = (scores(kind, name, present=present, seed=seed) for seed, present in enumerate((True, False)))
    epsilon = 1.0
    found = accounting.delta(spec(kind), sigma=SIGMA, epsilon=epsilon, dear=kind is BallsAndBins)
    above, below = ((x > epsilon, y > epsilon) for x, y in ((p, q), (-q, -p)))
    reached = max(likely.mean() - math.exp(epsilon) * rare.mean() for likely, rare in (above, below))
    error = max(
        5 * math.hypot(likely.std(), math.exp(epsilon) * rare.std()) / math.sqrt(DRAWS)
        for likely, rare in (above, below)
    )
    assert reached < found.upper.value + error
    if found.lower.value is not None:
        assert reached > found.lower.value - error
    assert reached > 2 * error


def test_the_data_sets_of_an_attack_are_neighbours() -> None:
    crowd = attack("crowd", spec(DynamicShuffle), sigma=1.0, clip_norm=2.0, canary_norm=10.0)
    there, zeroed = (np.asarray(crowd.rows(np.array([present]))) for present in (True, False))
    assert there.shape == (N, 1)
    assert (there[:-1] == -20).all()
    assert (zeroed[:-1] == there[:-1]).all()
    assert (there[-1], zeroed[-1]) == (20, 0)


def test_canaries_alone_have_a_direction_each() -> None:
    alone = attack("alone", spec(Poisson), sigma=1.0, num_canaries=8)
    present = np.arange(8) % 2 == 0
    rows = np.asarray(alone.rows(present))
    assert rows.shape == (N, 8)
    assert rows.sum(axis=0).tolist() == present.tolist()
    assert (np.count_nonzero(rows, axis=1) <= 1).all()
    assert np.array_equal(alone.rows(present)[[31, 0, 3]], rows[[31, 0, 3]])
    assert np.count_nonzero(rows.any(axis=1)) == 4


def test_rows_of_a_large_data_set_are_never_held() -> None:
    n = 2**40
    large = Poisson(num_examples=n, batch_size=16, num_steps=4)
    rows = attack("crowd", large, sigma=1.0).rows(np.array([True]))
    assert len(rows) == n
    assert rows[[0, n - 2, n - 1]].tolist() == [[-1], [-1], [1]]


def test_a_deterministic_canary_is_scored_at_its_own_step() -> None:
    alone = attack("alone", spec(Deterministic), sigma=1.0, num_canaries=N)
    sums = np.zeros((T, N))
    sums[[0, S], 0] = 1
    assert np.argmax(alone.scores(sums)) == 0
    sums = np.roll(sums, 1, axis=0)
    assert np.ptp(alone.scores(sums)) == 0


def test_samplers_with_coins_are_tried_with_a_crowd_too() -> None:
    assert attacks_of(spec(Poisson)) == attacks_of(spec(TruncatedPoisson)) == ("alone", "crowd")
    assert attacks_of(spec(DynamicShuffle)) == ("crowd",)
    assert attacks_of(spec(Deterministic)) == ("alone",)
    assert attacks_of(BufferShuffle(num_examples=N, batch_size=B, num_steps=T, buffer_size=3)) == ("crowd",)
