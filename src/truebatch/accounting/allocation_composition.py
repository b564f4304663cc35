"""E epochs of a random allocation: the one-epoch privacy loss curve on a lattice of epsilons, then composed.

Upper or lower values of the curve H(a) = E_Q[(M - a)_+] are taken at a_j = e^eps_j, and between them the
chord (`hockey_stick`); lower values are moved down first, until the chord is below the curve. Both losses,
log M under P and -log M under Q, are then on one lattice.
"""

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from truebatch.accounting.allocation_epoch import log_calls, log_puts_upper
from truebatch.accounting.allocation_plan import log_put_estimate
from truebatch.accounting.hockey_stick import connect_the_dots, increasing_slopes
from truebatch.accounting.lattice import LatticeLoss
from truebatch.accounting.lognormal import Array, as_array

# Of each one-epoch value, in epsilon. The lower lattice loses more near 0, where it is coarse.
_ACCURACY_UPPER, _ACCURACY_LOWER = 1e-5, 4e-6
_PER_DEVIATION = 150  # lattice points per standard deviation of the loss
_MAX_POINTS = 60_000
_MAX_GROUP = 1 << 14
_MERGED = -22.0  # log E[(a - M)_+] below which a lower bound does not resolve M
# Strikes share an FFT while the curve falls by about so many nats, while the tilt made for the first one
# lifts what is beyond the last one by no more, and over no more than so much epsilon.
_GROUP, _FIRST_REACH, _MAX_REACH = 8.0, 3.0, 1.5
_SPARE = 14.0  # nats by which what is cut off one epoch is below the composed result
_FIRST_DEPTH, _DEEPEST = -40.0, -100.0
FLOOR = -84.0  # of log(delta): upper bounds of several epochs fall no further


def log_delta_composed(
    *, sigma: float, epsilon: float, steps_per_epoch: int, num_epochs: int, upper: bool
) -> float:
    """log of an upper or lower bound on the E-fold composition's larger direction of adjacency.

    Direction: upper if `upper`; else lower, for D_eps(P^E || Q^E).
    """
    E = num_epochs
    depth = _FIRST_DEPTH
    while True:
        pair = _pair(sigma, steps_per_epoch, depth, upper)
        value = pair.remove.log_delta(copies=E, epsilon=epsilon, upward=upper)
        if upper and pair.add is not None:
            value = max(value, pair.add.log_delta(copies=E, epsilon=epsilon, upward=True))
        if value - math.log(E) - _SPARE > depth or depth <= _DEEPEST:
            return max(value, FLOOR) if upper else value
        depth = _DEEPEST


@dataclass(frozen=True, kw_only=True)
class _Pair:
    """The losses of one epoch in both directions; `add` is not needed for lower bounds."""

    remove: LatticeLoss
    add: LatticeLoss | None


@lru_cache(maxsize=64)
def _pair(sigma: float, steps: int, depth: float, upper: bool) -> _Pair:
    """The one-epoch pair, resolved down to probabilities of e^depth."""
    log_second = 1 / sigma**2  # of E[X^2]
    variance = math.exp(min(log_second, 700.0)) / steps * -math.expm1(-log_second)  # of M under Q
    deviation = math.sqrt(math.log1p(variance))
    spacing = deviation / _PER_DEVIATION
    return _upper_pair(sigma, steps, spacing, depth) if upper else _lower_pair(sigma, steps, spacing, depth)


def _call_groups(
    sigma: float, steps: int, spacing: float, depth: float, *, first: int, overlap: int, upper: bool
) -> list[Array]:
    """log H at spacing * (first, first + 1, ...) until it is below `depth`, in groups that overlap."""
    groups: list[Array] = []
    accuracy = _ACCURACY_UPPER if upper else _ACCURACY_LOWER
    reach = min(_FIRST_REACH * spacing * _PER_DEVIATION, _MAX_REACH)
    position = first
    while True:
        length = min(max(2 * overlap, math.ceil(reach / spacing)), _MAX_GROUP)
        epsilons = as_array(spacing * np.arange(position, position + length + overlap))
        values, tilt = log_calls(sigma=sigma, copies=steps, epsilons=epsilons, upper=upper, accuracy=accuracy)
        if (
            values[0] == math.inf
        ):  # too deep for the lattice: the curve falls, so the last value bounds the rest
            return [*groups, np.full(epsilons.size, groups[-1][-1])] if groups else [np.zeros(epsilons.size)]
        groups.append(values)
        position += length
        if math.isfinite(values[-1]):
            fall = (values[-3] - values[-1]) / (2 * spacing)
            reach = min(_GROUP / max(fall, 1e-3), math.log1p(_GROUP / max(tilt - fall, 1e-3)), _MAX_REACH)
        if values[-1] < depth or position - first > _MAX_POINTS:
            return groups


