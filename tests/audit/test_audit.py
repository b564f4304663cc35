"""Audits of the real step where they take seconds, and of steps of numpy's for what they decide."""

import numpy as np
import pytest

from truebatch import (
    BallsAndBins,
    Deterministic,
    DynamicShuffle,
    Key,
    Poisson,
    TruncatedPoisson,
    accounting,
)
from truebatch.audit import OurStep, Rows, audit
from truebatch.errors import InvalidArgument, InvalidData
from truebatch.specs import Sampler

N, B, T = 256, 32, 16
DELTA = 0.01
POISSON = Poisson(num_examples=N, batch_size=B, num_steps=T)


def numpy_step(spec: Sampler, *, sigma: float, clip_norm: float = 1.0):
    """Somebody else's step, in a few lines, with coins of its own: rows clipped, summed, noised."""
    n, b, T = spec.num_examples, spec.batch_size, spec.num_steps

    def step(rows: Rows, key: Key) -> np.ndarray:
        rng = np.random.default_rng(list(key.to_bytes()))
        gradients = np.asarray(rows)
        norms = np.linalg.norm(gradients, axis=1, keepdims=True)
        clipped = gradients * np.minimum(1, clip_norm / np.maximum(norms, 1e-30))
        if isinstance(spec, Poisson):
            sums = (rng.random((T, n)) < b / n) @ clipped
        else:
            sums = clipped[rng.permutation(n)].reshape(T, b, -1).sum(axis=1)
        return sums + sigma * clip_norm * rng.normal(size=sums.shape)

    return step


@pytest.mark.parametrize(
    ("spec", "at_least"),
    [
        (POISSON, 0.2),
        (Deterministic(num_examples=N, batch_size=B, num_steps=T), 0.4),
        (BallsAndBins(num_examples=N, batch_size=B, num_steps=T), 0.2),
        (TruncatedPoisson(num_examples=N, batch_size=B, num_steps=T, max_batch_size=96), 0.2),
    ],
)
def test_our_step_leaks_less_than_may_be_claimed_and_not_much_less(spec: Sampler, at_least: float) -> None:
    """With confidence 1 - 1e-6: what is above the upper bound is a fault, not bad luck."""
    found = audit(None, spec, sigma=0.9, delta=DELTA, attacks=("alone",), clip_norm=0.25, confidence=1 - 1e-6)
    upper = accounting.epsilon(spec, sigma=0.9, delta=DELTA, dear=True).upper.value
    assert at_least * upper < found.epsilon < upper
    assert found.findings[0].canaries_per_run == N


def test_our_shuffled_step_leaks_what_shuffling_is_proven_to() -> None:
    spec = DynamicShuffle(num_examples=32, batch_size=8, num_steps=4)
    found = audit(None, spec, sigma=0.7, delta=0.05, trials=300)
    assert found.proven.lower.value > 2.2
    assert 1.0 < found.epsilon < found.proven.upper.value
    assert found.best.judgement.epsilon_of_event_upper > found.proven.lower.value


def test_a_claim_of_poisson_is_refuted_for_shuffled_batches_and_not_for_poisson_ones() -> None:
    n, b, T = 128, 8, 16
    poisson = Poisson(num_examples=n, batch_size=b, num_steps=T)
    claim = accounting.epsilon(poisson, sigma=0.5, delta=0.2).upper.value
    for kind, verdict in ((DynamicShuffle, "refuted"), (Poisson, "not refuted")):
        spec = kind(num_examples=n, batch_size=b, num_steps=T)
        found = audit(
            numpy_step(spec, sigma=0.5), spec, sigma=0.5, delta=0.2, claimed_epsilon=claim, trials=700
        )
        assert found.verdict == verdict


def test_batches_that_are_only_called_poisson_are_found_out_too() -> None:
    """The spec says Poisson, the step shuffles: the crowd tells."""
    n, b, T = 128, 8, 16
    poisson = Poisson(num_examples=n, batch_size=b, num_steps=T)
    step = numpy_step(DynamicShuffle(num_examples=n, batch_size=b, num_steps=T), sigma=0.5)
    claim = accounting.epsilon(poisson, sigma=0.5, delta=0.2).upper.value
    found = audit(step, poisson, sigma=0.5, delta=0.2, claimed_epsilon=claim, trials=700)
    assert found.verdict == "refuted"
    assert found.best.attack == "crowd"


