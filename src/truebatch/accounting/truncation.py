"""(P) with a cap B: how often a batch is cut, what that costs, and which B to choose."""

import math
from collections.abc import Callable
from functools import lru_cache

import numpy as np
from scipy.special import betainc, betaln, log1p, xlog1py, xlogy

from truebatch.accounting.bounds import Adjacency, DeltaCurve, Direction
from truebatch.accounting.composition import LogInterval, LossModel, MixtureOfModels
from truebatch.accounting.mixtures import Mixture, MixturePair
from truebatch.accounting.poisson import (
    log_delta_of_models,
    log_delta_poisson,
    poisson_curves,
    step_models,
)
from truebatch.accounting.solve import solve_sigma
from truebatch.errors import CalibrationFailed, InvalidArgument

_NOTHING_TO_GAIN = 5e-5  # relative in delta: Theorem 3.3 at the rule's B costs 1e-5, the ends differ by twice
TRUNCATION_SHARE = 1e-5  # the part of delta that the paper's rule for B spends on cut batches


def log_overflow_prob(*, num_examples: int, batch_size: int, max_batch_size: int) -> float:
    """log Psi(n, b, B), the probability that Binomial(n, b/n) is above B.

    Far in the tail it is summed from the first term, whose ratio to the next falls, so that it keeps its
    digits below the smallest float.

    >>> log_overflow_prob(num_examples=10, batch_size=5, max_batch_size=10)
    -inf
    >>> round(math.exp(log_overflow_prob(num_examples=10, batch_size=5, max_batch_size=9)) * 2**10, 9)
    1.0
    """
    return _log_binomial_tail(num_examples, batch_size / num_examples, max_batch_size)


def _log_binomial_tail(n: int, q: float, B: int) -> float:
    """log P(Binomial(n, q) > B)."""
    if n <= B:
        return -math.inf
    if q >= 1:
        return 0.0
    if B + 1 <= n * q:
        return math.log(float(betainc(B + 1, n - B, q)))
    k = B + 1
    log_first = -betaln(n - k + 1, k + 1) - float(log1p(n)) + xlogy(k, q) + xlog1py(n - k, -q)
    total, term = 1.0, 1.0
    while k < n and term > 1e-17 * total:
        term *= (n - k) / (k + 1) * q / (1 - q)
        total += term
        k += 1
    return float(min(log_first + math.log(total), 0.0))


def max_batch_size_by_rule(
    *,
    num_examples: int,
    batch_size: int,
    num_steps: int,
    epsilon: float,
    delta: float,
    share: float = TRUNCATION_SHARE,
) -> int:
    """The paper's cap: the smallest B >= b with T (1 + e^eps) Psi(n, b, B) <= share * delta.

    Guarantees:
      - With n = 36,672,493, one epoch and rounded steps it gives the sizes of Appendix B.

    >>> max_batch_size_by_rule(
    ...     num_examples=36672493, batch_size=1024, num_steps=35813, epsilon=5, delta=2.7e-8)
    1328
    """
    _require_request(epsilon=epsilon, delta=delta, sigma_overhead=1.0)
    log_allowed = math.log(share) + math.log(delta) - math.log(num_steps) - _log_one_plus_exp(epsilon)

    def fits(B: int) -> bool:
        tail = log_overflow_prob(num_examples=num_examples, batch_size=batch_size, max_batch_size=B)
        return tail <= log_allowed

    return _smallest(fits, batch_size, num_examples)


