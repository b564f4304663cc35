"""Dynamic shuffle by the partition of Theorem 3.7 (arXiv 2411.04205): each epoch's maximum, in cells.

The maximum of one epoch is cut into cells; merging is post-processing, so E independent epochs reveal at
least what E copies of the discrete pair (P(cell), Q(cell)) do. The cells are chosen by the maximum's own
loss: cell j holds losses within spacing/2 of j * spacing, so its merged loss is j * spacing + d_j with d_j of
the order of spacing^2, and rounding all of them down to one lattice j * spacing + d, d chosen well, costs
that order too, not spacing/2.

Departure: the theorem spaces the cuts evenly in C and numbers one cell too many at the top; any cuts are
valid.
"""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.interpolate import PchipInterpolator

from truebatch.accounting.lattice import LatticeLoss, log_sum_exp, saddle_point
from truebatch.accounting.shuffle_max import RAISED_CENTRE, MaxStatistic, log1mexp

Array = npt.NDArray[np.float64]

# Cells per standard deviation of the tilted one-epoch loss: merging costs about (1/24) / cells^2 in sigma.
_CELLS_PER_DEVIATION = 1500
_MAX_CELLS = 2**17
# The most that tilt times loss may vary within a cell: merging costs up to E/24 of its square in log delta.
_MOST_TILT = 0.02
# The coarse partition that finds the tilted mass: how many cuts it starts with; which of its cells are split,
# by the change of tilt times loss and by their width in deviations of the noise; and how often.
_COARSE_CUTS = 1500
_COARSE_TILT, _COARSE_WIDTH = 0.3, 0.1
_MOST_SPLITS, _MAX_ROUNDS, _MAX_COARSE = 32, 12, 2**16
# Tilted mass below e^_LOG_NEGLIGIBLE is merged into the end cells.
_LOG_NEGLIGIBLE = -42.0
_ULP = float(np.finfo(np.float64).eps)


@dataclass(frozen=True, kw_only=True)
class Cells:
    """A discrete pair: log P and log Q of each cell, and a bound on the rounding error of log P - log Q.

    `number[i]` is which cell it is: that between cuts[number - 1] and cuts[number].
    """

    number: npt.NDArray[np.int64]
    log_p: Array
    log_q: Array
    slack: Array

    def one_way(self, *, reverse: bool) -> tuple[Array, Array]:
        """Log-probability and loss of each cell, P against Q or Q against P; losses rounded down."""
        if reverse:
            return self.log_q, self.log_q - self.log_p - self.slack
        return self.log_p, self.log_p - self.log_q - self.slack


def partition(stat: MaxStatistic, cuts: Array) -> Cells:
    """Laws of the cell that holds max_t w_t, between increasing cuts; cells lost in rounding are left out."""
    C = stat.threshold(cuts)
    parts = [_cell_masses(stat, cuts, C, centre) for centre in (RAISED_CENTRE, stat.lowered_centre)]
    (log_p, slack_p), (log_q, slack_q) = parts
    kept = (slack_p < 0.1) & (slack_q < 0.1)
    return Cells(
        number=np.flatnonzero(kept), log_p=log_p[kept], log_q=log_q[kept], slack=(slack_p + slack_q)[kept]
    )


