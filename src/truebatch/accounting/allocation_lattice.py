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
from scipy.special import log_ndtr, logsumexp

from truebatch.accounting.lognormal import Array, LogNormal, as_array, log_difference

_ROUNDING = 1e-15  # of a total of 1: negative masses this small are not real
_LEFT, _RIGHT = 0.4, 0.6  # a cell whose mean is outside this middle part is lowered at one end only


@dataclass(frozen=True, kw_only=True)
class LatticeVariable:
    """min(X, cap) moved onto whole multiples of the spacing beyond `start`, tilted by e^(tilt x).

    `weight[j]` is P(Y = start + index[j] spacing) e^(tilt x_j - log_mgf), which adds up to 1.
    """

    start: float
    spacing: float
    index: npt.NDArray[np.int64]
    weight: Array
    tilt: float
    log_mgf: float

    @property
    def points(self) -> Array:
        """The values of Y that carry weight."""
        return np.asarray(self.start + self.spacing * self.index)

    def log_mgf_change(self, shift: float, *, detached: bool = True) -> float:
        """log E[e^(shift Y)] under the tilted law; without the atom at 0 below a gap, if not `detached`."""
        first = 0 if detached or self.log_detached == -math.inf else 1
        log_weight = np.log(np.maximum(self.weight[first:], 1e-320))
        return float(logsumexp(log_weight + shift * self.points[first:]))

    @property
    def log_detached(self) -> float:
        """Tilted log-weight of an atom at 0 below a gap; -inf when there is none."""
        apart = self.index.size > 1 and self.index[1] - self.index[0] > 1
        return math.log(max(self.weight[0], 1e-320)) if apart else -math.inf


def lattice_upper(
    variable: LogNormal, *, low: float, cap: float, spacing: float, tilt: float
) -> LatticeVariable:
    """A variable on the lattice {0, low, low + spacing, ...} that is above min(X, cap) in the convex order.

    `low` and `cap` are moved outward to multiples of the spacing.
    """
    first = max(0, math.floor(low / spacing))
    last = max(first + 1, math.ceil(cap / spacing))
    index = np.arange(first, last + 1)
    points = as_array(spacing * index)
    log_prob, place = variable.cells(points)
    log_weight = _log_split(log_prob, place)
    log_weight[-1] = np.logaddexp(log_weight[-1], float(log_ndtr(-variable.z(points[-1:])[0])))
    if first > 0:  # what is below the first point is split between it and 0
        z = float(variable.z(points[:1])[0])
        at_zero = variable.log_put(float(points[0])) - math.log(points[0])
        log_weight[0] = np.logaddexp(log_weight[0], min(log_difference(float(log_ndtr(z)), at_zero), 0.0))
        index = np.concatenate([[0], index])
        log_weight = np.concatenate([[at_zero], log_weight])
    log_weight = log_weight - logsumexp(log_weight)  # rounding only: it is 1 by construction
    log_weight += tilt * spacing * index
    log_mgf = float(logsumexp(log_weight))
    return LatticeVariable(
        start=0.0,
        spacing=spacing,
        index=index,
        weight=np.exp(log_weight - log_mgf),
        tilt=tilt,
        log_mgf=log_mgf,
    )


def lattice_lower(
    variable: LogNormal, *, low: float, cap: float, spacing: float, tilt: float
) -> LatticeVariable:
    """A variable on a lattice {start, start + spacing, ...} that is below min(X, cap) in the convex order.

    c_j = C(x_j) - g_j with g as small as the chords being below C allows (`_log_lowering`); the greatest
    convex minorant of that is below C too. To the left of `start`, c is a line of slope -1: all X below it
    are merged into it. Where `start` was found as a root, the mean may be lower by a part in 10^12, which is
    why the order is that of increasing convex functions only.
    """
    start, put_covers = _merge_point(variable, low=low, spacing=spacing)
    steps = max(3, math.ceil((cap - start) / spacing))
    points = as_array(start + spacing * np.arange(steps + 1))
    log_prob, place = variable.cells(points)
    lowered = _log_lowering(variable, points, log_prob, place, last=True)
    lowered[0] = variable.log_put(start) - math.log(spacing) if put_covers else max(lowered[0], lowered[1])
    weight, scale = _lowered_weights(variable, points, log_prob, place, lowered, tilt)
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
    variable: LogNormal, points: Array, log_prob: Array, place: Array, lowered: Array, tilt: float
) -> tuple[Array, float]:
    """Second differences of c, tilted, times e^-scale; and the scale.

    P_j t_j goes to x_j+1 and g_j is taken off there; where they are equal no rounding may be left over.
    """
    with np.errstate(divide="ignore"):
        to_left, to_right = log_prob + np.log1p(-place), log_prob + np.log(place)
    below = log_ndtr(variable.z(points[:1]))
    above = log_ndtr(-variable.z(points[-1:]))
    every = np.concatenate([to_left, to_right, below, above])
    at = np.concatenate([points[:-1], points[1:], points[:1], points[-1:]])
    scale = float(logsumexp(every + tilt * at))

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


