"""How many rows of each tile go to each step of an epoch, when batch sizes are given."""

import threading
from collections import OrderedDict
from collections.abc import Callable
from fractions import Fraction

import numpy as np

from truebatch.sampling.blocks import Int64s, KeyStream, Purpose
from truebatch.sampling.subsets import Cells, choose, values
from truebatch.sampling.tables import CountTable, binomial_table
from truebatch.sampling.tiling import CHUNK, Tiling, running

# Binomial(m, 1/2) is put together from Binomial(2^j, 1/2), 7 <= j <= 20, and the low 7 bits of m as coins.
_COIN_BITS, _TOP_BITS = 7, 20
_TOP_DRAW = 32
# A draw's counter is tile * 2^16 + digit * 2^11 + draw, so a tile has fewer than 2^31 rows.
_TILE_SHIFT, _DIGIT_SHIFT = 16, 11
_MOST_DIGITS = 32
_MEMO_ENTRIES = 2**22

Bounds = Callable[[int, Int64s], Int64s]


class SplitTree:
    """The table of counts (step, tile) of a uniform partition of the rows into batches of given sizes.

    The steps of an epoch are halved again and again. A node holds, for each tile, how many of its rows go to
    the node's steps; its left child takes a uniform subset of the node's rows, of the size that its steps add
    up to. That subset is counted, not listed: every row flips a coin, and then the surplus of one side moves
    to the other, each row of that side being as likely to move as any other. Nothing depends on which row
    is which, and the size comes out right, so every subset of that size is equally likely.

    `bounds(epoch, steps)`: how many rows of the epoch go to the steps before each of `steps`.
    """

    def __init__(self, stream: KeyStream, *, tiling: Tiling, num_steps: int, bounds: Bounds) -> None:
        self._stream, self._tiling, self._num_steps, self._bounds = stream, tiling, num_steps, bounds
        self._memo: OrderedDict[tuple[int, int], Int64s] = OrderedDict()
        self._lock = threading.Lock()
        self._memo_size = max(2, min(128, _MEMO_ENTRIES // tiling.num_tiles))

    @property
    def depth(self) -> int:
        """Levels from the whole epoch down to single steps."""
        return (self._num_steps - 1).bit_length()

    @property
    def distance_per_epoch(self) -> Fraction:
        """Total variation distance of an epoch's counts to the ideal ones, given uniform blocks."""
        if self._tiling.num_tiles == 1:
            return Fraction(0)
        return self._num_draws * _half_table(min(_TOP_BITS, self._tiling.tile_rows.bit_length())).distance

    @property
    def blocks_per_epoch(self) -> int:
        """A bound on the blocks of an epoch: counts, and all rows moved at each level, tenfold."""
        return self._num_draws + 10 * self._tiling.num_rows * (self.depth + 1)

    @property
    def _num_draws(self) -> int:
        draws = _MOST_DIGITS * (_TOP_BITS + (self._tiling.tile_rows >> _TOP_BITS))
        return 2 * self._num_steps * self._tiling.num_tiles * draws

    def window(self, epoch: int, first: int, last: int) -> tuple[Int64s, Int64s]:
        """For steps first..last-1 of the epoch: rows taken from each tile, and rows taken by earlier steps.

        Two arrays of shape (steps, tiles).
        """
        counts = self._tiling.rows_of(np.arange(self._tiling.num_tiles))[None, :]
        earlier = np.zeros_like(counts)
        nodes, begin, end = np.array([1]), np.array([0]), np.array([self._num_steps])
        for _ in range(self.depth):
            middle = (begin + end) // 2
            left = self._left(epoch, nodes, begin, middle, counts)
            nodes = _interleave(2 * nodes, 2 * nodes + 1)
            counts, earlier = _interleave(left, counts - left), _interleave(earlier, earlier + left)
            begin, end = _interleave(begin, middle), _interleave(middle, end)
            keep = (end > first) & (begin < last) & (begin < end)
            nodes, begin, end = nodes[keep], begin[keep], end[keep]
            counts, earlier = counts[keep], earlier[keep]
        return counts, earlier

    def _left(self, epoch: int, nodes: Int64s, begin: Int64s, middle: Int64s, counts: Int64s) -> Int64s:
        low = self._bounds(epoch, begin)
        wanted = self._bounds(epoch, middle) - low
        if self._tiling.num_tiles == 1:
            return wanted[:, None]
        if len(nodes) > 1:
            return self._split(epoch, nodes, counts, wanted)
        # Single nodes are on the path to a step: the next step shares most of it.
        name = (epoch, int(nodes[0]))
        with self._lock:
            left = self._memo.get(name)
            if left is not None:
                self._memo.move_to_end(name)
                return left
        left = self._split(epoch, nodes, counts, wanted)
        with self._lock:
            self._memo[name] = left
            while len(self._memo) > self._memo_size:
                self._memo.popitem(last=False)
        return left

    def _split(self, epoch: int, nodes: Int64s, counts: Int64s, wanted: Int64s) -> Int64s:
        left = share(self._stream, epoch, nodes, counts, wanted)
        surplus = left.sum(axis=1) - wanted
        size = max(1, CHUNK // (1 + int(np.abs(surplus).max())))
        rows = np.flatnonzero(surplus)
        for i in range(0, len(rows), size):
            some = rows[i : i + size]
            side = np.where(surplus[some, None] > 0, left[some], counts[some] - left[some])
            moved = self._spread(epoch, nodes[some], side, np.abs(surplus[some]))
            left[some] -= np.sign(surplus[some])[:, None] * moved
        return left

    def _spread(self, epoch: int, nodes: Int64s, side: Int64s, sizes: Int64s) -> Int64s:
        """Of the rows counted in each line of `side`, how many of each tile are in a uniform subset."""
        edges = np.cumsum(side, axis=1)
        steps = np.full_like(nodes, epoch)
        words = choose(
            self._stream, Purpose.MOVE, Cells(steps=steps, units=nodes, limits=edges[:, -1], sizes=sizes)
        )
        ranks = values(words, sizes).astype(np.int64)
        line = np.arange(len(nodes))
        stride = int(edges.max()) + 1
        keys = np.repeat(line, sizes) * stride + ranks
        below = np.searchsorted(keys, edges + line[:, None] * stride) - running(sizes)[:-1, None]
        return np.diff(below, axis=1, prepend=0)


def share(stream: KeyStream, epoch: int, nodes: Int64s, counts: Int64s, wanted: Int64s) -> Int64s:
    """For each node, about `wanted` of its rows: each row by its own coin, counted tile by tile.

    The coin's probability is wanted / total, its binary digits cut off after ceil(B / 2) + 1, where total
    has B bits. Digit by digit, every undecided row flips a fair coin: a row whose coin differs from the
    digit is decided, and is in the share when the digit is 1. Undecided rows that reach the end of the
    digits are not in the share.
    """
    total = counts.sum(axis=1)
    left = np.where((wanted == total)[:, None], counts, 0)
    rows = np.flatnonzero((wanted > 0) & (wanted < total))
    undecided, rest = counts[rows], wanted[rows]
    for digit in range(_MOST_DIGITS):
        go_on = (rest > 0) & (2 * digit <= np.frexp(total[rows])[1] + 1)
        rows, undecided, rest = rows[go_on], undecided[go_on], rest[go_on]
        if not rows.size:
            break
        rest = 2 * rest
        one = rest >= total[rows]
        rest -= np.where(one, total[rows], 0)
        zeros = halves(stream, epoch, nodes[rows], undecided, digit=digit)
        left[rows] += np.where(one[:, None], zeros, 0)
        undecided = np.where(one[:, None], undecided - zeros, zeros)
    return left


def halves(stream: KeyStream, epoch: int, nodes: Int64s, counts: Int64s, *, digit: int = 0) -> Int64s:
    """Binomial(m, 1/2) for each count m of each (node, tile).

    The sum of: the number of ones among the lowest (m mod 128) bits of draw 0; for each bit j in 7..19 of m,
    a Binomial(2^j, 1/2) from draw j; and floor(m / 2^20) times a Binomial(2^20, 1/2) from draws 32, 33, ...
    Draw d of a tile is the block (HALF, epoch, node, tile * 2^16 + digit * 2^11 + d).

    Guarantees:
      - Exact up to the tables' rounding.
    """
    unit = np.repeat(nodes, counts.shape[1])
    place = np.tile((np.arange(counts.shape[1]) << _TILE_SHIFT) + (digit << _DIGIT_SHIFT), len(nodes))
    m = counts.ravel()
    coins = stream.draw(Purpose.HALF, epoch, unit, place)
    coins &= _low_ones(m & ((1 << _COIN_BITS) - 1))
    result: Int64s = np.bitwise_count(coins).sum(axis=1, dtype=np.int64)
    for j in range(_COIN_BITS, min(_TOP_BITS, int(m.max()).bit_length())):
        some = np.flatnonzero(m >> j & 1)
        result[some] += _half_table(j).lookup(stream.draw(Purpose.HALF, epoch, unit[some], place[some] + j))
    times = m >> _TOP_BITS
    for i in range(int(times.max())):
        some = np.flatnonzero(times > i)
        draw = place[some] + (_TOP_DRAW + i)
        result[some] += _half_table(_TOP_BITS).lookup(stream.draw(Purpose.HALF, epoch, unit[some], draw))
    return result.reshape(counts.shape)


def _half_table(bits: int) -> CountTable:
    return binomial_table(trials=1 << bits, prob=Fraction(1, 2))


def _low_ones(bits: Int64s) -> Int64s:
    """Masks (low word, high word) of the lowest `bits` bits of a block, bits < 128."""
    every = np.uint64(2**64 - 1)
    low = np.where(bits >= 64, every, (np.uint64(1) << np.minimum(bits, 63).astype(np.uint64)) - np.uint64(1))
    high_bits = np.maximum(bits - 64, 0).astype(np.uint64)
    high = (np.uint64(1) << high_bits) - np.uint64(1)
    return np.stack((low, high), axis=-1)


def _interleave(first: Int64s, second: Int64s) -> Int64s:
    """first[0], second[0], first[1], second[1], ... along the first axis."""
    return np.stack((first, second), axis=1).reshape(2 * len(first), *first.shape[1:])