def _cell_masses(stat: MaxStatistic, cuts: Array, threshold: Array, centre: float) -> tuple[Array, Array]:
    """Log of each cell's mass, a difference of the smaller tails, and its relative error."""
    log_cdf = np.concatenate(([-np.inf], stat.log_cdf(cuts, centre=centre), [0.0]))
    log_sf = np.concatenate(([0.0], stat.log_sf(cuts, centre=centre), [-np.inf]))
    upper = log_cdf[1:] > -math.log(2)
    big = np.where(upper, log_sf[:-1], log_cdf[1:])
    with np.errstate(invalid="ignore"):
        ratio = np.where(upper, log_sf[1:], log_cdf[:-1]) - big
    ratio = np.where(np.isfinite(big), np.minimum(ratio, 0.0), 0.0)
    log_mass = big + log1mexp(ratio)
    # A tail probability at u standard deviations carries a relative error of about u^2 units in the last
    # place.
    reach = 1.0 + (np.abs(np.concatenate((threshold[:1], threshold)) - centre) / stat.scale) ** 2
    with np.errstate(over="ignore", invalid="ignore"):
        slack = 4 * _ULP * (reach + np.abs(np.where(np.isfinite(big), big, 0.0))) * np.exp(big - log_mass)
    return log_mass, np.where(np.isfinite(log_mass), slack, np.inf)


def log_delta_partition(stat: MaxStatistic, *, copies: int, epsilon: float) -> float:
    """Log delta of `copies` epochs from the maximum's partition: lower, the better direction of adjacency."""
    forward = _one_way(stat, copies, epsilon, reverse=False, least=-math.inf)
    return max(forward, _one_way(stat, copies, epsilon, reverse=True, least=forward))


@dataclass(frozen=True, kw_only=True)
class Focus:
    """Where the tilted mass of one epoch is: cuts that resolve it, range of losses, tilt, deviation.

    `ceiling` is E log M(tilt) of the coarse cells: about the most that log delta can be.
    """

    cuts: Array
    low: float
    high: float
    tilt: float
    deviation: float
    ceiling: float


def _one_way(stat: MaxStatistic, copies: int, epsilon: float, *, reverse: bool, least: float) -> float:
    """Log delta in one direction of adjacency; -inf where it is not worth looking, being below `least`."""
    focus = focus_on(stat, copies, epsilon, reverse)
    if focus is None or focus.ceiling < least - 1.0:
        return -math.inf
    low, high = focus.low, focus.high
    spacing = min(focus.deviation / _CELLS_PER_DEVIATION, _MOST_TILT / focus.tilt)
    spacing = max(spacing, (high - low) / _MAX_CELLS)
    if not spacing > 2**-50 * max(abs(low), abs(high)):  # losses too alike to be told apart in floating point
        return -math.inf
    cuts = _cuts_at_losses(stat, focus, spacing, reverse)
    log_prob, loss = partition(stat, cuts).one_way(reverse=reverse)
    # The end cells lie anywhere: the top one is rounded down to the range, the bottom one counts as loss
    # -infinity.
    kept = loss > low - 2 * spacing
    log_prob, loss = log_prob[kept], np.minimum(loss[kept], high + 2 * spacing)
    if not len(loss):
        return -math.inf
    exponents = log_prob + focus.tilt * (loss - epsilon / copies)
    offset = best_offset(loss, np.exp(exponents - exponents.max()), spacing)
    lattice = LatticeLoss.rounded(log_prob=log_prob, loss=loss, spacing=spacing, offset=offset, upward=False)
    return lattice.log_delta(copies=copies, epsilon=epsilon, upward=False, tilt=focus.tilt)


