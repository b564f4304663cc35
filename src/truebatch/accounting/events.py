"""To dp_accounting's events and back, so that the numbers fit in what people already use.

An event says nothing that its analysis does not know: a sampler without an event of its own raises, and is
never replaced by another one's.
"""

from dataclasses import dataclass

from truebatch.accounting.bounds import Adjacency
from truebatch.errors import MissingExtra, UnknownAnalysis
from truebatch.specs import (
    Deterministic,
    FixedSizeSampling,
    Poisson,
    Sampler,
    TruncatedPoisson,
)

try:
    import dp_accounting as dp
except ImportError as error:
    raise MissingExtra(
        "converting to and from DpEvent needs dp-accounting.", hint="pip install 'truebatch[events]'"
    ) from error

_RELATIONS = {
    Adjacency.ZERO_OUT: dp.NeighboringRelation.REPLACE_SPECIAL,
    Adjacency.ADD_REMOVE: dp.NeighboringRelation.ADD_OR_REMOVE_ONE,
    Adjacency.REPLACE_ONE: dp.NeighboringRelation.REPLACE_ONE,
}


@dataclass(frozen=True, kw_only=True)
class AccountedRun:
    """What an event stands for: a sampler, its noise multiplier and what neighbours are."""

    spec: Sampler
    sigma: float
    adjacency: Adjacency


def neighboring_relation(adjacency: Adjacency | str) -> dp.NeighboringRelation:
    """dp_accounting's name for an adjacency.

    >>> neighboring_relation("zero-out").name
    'REPLACE_SPECIAL'
    """
    return _RELATIONS[Adjacency(adjacency)]


def adjacency_of(relation: dp.NeighboringRelation) -> Adjacency:
    """Our name for dp_accounting's neighbouring relation."""
    return next(ours for ours, theirs in _RELATIONS.items() if theirs is relation)


def to_event(spec: Sampler, *, sigma: float) -> dp.DpEvent:
    """The event of DP-SGD's noisy sums under this sampler.

    Deterministic batches are E Gaussian events (one example is in one batch an epoch), and Poisson's T
    subsampled ones. Persistent shuffling, dynamic shuffling and balls-and-bins have no event of their own.

    >>> to_event(Deterministic(num_examples=100, batch_size=10, num_steps=20), sigma=1.5)
    SelfComposedDpEvent(event=GaussianDpEvent(noise_multiplier=1.5), count=2)
    """
    gaussian = dp.GaussianDpEvent(sigma)
    match spec:
        case Deterministic():
            return dp.SelfComposedDpEvent(gaussian, spec.whole_epochs)
        case Poisson():
            return dp.SelfComposedDpEvent(
                dp.PoissonSampledDpEvent(spec.sampling_prob, gaussian), spec.num_steps
            )
        case TruncatedPoisson():
            step = dp.TruncatedSubsampledGaussianDpEvent(
                dataset_size=spec.num_examples,
                sampling_probability=spec.sampling_prob,
                truncated_batch_size=spec.max_batch_size,
                noise_multiplier=sigma,
            )
            return dp.SelfComposedDpEvent(step, spec.num_steps)
        case FixedSizeSampling():
            step = dp.SampledWithoutReplacementDpEvent(spec.num_examples, spec.batch_size, gaussian)
            return dp.SelfComposedDpEvent(step, spec.num_steps)
    raise UnknownAnalysis(
        f"no DpEvent stands for {type(spec).__name__}; another sampler's would claim what was not run.",
        hint="use accounting.epsilon, which has proven bounds for it.",
    )


def from_event(
    event: dp.DpEvent, *, num_examples: int, neighboring_relation: dp.NeighboringRelation
) -> AccountedRun:
    """The run that an event of DP-SGD describes, given the number of examples it ran on.

    Understands Gaussian, Poisson-sampled, truncated and without-replacement Gaussian events, alone or
    self-composed; a Poisson probability must be b/n for a whole b. Anything else raises UnknownAnalysis.
    """
    step, steps = _unwrap(event)
    adjacency = adjacency_of(neighboring_relation)
    n = num_examples
    match step:
        case dp.GaussianDpEvent():
            spec: Sampler = Deterministic(num_examples=n, batch_size=n, num_steps=steps)
            return AccountedRun(spec=spec, sigma=step.noise_multiplier, adjacency=adjacency)
        case dp.PoissonSampledDpEvent() if isinstance(step.event, dp.GaussianDpEvent):
            b = _whole_batch(step.sampling_probability, n)
            spec = Poisson(num_examples=n, batch_size=b, num_steps=steps)
            return AccountedRun(spec=spec, sigma=step.event.noise_multiplier, adjacency=adjacency)
        case dp.TruncatedSubsampledGaussianDpEvent() if step.dataset_size == n:
            b = _whole_batch(step.sampling_probability, n)
            spec = TruncatedPoisson(
                num_examples=n, batch_size=b, num_steps=steps, max_batch_size=step.truncated_batch_size
            )
            return AccountedRun(spec=spec, sigma=step.noise_multiplier, adjacency=adjacency)
        case dp.SampledWithoutReplacementDpEvent() if step.source_dataset_size == n and isinstance(
            step.event, dp.GaussianDpEvent
        ):
            spec = FixedSizeSampling(num_examples=n, batch_size=step.sample_size, num_steps=steps)
            return AccountedRun(spec=spec, sigma=step.event.noise_multiplier, adjacency=adjacency)
    raise UnknownAnalysis(f"no sampler of ours runs this event on {n} examples: {event!r}.")


def _unwrap(event: dp.DpEvent) -> tuple[dp.DpEvent, int]:
    """The repeated step and how often it is repeated."""
    count = 1
    while isinstance(event, dp.SelfComposedDpEvent) or (
        isinstance(event, dp.ComposedDpEvent) and len(event.events) == 1
    ):
        if isinstance(event, dp.SelfComposedDpEvent):
            count *= event.count
            event = event.event
        else:
            event = event.events[0]
    return event, count


def _whole_batch(prob: float, n: int) -> int:
    b = round(prob * n)
    if b < 1 or abs(b / n - prob) > 1e-12 * prob:
        raise UnknownAnalysis(
            f"a sampling probability must be b/n for a whole batch size b; got {prob!r} with n={n}.",
            hint=f"the nearest is {max(b, 1)}/{n}.",
        )
    return b