def smallest_max_batch_size(
    *,
    num_examples: int,
    batch_size: int,
    num_steps: int,
    epsilon: float,
    delta: float,
    sigma_overhead: float,
) -> int:
    """The smallest cap B >= b whose sigma is at most (1 + overhead) times that of no cap.

    By the analysis of a uniform cut, which allows a far smaller B than the paper's rule.
    """
    _require_request(epsilon=epsilon, delta=delta, sigma_overhead=sigma_overhead)
    n, b, T = num_examples, batch_size, num_steps
    if b == n:
        return n
    curve = poisson_curves(sampling_prob=b / n, num_steps=T, adjacency=Adjacency.ZERO_OUT)[0]
    log_delta = math.log(delta)
    plain = solve_sigma(curve, epsilon=epsilon, log_delta=log_delta, upward=True, guess=1.0)
    sigma = plain * (1 + sigma_overhead)

    def fits(B: int) -> bool:
        reached = log_delta_truncated(
            num_examples=n,
            batch_size=b,
            max_batch_size=B,
            num_steps=T,
            sigma=sigma,
            epsilon=epsilon,
            adjacency=Adjacency.ZERO_OUT,
        )
        return reached <= log_delta

    widest = max_batch_size_by_rule(num_examples=n, batch_size=b, num_steps=T, epsilon=epsilon, delta=delta)
    if not fits(widest):
        raise CalibrationFailed(
            f"no cap up to B={widest} keeps sigma within {sigma_overhead:g} of that of no cap.",
            hint="allow a larger overhead, or use max_batch_size_by_rule.",
        )
    return _smallest(fits, b, widest)


def _require_request(*, epsilon: float, delta: float, sigma_overhead: float) -> None:
    if not (0 < delta < 1 and math.isfinite(epsilon) and epsilon >= 0):
        raise InvalidArgument(
            f"epsilon must be 0 or more and delta in (0, 1); got epsilon={epsilon}, delta={delta}."
        )
    if not 0 < sigma_overhead < math.inf:
        raise InvalidArgument(
            f"sigma_overhead must be above 0; got sigma_overhead={sigma_overhead}.",
            hint="0.001 allows a sigma larger by one part in a thousand.",
        )


def _smallest(fits: Callable[[int], bool], low: int, high: int) -> int:
    """The smallest B in [low, high] that fits, for a rule that larger B only help; `high` always does."""
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(middle) else (middle + 1, high)
    return high


def _log_one_plus_exp(x: float) -> float:
    return x + math.log1p(math.exp(-x))


def _log_delta_union(
    *, num_examples: int, batch_size: int, max_batch_size: int, num_steps: int, sigma: float, epsilon: float
) -> LogInterval:
    """Theorem 3.3: the pair's divergence plus T (1 + e^eps) Psi(n, b, B).

    Proposition 3.2 holds the other way round too, so the divergence minus that term is a lower bound.
    """
    pair = log_delta_poisson(
        sampling_prob=batch_size / num_examples,
        num_steps=num_steps,
        sigma=sigma,
        epsilon=epsilon,
        adjacency=Adjacency.ZERO_OUT,
    )
    psi = log_overflow_prob(num_examples=num_examples, batch_size=batch_size, max_batch_size=max_batch_size)
    if psi == -math.inf:
        return pair
    extra = math.log(num_steps) + _log_one_plus_exp(epsilon) + psi
    gap = extra - pair.lower
    lower = pair.lower + math.log(-math.expm1(gap)) if gap < 0 else -math.inf
    return LogInterval(lower=lower, upper=min(0.0, float(np.logaddexp(pair.upper, extra))))


def truncated_step_models(
    *, num_examples: int, batch_size: int, max_batch_size: int, sigma: float, adjacency: Adjacency
) -> tuple[LossModel, ...]:
    """One step with a uniform cut, as a mixture inside the composition.

    Ganesh (arXiv 2508.15089), in the form of dp_accounting 0.6. Let R be the number of the other rows that
    were drawn. When R >= B, with probability P(Bin(n-1, q) >= B) whatever the example does, the batch is
    full: the example is in it with probability q' = E[q B / (R+1) | R >= B], in the place of another row,
    so that the sum moves by up to 2. That pair is bounded by the one of replacing at twice the
    sensitivity, (1-q') N(0) + q' N(2) against (1-q') N(0) + q' N(-2). Otherwise the step is Poisson's.

    This needs the cut to keep a uniform subset.
    """
    n, b, B = num_examples, batch_size, max_batch_size
    q = b / n
    plain = step_models(sampling_prob=q, sigma=sigma, adjacency=adjacency)
    log_full = _log_binomial_tail(n - 1, q, B - 1)
    if log_full < -700:
        return plain if log_full == -math.inf else _mixed(plain, math.exp(-700), 1.0, sigma)
    log_inside = _log_binomial_tail(n, q, B) + math.log(B / n) - log_full
    return _mixed(plain, math.exp(log_full), math.exp(min(log_inside, 0.0)), sigma)


