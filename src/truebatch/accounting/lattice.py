"""Composition of privacy losses on a lattice, with every error counted on the stated side.

A loss L with values on first + spacing * {0, 1, ...} is composed E times by the Fourier transform, after
tilting its law by e^(cL) to the saddle point c, so that the part of the sum that decides delta is where the
tilted mass is:

    delta = M(c)^E sum_k W_k e^(-c l_k) (1 - e^(epsilon - l_k))_+,   W the E-th convolution power of p e^(cL)
    / M(c).

Two things stand between the computed W and the true one, and both are bounded and put on the stated side:

  - wrap-around: the transform is cyclic, so tilted mass outside the window is added inside. That mass is at
    most a Chernoff bound, and no mass weighs more than the largest payoff;
  - rounding in the transform: a relative l2 error of at most about 7 u log2 N (Higham, Accuracy and Stability
    of Numerical Algorithms, 2nd edition, Theorem 24.2), carried through the E-th power; Cauchy and Schwarz
    weigh it.

Unbounded, either one can pass for privacy loss that is not there.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt
from scipy.fft import irfft, next_fast_len, rfft
from scipy.optimize import brentq

Array = npt.NDArray[np.float64]

_ULP = float(np.finfo(np.float64).eps)
# 4 eps = 8 u per level covers Theorem 24.2's 6.7 u; mixed radices of the transform only lower the number of
# levels.
_FFT_ERROR_PER_LEVEL = 4 * _ULP
# Tilted mass left outside the window: far below the transform's own noise, and cheap (the window grows as its
# root).
_LOG_ALIAS_AIM = -42.0
# Above this many points a window is cut short and its aliases, bounded as always, make the answer weaker.
_MAX_POINTS = 2**22


def log_sum_exp(exponents: Array) -> float:
    """Log of the sum of e^exponents; at least one must be finite."""
    largest = float(exponents.max())
    return largest + math.log(float(np.exp(exponents - largest).sum()))


@dataclass(frozen=True, kw_only=True)
class Convolution:
    """A convolution of laws on the integers, in a window, with what may be wrong with it.

    `probs[i]` is the mass at `first + i`, up to two errors: mass of at most `alias` in total that does not
    belong where it stands (never negative), and an error vector of l2 norm at most `noise`. Mass outside the
    window is at most `alias`.
    """

    probs: Array
    first: int
    alias: float
    noise: float


def convolution_power(
    weights: Array, copies: int, *, factors: Sequence[Array] = (), log_alias: float = _LOG_ALIAS_AIM
) -> list[Convolution]:
    """Law of a sum of `copies` draws from `weights` on {0, 1, ...} and one from each factor in turn.

    Returns one convolution per factor, all in one window, or without factors the plain power. Weights and
    factors are non-negative and sum to at most 1. The window is made wide enough for an alias of about
    e^log_alias.
    """
    first, size, alias = _window(weights, copies, log_alias, widest=max((len(f) for f in factors), default=1))
    levels = _FFT_ERROR_PER_LEVEL * math.log2(max(size, 2))
    base = rfft(_folded(weights, size))
    power = _integer_power(base, copies)
    carried = levels * copies * float(np.linalg.norm(weights))
    results = []
    for factor in factors or (None,):
        product = power if factor is None else power * rfft(_folded(factor, size))
        probs = np.roll(irfft(product, n=size), -(first % size))
        own = 0.0 if factor is None else levels * float(np.linalg.norm(factor))
        # One multiplication of complex numbers errs by at most sqrt(5) u; a power by squaring, by as many as
        # `copies`.
        noise = carried + own + (levels + 3 * (copies + 1) * _ULP) * float(np.linalg.norm(probs))
        results.append(Convolution(probs=probs, first=first, alias=alias, noise=noise))
    return results


def _integer_power(base: npt.NDArray[np.complex128], exponent: int) -> npt.NDArray[np.complex128]:
    """Integer power by squaring: its rounding is known, that of a complex `pow` is not."""
    result, square = np.ones_like(base), base
    while exponent:
        if exponent & 1:
            result = result * square
        exponent >>= 1
        if exponent:
            square = square * square
    return result


def _folded(weights: Array, size: int) -> Array:
    """Weights added up modulo `size`."""
    padded = np.zeros(-(-len(weights) // size) * size)
    padded[: len(weights)] = weights
    return np.asarray(padded.reshape(-1, size).sum(axis=0))


def _window(weights: Array, copies: int, log_alias: float, *, widest: int) -> tuple[int, int, float]:
    """First index, length and alias bound of a window that holds all but about e^log_alias of the sum.

    Factors of up to `widest` points may move the sum right by widest - 1.
    """
    index = np.arange(len(weights), dtype=np.float64)
    mass = float(weights.sum())
    mean = float(weights @ index) / mass
    deviation = math.sqrt(max(float(weights @ (index - mean) ** 2) / mass * copies, 1.0))
    # Tilts that suit a Gaussian sum, and those that suit one ruled by a few steps of the full range.
    gaussian, steep = math.sqrt(-2 * log_alias) / deviation, -log_alias / len(weights)
    heights = np.concatenate((gaussian * 2.0 ** np.arange(-3, 4), steep * 2.0 ** np.arange(-3, 2)))
    with np.errstate(divide="ignore"):
        log_weights = np.log(weights)
    above = np.array([copies * log_sum_exp(log_weights + h * (index - mean)) for h in heights])
    below = np.array([copies * log_sum_exp(log_weights - h * (index - mean)) for h in heights])
    centre, top = round(copies * mean), copies * (len(weights) - 1)
    reach_up = max(math.ceil(np.min((above - log_alias) / heights)), 0) + 1
    reach_down = max(math.ceil(np.min((below - log_alias) / heights)), 0) + 1
    low, high = max(centre - reach_down, 0), min(centre + reach_up, top)
    if high - low + widest > _MAX_POINTS:
        shrink = max(_MAX_POINTS - widest, 1) / (high - low)
        low, high = centre - int((centre - low) * shrink), centre + int((high - centre) * shrink)
    log_above = -math.inf if high == top else float(np.min(above - heights * (high - copies * mean)))
    log_below = -math.inf if low == 0 else float(np.min(below - heights * (copies * mean - low)))
    size = int(next_fast_len(high - low + widest, real=True))
    return low, size, min(math.exp(min(log_above, 0.0)) + math.exp(min(log_below, 0.0)), 1.0)


@dataclass(frozen=True, kw_only=True)
class LatticeLoss:
    """The law, under the first of a pair (P, Q), of one copy's privacy loss log(P/Q), on a lattice.

    `log_prob[i]` is the log of the P-mass at loss `first + i * spacing`; `log_infinite` that of the mass at
    infinity. Mass that is missing (the total may be below 1) counts as loss -infinity, that is, as nothing.
    """

    log_prob: Array
    first: float
    spacing: float
    log_infinite: float = -math.inf

    @classmethod
    def rounded(
        cls, *, log_prob: Array, loss: Array, spacing: float, offset: float = 0.0, upward: bool
    ) -> Self:
        """Losses (finite, in any order) moved to the lattice offset + spacing * integers, all up or all down.

        Moving up gives an upper bound of every delta, moving down a lower bound: E[(1 - e^(epsilon - L))_+]
        grows with L.
        """
        steps = (loss - offset) / spacing
        index = (np.ceil(steps) if upward else np.floor(steps)).astype(np.int64)
        order = np.argsort(index, kind="stable")
        values, starts = np.unique(index[order], return_index=True)
        merged = np.full(int(values[-1] - values[0]) + 1, -np.inf)
        merged[values - values[0]] = np.logaddexp.reduceat(log_prob[order], starts)
        return cls(log_prob=merged, first=offset + spacing * int(values[0]), spacing=spacing)

    def log_delta(self, *, copies: int, epsilon: float, upward: bool, tilt: float | None = None) -> float:
        """Log of delta(epsilon) of `copies` independent copies, rounded up or down.

        Direction: upper if `upward`, else lower; -inf when the lower bound is 0. See the module's docstring
        for what is counted. Not counted: rounding of the input itself, and of sums of positive numbers
        (1e-13). `tilt` may be given when it is known about where the saddle point is: any c > 0 is valid.

        >>> coin = LatticeLoss(log_prob=np.log([0.25, 0.75]), first=-math.log(3), spacing=2 * math.log(3))
        >>> round(math.exp(coin.log_delta(copies=2, epsilon=1.0, upward=False)), 9)  # 9/16 (1 - e/9)
        0.392607386
        """
        finite = self._log_delta_finite(copies, epsilon, upward, tilt)
        if self.log_infinite == -math.inf:
            return min(finite, 0.0)
        log_all_finite = copies * float(np.log1p(-np.exp(min(self.log_infinite, -_ULP))))
        log_some_infinite = (
            float(np.log(-np.expm1(log_all_finite)))
            if log_all_finite < -1e-300
            else (self.log_infinite + math.log(copies))
        )
        return min(float(np.logaddexp(finite, log_some_infinite)), 0.0)

    def _log_delta_finite(self, copies: int, epsilon: float, upward: bool, tilt: float | None) -> float:
        held = np.flatnonzero(self.log_prob > -np.inf)
        if not len(held):
            return -math.inf
        log_prob = self.log_prob[held[0] : held[-1] + 1]
        # Losses relative to epsilon / E, so that no large numbers are left to cancel in M(c)^E e^(-c
        # epsilon).
        first = (self.first + self.spacing * int(held[0])) - epsilon / copies
        excess = first + self.spacing * np.arange(len(log_prob), dtype=np.float64)
        if copies * excess[-1] <= 0.0:
            return -math.inf
        if tilt is None:
            tilt = saddle_point(log_prob, excess, copies=copies)
        exponents = log_prob + tilt * excess
        log_mass = log_sum_exp(exponents)
        weights = np.exp(exponents - log_mass)
        if copies == 1:
            law = Convolution(probs=weights, first=0, alias=0.0, noise=0.0)
        else:
            law = convolution_power(weights, copies)[0]
        margins = copies * first + self.spacing * (law.first + np.arange(len(law.probs), dtype=np.float64))
        payoffs, largest = _payoffs(margins, tilt)
        error = law.alias * largest + law.noise * float(np.linalg.norm(payoffs))
        total = float(law.probs @ payoffs) + (error if upward else -error)
        return copies * log_mass + math.log(total) if total > 0.0 else -math.inf


def saddle_point(log_prob: Array, excess: Array, *, copies: int) -> float:
    """Minimiser c > 0 of E log M(c) - log(c (c + 1)), M the moment generating function of the excess loss.

    The logarithm of the integrand of delta's inversion integral at the real c; any c is valid as a tilt, this
    one puts the tilted mass where delta is decided. Needs max(excess) > 0.
    """

    def slope(log_c: float) -> float:
        c = math.exp(log_c)
        exponents = log_prob + c * excess
        weights = np.exp(exponents - exponents.max())
        return copies * float(weights @ excess) / float(weights.sum()) - 1 / c - 1 / (c + 1)

    low, high = -45.0, 45.0
    if slope(high) <= 0.0:
        return math.exp(high)
    if slope(low) >= 0.0:
        return math.exp(low)
    return math.exp(brentq(slope, low, high, xtol=1e-6))


def _payoffs(margins: Array, tilt: float) -> tuple[Array, float]:
    """e^(-c y) (1 - e^(-y))_+ at the margins y = loss - epsilon, and its largest value over all y."""
    y = np.maximum(margins, 0.0)
    largest = math.exp(-tilt * math.log1p(1 / tilt)) / (1 + tilt)
    with np.errstate(under="ignore"):
        return -np.exp(-tilt * y) * np.expm1(-y), largest
