"""Shuffled DP-SGD from above, by hiding among the clones: Feldman, McMillan and Talwar, arXiv 2012.12803.

How one epoch of S shuffled batches becomes S shuffled local reports. Say the differing example sits in slot
j of its batch. Given which rows share slot j, and where all other rows are, the S rows of slot j, one per
batch, are in uniformly random order. Batch t, with everything before it fixed, is a randomizer of its row of
slot j, and exchanging that row for another moves the clipped sum by at most 2: it is (eps0, delta0)-DP under
replacement, with eps0 that of a Gaussian mechanism of noise sigma / 2. Zeroing the row moves it by at most 1.
So Theorem 3.8 there applies with n = S: the epoch is (eps, delta + (e^eps + 1) (1 + e^-eps0 / 2) S delta0)-DP
where delta is the divergence of the clones pair of Theorem 3.2,

    C ~ Bin(S - 1, e^-eps0),    A ~ Bin(C, 1/2),    D ~ Bern(e^eps0 / (e^eps0 + 1)),
    P = (A + D, C - A + 1 - D),    Q = (A + 1 - D, C - A + D).

Several epochs need independent shuffles: then the clones pairs compose, and the failures, each a distance in
total variation on either side, add up. For a shuffle that persists nothing is claimed beyond one epoch.
"""

import math
from functools import lru_cache

import numpy as np
from scipy.optimize import brentq, minimize_scalar
from scipy.special import betainc

from truebatch.accounting.bounds import DeltaCurve, Direction
from truebatch.accounting.deterministic import log_delta_gaussian
from truebatch.accounting.hockey_stick import connect_the_dots
from truebatch.accounting.lattice import LatticeLoss
from truebatch.accounting.lognormal import Array
from truebatch.errors import InvalidArgument

_CELLS = (
    4000  # values or ranges of C in one sum; a range counts at its smallest value, where delta is largest
)
_CELLS_COMPOSED = 200
_STRIKES = 250  # epsilons from 0 to eps0 at which one epoch's curve is taken before composing
_ROUNDING = (
    1e-9  # relative: two incomplete beta functions of relative error 1e-13 that cancel to 3 or 4 digits
)
_LARGEST_EPS0 = 40.0  # beyond, clones are so rare that nothing is gained at any number of steps
_TOLERANCE = 1e-5


def clones_upper_curves(*, steps_per_epoch: int, num_epochs: int) -> tuple[DeltaCurve, ...]:
    """The rigorous bound: one upper curve, for zeroing-out and for replacement alike.

    Direction: upper. log(delta) = 0 where nothing is shown. With more than one epoch it holds for dynamic
    shuffles only. The best delta0 is searched for; every delta0 gives a bound.

    Departure: Appendix C of arXiv 2411.04205 leaves out the failure term, and takes sensitivity 1.
    """
    if steps_per_epoch < 1 or num_epochs < 1:
        raise InvalidArgument(
            "steps_per_epoch and num_epochs must be at least 1; "
            f"got steps_per_epoch={steps_per_epoch}, num_epochs={num_epochs}."
        )
    S, E = steps_per_epoch, num_epochs

    def log_delta(sigma: float, epsilon: float) -> float:
        def total(log_delta0: float) -> float:
            return _log_delta_at(sigma, epsilon, log_delta0, S, E)

        lowest = max(log_delta_gaussian(sigma=sigma / 2, epsilon=_LARGEST_EPS0), -600.0)
        highest = min(log_delta_gaussian(sigma=sigma / 2, epsilon=0.0), -math.log(S * E)) - 1e-9
        if lowest >= highest:
            return 0.0
        best = minimize_scalar(
            total, bounds=(lowest, highest), method="bounded", options={"xatol": 1e-3 if E == 1 else 0.03}
        )
        return min(float(best.fun), 0.0)

    curve = DeltaCurve(
        log_delta=log_delta,
        direction=Direction.UPPER,
        source="hiding among the clones (arXiv 2012.12803, Theorems 3.2 and 3.8), sensitivity 2",
        tolerance=_TOLERANCE if E == 1 else 1e-3,
        dear=E > 1,
    )
    return (curve,)


