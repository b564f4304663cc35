"""Exact inverse distribution functions on a grid of 2^128: how many, from one block."""

import functools
import itertools
from collections.abc import Callable, Iterable
from fractions import Fraction

import numpy as np

from truebatch.sampling.blocks import Int64s, UInt64s

GRID_BITS = 128
_WORD_BITS = 64
_GUIDE_BITS = 16

# The ratio w(c+1) / w(c) of neighbouring weights, as two positive integers (zero past the last value).
Ratio = Callable[[int], tuple[int, int]]


class CountTable:
    """A distribution on whole numbers, read by inverse CDF from 128-bit blocks.

    The threshold of c is F_c = floor(2^128 P(X <= c) + 1/2), and a block U stands for the number of
    thresholds that are at most U.

    Guarantees:
      - Every threshold is correctly rounded: integer arithmetic brackets it from both sides.
      - Total variation distance to the exact law is at most `distance`, one unit of 2^-128 per threshold.
    """

    def __init__(self, *, first: int, thresholds: list[int]) -> None:
        self.first = first
        self.last = first + len(thresholds)
        self.distance = Fraction(len(thresholds) + 1, 2**GRID_BITS)
        self._thresholds = thresholds
        self._high = np.array([threshold >> _WORD_BITS for threshold in thresholds], dtype=np.uint64)
        self._guide = _guide(first=first, thresholds=thresholds)

    def lookup(self, blocks: UInt64s) -> Int64s:
        """The counts that blocks (low word, high word) stand for; one per block, any shape."""
        prefix = blocks.view("<u2")[..., 7]
        counts = self._guide.take(prefix)
        unsure = np.flatnonzero(counts < 0)
        if unsure.size:
            pairs = blocks.reshape(-1, 2)[unsure]
            high = pairs[:, 1]
            ranks = np.searchsorted(self._high, high, side="right")
            # Equal high words happen once in about 2^55 blocks; the low word then decides.
            for i in np.flatnonzero(self._high[np.maximum(ranks - 1, 0)] == high):
                ranks[i] = self._exact(low=int(pairs[i, 0]), high=int(high[i]))
            np.put(counts, unsure, ranks + self.first)
        return counts

    def _exact(self, *, low: int, high: int) -> int:
        block = high << _WORD_BITS | low
        return sum(threshold <= block for threshold in self._thresholds)


def _guide(*, first: int, thresholds: list[int]) -> Int64s:
    """The count for each 16-bit prefix of a block, or -1 where the prefix does not decide it."""
    shift = GRID_BITS - _GUIDE_BITS
    prefixes = np.arange(2**_GUIDE_BITS)
    at_start = np.searchsorted([-(-threshold >> shift) for threshold in thresholds], prefixes, side="right")
    at_end = np.searchsorted([threshold >> shift for threshold in thresholds], prefixes, side="right")
    guide: Int64s = np.where(at_start == at_end, at_start + first, -1).astype(np.int64)
    return guide


@functools.lru_cache(maxsize=64)
def binomial_table(*, trials: int, prob: Fraction) -> CountTable:
    """Binomial(trials, prob) for a rational prob.

    >>> binomial_table(trials=3, prob=Fraction(1, 2))._thresholds == [2**125, 2**127, 7 * 2**125]
    True
    """
    if prob == 0 or trials == 0:
        return CountTable(first=0, thresholds=[])
    if prob == 1:
        return CountTable(first=trials, thresholds=[])
    yes, no = prob.numerator, prob.denominator - prob.numerator
    mode = min(trials, (trials + 1) * yes // prob.denominator)
    return _table(mode=mode, ratio=lambda c: ((trials - c) * yes, (c + 1) * no))


@functools.lru_cache(maxsize=64)
def poisson_table(*, mean: int) -> CountTable:
    """Poisson(mean) for a whole mean."""
    return _table(mode=mean, ratio=lambda c: (mean, c + 1))


def _table(*, mode: int, ratio: Ratio) -> CountTable:
    precision = 256
    while True:
        table = _try_table(mode=mode, ratio=ratio, precision=precision)
        if table is not None:
            return table
        precision *= 2


def _try_table(*, mode: int, ratio: Ratio, precision: int) -> CountTable | None:
    """The table, or None when some threshold is not decided at this precision.

    Weights are scaled so that the mode's is 2^precision, and are carried as a pair (rounded down,
    rounded up). What is cut off the tails is put into the upper ends, so the true value is always between.
    """
    up = (ratio(c) for c in itertools.count(mode))
    down = (ratio(c)[::-1] for c in range(mode - 1, -1, -1))
    above, above_cut = _walk(up, precision=precision)
    below, below_cut = _walk(down, precision=precision)
    weights = [*reversed(below), (1 << precision, 1 << precision), *above]
    total_low = sum(low for low, _ in weights)
    total_high = sum(high for _, high in weights) + above_cut + below_cut
    thresholds = []
    sum_low, sum_high = 0, below_cut
    for low, high in weights:
        sum_low, sum_high = sum_low + low, sum_high + high
        threshold = _on_grid(sum_low, total_high)
        if threshold != min(_on_grid(sum_high, total_low), 1 << GRID_BITS):
            return None
        thresholds.append(threshold)
    num_zeros = thresholds.count(0)
    inside = [threshold for threshold in thresholds if 0 < threshold < 1 << GRID_BITS]
    return CountTable(first=mode - len(below) + num_zeros, thresholds=inside)


def _walk(ratios: Iterable[tuple[int, int]], *, precision: int) -> tuple[list[tuple[int, int]], int]:
    """Weights outward from the mode, and an upper bound on the sum of those cut off.

    The ratios fall outward (both laws are log-concave), so a geometric series bounds what is left. The cut is
    at 2^(64 - precision) of the mode's weight, far below the grid.
    """
    weights: list[tuple[int, int]] = []
    low = high = 1 << precision
    for numerator, denominator in ratios:
        low, high = low * numerator // denominator, -(-high * numerator // denominator)
        if high == 0:
            break
        if numerator < denominator:
            rest = high * denominator // (denominator - numerator) + 1
            if rest >> _WORD_BITS == 0:
                return weights, rest
        weights.append((low, high))
    return weights, 0


def _on_grid(numerator: int, denominator: int) -> int:
    return ((numerator << GRID_BITS + 1) + denominator) // (2 * denominator)
