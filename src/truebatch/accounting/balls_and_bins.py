"""Balls-and-bins: every row joins one uniform step of each epoch, independently of the other rows.

Chua et al., arXiv 2412.16802, which gives the tightly dominating pair of one epoch; random allocation in
Feldman and Shenfeld, arXiv 2502.08202 and 2602.17284. With S steps an epoch, under zeroing-out,

    P = 1/S sum_s N(e_s, sigma^2 I_S),    Q = N(0, sigma^2 I_S),    dP/dQ = M = 1/S sum_s X_s,

where under Q the X_s = e^((2 w_s - 1) / (2 sigma^2)) are independent and lognormal of mean 1, so

    D_eps(P || Q) = E_Q[(M - e^eps)_+],    D_eps(Q || P) = E_Q[(1 - e^eps M)_+].

Both ends are deterministic: see `allocation_lattice` and `allocation_epoch` for one epoch and
`allocation_composition` for several. `balls_and_bins_monte_carlo` is an estimate, and says so.
"""

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import logsumexp

from truebatch.accounting.allocation_composition import FLOOR, log_delta_composed
from truebatch.accounting.allocation_epoch import log_calls, log_puts_upper
from truebatch.accounting.allocation_plan import log_put_estimate
from truebatch.accounting.bounds import DeltaCurve, Direction
from truebatch.accounting.deterministic import log_delta_gaussian
from truebatch.accounting.lognormal import LogNormal
from truebatch.errors import InvalidArgument

# Aim for the spacing of the lattice, in epsilon. The lower lattice loses more near 0, where it is coarse.
_ACCURACY_UPPER, _ACCURACY_LOWER = 1e-5, 2e-6
# Below this sigma the likelihood ratios of several epochs leave the range of floats.
_SMALLEST_COMPOSED = 0.045
# Below this log(delta) nothing is resolved: the upper end is without amplification, the lower a closed form.
_DEEPEST = -690.0
# How many nats an estimate of the second direction may be below the first before it is not computed.
_MARGIN = 8.0
_TOLERANCE = 1e-7
_BLOCK = 1 << 21


def balls_and_bins_curves(*, steps_per_epoch: int, num_epochs: int) -> tuple[DeltaCurve, ...]:
    """Upper and lower ends of the privacy loss curve of balls-and-bins under zeroing-out.

    Direction: the first curve is an upper bound, the second a lower bound.

    Guarantees:
      - lower <= the true curve of the pair <= upper <= that of the deterministic sampler.
      - One step per epoch gives the deterministic sampler's curve.
    No guarantee: that delta falls smoothly. Each value has a lattice of its own, which moves it by less than
    the distance of the two ends.
    """
    if steps_per_epoch < 1 or num_epochs < 1:
        raise InvalidArgument(
            "steps_per_epoch and num_epochs must be at least 1; "
            f"got steps_per_epoch={steps_per_epoch}, num_epochs={num_epochs}."
        )
    S, E = steps_per_epoch, num_epochs

    def curve(*, upper: bool) -> DeltaCurve:
        def log_delta(sigma: float, epsilon: float) -> float:
            plain = log_delta_gaussian(sigma=sigma / math.sqrt(E), epsilon=epsilon)
            if S == 1:
                return plain
            if plain < _DEEPEST:
                return plain if upper else _log_delta_jump(sigma, epsilon, S)
            if E > 1 and (sigma < _SMALLEST_COMPOSED or (upper and plain < FLOOR)):
                return plain if upper else _log_delta_jump(sigma, epsilon, S)
            if E == 1:
                value = _log_delta_one_epoch(sigma, epsilon, S, upper=upper)
            else:
                value = log_delta_composed(
                    sigma=sigma, epsilon=epsilon, steps_per_epoch=S, num_epochs=E, upper=upper
                )
                value = value if upper else max(value, _log_delta_jump(sigma, epsilon, S))
            return min(value, plain)

        exact = "arXiv 2412.16802 pair, lognormal sum on a lattice"
        return DeltaCurve(
            log_delta=log_delta,
            direction=Direction.UPPER if upper else Direction.LOWER,
            source=exact if E == 1 else f"{exact}, composed over {E} epochs",
            tolerance=1e-11 if S == 1 else _TOLERANCE,
            dear=S > 1 and E > 1,
        )

    return (curve(upper=True), curve(upper=False))