def _mixed(
    plain: tuple[LossModel, ...], full_prob: float, inside_prob: float, sigma: float
) -> tuple[LossModel, ...]:
    cut = MixturePair(
        p=Mixture(prob=inside_prob, mean=2.0), q=Mixture(prob=inside_prob, mean=-2.0), sigma=sigma
    )
    if full_prob >= 1:
        return (cut,)
    return tuple(MixtureOfModels(first=model, second=cut, prob=full_prob) for model in plain)


def truncated_poisson_curves(
    *, num_examples: int, batch_size: int, max_batch_size: int, num_steps: int, adjacency: Adjacency
) -> tuple[DeltaCurve, ...]:
    """Bounds for a cap B: Theorem 3.3 both ways, and the tighter analysis of a uniform cut."""
    n, b, B, T = num_examples, batch_size, max_batch_size, num_steps

    @lru_cache(maxsize=64)
    def union(sigma: float, epsilon: float) -> LogInterval:
        return _log_delta_union(
            num_examples=n, batch_size=b, max_batch_size=B, num_steps=T, sigma=sigma, epsilon=epsilon
        )

    def tight(sigma: float, epsilon: float) -> float:
        return log_delta_truncated(
            num_examples=n,
            batch_size=b,
            max_batch_size=B,
            num_steps=T,
            sigma=sigma,
            epsilon=epsilon,
            adjacency=adjacency,
        )

    def either(sigma: float, epsilon: float) -> float:
        ends = union(sigma, epsilon)  # where it is within 1e-5 of Poisson's, nothing is left to gain
        return ends.upper if ends.upper - ends.lower < _NOTHING_TO_GAIN else tight(sigma, epsilon)

    tighter = "uniform cut as a mixture (Ganesh, arXiv 2508.15089)"
    if adjacency is not Adjacency.ZERO_OUT:
        return (DeltaCurve(log_delta=tight, direction=Direction.UPPER, source=tighter),)
    theorem = "Theorem 3.3 (pair plus T (1+e^eps) Psi)"
    return (
        DeltaCurve(log_delta=lambda s, e: union(s, e).upper, direction=Direction.UPPER, source=theorem),
        DeltaCurve(log_delta=either, direction=Direction.UPPER, source=tighter),
        DeltaCurve(
            log_delta=lambda s, e: union(s, e).lower,
            direction=Direction.LOWER,
            source="Theorem 3.3 the other way (pair minus T (1+e^eps) Psi)",
        ),
    )


def log_delta_truncated(
    *,
    num_examples: int,
    batch_size: int,
    max_batch_size: int,
    num_steps: int,
    sigma: float,
    epsilon: float,
    adjacency: Adjacency,
) -> float:
    """Privacy loss curve of truncated Poisson batches by the analysis of a uniform cut.

    Direction: upper.
    """
    n, b, B, T = num_examples, batch_size, max_batch_size, num_steps
    if b == n or B >= n:
        return log_delta_poisson(
            sampling_prob=b / n, num_steps=T, sigma=sigma, epsilon=epsilon, adjacency=adjacency
        ).upper
    models = truncated_step_models(
        num_examples=n, batch_size=b, max_batch_size=B, sigma=sigma, adjacency=adjacency
    )
    return log_delta_of_models(models=models, num_steps=T, epsilon=epsilon).upper
