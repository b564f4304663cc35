"""What an audit is for, shown on the real step: minutes, so not in the default suite."""

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
from truebatch.audit import BufferShuffle, audit
from truebatch.audit.attacks import AttackName
from truebatch.specs import Sampler
from truebatch.training import Noise, clipping

pytestmark = pytest.mark.slow

# Bounds above the proven ones would then be a fault and not bad luck.
SURE = 1 - 1e-6
SHAPE = {"num_examples": 64, "batch_size": 8, "num_steps": 16}  # eight steps an epoch, two epochs


@pytest.mark.parametrize(
    ("spec", "attack"),
    [
        (Deterministic(**SHAPE), "alone"),
        (Poisson(**SHAPE), "alone"),
        (TruncatedPoisson(**SHAPE, max_batch_size=32), "alone"),
        (TruncatedPoisson(**SHAPE, max_batch_size=10), "alone"),
        (PersistentShuffle(**SHAPE), "crowd"),
        (DynamicShuffle(**SHAPE), "crowd"),
        (BallsAndBins(**SHAPE), "alone"),
        (FixedSizeSampling(**SHAPE), "crowd"),
        (BufferShuffle(**SHAPE, buffer_size=16), "crowd"),
    ],
    ids=lambda value: getattr(value, "name", value),
)
def test_every_sampler_is_audited_between_what_is_proven(spec: Sampler, attack: AttackName) -> None:
    """The bound below the upper curve; and its event, with all it may reach, not below the lower one."""
    found = audit(None, spec, sigma=1.0, delta=0.1, confidence=SURE, attacks=(attack,))
    assert found.epsilon <= found.proven.upper.value
    if found.proven.lower.value is not None:
        assert found.best.judgement.epsilon_of_event_upper >= found.proven.lower.value


def test_shuffling_that_claims_poissons_epsilon_is_refuted_and_poisson_is_not() -> None:
    poisson = Poisson(num_examples=128, batch_size=8, num_steps=16)
    claim = accounting.epsilon(poisson, sigma=0.5, delta=0.2).upper.value
    for kind, verdict in (
        (PersistentShuffle, "refuted"),
        (DynamicShuffle, "refuted"),
        (Poisson, "not refuted"),
    ):
        spec = kind(num_examples=128, batch_size=8, num_steps=16)
        found = audit(None, spec, sigma=0.5, delta=0.2, claimed_epsilon=claim, trials=700)
        assert found.verdict == verdict, found


def half_as_loud(self: Noise, key, sigma: float, clip_norm: float) -> None:
    _INIT(self, key, sigma / 2, clip_norm)


_INIT = Noise.__init__


def unclipped(squared, weights, clip_norm):
    return _SCALES(squared, weights, None)


_SCALES = clipping._scales


@pytest.mark.parametrize(
    ("place", "broken"),
    [
        ("truebatch.training.noise.Noise.__init__", half_as_loud),
        ("truebatch.training.clipping._scales", unclipped),
    ],
    ids=["half the noise", "no clipping"],
)
@pytest.mark.parametrize(
    ("spec", "trials"),
    [(Poisson(**SHAPE), 4000), (DynamicShuffle(**SHAPE), 400)],
    ids=lambda value: getattr(value, "name", None),
)
def test_our_own_step_broken_is_found(monkeypatch, place, broken, spec, trials) -> None:
    claim = accounting.epsilon(spec, sigma=1.2, delta=0.1).upper.value
    names = ("alone",) if trials == 4000 else None
    wanted = {"sigma": 1.2, "delta": 0.1, "claimed_epsilon": claim, "trials": trials, "attacks": names}
    assert audit(None, spec, **wanted, confidence=SURE).verdict == "not refuted"
    monkeypatch.setattr(place, broken)
    assert audit(None, spec, **wanted).verdict == "refuted"
