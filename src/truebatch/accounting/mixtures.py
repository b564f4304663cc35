"""One step of a subsampled Gaussian as a pair of two-point Gaussian mixtures on a line."""

import dataclasses
import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.optimize import brentq
from scipy.special import log_ndtr

from truebatch.accounting.composition import Nodes

Array = npt.NDArray[np.float64]

_KEEP = 90.0  # nats below the peak of the tilted density after which nodes are dropped
_ORDER = 32  # nodes a panel
_PHASE = 20.0  # radians (or nats) that a panel's half may turn: (20 e / 128)^64 is below 1e-23
_X, _W = np.polynomial.legendre.leggauss(_ORDER)


@dataclass(frozen=True, kw_only=True)
class Mixture:
    """(1 - prob) N(0, sigma^2) + prob N(mean, sigma^2)."""

    prob: float
    mean: float

    def log_density_ratio(self, x: Array, sigma: float) -> Array:
        """Log of the density over that of N(0, sigma^2), exact to the last digits near 0."""
        if self.prob == 0 or self.mean == 0:
            return np.zeros_like(x)
        u = (2 * self.mean * x - self.mean**2) / (2 * sigma**2)
        if self.prob == 1:
            return u
        small = np.log1p(self.prob * np.expm1(np.minimum(u, 1.0)))
        return np.where(u < 1, small, np.logaddexp(math.log1p(-self.prob), math.log(self.prob) + u))

    def log_upper_tail(self, x: float, sigma: float) -> float:
        """log P(X > x)."""
        at_zero, at_mean = float(log_ndtr(-x / sigma)), float(log_ndtr((self.mean - x) / sigma))
        with np.errstate(divide="ignore"):
            return float(np.logaddexp(np.log1p(-self.prob) + at_zero, np.log(self.prob) + at_mean))