def _log_delta_at(sigma: float, epsilon: float, log_delta0: float, steps: int, epochs: int) -> float:
    """The bound at one delta0; above 0 where it says nothing, so that a search still sees a slope."""
    eps0 = _gaussian_epsilon(sigma=sigma / 2, log_delta=log_delta0)
    failure = math.log(steps * epochs) + log_delta0 + math.log1p(0.5 * math.exp(-eps0))
    failure += float(np.logaddexp(epsilon, 0.0))
    if epochs == 1:
        amplified = log_delta_clones(epsilon=epsilon, eps0=eps0, num_reports=steps)
    else:
        amplified = _composed(eps0, steps).log_delta(copies=epochs, epsilon=epsilon, upward=True)
    return float(np.logaddexp(amplified, failure))


def _gaussian_epsilon(*, sigma: float, log_delta: float) -> float:
    """The smallest epsilon at which a Gaussian mechanism has this delta, rounded up."""

    def excess(epsilon: float) -> float:
        return log_delta_gaussian(sigma=sigma, epsilon=epsilon) - log_delta

    if excess(0.0) <= 0:
        return 0.0
    high = 1.0
    while excess(high) > 0:
        high *= 2
    return float(brentq(excess, 0.0, high, xtol=1e-13)) * (1 + 1e-9) + 1e-12


def log_delta_clones(*, epsilon: float, eps0: float, num_reports: int, cells: int = _CELLS) -> float:
    """log D_eps(P || Q) of the clones pair of n reports; exact but for rounding up.

    Given C = c, with b the probabilities of Bin(c, 1/2), the likelihood ratio grows with U = A + D, and

        D_eps = c1 P(A >= k - 1) - c2 P(A >= k),  c1 = (e^eps0 - e^eps) / (e^eps0 + 1),
                                                  c2 = (e^(eps0 + eps) - 1) / (e^eps0 + 1),

    where k is the smallest value of U whose ratio exceeds e^eps. It falls with c, as clones are noise, so
    ranges of c count at their lower end. Both directions are the same, by symmetry.

    Departure: the authors' published code takes `max(deltaq_upperc, deltaq_upperc)` for the maximum over the
    two ends of a range of c; the second should be `deltaq_lowerc`.

    Direction: upper, by a relative 1e-9 and, from some thousands of reports on, by ranges of c narrower than
    a fiftieth of a standard deviation.

    >>> round(math.exp(log_delta_clones(epsilon=0.5, eps0=1.0, num_reports=1)), 6)  # randomized response
    0.287649
    """
    if eps0 <= epsilon:
        return -math.inf
    prob = math.exp(-eps0)
    starts, log_weight = _clone_counts(num_reports - 1, prob, cells)
    delta = _delta_given_clones(starts, epsilon, eps0)
    total = float(np.exp(log_weight) @ delta)
    return min(math.log(total) + _ROUNDING, 0.0) if total > 0 else -math.inf


def _delta_given_clones(clones: Array, epsilon: float, eps0: float) -> Array:
    """D_eps given C = c, for each c."""
    # e^-eps0 is taken out of both coefficients
    small = math.exp(-eps0)
    first = -math.expm1(epsilon - eps0) / (1 + small)
    second = (math.exp(epsilon) - small) / (1 + small)
    k = np.floor((clones + 1) * (second / (first + second))) + 1
    delta = first * _half_tail(clones, k - 1) - second * _half_tail(clones, k)
    return np.maximum(delta, 0.0)


def _half_tail(count: Array, least: Array) -> Array:
    """P(Bin(count, 1/2) >= least)."""
    inside = (least >= 1) & (least <= count)
    value = betainc(np.where(inside, least, 1.0), np.where(inside, count - least + 1, 1.0), 0.5)
    return np.asarray(np.where(inside, value, np.where(least < 1, 1.0, 0.0)))


