"""Which bounds are known for which sampler under which adjacency."""

from functools import lru_cache

from truebatch.accounting.balls_and_bins import balls_and_bins_curves
from truebatch.accounting.bounds import Adjacency, DeltaCurve, Direction
from truebatch.accounting.clones import clones_upper_curves
from truebatch.accounting.deterministic import deterministic_curves
from truebatch.accounting.fixed_size import fixed_size_curves
from truebatch.accounting.poisson import poisson_curves
from truebatch.accounting.shuffle import dynamic_shuffle_lower_curves, persistent_shuffle_lower_curves
from truebatch.accounting.truncation import truncated_poisson_curves
from truebatch.errors import UnknownAnalysis
from truebatch.specs import (
    BallsAndBins,
    Deterministic,
    DynamicShuffle,
    FixedSizeSampling,
    PersistentShuffle,
    Poisson,
    Sampler,
    TruncatedPoisson,
)

_FIXED_SLOTS = (Deterministic, PersistentShuffle, DynamicShuffle, FixedSizeSampling)


@lru_cache(maxsize=256)
def known_curves(*, spec: Sampler, adjacency: Adjacency, dear: bool) -> tuple[DeltaCurve, ...]:
    """Every bound known for this sampler, exact ones and both directions; without the dear ones unless asked.

    Raises UnknownAnalysis where no bound at all is known under this adjacency.
    """
    if adjacency is Adjacency.ADD_REMOVE and isinstance(spec, _FIXED_SLOTS):
        raise UnknownAnalysis(
            f"add-remove adjacency does not apply to {type(spec).__name__}, whose batches need n as it is; "
            f"got num_examples={spec.num_examples}, batch_size={spec.batch_size}.",
            hint="use zero-out, the notion of the paper, or replace-one.",
        )
    curves = _curves(spec, adjacency)
    return curves if dear else tuple(curve for curve in curves if not curve.dear)


def has_dearer_bounds(spec: Sampler, *, adjacency: Adjacency) -> bool:
    """Whether `dear=True` adds anything for this sampler."""
    try:
        return any(curve.dear for curve in known_curves(spec=spec, adjacency=adjacency, dear=True))
    except UnknownAnalysis:
        return False


def _curves(spec: Sampler, adjacency: Adjacency) -> tuple[DeltaCurve, ...]:
    match spec:
        case Deterministic():
            return deterministic_curves(num_epochs=spec.whole_epochs, adjacency=adjacency)
        case Poisson():
            return poisson_curves(
                sampling_prob=spec.sampling_prob, num_steps=spec.num_steps, adjacency=adjacency
            )
        case TruncatedPoisson():
            return truncated_poisson_curves(
                num_examples=spec.num_examples,
                batch_size=spec.batch_size,
                max_batch_size=spec.max_batch_size,
                num_steps=spec.num_steps,
                adjacency=adjacency,
            )
        case FixedSizeSampling():
            return fixed_size_curves(
                sampling_prob=spec.sampling_prob, num_steps=spec.num_steps, adjacency=adjacency
            )
        case PersistentShuffle() | DynamicShuffle():
            return _shuffle_curves(spec, adjacency)
        case BallsAndBins():
            S, E = spec.steps_per_epoch, spec.whole_epochs
            if adjacency is Adjacency.REPLACE_ONE:
                return _no_amplification(E, adjacency)
            own = balls_and_bins_curves(steps_per_epoch=S, num_epochs=E)
            return (*own, *_no_amplification(E, adjacency))
    raise UnknownAnalysis(f"no analysis is known for {type(spec).__name__}.")


def _no_amplification(num_epochs: int, adjacency: Adjacency) -> tuple[DeltaCurve, ...]:
    """One example is in one batch of each epoch, wherever that is: the deterministic curve from above."""
    return deterministic_curves(num_epochs=num_epochs, adjacency=adjacency, direction=Direction.UPPER)


def _shuffle_curves(spec: PersistentShuffle | DynamicShuffle, adjacency: Adjacency) -> tuple[DeltaCurve, ...]:
    S, E = spec.steps_per_epoch, spec.whole_epochs
    dynamic = isinstance(spec, DynamicShuffle)
    lower = dynamic_shuffle_lower_curves if dynamic else persistent_shuffle_lower_curves
    amplified: tuple[DeltaCurve, ...] = ()
    if dynamic or E == 1:  # E epochs of one order are not E shuffles
        amplified = clones_upper_curves(steps_per_epoch=S, num_epochs=E)
    return (
        *lower(steps_per_epoch=S, num_epochs=E, adjacency=adjacency),
        *_no_amplification(E, adjacency),
        *amplified,
    )
