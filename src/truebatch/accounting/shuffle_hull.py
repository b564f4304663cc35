"""The shuffle pair by its certified tests: one epoch directly, more epochs by their concave hull.

A test with P(accept) >= p and Q(accept) <= q puts the point (q, p) on or below the pair's trade-off curve. By
Blackwell's theorem a pair whose curve is the concave hull of such points is a garbling of the shuffle pair,
so its E-fold composition is a lower bound on that of the shuffle pair. An edge of the hull is an outcome of
that discrete pair: its loss is the log of the edge's slope.
"""

import math

import numpy as np
import numpy.typing as npt

from truebatch.accounting.lattice import LatticeLoss, saddle_point
from truebatch.accounting.shuffle_max import RAISED_CENTRE, MaxStatistic
from truebatch.accounting.shuffle_pair import pair_tests
from truebatch.accounting.shuffle_partition import best_offset, focus_on

Array = npt.NDArray[np.float64]

# Levels of the tests, and how many at most: each brings tests for levels 0.1 to either side.
_LEVEL_STEP = 0.2
_MOST_LEVELS = 100
# Lattice points per standard deviation of the tilted loss: edges are rounded down by half a point on average.
_POINTS_PER_DEVIATION = 6000
_MOST_POINTS = 2**19
# Tilted mass below e^_LOG_NEGLIGIBLE is not looked at, and is not worth a test of its own below e^_LOG_MINOR.
_LOG_NEGLIGIBLE, _LOG_MINOR = -42.0, -20.0


def log_delta_one_epoch(stat: MaxStatistic, epsilon: float) -> float:
    """Log of the largest certified P(test) - e^epsilon Q(test), the max event's among them."""
    tests = pair_tests(stat, epsilon)
    best = stat.log_delta(epsilon)
    if not len(tests.p):
        return best
    gain = float(np.max(tests.p - math.exp(epsilon) * tests.q))
    return max(best, math.log(gain)) if gain > 0.0 else best


def log_delta_composed(stat: MaxStatistic, *, copies: int, epsilon: float) -> float:
    """Log delta of `copies` epochs of the hull's pair: lower, the better direction of adjacency."""
    return max(_one_way(stat, copies, epsilon, reverse) for reverse in (False, True))


def _one_way(stat: MaxStatistic, copies: int, epsilon: float, reverse: bool) -> float:
    focus = focus_on(stat, copies, epsilon, reverse)
    if focus is None:
        return -math.inf
    minor = focus_on(stat, copies, epsilon, reverse, log_negligible=_LOG_MINOR) or focus
    low, high = (-minor.high, -minor.low) if reverse else (minor.low, min(minor.high, epsilon + 1.0))
    step = max(_LEVEL_STEP, _LEVEL_STEP * math.ceil((high - low) / (_LEVEL_STEP * _MOST_LEVELS)))
    levels = step * np.arange(math.floor(low / step), math.ceil(high / step) + 1)
    tests = [pair_tests(stat, float(level)) for level in levels]
    cuts = focus.cuts
    # The maximum's own points, moved outward by more than their rounding.
    log_p, log_q = (stat.log_sf(cuts, centre=centre) for centre in (RAISED_CENTRE, stat.lowered_centre))
    p = np.concatenate([np.exp(log_p) * (1 - 1e-12), *(t.p for t in tests)])
    q = np.concatenate([np.minimum(np.exp(log_q) * (1 + 1e-12), 1.0), *(t.q for t in tests)])
    return _composed(*hull(p, q), copies, epsilon, reverse)


def hull(p: Array, q: Array) -> tuple[Array, Array]:
    """P- and Q-mass of the edges of the concave hull of (0, 0), the points (q, p) and (1, 1), in order."""
    points = sorted(zip(np.append(q, 1.0).tolist(), np.append(p, 1.0).tolist(), strict=True))
    chain = [(0.0, 0.0)]
    for x, y in points:
        while len(chain) > 1:
            (x0, y0), (x1, y1) = chain[-2], chain[-1]
            if (y1 - y0) * (x - x1) > (y - y1) * (x1 - x0):
                break
            chain.pop()
        if y > chain[-1][1]:
            chain.append((x, y))
    corners = np.array(chain)
    return np.diff(corners[:, 1]), np.diff(corners[:, 0])


def _composed(p: Array, q: Array, copies: int, epsilon: float, reverse: bool) -> float:
    """E copies of the pair with these masses, every loss rounded down to a lattice."""
    if reverse:
        p, q = q, p
    kept = (p > 0.0) & (q > 0.0)
    log_prob, loss = np.log(p[kept]), np.log(p[kept]) - np.log(q[kept])
    excess = loss - epsilon / copies
    if not len(excess) or excess.max() <= 0.0:
        return -math.inf
    tilt = saddle_point(log_prob, excess, copies=copies)
    exponents = log_prob + tilt * excess
    weights = np.exp(exponents - exponents.max())
    weights /= weights.sum()
    held = loss[weights > math.exp(_LOG_NEGLIGIBLE)]
    low, high = float(held.min()), float(held.max())
    deviation = math.sqrt(float(weights @ (excess - float(weights @ excess)) ** 2))
    spacing = max(deviation / _POINTS_PER_DEVIATION, (high - low) / _MOST_POINTS)
    if not spacing > 2**-50 * max(abs(low), abs(high)):
        return -math.inf
    kept = loss >= low
    log_prob, loss, weights = log_prob[kept], np.minimum(loss[kept], high), weights[kept]
    offset = best_offset(loss, weights, spacing)
    lattice = LatticeLoss.rounded(log_prob=log_prob, loss=loss, spacing=spacing, offset=offset, upward=False)
    return lattice.log_delta(copies=copies, epsilon=epsilon, upward=False, tilt=tilt)