def _log_delta_one_epoch(sigma: float, epsilon: float, steps: int, *, upper: bool) -> float:
    """log of max(D_eps(P || Q), D_eps(Q || P)), or of a lower bound on the first one."""
    at = np.asarray([epsilon])
    accuracy = _ACCURACY_UPPER if upper else _ACCURACY_LOWER
    value = float(log_calls(sigma=sigma, copies=steps, epsilons=at, upper=upper, accuracy=accuracy)[0][0])
    if value == math.inf:  # too deep for the lattice: a smaller epsilon bounds it too
        return _log_delta_one_epoch(sigma, epsilon / 2, steps, upper=True)
    if not upper:
        return max(value, _log_delta_jump(sigma, epsilon, steps))
    if log_put_estimate(sigma=sigma, copies=steps, epsilon=-epsilon) + epsilon > value - _MARGIN:
        put = log_puts_upper(sigma=sigma, copies=steps, epsilons=-at, accuracy=accuracy)[0]
        value = max(value, float(put) + epsilon)
    return min(value, 0.0)


def _log_delta_jump(sigma: float, epsilon: float, steps: int) -> float:
    """A lower bound in closed form.

    E[(M - e^eps)_+] is at least 1/S sum_s E[(X_s - S e^eps)_+], and by Jensen at least what is left of it
    when all steps but one are replaced by their mean.
    """
    log_strike = math.log(steps) + epsilon
    alone = LogNormal.step(sigma=sigma, log_unit=log_strike)
    among = 1 - math.exp(-epsilon) * (steps - 1) / steps
    on_top = alone.log_call(among) - math.log(steps) if among > 0 else -math.inf
    return min(max(alone.log_call(1.0), on_top) + log_strike, 0.0)


@dataclass(frozen=True, kw_only=True)
class MonteCarloEstimate:
    """An estimate of delta with a confidence interval: true with probability `confidence`, not a bound."""

    estimate: float
    lower: float
    upper: float
    confidence: float
    num_samples: int


def balls_and_bins_monte_carlo(
    *,
    sigma: float,
    epsilon: float,
    steps_per_epoch: int,
    num_epochs: int,
    num_samples: int,
    confidence: float,
    seed: int,
) -> MonteCarloEstimate:
    """Estimate D_eps(P^E || Q^E) by sampling the loss L under P^E: delta = E_P[(1 - e^(eps - L))_+].

    Under P the step that the row joined has its coordinate shifted by 1; that is importance sampling, since
    under Q the event hardly ever happens. Terms are in [0, 1], so the interval is the intersection of the two
    one-sided empirical Bernstein bounds of Maurer and Pontil (arXiv 0907.3740, Theorem 4) and of Hoeffding's,
    each at a quarter of the error.

    Direction: none. An estimate of the one direction of adjacency that dominates in practice.

    >>> e = balls_and_bins_monte_carlo(
    ...     sigma=1.0, epsilon=1.0, steps_per_epoch=1, num_epochs=1,
    ...     num_samples=10_000, confidence=0.99, seed=1)
    >>> e.lower < 0.126937 < e.upper
    True
    """
    if not 0 < confidence < 1 or num_samples < 2 or not sigma > 0:
        raise InvalidArgument(
            "confidence must be in (0, 1), num_samples at least 2 and sigma positive; "
            f"got confidence={confidence}, num_samples={num_samples}, sigma={sigma}."
        )
    generator = np.random.default_rng(seed)
    rows = max(1, _BLOCK // steps_per_epoch)
    count, total, squares = 0, 0.0, 0.0
    while count < num_samples:
        size = min(rows, num_samples - count)
        loss = np.zeros(size)
        for _ in range(num_epochs):
            z = generator.standard_normal((size, steps_per_epoch))
            z[:, 0] += 1 / sigma  # which step it joined does not matter, by symmetry
            loss += logsumexp(z / sigma - 0.5 / sigma**2, axis=1) - math.log(steps_per_epoch)
        terms = -np.expm1(np.minimum(epsilon - loss, 0.0))
        count, total, squares = count + size, total + float(terms.sum()), squares + float(terms @ terms)
    mean = total / count
    variance = max(squares - count * mean**2, 0.0) / (count - 1)
    log_term = math.log(4 / (1 - confidence))
    bernstein = math.sqrt(2 * variance * (log_term + math.log(2)) / count)
    bernstein += 7 * (log_term + math.log(2)) / (3 * (count - 1))
    width = min(bernstein, math.sqrt(log_term / (2 * count)))
    return MonteCarloEstimate(
        estimate=mean,
        lower=max(0.0, mean - width),
        upper=min(1.0, mean + width),
        confidence=confidence,
        num_samples=count,
    )
