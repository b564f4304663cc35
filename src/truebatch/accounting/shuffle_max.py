"""The largest coordinate of the shuffle pair: its laws, its loss, and the best event made of it.

One epoch of a shuffle, with S steps and noise s, is at least as revealing as the pair (section 3 of arXiv
2411.04205)

    P = (1/S) sum_t N(a e_t, s^2 I),   Q = (1/S) sum_t N(c e_t, s^2 I),   a = 2, c = 1 (zeroing out) or 0
    (replacing).

Write F_b(C) = Phi((C - b)/s) Phi(C/s)^(S-1) for the law of max_t w_t when the raised coordinate has centre b.
The density ratio of the maximum, `loss`, has two properties that carry everything below. With r_b the ratio
of the inverse Mills ratios at (C - b)/s and C/s,

    loss(C) = log Phi((C-a)/s) - log Phi((C-c)/s) + log(r_a + S - 1) - log(r_c + S - 1),

  - it increases with C: log Phi(u)' falls and u + Phi'(u)/Phi(u) grows with u, so both differences grow;
  - x - log S <= loss(C) <= x, where x = (a - c)(C - (a + c)/2) / s^2 is the loss of a lone coordinate (S =
    1).

So by Neyman and Pearson the best event of the maximum at level epsilon is a threshold, found in a known
bracket of width log S. A threshold that is a little off costs accuracy to second order and validity never.
"""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.optimize import brentq
from scipy.special import erfcx, log_ndtr

from truebatch.accounting.bounds import Adjacency, Number
from truebatch.errors import UnknownAnalysis

Array = npt.NDArray[np.float64]

RAISED_CENTRE = 2.0
_LOWERED_CENTRE = {Adjacency.ZERO_OUT: 1.0, Adjacency.REPLACE_ONE: 0.0}
_ULP = float(np.finfo(np.float64).eps)


def log1mexp(z: Number) -> Array:
    """log(1 - e^z) for z <= 0, to full relative precision (Maechler 2012); -inf at z = 0."""
    z = np.asarray(z, dtype=np.float64)
    with np.errstate(divide="ignore", under="ignore"):
        near = np.log(-np.expm1(np.maximum(z, -1.0)))
        return np.where(z > -math.log(2), near, np.log1p(-np.exp(np.minimum(z, -0.5))))


def _log_mills(u: Number) -> Array:
    """Log Phi(u) + u^2/2, without cancellation where u is negative."""
    u = np.asarray(u, dtype=np.float64)
    left = np.log(erfcx(-np.minimum(u, 0.0) / math.sqrt(2)) / 2)
    right = np.maximum(u, 0.0)
    return np.where(u <= 0, left, log_ndtr(right) + right * right / 2)


def log_ndtr_ratio(u: Number, v: Number, half_gap: Number) -> Array:
    """Log Phi(u) - log Phi(v), given half_gap = (v^2 - u^2)/2 from an exact difference of squares."""
    u, v = np.asarray(u, dtype=np.float64), np.asarray(v, dtype=np.float64)
    far = np.minimum(u, v) <= 0
    return np.where(far, half_gap + _log_mills(u) - _log_mills(v), log_ndtr(u) - log_ndtr(v))


