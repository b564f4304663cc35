"""The T-fold composition of a pair of distributions, by one contour integral.

For a pair (P, Q) with loss L = log(dP/dQ) under P and K(z) = log E_P[e^(zL)],

    D_eps(P^T || Q^T) = E[(1 - e^(eps - L_1 - ... - L_T))_+]
                      = 1/(2 pi i) * integral over Re z = c of e^(T K(z) - z eps) / (z (z+1)) dz

for any c > 0. We take c at the saddle point, where nothing cancels, so that the relative error of
delta does not depend on how small delta is, nor on T. How the sum becomes two bounds:

- *Large losses.* Only losses up to a cap are integrated. Where L >= -m always, one loss above
  eps + (T-1) m decides the event alone: such outcomes A contribute P(A) - e^eps Q(A), in closed form.
  A lower cap is taken where the losses above it are too rare to matter: they contribute between 0 and
  P(A). (Rare large losses would otherwise pull the saddle point away from where the mass is.)
- *Step.* The trapezoid rule with step h adds e^(c m R) delta(eps + m R) over m = +-1, +-2, ... with
  R = 2 pi / h. All these aliases are positive, and h is chosen so that Chernoff bounds put them below
  `_ALIAS` of the result.
- *Tail.* A Gaussian mechanism of loss variance mu^2 is composed on top: it multiplies the integrand by
  e^(mu^2 (z + z^2) / 2), which ends the sum. By Ito's formula for the payoff f(l) = (1 - e^-l)_+, whose
  f'' + f' is a point mass at 0, it raises delta by mu^2/2 times the mean over s in (0, 1) of the density
  at eps of the loss with a Gaussian of variance s mu^2 on top, that is by at least nothing and by at most
  e^(mu^2/8) mu^2 p(eps), p the density for s = 1. So both ends are proven, and their distance shrinks
  with mu^2.
- *Quadrature.* K is a sum over nodes whose spacing follows the highest frequency asked for: a rule in x
  with spacing s sees e^(i y l(x)) revive near y l'(x) = 2 pi / s.
"""

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
from threadpoolctl import ThreadpoolController

Array = npt.NDArray[np.float64]
Complex = npt.NDArray[np.complex128]

_ALIAS = 1e-11  # weight of the trapezoid rule's aliases, relative to delta
_SMOOTHING = 1e-9, 1e-8  # mu^2 c (c+1) / 2, about the relative rise of delta: wanted, tolerated
_ROUGH = 1e-3, 1e-2  # the same, for a first look at a divergence that may not matter
_NEGLIGIBLE = 1e-12  # a block of frequencies whose terms are below this ends the sum
_DROPPED = 1e-10  # relative weight of the losses above the cap that may be dropped
_MAX_FREQUENCIES = 1 << 14
_MAX_TILT = 1e5  # times the spread of the losses; beyond it, eps is at the edge of what T losses can reach
_FIRST_BLOCK = 256  # frequencies in the first block; later blocks double
_ROUNDING = 1e-9  # relative error of a settled sum: aliases, quadrature, floating point; seen below 1e-11
_BLAS = ThreadpoolController()


@dataclass(frozen=True, kw_only=True)
class Nodes:
    """A quadrature of one step's loss: sum of weights e^(zL), losses above the cap left out.

    `missing` is the mass left out: the weights sum to 1 - missing.
    """

    log_weight: Array
    loss: Array
    missing: float


class LossModel(Protocol):
    """One step's privacy loss L = log(dP/dQ) under P, increasing in the outcome."""

    @property
    def lowest(self) -> float:
        """The essential infimum of L; -infinity when unbounded."""

    def tail(self, loss: float) -> tuple[float, float]:
        """log P(L > loss) and log Q(L > loss)."""

    def loss_at(self, log_prob: float) -> float:
        """A loss that L exceeds with a probability of at most e^log_prob under P."""

    def capped(self, loss: float) -> "LossModel":
        """The same, with the outcomes whose loss is above this one left out."""

    def nodes(self, *, tilt: float, max_frequency: float) -> Nodes:
        """Nodes for E[e^(zL)] that hold for Re z = tilt, |Im z| <= max_frequency."""