def test_half_the_noise_is_found() -> None:
    claim = accounting.epsilon(POISSON, sigma=1.0, delta=DELTA).upper.value
    for scale, verdict in ((0.5, "refuted"), (1.0, "not refuted")):
        found = audit(
            OurStep(POISSON, sigma=scale),
            POISSON,
            sigma=1.0,
            delta=DELTA,
            claimed_epsilon=claim,
            attacks=("alone",),
            trials=3000,
            canaries_per_run=N,
        )
        assert found.verdict == verdict


def test_a_step_that_does_not_clip_is_found() -> None:
    claim = accounting.epsilon(POISSON, sigma=1.0, delta=DELTA).upper.value
    for clip_norm, verdict in ((100.0, "refuted"), (1.0, "not refuted")):
        found = audit(
            numpy_step(POISSON, sigma=1.0 / clip_norm, clip_norm=clip_norm),
            POISSON,
            sigma=1.0,
            delta=DELTA,
            claimed_epsilon=claim,
            attacks=("alone",),
            trials=1000,
        )
        assert found.verdict == verdict


def test_a_canary_that_is_never_in_a_batch_proves_nothing() -> None:
    """Membership independent of the data: both neighbours give the same law, forty audits over."""

    def blind(rows: Rows, key: Key) -> np.ndarray:
        rng = np.random.default_rng(list(key.to_bytes()))
        return rng.normal(size=(T, rows.dimension))

    found = [
        audit(blind, POISSON, sigma=1.0, delta=1e-9, attacks=("alone",), trials=200, seed=seed).epsilon
        for seed in range(40)
    ]
    assert np.count_nonzero(found) <= 2


def test_a_step_of_yours_has_one_canary_a_run_unless_you_say_so() -> None:
    step = numpy_step(POISSON, sigma=1.0)
    one = audit(step, POISSON, sigma=1.0, delta=DELTA, attacks=("alone",), trials=10)
    many = audit(step, POISSON, sigma=1.0, delta=DELTA, attacks=("alone",), trials=10, canaries_per_run=10)
    assert (one.findings[0].runs, one.findings[0].canaries_per_run) == (20, 1)
    assert (many.findings[0].runs, many.findings[0].canaries_per_run) == (2, 10)
    assert many.findings[0].judgement.likely_trials == 5


def test_batches_that_are_cut_have_one_canary_a_run() -> None:
    tight = TruncatedPoisson(num_examples=N, batch_size=B, num_steps=T, max_batch_size=34)
    found = audit(None, tight, sigma=1.0, delta=DELTA, attacks=("alone",), trials=2)
    assert found.findings[0].canaries_per_run == 1
    with pytest.raises(InvalidArgument, match="almost never cut"):
        audit(None, tight, sigma=1.0, delta=DELTA, attacks=("alone",), trials=2, canaries_per_run=4)


def test_an_audit_that_is_stopped_says_what_it_has() -> None:
    seen = []
    found = audit(
        numpy_step(POISSON, sigma=1.0),
        POISSON,
        sigma=1.0,
        delta=DELTA,
        attacks=("alone",),
        watch=seen.append,
        stop=lambda: len(seen) >= 50,
    )
    assert found.findings[0].runs == 50
    assert (seen[-1].done, seen[-1].total, seen[-1].attack) == (50, 2000, "alone")
    assert audit(None, POISSON, sigma=1.0, delta=DELTA, stop=lambda: True).epsilon == 0


def test_the_same_seed_gives_the_same_audit() -> None:
    def once(seed: int) -> dict:
        step = numpy_step(POISSON, sigma=1.0)
        return audit(step, POISSON, sigma=1.0, delta=DELTA, trials=40, seed=seed).as_dict()

    assert once(3) == once(3)
    assert once(3) != once(4)


def test_a_step_that_breaks_the_protocol_is_told_so() -> None:
    with pytest.raises(InvalidData, match="steps by dimension"):
        audit(lambda rows, key: np.zeros((T - 1, rows.dimension)), POISSON, sigma=1.0, delta=DELTA)
    with pytest.raises(InvalidData, match="not all finite"):
        audit(lambda rows, key: np.full((T, rows.dimension), np.nan), POISSON, sigma=1.0, delta=DELTA)


@pytest.mark.parametrize(
    "wrong",
    [
        {"sigma": 0.0},
        {"delta": 1.0},
        {"clip_norm": -1.0},
        {"confidence": 1.0},
        {"canary_norm": float("nan")},
        {"trials": 0},
        {"attacks": ()},
        {"attacks": ("stealth",)},
        {"canaries_per_run": N + 1},
    ],
)
def test_arguments_out_of_range_are_refused(wrong) -> None:
    with pytest.raises(InvalidArgument, match=next(iter(wrong))):
        audit(None, POISSON, **{"sigma": 1.0, "delta": DELTA} | wrong)