def focus_on(
    stat: MaxStatistic, copies: int, epsilon: float, reverse: bool, *, log_negligible: float = _LOG_NEGLIGIBLE
) -> Focus | None:
    """Coarse cuts over all that may matter, split where the tilted mass is until they resolve it.

    All that may matter: the noise, the raised coordinate, and both tilted to epsilon. Tilting to a loss x
    moves the raised coordinate by about s^2 x, and past epsilon + 2 log S it does not pay. The tilted mass
    may have two humps far apart, the noise and the raised coordinate; both are resolved.
    """
    s = stat.scale
    reach = s * (epsilon + 2 * math.log(stat.steps_per_epoch) + 1.0)
    cuts = stat.lone_loss(
        s * np.linspace(-12.0 - s * epsilon, RAISED_CENTRE / s + 12.0 + reach, _COARSE_CUTS)
    )
    for _ in range(_MAX_ROUNDS):
        cells = partition(stat, cuts)
        log_prob, loss = cells.one_way(reverse=reverse)
        excess = loss - epsilon / copies
        if not len(excess) or excess.max() <= 0.0:
            return None
        tilt = saddle_point(log_prob, excess, copies=copies)
        exponents = log_prob + tilt * excess
        weights = np.exp(exponents - exponents.max())
        weights /= weights.sum()
        held = weights > math.exp(log_negligible)
        finer = _split(stat, cuts, cells.number[held], tilt)
        if len(finer) == len(cuts) or len(finer) > _MAX_COARSE:
            break
        cuts = finer
    deviation = math.sqrt(float(weights @ (excess - float(weights @ excess)) ** 2))
    low, high = float(loss[held].min()), float(loss[held].max())
    ceiling = copies * log_sum_exp(exponents)
    return Focus(cuts=cuts, low=low, high=high, tilt=tilt, deviation=deviation, ceiling=ceiling)


def _split(stat: MaxStatistic, cuts: Array, cells: npt.NDArray[np.int64], tilt: float) -> Array:
    """Cuts with more of them in the given cells and their neighbours, where too wide for the tilt."""
    near = np.unique(np.clip(np.concatenate((cells - 1, cells, cells + 1)), 1, len(cuts) - 1))
    loss, threshold = stat.loss(cuts), stat.threshold(cuts)
    by_tilt = tilt * (loss[near] - loss[near - 1]) / _COARSE_TILT
    by_width = (threshold[near] - threshold[near - 1]) / (stat.scale * _COARSE_WIDTH)
    parts = np.minimum(np.ceil(np.maximum(by_tilt, by_width) - 1e-6), _MOST_SPLITS).astype(np.int64)
    near, parts = near[parts > 1], parts[parts > 1]
    if not len(near):
        return cuts
    starts = np.repeat(np.cumsum(parts) - parts, parts)
    fraction = (np.arange(parts.sum()) - starts) / np.repeat(parts, parts)
    low, high = np.repeat(cuts[near - 1], parts), np.repeat(cuts[near], parts)
    return np.asarray(np.union1d(cuts, low + fraction * (high - low)))


def _cuts_at_losses(stat: MaxStatistic, focus: Focus, spacing: float, reverse: bool) -> Array:
    """Cuts where the loss is an odd multiple of spacing / 2, by interpolation: they need not be exact."""
    low, high = (-focus.high, -focus.low) if reverse else (focus.low, focus.high)
    losses = stat.loss(focus.cuts)
    rising = np.concatenate(([True], np.diff(np.maximum.accumulate(losses)) > 0.0))
    edges = spacing * (np.arange(math.floor(low / spacing) - 1, math.ceil(high / spacing) + 2) + 0.5)
    edges = edges[(edges > losses[rising][0]) & (edges < losses[rising][-1])]
    if not len(edges):
        return focus.cuts
    cuts = np.asarray(PchipInterpolator(losses[rising], focus.cuts[rising])(edges))
    return cuts[np.concatenate(([True], np.diff(cuts) > 0.0))]


def best_offset(loss: Array, weights: Array, spacing: float) -> float:
    """Lattice offset in [0, spacing) with the least weighted sum of losses rounded down to it.

    The sum falls with slope sum(weights) as the offset nears a loss's own phase from below, and jumps up past
    it: the best offset is one of the phases, less a hair so that no loss falls to the point below by
    rounding.
    """
    phase = np.mod(loss, spacing)
    order = np.argsort(phase)
    phases, carried = phase[order], np.cumsum(weights[order])
    total, first_moment = carried[-1], float(weights @ phase)
    below = np.concatenate(
        ([0.0], carried[:-1])
    )  # weight of phases under the candidate: they fall a step further
    cost = first_moment - total * phases + spacing * below
    return float(phases[np.argmin(cost)]) - 1e-9 * spacing