@dataclass(frozen=True, kw_only=True)
class MixturePair:
    """The pair (P, Q) of two such mixtures; Poisson's is (U, V), or (V, U) with the mean at -1.

    The mean of P must not be below that of Q, so that the larger losses lie at the larger x. Outcomes x
    below `begin` or above `end` are left out.
    """

    p: Mixture
    q: Mixture
    sigma: float
    begin: float = -math.inf
    end: float = math.inf

    @property
    def lowest(self) -> float:
        """log(1 - prob) where Q is all at 0 and P has some of its mass there."""
        if self.p.mean > 0 and self.p.prob < 1 and (self.q.prob == 0 or self.q.mean == 0):
            return math.log1p(-self.p.prob)
        return -math.inf

    @property
    def _highest(self) -> float:
        """-log(1 - prob) where P is all at 0 and Q has some of its mass there."""
        if self.q.mean < 0 and self.q.prob < 1 and (self.p.prob == 0 or self.p.mean == 0):
            return -math.log1p(-self.q.prob)
        return math.inf

    def tail(self, loss: float) -> tuple[float, float]:
        """Mass above a loss under P and Q."""
        x = self._x_at(loss)
        return self.p.log_upper_tail(x, self.sigma), self.q.log_upper_tail(x, self.sigma)

    def loss_at(self, log_prob: float) -> float:
        """The loss at the x that P exceeds with this probability."""
        low, high = -40.0 * self.sigma, max(0.0, self.p.mean) + self.sigma * math.sqrt(1 - 2 * log_prob)

        def excess(x: float) -> float:
            return self.p.log_upper_tail(x, self.sigma) - log_prob

        # At log_prob = 0 the lowest x may already be exceeded with a probability that rounds to less than 1.
        x = low if excess(low) <= 0 else brentq(excess, low, high, xtol=1e-3 * self.sigma)
        return float(self._loss(np.array([x]))[0])

    def capped(self, loss: float) -> "MixturePair":
        """Without the outcomes whose loss is above this one."""
        return dataclasses.replace(self, end=self._x_at(loss))

    def _loss(self, x: Array) -> Array:
        return self.p.log_density_ratio(x, self.sigma) - self.q.log_density_ratio(x, self.sigma)

    def _x_at(self, loss: float) -> float:
        """Where the loss takes this value: in closed form for Poisson, by bisection otherwise."""
        if loss >= self._highest:
            return math.inf
        if loss <= self.lowest:
            return -math.inf
        if self.lowest > -math.inf:
            return self._invert(self.p, loss)
        if self._highest < math.inf:
            return self._invert(self.q, -loss)
        low, high = -self.sigma, self.sigma
        while float(self._loss(np.array([low]))[0]) > loss:
            low *= 2
        while float(self._loss(np.array([high]))[0]) < loss:
            high *= 2
        return float(brentq(lambda x: float(self._loss(np.array([x]))[0]) - loss, low, high, xtol=1e-14))

    def _invert(self, side: Mixture, log_ratio: float) -> float:
        """x with log(1 - q + q e^u) = log_ratio, u = (2 m x - m^2) / (2 sigma^2)."""
        if log_ratio < 30:
            odds = math.expm1(log_ratio) / side.prob
            if odds <= -1:  # rounding, next to the edge of the support
                return -math.inf if side.mean > 0 else math.inf
            u = math.log1p(odds)
        else:
            u = log_ratio - math.log(side.prob)
        return side.mean / 2 + self.sigma**2 * u / side.mean

    def nodes(self, *, tilt: float, max_frequency: float) -> Nodes:
        """Gauss-Legendre panels in x, as short as the integrand asks for.

        A panel's half is at most 2 sigma (the Gaussian), 1.2 pi sigma^2 / |mean| (the branch points of the
        loss lie pi sigma^2 / |mean| off the real axis), and so short that e^(zL) turns by `_PHASE` at most.
        """
        sigma = self.sigma
        missing = math.exp(self.p.log_upper_tail(self.end, sigma)) if self.end < math.inf else 0.0
        grid, loss = self._coarse(tilt)
        slope = np.abs(np.diff(loss)) / np.diff(grid)
        slope = 1.05 * np.maximum(np.maximum(slope, np.append(slope[1:], 0)), np.append(0, slope[:-1]))
        longest = min(2 * sigma, 1.2 * math.pi * sigma**2 / max(abs(self.p.mean), abs(self.q.mean)))
        per_half = np.maximum(1 / longest, (tilt + max_frequency) * slope / _PHASE)
        panels = np.concatenate([[0.0], np.cumsum(0.5 * per_half * np.diff(grid))])
        edges = np.interp(np.linspace(0, panels[-1], max(1, math.ceil(panels[-1])) + 1), panels, grid)
        half = 0.5 * np.diff(edges)
        x = ((edges[:-1] + half)[:, None] + half[:, None] * _X).reshape(-1)
        weight = (half[:, None] * _W).reshape(-1)
        log_p = self.p.log_density_ratio(x, sigma)
        log_weight = np.log(weight / (sigma * math.sqrt(2 * math.pi))) - 0.5 * (x / sigma) ** 2 + log_p
        return Nodes(log_weight=log_weight, loss=log_p - self.q.log_density_ratio(x, sigma), missing=missing)

    def _coarse(self, tilt: float) -> tuple[Array, Array]:
        """x where P, or P tilted by e^(tilt L), is within e^-90 of its peak, and the losses there."""
        sigma = self.sigma
        far = (1 + tilt) * abs(self.p.mean) + tilt * abs(self.q.mean) + 15 * sigma
        if self._highest < math.inf:  # the tilt can raise the density by no more than this
            far = min(far, sigma * math.sqrt(2 * (tilt * self._highest + _KEEP + 40)) + 1)
        size = min(100_000, max(400, math.ceil(6 * far / sigma)))
        x = np.linspace(max(-far, self.begin), min(far, self.end), size)
        log_p = self.p.log_density_ratio(x, sigma)
        loss = log_p - self.q.log_density_ratio(x, sigma)
        plain = log_p - 0.5 * (x / sigma) ** 2
        tilted = plain + tilt * loss
        kept = np.flatnonzero(np.maximum(tilted - tilted.max(), plain - plain.max() - 40) > -_KEEP)
        first, last = max(0, kept[0] - 1), min(size - 1, kept[-1] + 1)
        return x[first : last + 1], loss[first : last + 1]
