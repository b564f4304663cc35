"""Certified tests of the shuffle pair itself, which see more than the maximum does.

The density ratio of the pair (P, Q) at w is a ratio of two sums over the coordinates, so the best test at
level l is

    {sum_t g(w_t) > 0},   g(w) = e^(2(w - 1)/s^2) - e^l e^(c(w - c/2)/s^2),

a sum of independent terms. Any other test is valid too, as long as its own probabilities are right: here g is
rounded to a lattice, and the test depends on the coordinates above two levels C_low <= C_high:

    reject or accept by the lattice sum    when no coordinate is above C_low;
    accept if g of that one + the rest >= t  when one is in (C_low, C_high];
    accept                                 otherwise.

With C_low = C_high every coordinate goes into the sum (`_bulk_tests`, absolute error about 1e-10); with a
band between them (`_band_tests`, rejecting in the first case) each term is a small closed-form probability
times a moderate one, so tiny probabilities keep their digits. The law of the sum comes from one transform;
its wrap-around and noise are bounded in lattice.py, the rounding of the cell masses here. P is rounded down,
Q up.

Whether (P, Q) dominates the mechanism is not known: these are lower bounds, and better tests may exist
elsewhere.
"""

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt
from scipy.special import log_ndtr, ndtr

from truebatch.accounting.lattice import Convolution, convolution_power
from truebatch.accounting.shuffle_max import RAISED_CENTRE, MaxStatistic

Array = npt.NDArray[np.float64]
Indices = npt.NDArray[np.int64]

_ULP = float(np.finfo(np.float64).eps)
# Steps of the lattice per standard deviation of g: rounding adds 1/(12 * 8^2), 0.13%, to the variance of the
# sum.
_STEPS_PER_DEVIATION = 8.0
_MAX_POINTS = 2**14
# One coordinate decides alone when it is this many deviations above what the others weigh down.
_SURE = 8.0
# Two coordinates at the foot of the band are together worth accepting.
_FOOT = 0.5
# With fewer coordinates than this above the foot, the band's tests say all that the bulk's would, with more
# digits.
_SPARSE = 1e-3
# Thresholds tried, as shifts of the level; and in deviations of the sum, where these are the finer ones.
_SHIFTS = np.linspace(-0.1, 0.1, 11)
_DEVIATIONS = np.linspace(-7.0, 7.0, 57)
# Mass outside the transform's window: below what the cell masses are good for.
_LOG_ALIAS = -32.0
# Outside, g overflows; there is nothing to gain there over the maximum.
_LEAST_SCALE, _MOST_LEVEL = 0.1, 100.0
# The bound on the transform's noise grows with S: beyond, no test would be certified to any use.
_MOST_STEPS = 10**7


@dataclass(frozen=True, kw_only=True)
class CertifiedTests:
    """Tests with P(accept) at least `p` and Q(accept) at most `q`."""

    p: Array
    q: Array


_NONE = CertifiedTests(p=np.empty(0), q=np.empty(0))


@dataclass(frozen=True, kw_only=True)
class _Gain:
    """g(w) = e^(2(w - 1)/s^2) - e^level e^(c(w - c/2)/s^2), w against plain noise under P and under Q."""

    stat: MaxStatistic
    level: float

    def at(self, w: Array) -> Array:
        """g itself."""
        c, s = self.stat.lowered_centre, self.stat.scale
        return np.exp(2 * (w - 1) / s**2) - np.exp(self.level + c * (w - c / 2) / s**2)

    def moments(self, cap: Array) -> tuple[Array, Array]:
        """E and standard deviation of g(w) 1(w <= cap), w ~ N(0, s^2)."""
        c, s, odds = self.stat.lowered_centre, self.stat.scale, math.exp(self.level)
        mean = ndtr((cap - 2) / s) - odds * ndtr((cap - c) / s)
        square = math.exp(4 / s**2) * ndtr((cap - 4) / s)
        square = square - 2 * odds * math.exp(2 * c / s**2) * ndtr((cap - 2 - c) / s)
        square = square + odds**2 * math.exp((c / s) ** 2) * ndtr((cap - 2 * c) / s)
        return mean, np.sqrt(np.maximum(square - mean**2, 0.0))

    def foot_and_top(self) -> tuple[float, float]:
        """Where one coordinate weighs half of what all others weigh it down, and where it decides alone."""
        s, S = self.stat.scale, self.stat.steps_per_epoch
        reach = max(float(self.stat.threshold(self.level + math.log(S) + 1.0)), 1.0)
        cap = np.linspace(0.0, min(reach, RAISED_CENTRE + 10 * s), 2000)
        mean, deviation = self.moments(cap)
        value, weight, spread = self.at(cap), -S * mean, math.sqrt(S) * deviation
        foot = cap[np.argmax(value >= _FOOT * weight)]
        sure = value >= np.maximum(weight, 0.0) + _SURE * spread
        return float(foot), float(cap[np.argmax(sure)] if sure.any() else cap[-1])

    def cells(self, high: float, spacing: float) -> tuple[int, Array]:
        """First index and edges of the cells [i - 1/2, i + 1/2) * spacing that hold g(w), w <= high."""
        c, s = self.stat.lowered_centre, self.stat.scale
        lowest = high if c == 0.0 else min(high, (self.level - math.log(2)) * s**2 + 1.5)
        least = -math.exp(self.level) if c == 0.0 else float(self.at(np.asarray(lowest)))
        first = math.floor(least / spacing + 0.5)
        last = max(math.floor(float(self.at(np.asarray(high))) / spacing + 0.5), 0)
        return first, spacing * (np.arange(first, last + 2, dtype=np.float64) - 0.5)

    def preimages(self, values: Array) -> tuple[Array, Array]:
        """Where g takes each value on its falling and on its rising branch; -inf where it does not."""
        s, c = self.stat.scale, self.stat.lowered_centre
        # With y = e^(w/s^2 - 1/s^2), g = y^2 - beta y^c.
        beta = math.exp(self.level + c * (1 - c / 2) / s**2)
        if c == 0.0:
            rising, falling = np.sqrt(np.maximum(values + beta, 0.0)), np.zeros_like(values)
        else:
            root = np.sqrt(np.maximum(beta**2 + 4 * values, 0.0))
            rising = (beta + root) / 2
            falling = np.clip(-2 * values / (beta + root), 0.0, rising)
        with np.errstate(divide="ignore"):
            return 1 + s**2 * np.log(falling), 1 + s**2 * np.log(rising)


