"""Events of dp_accounting: both ways, and never another sampler's."""

import dp_accounting as dp
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
from truebatch.accounting import Adjacency
from truebatch.accounting.events import adjacency_of, from_event, neighboring_relation, to_event
from truebatch.errors import UnknownAnalysis

SPECS = [
    Poisson(num_examples=1000, batch_size=30, num_steps=70),
    TruncatedPoisson(num_examples=1000, batch_size=30, num_steps=70, max_batch_size=60),
    FixedSizeSampling(num_examples=1000, batch_size=30, num_steps=70),
    Deterministic(num_examples=1000, batch_size=1000, num_steps=7),
]


@pytest.mark.parametrize("spec", SPECS, ids=lambda s: s.name)
@pytest.mark.parametrize("adjacency", list(Adjacency))
def test_a_spec_comes_back_as_it_was(spec, adjacency) -> None:
    run = from_event(
        to_event(spec, sigma=1.25), num_examples=1000, neighboring_relation=neighboring_relation(adjacency)
    )
    assert (run.spec, run.sigma, run.adjacency) == (spec, 1.25, adjacency)
    assert adjacency_of(neighboring_relation(adjacency)) is adjacency


def test_numbers_agree_with_the_event_s_own_accountant() -> None:
    spec = SPECS[0]
    accountant = dp.pld.PLDAccountant(neighboring_relation("zero-out"), 1e-4)
    accountant.compose(to_event(spec, sigma=1.0))
    ours = accounting.epsilon(spec, sigma=1.0, delta=1e-6)
    assert accountant.get_epsilon(1e-6) == pytest.approx(ours.upper.value, rel=1e-3)
    assert accountant.get_epsilon(1e-6) >= ours.lower.value


@pytest.mark.parametrize("kind", [PersistentShuffle, DynamicShuffle, BallsAndBins])
def test_samplers_without_an_event_raise(kind) -> None:
    with pytest.raises(UnknownAnalysis, match="no DpEvent stands for"):
        to_event(kind(num_examples=100, batch_size=10, num_steps=20), sigma=1.0)


@pytest.mark.parametrize(
    "event",
    [
        dp.LaplaceDpEvent(1.0),
        dp.PoissonSampledDpEvent(0.03, dp.LaplaceDpEvent(1.0)),
        dp.SampledWithReplacementDpEvent(1000, 30, dp.GaussianDpEvent(1.0)),
        dp.ComposedDpEvent([dp.GaussianDpEvent(1.0), dp.GaussianDpEvent(2.0)]),
        dp.PoissonSampledDpEvent(0.0301234, dp.GaussianDpEvent(1.0)),
        dp.UnsupportedDpEvent(),
    ],
    ids=str,
)
def test_an_event_that_is_not_known_raises(event) -> None:
    with pytest.raises(UnknownAnalysis):
        from_event(event, num_examples=1000, neighboring_relation=dp.NeighboringRelation.ADD_OR_REMOVE_ONE)