def _log_lowering(variable: LogNormal, points: Array, log_prob: Array, place: Array, *, last: bool) -> Array:
    """log(g_j / spacing): how much to lower c at each point so that every chord is below C.

    In the cell [x_j, x_j+1] of probability P and mean at the place t in [0, 1], the chord is above C at xi by
    at most spacing P min(t (1 - xi), (1 - t) xi), by Jensen, and at most spacing^2 max f / 8 where the
    density f is monotone. So each of these suffices: both ends down by the latter; the left one by
    spacing P t; the right one by spacing P (1 - t). One end is taken where the mean is far from the middle,
    and the left one in the last cell, beyond which nothing can be lowered.
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
    if last:
        left[-1], right[-1] = left_only[-1], -np.inf
    return as_array(np.maximum(np.concatenate([left, [-np.inf]]), np.concatenate([[-np.inf], right])))


def _merge_point(variable: LogNormal, *, low: float, spacing: float) -> tuple[float, bool]:
    """Where the lattice of the lower bound starts, and whether the put there covers what its cell needs.

    Below `start` c(k) is a line of slope -1 through c_0, so c_0 + start may not exceed the mean; that is
    g_0 spacing >= E[(start - X)_+]. If the put at `low` is at least what the cell needs, g_0 is the put.
    Otherwise the largest start is taken at which the need exceeds the put, and g_0 is the need. The next
    cell's need counts too, so that no mass at `start` becomes negative.
    """

    def surplus(log_start: float) -> float:
        start = math.exp(log_start)
        points = as_array(start + spacing * np.arange(4))
        log_prob, place = variable.cells(points)
        need = _log_lowering(variable, points, log_prob, place, last=False)
        return variable.log_put(start) - math.log(spacing) - float(max(need[0], need[1]))

    lowest = math.log(max(low, 1e-290))
    if surplus(lowest) >= 0:
        return math.exp(lowest), True
    highest = max(lowest, min(variable.log_mean, math.log(spacing))) + 1.0
    while surplus(highest) < 0:
        highest += 2.0
    root = float(brentq(surplus, lowest, highest, xtol=1e-13, rtol=1e-14))
    step = 1e-13
    while surplus(root) > 0:
        root -= step
        step *= 2
    return math.exp(root), False


def _convex_minorant(weight: Array, tilt_step: float) -> Array:
    """Masses of the greatest convex minorant of a call function whose second differences are `weight`.

    Where all are non-negative the function is convex already. Negative ones appear in the first cells,
    where the density moves much within a cell; only the stretch around them is worked on.
    """
    while weight.size > 3 and weight[-1] < 0:  # c < 0 before the last point: it may be raised to 0, as C >= 0
        step = math.exp(-tilt_step)
        weight[-3] -= weight[-1] * step**2
        weight[-2] += 2 * weight[-1] * step
        weight = weight[:-1]
    weight = np.where((weight < 0) & (weight > -_ROUNDING), 0.0, weight)
    negative = np.flatnonzero(weight < 0)
    if negative.size == 0:
        return weight
    stop = min(weight.size, 2 * int(negative[-1]) + 16)
    while True:
        untilted = weight[:stop] * np.exp(-tilt_step * np.arange(stop))
        slopes = np.concatenate([[0.0], np.cumsum(untilted[1:])])
        repaired = slopes.copy()
        cells = stop if stop < weight.size else stop - 1  # to the right of the last point c is 0 already
        repaired[:cells] = isotonic_regression(slopes[:cells]).x
        if stop == weight.size or repaired[-1] == slopes[-1]:
            break
        stop = min(weight.size, 2 * stop)
    masses = np.concatenate([[untilted[0] + repaired[0]], np.diff(repaired)])
    if masses[0] < -1e-12:
        raise ArithmeticError("the first cell of the lower lattice has a negative mass")
    masses = np.maximum(masses, 0.0)  # what is left below 0 is rounding
    return np.concatenate([masses * np.exp(tilt_step * np.arange(stop)), weight[stop:]])