@dataclass(frozen=True, kw_only=True)
class _Lattice:
    """g rounded to a lattice: the laws of its index for a coordinate of any centre, kept to an interval."""

    stat: MaxStatistic
    first: int
    falling: Array
    rising: Array

    def law(self, centre: float, low: float, high: float) -> tuple[Array, float]:
        """Mass at first, first + 1, ... of w in (low, high]; and how much of it rounding may misplace."""
        floor = -40.0 * self.stat.scale  # below, nothing is left in double precision
        rise = np.clip(self.rising, max(low, floor), high)
        fall = np.clip(self.falling, max(low, floor), high)
        up, up_slack = _interval(rise[:-1], rise[1:], centre, self.stat.scale)
        down, down_slack = _interval(fall[1:], fall[:-1], centre, self.stat.scale)
        return up + down, up_slack + down_slack


def _interval(low: Array, high: Array, centre: float, scale: float) -> tuple[Array, float]:
    """Normal mass of each interval, a difference of the smaller tails; and its rounding errors in sum."""
    a, b = (low - centre) / scale, (high - centre) / scale
    upper = a + b > 0
    near, far = np.where(upper, -a, b), np.where(upper, -b, a)
    tail = ndtr(near)
    # A tail at u deviations errs by about u^2 units in the last place; an empty interval by nothing.
    slack = 2 * _ULP * float(((4 + near**2) * tail)[high > low].sum())
    return np.maximum(tail - ndtr(far), 0.0), slack


@dataclass(frozen=True, kw_only=True)
class _Tail:
    """Pr[sum >= index] within `error`."""

    values: Array
    first: int
    error: float

    @classmethod
    def of(cls, law: Convolution, first: int, slack: float) -> "_Tail":
        values = np.append(np.cumsum(law.probs[::-1])[::-1], 0.0)
        # Noise of l2 norm e sums to at most e sqrt(n) over n points; the running sum rounds by n units.
        error = law.alias + law.noise * math.sqrt(len(law.probs)) + slack + _ULP * len(law.probs)
        return cls(values=values, first=law.first + first, error=error)

    def at(self, index: Indices, *, upward: bool) -> Array:
        position = np.clip(index - self.first, 0, len(self.values) - 1)
        return np.clip(self.values[position] + (self.error if upward else -self.error), 0.0, 1.0)


@lru_cache(maxsize=1024)
def pair_tests(stat: MaxStatistic, level: float) -> CertifiedTests:
    """Certified tests of the pair that are best, or nearly so, at levels around this one."""
    if not 2 <= stat.steps_per_epoch <= _MOST_STEPS or stat.scale < _LEAST_SCALE or level > _MOST_LEVEL:
        return _NONE
    gain = _Gain(stat=stat, level=level)
    foot, top = gain.foot_and_top()
    crowd = (stat.steps_per_epoch - 1) * float(ndtr(-foot / stat.scale))  # noise above the foot, on average
    kinds = [_NONE]
    if crowd > _SPARSE:
        kinds.append(_bulk_tests(gain, top))
    if 0.0 < foot < top and crowd < 1.0:
        kinds.append(_band_tests(gain, foot, top))
    return CertifiedTests(p=np.concatenate([k.p for k in kinds]), q=np.concatenate([k.q for k in kinds]))