def _clone_counts(trials: int, prob: float, cells: int) -> tuple[Array, Array]:
    """Lower ends of ranges that cover 0..trials, and the log-probability of Bin(trials, prob) in each."""
    mean = trials * prob
    deviation = math.sqrt(mean * (1 - prob))
    reach = 40 if cells >= _CELLS else 12  # deviations; what is below counts as no clones at all
    low = max(0, math.floor(mean - reach * deviation - 40))
    high = min(trials, math.ceil(mean + 12 * deviation + 40))
    starts = np.unique(np.concatenate([[0.0], np.floor(np.linspace(low, high, min(cells, high - low + 1)))]))
    ends = np.append(starts[1:] - 1, trials)
    # From the smaller tail, so that the difference keeps its digits: P(C <= e) - P(C < s), or the other way.
    at_most = _binomial_cdf(trials, prob, ends) - _binomial_cdf(trials, prob, starts - 1)
    at_least = _binomial_sf(trials, prob, starts - 1) - _binomial_sf(trials, prob, ends)
    with np.errstate(divide="ignore"):
        return starts, np.log(np.maximum(np.where(starts < mean, at_most, at_least), 0.0))


def _binomial_cdf(trials: int, prob: float, value: Array) -> Array:
    """P(Bin(trials, prob) <= value)."""
    inside = (value >= 0) & (value < trials)
    tail = betainc(np.where(inside, trials - value, 1.0), np.where(inside, value + 1, 1.0), 1 - prob)
    return np.asarray(np.where(inside, tail, np.where(value < 0, 0.0, 1.0)))


def _binomial_sf(trials: int, prob: float, value: Array) -> Array:
    """P(Bin(trials, prob) > value)."""
    inside = (value >= 0) & (value < trials)
    tail = betainc(np.where(inside, value + 1, 1.0), np.where(inside, trials - value, 1.0), prob)
    return np.asarray(np.where(inside, tail, np.where(value < 0, 1.0, 0.0)))


@lru_cache(maxsize=64)
def _composed(eps0: float, steps: int) -> LatticeLoss:
    """One epoch's loss on a lattice, dominating the clones pair.

    It is within [-eps0, eps0], and both directions are the same: the pair is its own mirror image, so that
    E_Q[(a - dP/dQ)_+] = a H(1 / a).
    """
    spacing = eps0 / _STRIKES
    epsilons = [spacing * j for j in range(_STRIKES)]
    starts, log_weight = _clone_counts(steps - 1, math.exp(-eps0), _CELLS_COMPOSED)
    delta = np.asarray([np.exp(log_weight) @ _delta_given_clones(starts, e, eps0) for e in epsilons])
    with np.errstate(divide="ignore"):
        log_call = np.append(np.log(delta) + _ROUNDING, -np.inf)
    log_put = log_call - spacing * np.arange(_STRIKES + 1)
    return connect_the_dots(log_call=log_call, log_put=log_put, spacing=spacing)[0]


def sigma_clones_optimistic(*, epsilon: float, delta: float, steps_per_epoch: int, delta0: float) -> float:
    """The noise that the optimistic reading of Appendix C of arXiv 2411.04205 asks for in one epoch.

    eps0 is that of a Gaussian mechanism of sensitivity 1 at delta0, the clones pair is held to all of delta,
    and the failure term is left out. The text says delta0 = delta / n; "vacuous from batches of 2,048 on", as
    it finds, is what delta0 = delta / S gives.

    Direction: none. Nothing may be claimed from it; for drawing that figure only.

    >>> S, delta = 35813, 2.7e-8
    >>> round(sigma_clones_optimistic(epsilon=5.0, delta=delta, steps_per_epoch=S, delta0=delta / S), 4)
    1.0444
    """
    if not (epsilon > 0 and 0 < delta < 1 and 0 < delta0 < 1 and steps_per_epoch >= 1):
        raise InvalidArgument(
            "epsilon must be positive, delta and delta0 in (0, 1) and steps_per_epoch at least 1; got "
            f"epsilon={epsilon}, delta={delta}, delta0={delta0}, steps_per_epoch={steps_per_epoch}."
        )

    def excess(eps0: float) -> float:
        return max(
            log_delta_clones(epsilon=epsilon, eps0=eps0, num_reports=steps_per_epoch), -800.0
        ) - math.log(delta)

    high = 2 * epsilon
    while excess(high) < 0 and high < epsilon + 1000:
        high *= 2
    eps0 = float(brentq(excess, epsilon, high, xtol=1e-10)) if excess(high) > 0 else high

    def too_large(log_sigma: float) -> float:
        return log_delta_gaussian(sigma=math.exp(log_sigma), epsilon=eps0) - math.log(delta0)

    return math.exp(float(brentq(too_large, -12.0, 40.0, xtol=1e-12)))
