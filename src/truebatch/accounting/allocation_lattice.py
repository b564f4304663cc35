"""A lognormal variable put on a lattice, from above and from below in the convex order.

One step of a random allocation has the likelihood ratio X = e^((2w - 1) / (2 sigma^2)), w ~ N(0, sigma^2):
lognormal with E[X] = 1. A hockey-stick divergence of the whole epoch is E[(sum_s X_s - A)_+] up to a factor.
Write C(k) = E[(min(X, cap) - k)_+]. A variable Y on a lattice whose call function c is

- at least C everywhere (c and C meet at the lattice points, c is the chord in between: the mean-preserving
  split of each cell onto its two ends) raises every expectation of a convex function, of the sum too;
- at most C everywhere (the chord, lowered until it is below C) lowers it.

Both are of second order in the spacing. The mean of Y is that of min(X, cap) in both, so the order holds for
decreasing functions as well (Shaked and Shanthikumar, Stochastic Orders, Theorems 3.A.1 and 3.A.12).

Everything is in units of the strike A, in log space where numbers may be small, and comes out multiplied by
e^(tilt x), so that the far tail, which decides tiny deltas, keeps its digits.
"""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.optimize import brentq, isotonic_regression
from scipy.special import log_ndtr

from truebatch.accounting.lattice import log_sum_exp
from truebatch.accounting.lognormal import Array, LogNormal, as_array

_ROUNDING = 1e-15  # of a total of 1: negative masses this small are not real
_LEFT, _RIGHT = 0.4, 0.6  # a cell whose mean is outside this middle part is lowered at one end only


@dataclass(frozen=True, kw_only=True)
class LatticeVariable:
    """min(X, cap) moved onto whole multiples of the spacing beyond `start`, tilted by e^(tilt x).

    `weight[j]` is P(Y = start + index[j] spacing) e^(tilt x_j - log_mgf), which adds up to 1. `log_dropped`
    bounds the tilted mass of X that has no place on the lattice, relative to the same e^log_mgf.
    """

    start: float
    spacing: float
    index: npt.NDArray[np.int64]
    weight: Array
    tilt: float
    log_mgf: float
    log_dropped: float = -math.inf

    @property
    def points(self) -> Array:
        """The values of Y that carry weight."""
        return np.asarray(self.start + self.spacing * self.index)

    def log_mgf_change(self, shift: float) -> float:
        """log E[e^(shift Y)] under the tilted law."""
        return log_sum_exp(np.log(np.maximum(self.weight, 1e-320)) + shift * self.points)


def lattice_upper(
    variable: LogNormal, *, low: float, cap: float, spacing: float, tilt: float
) -> LatticeVariable:
    """A variable on the lattice {low, low + spacing, ...} that is above min(X, cap) in the convex order.

    `low` and `cap` are moved outward to multiples of the spacing. What is below `low` is left out, and
    counted in `log_dropped`: the order is that of X restricted to what is above.
    """
    first = max(0, math.floor(low / spacing))
    last = max(first + 1, math.ceil(cap / spacing))
    index = np.arange(first, last + 1)
    points = as_array(spacing * index)
    log_weight = _log_split(*variable.cells(points))
    log_weight[-1] = np.logaddexp(log_weight[-1], float(log_ndtr(-variable.z(points[-1:])[0])))
    log_weight += tilt * points
    log_mgf = log_sum_exp(log_weight)
    return LatticeVariable(
        start=0.0,
        spacing=spacing,
        index=index,
        weight=np.exp(log_weight - log_mgf),
        tilt=tilt,
        log_mgf=log_mgf,
        log_dropped=variable.log_tilted_below(float(points[0]), tilt) - log_mgf if first > 0 else -math.inf,
    )