@dataclass(frozen=True, kw_only=True)
class MaxStatistic:
    """max_t w_t under (P, Q), as functions of x, the loss of a lone coordinate at the threshold.

    Direction: exact. Thresholds are named by x rather than C because x keeps its digits when s is large.
    """

    steps_per_epoch: int
    scale: float
    adjacency: Adjacency = Adjacency.ZERO_OUT

    def __post_init__(self) -> None:
        if self.adjacency not in _LOWERED_CENTRE:
            raise UnknownAnalysis(
                f"no lower bound is known for shuffles under {self.adjacency} adjacency.",
                hint="use zero-out or replace-one.",
            )

    @property
    def lowered_centre(self) -> float:
        """The centre of the special coordinate under Q (c in the formulas)."""
        return _LOWERED_CENTRE[self.adjacency]

    def threshold(self, x: Number) -> Array:
        """C, from the loss x = (a - c)(C - (a + c)/2)/s^2."""
        a, c = RAISED_CENTRE, self.lowered_centre
        return (a + c) / 2 + self.scale**2 * np.asarray(x, dtype=np.float64) / (a - c)

    def lone_loss(self, threshold: Number) -> Array:
        """x, from C."""
        a, c = RAISED_CENTRE, self.lowered_centre
        return (a - c) * (np.asarray(threshold, dtype=np.float64) - (a + c) / 2) / self.scale**2

    def log_cdf(self, x: Number, *, centre: float) -> Array:
        """Log F_b(C): the maximum stays at or below C when the special coordinate has centre b."""
        C, s = self.threshold(x), self.scale
        return log_ndtr((C - centre) / s) + self._log_others(C)

    def log_sf(self, x: Number, *, centre: float) -> Array:
        """log(1 - F_b(C)), precise also where F_b rounds to 1."""
        C, s = self.threshold(x), self.scale
        others = self.steps_per_epoch - 1
        tail = log_ndtr((centre - C) / s)
        if others:
            tail = np.logaddexp(tail, math.log(others) + log_ndtr(-C / s))
        log_cdf = self.log_cdf(x, centre=centre)
        return np.where(log_cdf > -1e-100, tail, log1mexp(np.minimum(log_cdf, -1e-300)))

    def _log_others(self, threshold: Array) -> Array:
        return np.asarray((self.steps_per_epoch - 1) * log_ndtr(threshold / self.scale))

    def _log_some_other(self, x: float) -> float:
        """Log of 1 - Phi(C/s)^(S-1), also where Phi(-C/s) is below the smallest double."""
        C, others = float(self.threshold(x)), self.steps_per_epoch - 1
        if others == 0:
            return -math.inf
        log_one = math.log(others) + float(log_ndtr(-C / self.scale))
        return log_one if log_one < -600.0 else float(log1mexp(float(self._log_others(np.asarray(C)))))

    def _log_raise(self, threshold: Array, centre: float) -> Array:
        """Log r_b: the inverse Mills ratio at (C - b)/s over that at C/s."""
        s, C = self.scale, threshold
        far = np.minimum(C, C - centre) <= 0
        near = centre * (C - centre / 2) / s**2 + log_ndtr(C / s) - log_ndtr((C - centre) / s)
        return np.where(far, _log_mills(C / s) - _log_mills((C - centre) / s), near)

    def loss(self, x: Number) -> Array:
        """Log of the density of max_t w_t under P over that under Q, at C; increasing in x."""
        a, c, s, S = RAISED_CENTRE, self.lowered_centre, self.scale, self.steps_per_epoch
        C, x = self.threshold(x), np.asarray(x, dtype=np.float64)
        if S == 1:
            return x
        loss = log_ndtr_ratio((C - a) / s, (C - c) / s, x) + _log_mean_raise(self._log_raise(C, a), S)
        return loss if c == 0.0 else np.asarray(loss - _log_mean_raise(self._log_raise(C, c), S))

    def solve(self, loss: float) -> float:
        """Lone loss x at which the maximum has this loss, to rounding."""
        low, high = loss, loss + math.log(self.steps_per_epoch)
        if self.steps_per_epoch == 1 or float(self.loss(low)) >= loss:
            return low
        if float(self.loss(high)) <= loss:
            return high
        xtol = 1e-13 / max(self.scale, 1.0)  # the loss varies by about 1/s: finer is rounding
        return float(brentq(lambda x: float(self.loss(x)) - loss, low, high, xtol=xtol, rtol=8 * _ULP))

    def log_gap(self, x: float, epsilon: float) -> float:
        """Log of Phi((a - C)/s) - e^epsilon Phi((c - C)/s): what a lone coordinate above C gives away."""
        # Distances from the midpoint, not C itself: (a + c)/2 would cost the digits of a small s^2 x.
        half = (RAISED_CENTRE - self.lowered_centre) / (2 * self.scale)
        shift = x / (2 * half)
        p, q = half - shift, -half - shift
        if q > 0:
            exponent = epsilon + float(log_ndtr(q) - log_ndtr(p))
        else:
            exponent = (epsilon - x) + float(_log_mills(q) - _log_mills(p))
        if exponent >= 0.0:
            return -math.inf
        return float(log_ndtr(p)) + float(log1mexp(exponent))

    def log_above(self, x: float, epsilon: float) -> float:
        """Log of P(max > C) - e^epsilon Q(max > C), or -inf where that is not positive.

        With A = Phi(C/s)^(S-1) it is A (p - e^epsilon q) - (e^epsilon - 1)(1 - A), where p - e^epsilon q is
        `log_gap`: no difference of nearly equal numbers is left but the one that decides.
        """
        log_others = float(self._log_others(self.threshold(x)))
        gain = log_others + self.log_gap(x, epsilon)
        if gain == -math.inf or epsilon == 0.0:
            return gain
        cost = epsilon + float(log1mexp(-epsilon)) + self._log_some_other(x)
        return gain + float(log1mexp(cost - gain)) if cost < gain else -math.inf

    def log_below(self, x: float, epsilon: float) -> float:
        """Log of Q(max <= C) - e^epsilon P(max <= C), or -inf where that is not positive.

        A lone coordinate below C is one above C mirrored at the midpoint, so this is A times `log_gap` at -x.
        """
        return float(self._log_others(self.threshold(x))) + self.log_gap(-x, epsilon)

    def log_delta(self, epsilon: float) -> float:
        """Log of max over C of P(G) - e^epsilon Q(G) and of Q(G') - e^epsilon P(G'), G' the complement."""
        above = self.log_above(self.solve(epsilon), epsilon)
        below = self.log_below(self.solve(-epsilon), epsilon)
        return min(max(above, below), 0.0)


def _log_mean_raise(log_raise: Array, steps: int) -> Array:
    """log((r + S - 1)/S) for r >= 1, precise both near r = 1 and where r overflows."""
    small = np.log1p(np.expm1(np.minimum(log_raise, 600.0)) / steps)
    return np.where(log_raise < 600.0, small, log_raise - math.log(steps))