def _put_groups(sigma: float, steps: int, spacing: float, depth: float) -> Array:
    """Upper values of log E[(e^eps - M)_+] at spacing * (0, -1, -2, ...) until it is below `depth`."""
    groups: list[Array] = []
    reach = min(_FIRST_REACH * spacing * _PER_DEVIATION, _MAX_REACH)
    position = 0
    while True:
        length = min(max(8, math.ceil(reach / spacing)), _MAX_GROUP)
        epsilons = as_array(-spacing * np.arange(position, position + length))
        puts = log_puts_upper(sigma=sigma, copies=steps, epsilons=epsilons[::-1], accuracy=_ACCURACY_UPPER)
        groups.append(puts[::-1])
        position += length
        reach = max(_GROUP * 2 * spacing / max(puts[2] - puts[0], 1e-3), reach / 4)
        reach = min(reach, _MAX_REACH)
        if puts[0] < depth or position > _MAX_POINTS:
            return np.concatenate(groups)


def _joined(groups: list[Array], overlap: int) -> Array:
    """Groups that overlap as one; of two values the smaller is taken."""
    joined = groups[0]
    for group in groups[1:]:
        both = np.minimum(joined[-overlap:], group[:overlap])
        joined = np.concatenate([joined[:-overlap], both, group[overlap:]])
    return joined


def _upper_pair(sigma: float, steps: int, spacing: float, depth: float) -> _Pair:
    """Chords through upper values: calls for a >= 1, puts below."""
    log_call = _joined(_call_groups(sigma, steps, spacing, depth, first=0, overlap=2, upper=True), 2)
    log_put = _put_groups(sigma, steps, spacing, depth)
    remove, add = connect_the_dots(log_call=log_call, log_put=log_put, spacing=spacing)
    return _Pair(remove=remove, add=add)


def _lower_pair(sigma: float, steps: int, spacing: float, depth: float) -> _Pair:
    """Chords through lower values, moved down until they are below the curve; the right end goes to 0.

    All M below some point are merged into it: there the curve is a line of slope -1, which must not be above
    1 - a. Where it is below, some probability under P is missing, and counts for nothing.
    """
    first = 0
    while log_put_estimate(sigma=sigma, copies=steps, epsilon=first * spacing) > _MERGED:
        first -= _PER_DEVIATION // 4
    groups = _call_groups(sigma, steps, spacing, depth, first=first, overlap=6, upper=False)
    position, trimmed = first, []
    for log_values in groups:
        a = np.exp(spacing * np.arange(position, position + log_values.size))
        trimmed.append(_below_curve(np.exp(log_values), a))
        position += log_values.size - 6
    curve = np.append(_joined(trimmed, 2)[:-1], 0.0)
    loss = spacing * np.arange(first + 2, first + 2 + curve.size)
    a = np.exp(loss)
    meets = int(np.argmin(curve + a))
    mean = min(float(curve[meets] + a[meets]), 1.0)
    curve, a, loss = curve[meets:], a[meets:], loss[meets:]
    curve[0] = mean - a[0]
    width = np.diff(a)
    slopes = increasing_slopes(np.diff(curve) / width, width)
    mass = np.maximum(np.diff(slopes, prepend=-1.0, append=0.0), 0.0)
    with np.errstate(divide="ignore"):
        log_mass = np.log(mass)
    return _Pair(
        remove=LatticeLoss(log_prob=log_mass + loss, first=float(loss[0]), spacing=spacing), add=None
    )


def _below_curve(values: Array, a: Array) -> Array:
    """Values whose chords are below every convex function through `values`; two fewer at each end.

    In a cell with slope s between cells with slopes r < s < t, such a function is above the extensions of the
    neighbouring chords, so the chord is above it by at most (s - r) (t - s) / (t - r) times the width.
    """
    width = np.diff(a)
    bends = np.maximum(np.diff(np.diff(values) / width), 0.0)
    both = bends[:-1] + bends[1:]
    with np.errstate(invalid="ignore", divide="ignore"):
        gap = np.where(both > 0, width[1:-1] * bends[:-1] * bends[1:] / both, 0.0)
    return np.asarray(values[2:-2] - np.maximum(gap[:-1], gap[1:]))