@dataclass(frozen=True, kw_only=True)
class MixtureOfModels:
    """A step that reveals which of two mechanisms it runs: the second one with probability `prob`."""

    first: LossModel
    second: LossModel
    prob: float

    @property
    def lowest(self) -> float:
        """The lower of the two."""
        return min(self.first.lowest, self.second.lowest)

    def tail(self, loss: float) -> tuple[float, float]:
        """Both tails, weighted."""
        (p1, q1), (p2, q2) = self.first.tail(loss), self.second.tail(loss)
        a, b = math.log1p(-self.prob), math.log(self.prob)
        return float(np.logaddexp(p1 + a, p2 + b)), float(np.logaddexp(q1 + a, q2 + b))

    def loss_at(self, log_prob: float) -> float:
        """Half of the probability is left to each."""
        a, b = math.log1p(-self.prob) + math.log(2), math.log(self.prob) + math.log(2)
        return max(self.first.loss_at(min(0.0, log_prob - a)), self.second.loss_at(min(0.0, log_prob - b)))

    def capped(self, loss: float) -> "MixtureOfModels":
        """Both, capped."""
        return MixtureOfModels(first=self.first.capped(loss), second=self.second.capped(loss), prob=self.prob)

    def nodes(self, *, tilt: float, max_frequency: float) -> Nodes:
        """The nodes of both, weighted."""
        one = self.first.nodes(tilt=tilt, max_frequency=max_frequency)
        two = self.second.nodes(tilt=tilt, max_frequency=max_frequency)
        weights = [one.log_weight + math.log1p(-self.prob), two.log_weight + math.log(self.prob)]
        return Nodes(
            log_weight=np.concatenate(weights),
            loss=np.concatenate([one.loss, two.loss]),
            missing=(1 - self.prob) * one.missing + self.prob * two.missing,
        )


@dataclass(frozen=True, kw_only=True)
class LogInterval:
    """Both ends of the logarithm of a divergence."""

    lower: float
    upper: float


def log_divergence(
    *, model: LossModel, copies: int, epsilon: float, at_least: float = -math.inf
) -> LogInterval:
    """log D_eps(P^T || Q^T) with T = `copies`.

    Whoever needs the maximum with a known value says so by `at_least`: where the result is provably
    below it, a cruder upper end is returned, at a fraction of the cost.

    Guarantees:
      - The ends are a relative 1e-7 apart in delta wherever T times the sampling probability is not
        far below 1 and delta is above e^-100000; wider, never crossed, elsewhere.
    """
    decides = epsilon - (copies - 1) * model.lowest if copies > 1 else epsilon
    rarity, lower, upper = 45.0, -math.inf, 0.0
    for _ in range(6):
        cap = min(decides, model.loss_at(-rarity - math.log(copies))) if copies > 1 else decides
        low, high = _log_above(model, cap, cap >= decides, copies, epsilon)
        if copies > 1:
            integral = _Integral(model=model.capped(cap), copies=copies, epsilon=epsilon)
            rest = integral.log_value(beside=low, enough=at_least)
            low, high = float(np.logaddexp(low, rest.lower)), float(np.logaddexp(high, rest.upper))
        lower, upper = max(lower, min(low, 0.0)), min(upper, high)
        if cap >= decides or -rarity < upper + math.log(_DROPPED) or upper < max(at_least, -1e5):
            break
        rarity = max(1.5 * rarity, 25.0 - lower) if lower > upper - 100 else 4 * rarity
    return LogInterval(lower=lower, upper=upper)


def _log_above(
    model: LossModel, cap: float, decided: bool, copies: int, epsilon: float
) -> tuple[float, float]:
    """log of what the outcomes with a loss above the cap contribute, from below and above."""
    if cap == math.inf:
        return -math.inf, -math.inf
    log_p, log_q = model.tail(cap)
    if decided:
        value = _log_decided(log_p, log_q, copies, epsilon)
        return value, value
    return -math.inf, _log_any(log_p, copies)


def _log_decided(log_p: float, log_q: float, copies: int, epsilon: float) -> float:
    """log(P(A) - e^eps Q(A)) where A says that at least one of the losses is in the tail."""
    log_pa, log_qa = _log_any(log_p, copies), _log_any(log_q, copies)
    gap = epsilon + log_qa - log_pa if log_pa > -math.inf else 0.0
    return log_pa + math.log(-math.expm1(gap)) if gap < 0 else -math.inf


def _log_any(log_p: float, copies: int) -> float:
    """log(1 - (1 - p)^T)."""
    if log_p < -700 - math.log(copies):
        return log_p + math.log(copies)
    p = math.exp(log_p)
    if p >= 1:  # to the last bit, which log_p may be above or below
        return 0.0
    log_none = copies * math.log1p(-p)
    return math.log(-math.expm1(log_none)) if log_none < 0 else -math.inf


@dataclass(frozen=True)
class _Moments:
    """K, K' and K'' at a real point."""

    log_mgf: float
    mean: float
    variance: float
    spread: float  # from the smallest to the largest loss kept