def lattice_lower(
    variable: LogNormal, *, low: float, cap: float, spacing: float, tilt: float
) -> LatticeVariable:
    """A variable on {start, start + spacing, ...} that is below min(X, cap) in the increasing convex order.

    c_j = C(x_j) - g_j with g as small as the chords being below C allows (`_log_lowering`); the greatest
    convex minorant of that is below C too. The lattice starts at `low`, and what is below is left out, if so
    little is that one cell there would need more; else at the point into which all X below it are merged.
    """
    start, merged = _merge_point(variable, low=low, spacing=spacing)
    steps = max(3, math.ceil((cap - start) / spacing))
    points = as_array(start + spacing * np.arange(steps + 1))
    log_prob, place = variable.cells(points)
    lowered = _log_lowering(variable, points, log_prob, place, merged=merged, last=True)
    log_below = float(log_ndtr(variable.z(points[:1])[0])) if merged else -math.inf
    if merged:
        lowered[0] = max(lowered[0], lowered[1])
    weight, scale = _lowered_weights(variable, points, log_prob, place, lowered, log_below, tilt)
    weight = _convex_minorant(weight, tilt * spacing)
    total = math.fsum(weight)
    return LatticeVariable(
        start=start,
        spacing=spacing,
        index=np.arange(weight.size),
        weight=weight / total,
        tilt=tilt,
        log_mgf=scale + math.log(total),
    )


def _lowered_weights(
    variable: LogNormal,
    points: Array,
    log_prob: Array,
    place: Array,
    lowered: Array,
    log_below: float,
    tilt: float,
) -> tuple[Array, float]:
    """Second differences of c, tilted, times e^-scale; and the scale.

    P_j t_j goes to x_j+1 and g_j is taken off there; where they are equal no rounding may be left over.
    """
    with np.errstate(divide="ignore"):
        to_left, to_right = log_prob + np.log1p(-place), log_prob + np.log(place)
    below = np.asarray([log_below])
    above = log_ndtr(-variable.z(points[-1:]))
    every = np.concatenate([to_left, to_right, below, above])
    at = np.concatenate([points[:-1], points[1:], points[:1], points[-1:]])
    scale = log_sum_exp(every + tilt * at)

    def tilted(log_value: Array, at: Array) -> Array:
        return as_array(np.exp(np.minimum(log_value + tilt * at - scale, 700.0)))

    weight = np.zeros(points.size)
    weight[1:] += tilted(to_right, points[1:]) - tilted(lowered[:-1], points[1:])
    weight[:-1] += tilted(to_left, points[:-1]) - tilted(lowered[1:], points[:-1])
    weight[1:-1] += 2 * tilted(lowered[1:-1], points[1:-1])
    weight[:1] += tilted(lowered[:1], points[:1]) + tilted(below, points[:1])
    weight[-1:] += tilted(above, points[-1:])
    return weight, scale


def _log_split(log_prob: Array, place: Array) -> Array:
    """Each cell's probability, split between its two ends so that its mean stays."""
    log_weight = np.full(log_prob.size + 1, -np.inf)
    with np.errstate(divide="ignore"):
        log_weight[:-1] = log_prob + np.log1p(-place)
        log_weight[1:] = np.logaddexp(log_weight[1:], log_prob + np.log(place))
    return log_weight


def _log_lowering(
    variable: LogNormal, points: Array, log_prob: Array, place: Array, *, merged: bool, last: bool
) -> Array:
    """log(g_j / spacing): how much to lower c at each point so that every chord is below C.

    In the cell [x_j, x_j+1] of probability P and mean at the place t in [0, 1], the chord is above C at xi by
    at most spacing P min(t (1 - xi), (1 - t) xi), by Jensen, and at most spacing^2 max f / 8 where the
    density f is monotone. So each of these suffices: both ends down by the latter; the left one by
    spacing P t; the right one by spacing P (1 - t). One end is taken where the mean is far from the middle,
    the left one in the last cell, beyond which nothing can be lowered, and the right one in the first cell
    unless it is `merged` with what is below.
    """
    spacing = points[1] - points[0]
    density = variable.log_density(points)
    with np.errstate(divide="ignore"):
        left_only, right_only = log_prob + np.log(place), log_prob + np.log1p(-place)
    curved = np.maximum(density[:-1], density[1:]) + math.log(spacing / 8)
    mode = math.exp(variable.mu - variable.tau**2)
    monotone = (points[1:] <= mode) | (points[:-1] >= mode)
    with np.errstate(divide="ignore"):
        both = np.where(
            monotone, np.minimum(curved, left_only + np.log1p(-place)), left_only + np.log1p(-place)
        )
    left = np.where(place < _LEFT, left_only, np.where(place > _RIGHT, -np.inf, both))
    right = np.where(place < _LEFT, -np.inf, np.where(place > _RIGHT, right_only, both))
    if not merged:
        left[0], right[0] = -np.inf, right_only[0]
    if last:
        left[-1], right[-1] = left_only[-1], -np.inf
    return as_array(np.maximum(np.concatenate([left, [-np.inf]]), np.concatenate([[-np.inf], right])))