def _on_lattice(gain: _Gain, low: float, high: float) -> tuple[_Lattice, Indices]:
    """g up to `high` on a lattice as fine as its values up to `low` ask for; and the thresholds to try."""
    stat, S = gain.stat, gain.stat.steps_per_epoch
    mean, deviation = (float(m) for m in gain.moments(np.asarray(low)))
    width = float(np.max(np.abs(gain.at(np.asarray([0.0, low, high])))))
    spacing = max(deviation / _STEPS_PER_DEVIATION, width / _MAX_POINTS)
    first, edges = gain.cells(high, spacing)
    falling, rising = gain.preimages(edges)
    lattice = _Lattice(stat=stat, first=first, falling=falling, rising=rising)
    base = lattice.law(0.0, -math.inf, low)[0]
    # Rounding moves the mean of the sum; a shift of the level moves it by about (e^shift - 1) e^level S.
    rounded = S * float(base @ (first + np.arange(len(base))))
    origin, moved = rounded - S * mean / spacing, np.expm1(_SHIFTS) * math.exp(gain.level) * S / spacing
    spread = (S * mean + math.sqrt(S) * deviation * _DEVIATIONS) / spacing
    spread = spread[(spread > moved[0]) & (spread < moved[-1])]
    return lattice, np.unique(np.round(origin + np.concatenate((moved, spread))).astype(np.int64))


def _bulk_tests(gain: _Gain, high: float) -> CertifiedTests:
    """Accept if a coordinate is above C_high, or if the lattice sum of all of them is large."""
    stat, S = gain.stat, gain.stat.steps_per_epoch
    lattice, thresholds = _on_lattice(gain, high, high)
    base, slack = lattice.law(0.0, -math.inf, high)
    centres = (RAISED_CENTRE, stat.lowered_centre)
    specials = [lattice.law(centre, -math.inf, high) for centre in centres]
    laws = convolution_power(base, S - 1, factors=[mass for mass, _ in specials], log_alias=_LOG_ALIAS)
    ends = []
    for centre, law, (_, more), upward in zip(centres, laws, specials, (False, True), strict=True):
        tail = _Tail.of(law, S * lattice.first, (S - 1) * slack + more)
        above = math.exp(float(stat.log_sf(stat.lone_loss(high), centre=centre)))
        ends.append(above + tail.at(thresholds, upward=upward))
    return _rounded(ends[0], ends[1])


def _band_tests(gain: _Gain, low: float, high: float) -> CertifiedTests:
    """Reject if no coordinate is above C_low; decide by the sum if one is in the band; accept otherwise."""
    stat, S = gain.stat, gain.stat.steps_per_epoch
    lattice, thresholds = _on_lattice(gain, low, high)
    base, slack = lattice.law(0.0, -math.inf, low)
    ends = []
    specials = [lattice.law(b, -math.inf, low) for b in (RAISED_CENTRE, stat.lowered_centre)]
    factors = [base, specials[0][0], specials[1][0]]
    laws = convolution_power(base, S - 2, factors=factors, log_alias=_LOG_ALIAS)
    noise_band = lattice.law(0.0, low, high)[0]
    alone = _Tail.of(laws[0], (S - 1) * lattice.first, (S - 1) * slack)
    for i, (centre, upward) in enumerate(((RAISED_CENTRE, False), (stat.lowered_centre, True))):
        beside = _Tail.of(laws[1 + i], (S - 1) * lattice.first, (S - 2) * slack + specials[i][1])
        accepted = np.asarray(_several(stat, low, high, centre))
        for band, tail, times in ((lattice.law(centre, low, high)[0], alone, 1), (noise_band, beside, S - 1)):
            held = np.flatnonzero(band > 0.0)
            need = thresholds[:, None] - (lattice.first + held)
            accepted = accepted + times * (tail.at(need, upward=upward) @ band[held])
        ends.append(accepted)
    return _rounded(ends[0], ends[1])


def _several(stat: MaxStatistic, low: float, high: float, centre: float) -> float:
    """Probability of a coordinate above C_high, or of none there and two or more in the band."""
    n, s = stat.steps_per_epoch - 1, stat.scale
    ends = np.array([low]), np.array([high])
    special, noise = (float(_interval(*ends, b, s)[0][0]) for b in (centre, 0.0))
    ratio = noise / float(ndtr(low / s))
    others = math.exp(n * float(log_ndtr(low / s)))
    first_order = n * ratio
    if first_order < 1e-3:
        third, fourth = (n - 2) * ratio / 3, (n - 2) * (n - 3) * ratio**2 / 12
        second_order = first_order * (n - 1) * ratio / 2 * (1 + third + fourth)
    else:
        second_order = math.expm1(n * math.log1p(ratio)) - first_order
    several = special * math.expm1(n * math.log1p(ratio)) + float(ndtr((low - centre) / s)) * second_order
    return others * several + math.exp(float(stat.log_sf(stat.lone_loss(high), centre=centre)))


def _rounded(p: Array, q: Array) -> CertifiedTests:
    """Closed-form terms are right to about 1e-11; moved outward by more."""
    return CertifiedTests(p=np.minimum(p * (1 - 1e-10), 1.0), q=np.minimum(q * (1 + 1e-10), 1.0))