@dataclass(frozen=True, kw_only=True)
class _Integral:
    """E[(1 - e^(eps - L_1 - ... - L_T))_+] over the outcomes that the model's cap leaves in."""

    model: LossModel
    copies: int
    epsilon: float

    def log_value(self, *, beside: float, enough: float) -> LogInterval:
        """Its logarithm; only Chernoff's bound when that is negligible beside e^beside or below e^enough."""
        T, eps = self.copies, self.epsilon
        floor = max(beside - 32, enough, -1e5)
        c, moments = self._saddle(floor)
        log_front = T * moments.log_mgf - c * eps
        chernoff = log_front + _log_payoff_peak(c)
        if chernoff < floor:
            return LogInterval(lower=-math.inf, upper=chernoff)
        variance = T * moments.variance + 1 / c**2 + 1 / (1 + c) ** 2
        log_part = log_front - math.log(c * (1 + c)) - 0.5 * math.log(2 * math.pi * variance)
        step = self._step(c, max(log_part, beside))
        share = math.exp(min(0.0, log_part - beside)) if beside > -math.inf else 1.0
        with _BLAS.limit(limits=1, user_api="blas"):
            total, rise = self._sum(c, step, share, _ROUGH if enough > -math.inf else _SMOOTHING)
            log_total = math.log(total) if total > 0 else math.inf
            if enough > -math.inf and log_front + math.log(step / (2 * math.pi)) + log_total >= enough - 1e-6:
                total, rise = self._sum(c, step, share, _SMOOTHING)
        if total <= 0:  # rounding, where the sum could not be settled
            return LogInterval(lower=-math.inf, upper=chernoff)
        log_scale = log_front + math.log(step / (2 * math.pi))
        low = total * (1 - _ROUNDING) - rise
        return LogInterval(
            lower=log_scale + math.log(low) if low > 0 else -math.inf,
            upper=min(log_scale + math.log(total) + _ROUNDING, chernoff),
        )

    def _moments(self, c: float) -> _Moments:
        nodes = self.model.nodes(tilt=c, max_frequency=0.0)
        exponent = c * nodes.loss
        if exponent.max() < 30:  # K is near 0: sum what differs from 1, so that T K keeps its digits
            weight = np.exp(nodes.log_weight)
            log_mgf = math.log1p(float(np.dot(weight, np.expm1(exponent))) - nodes.missing)
            tilted = weight * np.exp(exponent - log_mgf)
        else:
            log_tilted = nodes.log_weight + exponent
            top = float(log_tilted.max())
            tilted = np.exp(log_tilted - top)
            log_mgf = top + math.log(float(tilted.sum()))
            tilted = tilted / tilted.sum()
        mean = float(np.dot(tilted, nodes.loss))
        return _Moments(
            log_mgf, mean, float(np.dot(tilted, (nodes.loss - mean) ** 2)), float(np.ptp(nodes.loss))
        )

    def _saddle(self, floor: float) -> tuple[float, _Moments]:
        """The c > 0 that minimises T K(c) - c eps - log(c (c+1)), a convex function: guarded Newton.

        Ends early at any c whose Chernoff bound is below the floor.
        """
        T, eps = self.copies, self.epsilon
        low, high, c = 0.0, math.inf, 1.0
        for _ in range(200):
            m = self._moments(c)
            slope = T * m.mean - eps - 1 / c - 1 / (1 + c)
            curvature = T * m.variance + 1 / c**2 + 1 / (1 + c) ** 2
            settled = T * m.log_mgf - c * eps + _log_payoff_peak(c) < floor
            at_edge = slope < 0 and c * m.spread > _MAX_TILT
            if settled or at_edge or abs(slope) <= 0.01 * math.sqrt(curvature):
                break
            low, high = (c, high) if slope < 0 else (low, c)
            proposal = c - slope / curvature
            if not (low < proposal < high and 0.2 * c < proposal < 5 * c):
                proposal = min(4 * c, 0.5 * (c + high)) if slope < 0 else max(0.25 * c, 0.5 * (c + low))
            c = proposal
        return c, m

    def _step(self, c: float, log_size: float) -> float:
        """The largest frequency step whose aliases, by Chernoff at other tilts, are below `_ALIAS`."""
        allowed = log_size + math.log(_ALIAS / 4)
        factors = (0.0, 0.25, 0.5, 0.75, 0.9, 1.03, 1.06, 1.1, 1.2, 1.4, 1.7, 2.2, 3.0, 5.0)
        tilts = [(f * c, self.copies * self._moments(f * c).log_mgf if f else 0.0) for f in factors]
        period = 4 / c
        for _ in range(100):
            left = min(k - t * self.epsilon - (c - t) * period for t, k in tilts if t < c)
            right = min(k - t * self.epsilon - (t - c) * period for t, k in tilts if t > c)
            if max(left, right) <= allowed:
                break
            period *= 1.2
        return 2 * math.pi / period

    def _sum(self, c: float, step: float, share: float, rises: tuple[float, float]) -> tuple[float, float]:
        """The trapezoid sum, and how much of it the extra Gaussian mechanism may have added.

        1/(c(c+1)) + 2 Re sum_j e^(T (K(z_j) - K(c)) - i y_j eps) / (z_j (z_j + 1)) with z_j = c + i y_j.
        `share` is how much of delta the sum is: what a small share may be off by grows accordingly.
        """
        wanted, tolerated = (math.sqrt(2 * rise / (share * c * (1 + c))) for rise in rises)
        y, terms = np.empty(0), np.empty(0, dtype=np.complex128)
        start, count, mu = 1, _FIRST_BLOCK, math.inf
        while mu > tolerated and start < _MAX_FREQUENCIES:
            new_y = step * np.arange(start, start + count)
            exponent = self.copies * self._log_mgf_ratio(c, step, start, count) - 1j * new_y * self.epsilon
            y, terms = np.append(y, new_y), np.append(terms, np.exp(exponent))
            last = np.abs(terms[-(count // 4) :] / (c + 1j * y[-(count // 4) :]) ** 2)
            left = share * float(last.max()) * 4 * count * c * (1 + c)
            mu = math.sqrt(2 * max(0.0, math.log(max(left, 1e-300) / _NEGLIGIBLE))) / float(y[-1])
            start, count = start + count, 2 * count
        mu = max(mu, wanted)
        if mu**2 * c * (1 + c) > 1:  # too few frequencies for any digit
            return 0.0, math.inf
        terms *= np.exp(-0.5 * mu**2 * y * (y - 1j * (2 * c + 1)))
        z = c + 1j * y
        total = 1 / (c * (1 + c)) + 2 * float((terms / (z * (z + 1))).real.sum())
        density = 1 + 2 * max(0.0, float(terms.real.sum())) + 1e-9 * float(np.abs(terms).sum())
        growth = math.exp(0.5 * mu**2 * c * (1 + c))
        return total * growth, math.exp(mu**2 / 8) * mu**2 * density * growth

    def _log_mgf_ratio(self, c: float, step: float, start: int, count: int) -> Complex:
        """K(c + i y) - K(c) for y = step * (start .. start + count - 1).

        Direct sums cost nodes x frequencies exponentials. With y = y_a + y_b on two coarser grids and
        e^(i(y_a + y_b)l) - 1 = A + B + A B, A = e^(i y_a l) - 1, B = e^(i y_b l) - 1, they are one product
        of two thin matrices, and what differs from 1 keeps its digits however small the losses are.
        """
        nodes = self.model.nodes(tilt=c, max_frequency=step * (start + count))
        log_tilted = nodes.log_weight + c * nodes.loss
        tilted = np.exp(log_tilted - log_tilted.max())
        keep = tilted > 1e-25
        tilted, loss = tilted[keep] / tilted.sum(), nodes.loss[keep]
        inner = 1 << ((count.bit_length() - 1) // 2)
        outer = count // inner
        result = np.zeros((outer, inner), dtype=np.complex128)
        for first in range(0, loss.size, 1 << 12):
            part = slice(first, first + (1 << 12))
            A = _expm1_table(loss[part], step * start, step * inner, outer)
            A *= tilted[part]
            B = _expm1_table(loss[part], 0.0, step, inner)
            result += A.sum(axis=1)[:, None] + (B @ tilted[part])[None, :] + A @ B.T
        return _log1p(result.reshape(-1))


def _log_payoff_peak(c: float) -> float:
    """log of max over l of (1 - e^-l) e^(-c l), so that delta <= peak e^(T K(c) - c eps)."""
    return -c * math.log1p(1 / c) - math.log1p(c)


def _log1p(z: Complex) -> Complex:
    """log(1 + z) with full relative precision near 0, and no infinity at z = -1."""
    a, b = z.real, z.imag
    near = 0.5 * np.log1p(np.maximum(2 * a + a * a + b * b, -0.75))
    far = np.log(np.maximum(np.hypot(1 + a, b), 1e-300))
    return np.asarray(np.where(far < -0.5, far, near) + 1j * np.arctan2(b, 1 + a))


def _expm1_table(loss: Array, first: float, spacing: float, count: int) -> Complex:
    """e^(i y l) - 1 for y = first, first + spacing, ...: a row a frequency, a column a loss.

    Rows double by e^(i(a+b)) - 1 = A + B + A B, which costs a multiplication where sines cost ten.
    """
    table = np.empty((count, loss.size), dtype=np.complex128)
    table[0] = _expm1_i(first * loss)
    filled = 1
    while filled < count:
        shift = _expm1_i(filled * spacing * loss)
        more = table[filled : 2 * filled]
        np.multiply(table[: len(more)], 1 + shift, out=more)
        more += shift
        filled *= 2
    return table


def _expm1_i(x: Array) -> Complex:
    """e^(ix) - 1 with full relative precision near 0."""
    half = np.sin(0.5 * x)
    return np.asarray(-2 * half * half + 1j * np.sin(x))