def _merge_point(variable: LogNormal, *, low: float, spacing: float) -> tuple[float, bool]:
    """Where the lattice of the lower bound starts, and whether what is below is merged into it.

    Then to the left c is a line of slope -1 through c_0, and c_0 + start may not exceed the mean, that is,
    g_0 spacing >= E[(start - X)_+]. The largest start is taken at which what the first two cells need is
    more; the mean may come out lower, by a part in 10^12.
    """

    def surplus(log_start: float) -> float:
        start = math.exp(log_start)
        points = as_array(start + spacing * np.arange(4))
        log_prob, place = variable.cells(points)
        need = _log_lowering(variable, points, log_prob, place, merged=True, last=False)
        return variable.log_put(start) - math.log(spacing) - float(max(need[0], need[1]))

    lowest = math.log(max(low, 1e-290))
    if surplus(lowest) >= 0:
        return math.exp(lowest), False
    highest = max(lowest, min(variable.log_mean, math.log(spacing))) + 1.0
    while surplus(highest) < 0:
        highest += 2.0
    root = float(brentq(surplus, lowest, highest, xtol=1e-13, rtol=1e-14))
    step = 1e-13
    while surplus(root) > 0:
        root -= step
        step *= 2
    return math.exp(root), True


def _convex_minorant(weight: Array, tilt_step: float) -> Array:
    """Masses of the greatest convex minorant of a call function whose second differences are `weight`.

    Where all are non-negative the function is convex already. Negative ones appear where the density moves
    much within a cell, mostly in the first ones; only the stretch around them is worked on.
    """
    while weight.size > 3 and weight[-1] < 0:  # c < 0 before the last point: it may be raised to 0, as C >= 0
        step = math.exp(-tilt_step)
        weight[-3] -= weight[-1] * step**2
        weight[-2] += 2 * weight[-1] * step
        weight = weight[:-1]
    width = 16
    while True:
        weight = np.where((weight < 0) & (weight > -_ROUNDING), 0.0, weight)
        negative = np.flatnonzero(weight < 0)
        if negative.size == 0:
            return weight
        weight, width = _repaired(weight, int(negative[0]), width, tilt_step), 2 * width


def _repaired(weight: Array, position: int, width: int, tilt_step: float) -> Array:
    """The convex minorant on the shortest stretch around a negative mass whose ends it leaves alone.

    Slopes are taken relative to the one before the stretch. To the right of the last point c is 0 already.
    """
    while True:
        start, stop = max(0, position - width), min(weight.size, position + width)
        tilt = tilt_step * np.arange(stop - start)
        untilted = weight[start:stop] * np.exp(-tilt)
        slopes = np.concatenate([[0.0], np.cumsum(untilted[1:])])
        repaired = slopes.copy()
        cells = slopes.size - (stop == weight.size)
        repaired[:cells] = isotonic_regression(slopes[:cells]).x
        first = untilted[0] + repaired[0]
        if (start == 0 or first >= 0) and (stop == weight.size or repaired[-1] == slopes[-1]):
            break
        width *= 2
    if first < -1e-12:
        raise ArithmeticError("the first cell of the lower lattice has a negative mass")
    # What is below 0 is rounding now; what is e^700 away from the start of the stretch is dropped: lower.
    masses = np.maximum(np.concatenate([[first], np.diff(repaired)]), 0.0)
    return np.concatenate([weight[:start], masses * np.exp(np.minimum(tilt, 700.0)), weight[stop:]])
