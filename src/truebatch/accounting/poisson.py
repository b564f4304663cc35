"""(P) with B infinite: every step is a Poisson-subsampled Gaussian, T of them composed exactly."""

import math
from functools import lru_cache

from truebatch.accounting.bounds import Adjacency, DeltaCurve, Direction
from truebatch.accounting.composition import LogInterval, LossModel, log_divergence
from truebatch.accounting.deterministic import log_delta_gaussian
from truebatch.accounting.mixtures import Mixture, MixturePair

_AT_ZERO = Mixture(prob=0.0, mean=0.0)


def step_models(*, sampling_prob: float, sigma: float, adjacency: Adjacency) -> tuple[LossModel, ...]:
    """The dominating pairs of one step, one for each direction of adjacency.

    Zeroing-out and add-remove: (U, V) and (V, U), U = (1-q) N(0, sigma^2) + q N(1, sigma^2) and
    V = N(0, sigma^2), tight by Zhu et al. (2022). Replace-one: the gradient moves from one end of the unit
    ball to the other, (1-q) N(0) + q N(1) against (1-q) N(0) + q N(-1), the same both ways.
    """
    here = Mixture(prob=sampling_prob, mean=1.0)
    there = Mixture(prob=sampling_prob, mean=-1.0)
    if adjacency is Adjacency.REPLACE_ONE:
        return (MixturePair(p=here, q=there, sigma=sigma),)
    return (MixturePair(p=here, q=_AT_ZERO, sigma=sigma), MixturePair(p=_AT_ZERO, q=there, sigma=sigma))


def log_delta_of_models(*, models: tuple[LossModel, ...], num_steps: int, epsilon: float) -> LogInterval:
    """The larger of the divergences of a step's dominating pairs, each composed T-fold."""
    lower = upper = -math.inf
    for model in models:
        ends = log_divergence(model=model, copies=num_steps, epsilon=epsilon, at_least=lower)
        lower, upper = max(lower, ends.lower), max(upper, ends.upper)
    return LogInterval(lower=lower, upper=upper)


@lru_cache(maxsize=1 << 12)
def log_delta_poisson(
    *, sampling_prob: float, num_steps: int, sigma: float, epsilon: float, adjacency: Adjacency
) -> LogInterval:
    """Privacy loss curve of T steps of Poisson subsampling.

    D_eps(U^T || V^T) and D_eps(V^T || U^T), the larger of the two.

    Direction: both ends of an exact value, a relative 1e-8 apart in delta (wider where q T is far below 1).

    Guarantees:
      - With q = 1 it is the Gaussian mechanism with sigma / sqrt(T).
      - Cost does not grow with T.

    >>> ends = log_delta_poisson(sampling_prob=0.01, num_steps=100, sigma=1.0, epsilon=1.0,
    ...                          adjacency=Adjacency.ZERO_OUT)
    >>> f"{math.exp(ends.lower):.4e} {math.exp(ends.upper):.4e}"
    '6.6714e-07 6.6714e-07'
    """
    if sampling_prob == 1:
        sensitivity = 2.0 if adjacency is Adjacency.REPLACE_ONE else 1.0
        value = log_delta_gaussian(sigma=sigma / (sensitivity * math.sqrt(num_steps)), epsilon=epsilon)
        return LogInterval(lower=value, upper=value)
    models = step_models(sampling_prob=sampling_prob, sigma=sigma, adjacency=adjacency)
    return log_delta_of_models(models=models, num_steps=num_steps, epsilon=epsilon)


def poisson_curves(*, sampling_prob: float, num_steps: int, adjacency: Adjacency) -> tuple[DeltaCurve, ...]:
    """Both ends of the exact composition."""

    def ends(sigma: float, epsilon: float) -> LogInterval:
        return log_delta_poisson(
            sampling_prob=sampling_prob,
            num_steps=num_steps,
            sigma=sigma,
            epsilon=epsilon,
            adjacency=adjacency,
        )

    source = "exact T-fold composition of the pair (U, V)"
    return (
        DeltaCurve(log_delta=lambda s, e: ends(s, e).upper, direction=Direction.UPPER, source=source),
        DeltaCurve(log_delta=lambda s, e: ends(s, e).lower, direction=Direction.LOWER, source=source),
    )
